# SPDX-License-Identifier: Apache-2.0
"""Programs that differ only in evenly spaced numbers are one program, and so is their lineage."""

import copy
import gzip
import json
import pathlib
import tempfile
import unittest

import shardproof.torch as sp
import torch
import torch.nn.functional as F
from shardproof.program import verify_files
from shardproof.torch.distributed.mesh import Mesh
from shardproof.torch.export.affine_programs import joined
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

MESH = Mesh({"dp": 2, "tp": 4})


def program(k, dp=0, **attrs):
    window = {"start": 8 * k, "stop": 8 * k + 8, **attrs}
    return {
        "at": {"dp": dp, "tp": k},
        "tensors": {"w": {"shape": [8]}},
        "nodes": [
            {"op": "slice", "in": ["x"], "out": ["w"], "attrs": window},
            {"op": "all_reduce", "in": ["w"], "out": ["y"], "comm": "c", "group": ["tp"]},
        ],
    }


def plan(change=lambda p: None):
    programs = [program(k, dp) for dp in range(2) for k in range(4)]
    change(programs)
    return joined(MESH, programs, [])[0]


def shard(k, low, **more):
    return {"box": [[low, low + 8]], "parts": [{"local": "w", "at": {"dp": 0, "tp": k}}], **more}


class Joined(unittest.TestCase):
    def test_windows(self):
        made = plan()
        self.assertEqual([{"dp": 0}, {"dp": 1}], [p["at"] for p in made])
        self.assertEqual({"tp": {"start": 8, "stop": 8}}, made[0]["nodes"][0]["step"])
        self.assertEqual({"start": 0, "stop": 8}, made[0]["nodes"][0]["attrs"])
        self.assertNotIn("step", made[0]["nodes"][1])

    def test_what_does_not_follow_evenly(self):
        def uneven(ps):
            ps[2]["nodes"][0]["attrs"]["start"] += 1

        def other_operator(ps):
            ps[5]["nodes"][0]["op"] = "narrow"

        def other_tensors(ps):
            ps[7]["tensors"]["w"] = {"shape": [9]}

        def communication(ps):
            for k, p in enumerate(ps):
                p["nodes"][1]["attrs"] = {"dim": k % 4}

        def a_rank_missing(ps):
            del ps[3]

        def not_whole(ps):
            for k, p in enumerate(ps):
                p["nodes"][0]["attrs"]["alpha"] = k % 4 / 2

        def masks(ps):
            for p in ps:
                p["nodes"][0]["op"] = "dropout"

        for change in (
            uneven,
            other_operator,
            other_tensors,
            communication,
            a_rank_missing,
            not_whole,
            masks,
        ):
            programs = [program(k, dp) for dp in range(2) for k in range(4)]
            change(programs)
            with self.subTest(change.__name__):
                self.assertEqual(programs, plan(change))

    def test_two_coordinates(self):
        programs = [{**program(0), "at": {"dp": dp}} for dp in range(2)]
        programs[1]["nodes"][0]["attrs"]["start"] = 3
        self.assertEqual(programs, joined(MESH, programs, [])[0])

    def test_lineage(self):
        programs = [program(k) for k in range(4)] + [program(k, 1) for k in range(4)]
        all_of = [shard(k, 8 * k) for k in range(4)]
        uneven = [shard(k, 8 * k + (k == 2)) for k in range(4)]
        replicas = [shard(k, 0) for k in range(4)]
        total = {"box": [[0, 8]], "parts": [p for k in range(4) for p in shard(k, 0)["parts"]]}
        half = {"box": [[0, 8]], "parts": [p for k in range(2) for p in shard(k, 0)["parts"]]}
        _, lineage = joined(
            MESH,
            programs,
            [
                {"tensor": t, "role": "checkpoint", "shards": s}
                for t, s in (
                    ("a", all_of),
                    ("b", uneven),
                    ("c", replicas),
                    ("d", [total]),
                    ("e", [half]),
                    ("f", all_of[:3]),
                    ("g", all_of[::-1]),
                )
            ],
        )
        found = {e["tensor"]: e["shards"] for e in lineage}
        here = [{"local": "w", "at": {"dp": 0}}]
        self.assertEqual([{"box": [[0, 8]], "parts": here, "step": {"tp": [8]}}], found["a"])
        self.assertEqual(uneven, found["b"])
        self.assertEqual([{"box": [[0, 8]], "parts": here}], found["c"])
        self.assertEqual([{"box": [[0, 8]], "parts": here, "sum": ["tp"]}], found["d"])
        self.assertEqual([half], found["e"])
        self.assertEqual(all_of[:3], found["f"])
        self.assertEqual(found["a"], found["g"])


class Recorded(unittest.TestCase):
    """A vocabulary cut into four windows."""

    def captured(self):
        def step(world):
            model = torch.nn.ModuleDict(
                {"table": torch.nn.Embedding(32, 8), "out": torch.nn.Linear(8, 32, bias=False)}
            )
            if not world.single:
                parallelize_module(
                    model,
                    world.mesh("tp"),
                    {
                        "table": RowwiseParallel(input_layouts=Replicate()),
                        "out": ColwiseParallel(output_layouts=Replicate()),
                    },
                )
            ids, labels = (
                world.input(name, (6,), torch.long, high=32) for name in ("ids", "labels")
            )
            return F.cross_entropy(model["out"](model["table"](ids)), labels)

        return sp.capture(lambda world: _trained(step, world), mesh={"tp": 4})

    def verdict(self, captured, plan):
        with tempfile.TemporaryDirectory() as folder:
            _, file = captured.write(f"{folder}/step")
            with gzip.open(file, "wt") as f:
                json.dump({**plan, "model": "step.model.json.gz"}, f)
            self.assertTrue(pathlib.Path(f"{folder}/step.model.json.gz").exists())
            return verify_files(file, arguments=["--confirm", "off"]).verdict

    def test_verdicts(self):
        captured = self.captured()
        self.assertEqual(1, len(captured.plan["programs"]))
        moving = [i for i, n in enumerate(captured.plan["programs"][0]["nodes"]) if "step" in n]
        self.assertTrue(moving)
        self.assertEqual("EQUIVALENT", self.verdict(captured, captured.plan))
        for i in moving:
            wrong = copy.deepcopy(captured.plan)
            node = wrong["programs"][0]["nodes"][i]
            node["step"] = {
                "tp": {
                    key: 0 if key in ("start", "stop") else by
                    for key, by in node["step"]["tp"].items()
                }
            }
            self.assertNotEqual("EQUIVALENT", self.verdict(captured, wrong), node)


def _trained(step, world):
    loss = step(world)
    loss.backward()
    return loss


if __name__ == "__main__":
    unittest.main()
