# SPDX-License-Identifier: Apache-2.0
"""Scripts whose parameters come from files: safetensors, as `from_pretrained` reads them."""

import pathlib
import tempfile
import unittest

import torch
from command import run_command
from safetensors.torch import save_file

SCRIPT = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
import torch, torch.distributed as dist, torch.nn as nn, torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file
FILE, WAY = sys.argv[1:]
NAMES = ("0.weight", "2.weight")


def fill(model):
    if WAY == "copied":
        model.load_state_dict(load_file(FILE))
    elif WAY == "assigned":
        model.load_state_dict(load_file(FILE), assign=True)
    elif WAY == "slices":  # as transformers does
        with safe_open(FILE, framework="pt", device="cpu") as f, ThreadPoolExecutor(2) as pool:
            parts = [pool.submit(lambda n=n: f.get_slice(n)[...].to("cpu")) for n in NAMES]
            for name, part in zip(NAMES, parts):
                setattr(model[int(name[0])], "weight", nn.Parameter(part.result()))
    elif WAY == "saved":  # in this run
        path = FILE + ".again"
        save_file({n: p.detach() * 2 for n, p in model.named_parameters()}, path)
        with safe_open(path, framework="pt") as f:
            assert sorted(f.keys()) == sorted(NAMES), f.keys()
            model.load_state_dict({n: f.get_tensor(n) for n in f.keys()})


assert dist.is_initialized() == (os.environ["WORLD_SIZE"] == "1")
dist.init_process_group("gloo")
assert dist.is_initialized() and dist.get_backend() == "gloo"
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
with torch.device("meta"):
    assert torch.tensor([]).device.type == torch.get_default_device().type == "meta"
model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.GELU(), nn.Linear(16, 4, bias=False))
fill(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
x, y = torch.randn(8 // world, 8), torch.randn(8 // world, 4)
if CHANGES:
    with torch.no_grad():
        model[0].weight.mul_(1 + rank)
loss = F.mse_loss(model(x), y)
loss.backward()
for p in model.parameters():
    dist.all_reduce(p.grad)
    p.grad /= world
optimizer.step()
"""


class LoadedParameters(unittest.TestCase):
    WAYS = ("copied", "assigned", "slices", "saved")

    def check(self, changes, verdict, told):
        with tempfile.TemporaryDirectory() as folder:
            script, weights = (pathlib.Path(folder) / n for n in ("train.py", "w.safetensors"))
            script.write_text(SCRIPT.replace("CHANGES", str(changes)))
            save_file({"0.weight": torch.randn(16, 8), "2.weight": torch.randn(4, 16)}, weights)
            for way in self.WAYS:
                with self.subTest(way):
                    done = run_command("--mesh", "dp=2", str(script), str(weights), way)
                    self.assertIn(f"\n{verdict}: ", "\n" + done.stdout, done.stderr)
                    self.assertIn(told, done.stdout)
                    self.assertNotIn("opaque", done.stdout)
                    self.assertFalse(weights.with_name("w.safetensors.again").exists())

    def test_right(self):
        self.check(False, "EQUIVALENT", "Compared: 2 gradients, 2 new parameters")

    def test_ranks_that_change_what_they_have_loaded(self):
        self.check(True, "NOT EQUIVALENT", "different values of 0.weight")


if __name__ == "__main__":
    unittest.main()
