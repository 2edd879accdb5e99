#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the diagnosis of known bugs and writes docs/diagnosis.md.

    scripts/diagnosis_table.py PROGRAM [--places N] [--shared DIR] [--large L1,L2,L3] [--only BUG]
                               [--write docs/diagnosis.md] [--verbose]

Every bug of `PROGRAM mutate --list` is put into generated plans (and those of DIR), at up to N
places of each. Each wrong plan is verified. For each bug the table has

* how many plans were refuted, the median time and the longest;
* how often the first three nodes of the first cause have the edited node, or a direct reader or
  writer of its tensors;
* how often the sentence names such a node or tensor;
* how many plans that `--fix` wrote are the plan before the bug.

With --shared or --large only those plans are measured, and the table has a line for each plan.
"""

import argparse
import collections
import gzip
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "plans" / "lib"))
from document import write_between
from judgement import FirstCause, stem

MANY = "--dp 2 --tp 2 --pp 2 --microbatches 2"
LLAMA = "--layers 2 --dim 16 --hidden 24 --heads 4 --kv-heads 2 --seq 8 --vocab 32"
GPT = "--layers 2 --dim 16 --heads 4 --seq 8 --vocab 32"
GENERATED = {
    "mlp": f"mlp {MANY}",
    "mlp, ZeRO 1": "mlp --dp 4 --microbatches 2 --zero 1 --clip 1.0",
    "mlp, ZeRO 3": f"mlp {MANY} --zero 3 --schedule 1f1b",
    "llama3": f"llama3 {LLAMA} {MANY}",
    "llama3, sequence parallel": (
        f"llama3 {LLAMA} {MANY} --vocab-parallel --sequence-parallel --zero 1 --schedule 1f1b "
        f"--recompute"
    ),
    "gpt, tied": f"gpt {GPT} {MANY} --vocab-parallel --sequence-parallel --zero 1 --schedule 1f1b",
}
LARGE = {
    "L1": "llama3 --size 8B --dp 512 --microbatches 1",
    "L2": "llama3 --size 70B --dp 16 --tp 8 --pp 4 --microbatches 32",
    "L3": "llama3 --size 405B --dp 64 --tp 8 --pp 16 --microbatches 16",
}
# Ranks on which a fixed plan is compared with the plan before the bug: all of a small plan, else
# the first and last of each program.
COMPARED_WHOLE = 64
REFUTED = 10
MOST_SECONDS = 600  # of one run, on a busy machine
COPIES = ("identity", "contiguous", "to")


def run(*command, timeout=120):
    return subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, timeout=timeout
    )


def load(path):
    with gzip.open(path, "rt") if str(path).endswith(".gz") else open(path) as f:
        return json.load(f)


def by_rank(plan):
    """For each rank what its nodes do: equal for plans that differ only in how they are written.

    Copies are followed and dead nodes left out.
    """
    mesh = plan["mesh"]
    ranks = 1
    for _, size in mesh:
        ranks *= size
    mentioned = {
        part["local"]
        for entry in plan["lineage"]
        for shard in entry["shards"]
        for part in shard["parts"]
    }
    made = {}
    coordinates, members = {}, collections.defaultdict(list)
    for rank in range(ranks):
        rest, at = rank, {}
        for axis, size in reversed(mesh):
            at[axis] = rest % size
            rest //= size
        coordinates[rank] = at
        members[
            next(
                i
                for i, program in enumerate(plan["programs"])
                if all(at[a] == c for a, c in program.get("at", {}).items())
            )
        ].append(rank)
    for rank, p in [
        (r, p)
        for p, all_of in members.items()
        for r in (all_of if ranks <= COMPARED_WHOLE else {all_of[0], all_of[-1]})
    ]:
        at, program = coordinates[rank], plan["programs"][p]
        alias = {}
        for node in program["nodes"]:
            if node["op"] in COPIES and node["out"][0] not in mentioned and len(node["in"]) == 1:
                alias[node["out"][0]] = stem(node["in"][0])
        produced = {t for n in program["nodes"] if n["op"] not in COPIES for t in n["out"] if t}
        renamed = {}
        for node in program["nodes"]:
            if (
                node["op"] in COPIES
                and node["out"][0] in mentioned
                and stem(node["in"][0]) in produced - mentioned
            ):
                renamed[stem(node["in"][0])] = node["out"][0]

        def name(operand, alias=alias, renamed=renamed):
            if operand is None:
                return None
            base, _, mb = operand.partition("#")
            while base in alias:
                base = alias[base]
            base = renamed.get(base, base)
            return base + ("#" + mb if mb else "")

        wanted = set(mentioned)
        nodes = [
            dict(n, out=[renamed.get(t, t) for t in n["out"]])
            for n in program["nodes"]
            if not (
                n["op"] in COPIES
                and (n["out"][0] in alias or renamed.get(stem(n["in"][0])) == n["out"][0])
            )
        ]
        kept = []
        grew = True
        live = [False] * len(nodes)
        while grew:
            grew = False
            for i in range(len(nodes) - 1, -1, -1):
                if live[i]:
                    continue
                if nodes[i]["op"] == "send" or wanted & {t for t in nodes[i]["out"] if t}:
                    live[i] = grew = True
                    wanted |= {stem(name(t)) for t in nodes[i]["in"] if t}
        for i, node in enumerate(nodes):
            if not live[i]:
                continue
            attrs = {
                k: str(float(v))
                if isinstance(v, (int, float)) and not isinstance(v, bool)
                else json.dumps(v)
                for k, v in node.get("attrs", {}).items()
            }
            if attrs.get("reduce") == '"sum"':
                del attrs["reduce"]
            peer = {a: c for a, c in node.get("to", node.get("from", {})).items() if at[a] != c}
            for mb in (
                range(plan.get("microbatches", 1)) if node.get("mb") == "*" else [node.get("mb")]
            ):
                operands = [(name(t) or "").removesuffix(f"#{mb}") for t in node["in"]]
                kept.append(
                    (
                        node["op"],
                        tuple(sorted(attrs.items())),
                        tuple(sorted(node.get("group", []))),
                        str(mb),
                        str(node.get("tag")),
                        tuple(sorted(operands) if node["op"] == "add" else operands),
                        tuple(t if t in wanted else None for t in node["out"]),
                        str(sorted(peer.items())),
                    )
                )
        made[rank] = collections.Counter(kept)
    return made


class Measurement:
    def __init__(self, program, model, plan, bug, seed, scratch, options=()):
        wrong, report, repaired = (
            scratch / "wrong.json",
            scratch / "report.json",
            scratch / "repaired.json",
        )
        for file in (report, repaired):
            file.unlink(missing_ok=True)
        done = run(program, "mutate", plan, "--bug", bug, "--seed", seed, "-o", wrong)
        self.ok = done.returncode == 0
        if not self.ok:
            return
        touched = [line.split()[0] for line in done.stdout.splitlines()[1:]]
        start = time.time()
        try:
            self.code = run(
                program,
                "verify",
                "--model",
                model,
                "--plan",
                wrong,
                "--json",
                report,
                "--fix",
                repaired,
                "--stage-timeout",
                60,
                *options,
                timeout=MOST_SECONDS,
            ).returncode
        except subprocess.TimeoutExpired:
            self.code = None
        self.seconds = time.time() - start
        document = load(report) if report.exists() else {"causes": []}
        first = FirstCause(document, load(wrong), touched)
        self.bug, self.place = bug, touched[0]
        for said in ("sentence", "kind", "causes", "named", "told", "fix", "proved"):
            setattr(self, said, getattr(first, said))
        self.inverse = repaired.exists() and by_rank(load(repaired)) == by_rank(load(plan))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--places", type=int, default=2)
    parser.add_argument("--shared")
    parser.add_argument("--large", help="which of L1, L2, L3, separated by commas")
    parser.add_argument("--only")
    parser.add_argument("--plans")
    parser.add_argument("--write")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    bugs = [
        line.split("  ", 1)[0]
        for line in run(arguments.program, "mutate", "--list").stdout.splitlines()
    ]
    results, by_plan = collections.defaultdict(list), collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as directory:
        scratch = pathlib.Path(directory)
        plans = {}
        for i, (name, options) in enumerate(GENERATED.items()):
            if (arguments.plans and arguments.plans != name) or arguments.shared or arguments.large:
                continue
            done = run(arguments.program, "generate", *options.split(), "-o", scratch / f"g{i}")
            plans[name] = done.stdout.split()
        for model in (
            sorted(pathlib.Path(arguments.shared).glob("*.model.json")) if arguments.shared else []
        ):
            base = str(model)[: -len(".model.json")]
            plans[pathlib.Path(base).name] = (
                model,
                next(
                    p
                    for p in (base + ".plan.json", base + ".plan.json.gz")
                    if pathlib.Path(p).exists()
                ),
            )
        for name in arguments.large.split(",") if arguments.large else []:
            plans[name] = run(
                arguments.program, "generate", *LARGE[name].split(), "-o", scratch / name
            ).stdout.split()
        right = {}
        for name, (model, plan) in plans.items():
            start = time.time()
            done = run(arguments.program, "verify", "--model", model, "--plan", plan)
            assert done.returncode == 0, f"{name} is a right plan: {done.stdout}{done.stderr}"
            right[name] = time.time() - start
            counts = dict(
                line.split()[:2]
                for line in run(arguments.program, "mutate", "--list", plan).stdout.splitlines()
            )
            for bug in bugs:
                if arguments.only and bug not in arguments.only.split(","):
                    continue
                for seed in range(1, 1 + min(arguments.places, int(counts[bug]))):
                    m = Measurement(arguments.program, model, plan, bug, seed, scratch)
                    if not m.ok:
                        continue
                    results[bug].append(m)
                    by_plan[name].append(m)
                    if arguments.verbose:
                        print(
                            f"{'N' if m.named else '-'}{'T' if m.told else '-'}"
                            f"{'P' if m.proved else '-'}{'I' if m.inverse else '-'} {m.code} "
                            f"{m.seconds:.2f}s {bug} in {name} --seed {seed} "
                            f"at {m.place} [{m.causes} {m.kind}] {m.sentence} | {m.fix}",
                            flush=True,
                        )
    if arguments.shared or arguments.large:
        lines = [
            "| plan | wrong plans | refuted | right plan | median, longest | named | in the "
            "sentence | fixed | as it was | not refuted, or not named |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        for name, of in by_plan.items():
            times = [m.seconds for m in of]
            open_ones = collections.Counter(m.bug for m in of if m.code != REFUTED or not m.named)
            named = ", ".join(f"`{b}`" + (f" {n}" if n > 1 else "") for b, n in open_ones.items())
            lines.append(
                f"| {name} | {len(of)} | {sum(m.code == REFUTED for m in of)} | "
                f"{right[name]:.1f} s | {statistics.median(times):.1f} s, {max(times):.1f} s | "
                f"{sum(m.named for m in of)} | "
                f"{sum(m.told for m in of)} | {sum(m.proved for m in of)} | "
                f"{sum(m.inverse for m in of)} | {named} |"
            )
        if arguments.write:
            write_between(arguments.write, "measured on large plans", lines)
        else:
            print("\n".join(lines))
        return
    lines = [
        "| bug | plans | refuted | median, longest | named | in the sentence | fixed | as it "
        "was | an example |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    total = collections.Counter()
    for bug in bugs:
        of = results[bug]
        if not of:
            continue
        count = {
            key: sum(bool(getattr(m, key)) for m in of)
            for key in ("named", "told", "proved", "inverse")
        }
        refuted = sum(m.code == REFUTED for m in of)
        total.update(count, plans=len(of), refuted=refuted)
        times = [m.seconds for m in of]
        lines.append(
            f"| `{bug}` | {len(of)} | {refuted} | {statistics.median(times):.1f} s, "
            f"{max(times):.1f} s | {count['named']} | {count['told']} | {count['proved']} | "
            f"{count['inverse']} | "
            f"{of[0].sentence.replace('|', '/')} |"
        )
    if total["plans"]:
        lines.append(
            f"| all | {total['plans']} | {total['refuted']} | | {total['named']} | "
            f"{total['told']} | {total['proved']} | {total['inverse']} | |"
        )
    if arguments.write:
        write_between(arguments.write, "measured", lines)
    else:
        print("\n".join(line.rsplit(" |", 2)[0] for line in lines))


if __name__ == "__main__":
    main()
