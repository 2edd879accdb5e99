# SPDX-License-Identifier: Apache-2.0
"""The program's files against docs/schemas/: schemas.py PROGRAM ENVIRONMENT."""

import copy
import gzip
import json
import pathlib
import shlex
import sys
import tempfile

import jsonschema
from cases import ROOT, Cases


def validator(name):
    schema = json.loads((ROOT / "docs" / "schemas" / f"{name}.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def read(file):
    return json.loads(
        gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_text()
    )


# A right plan or model with one mistake is refused by the schema, too: an editor shows it.
MISTAKES = [
    ("plan", lambda p: p["programs"][0]["nodes"][3].update(group="tp")),
    ("plan", lambda p: p["programs"][0]["nodes"][3].pop("comm")),
    ("plan", lambda p: p["programs"][0]["nodes"][0].update(name="x")),
    ("plan", lambda p: p["programs"][0]["nodes"][3].update(group_at=[{"tp": 0}])),
    ("plan", lambda p: p["programs"][0]["nodes"][3].update(sizes=[2, -1])),
    ("plan", lambda p: p["programs"][0]["nodes"][3].update(pairs=[[0, 1], [1]])),
    ("plan", lambda p: p["programs"][0]["tensors"]["h"].update(grad_of="w1")),
    ("plan", lambda p: p["lineage"][0].update(role="inputs")),
    ("plan", lambda p: p["lineage"][0]["shards"][0].pop("parts")),
    ("plan", lambda p: p.update(mesh={"dp": 2})),
    ("plan", lambda p: p.update(version=3)),
    ("plan", lambda p: p["lineage"][0]["shards"][0]["parts"][0].update(local_box=[[0, 1, 2]])),
    ("plan", lambda p: p["lineage"][0]["shards"][0]["parts"][0].update(permute=[1, 1])),
    ("plan", lambda p: p["lineage"][0]["shards"][0]["parts"][0].update(scale=0)),
    ("plan", lambda p: p["lineage"][0]["shards"][0]["parts"][0].update(padding=1)),
    ("model", lambda m: m["tensors"]["x"].update(shape=[-1, 8])),
    ("model", lambda m: m["tensors"]["x"].update(dtype="torch.float32")),
    ("model", lambda m: m["tensors"]["x"].update(value=1)),
    ("model", lambda m: m["nodes"][0].update(op="all_reduce")),
    ("model", lambda m: m.update(outputs=[])),
]


def main():
    program = str(pathlib.Path(sys.argv[1]).resolve())
    validators = {name: validator(name) for name in ("model", "plan", "report", "sweep")}
    failed = count = 0

    def check(name, schema, value):
        nonlocal failed, count
        count += 1
        error = jsonschema.exceptions.best_match(validators[schema].iter_errors(value))
        if error:
            failed += 1
            print(f"FAIL  {name}: {schema}: {list(error.absolute_path)}: {error.message[:200]}")

    with tempfile.TemporaryDirectory() as temporary:
        cases = Cases(program, temporary)
        for arch in ("gpt", "llama3", "mlp"):
            sizes = [
                "--layers",
                "2",
                "--dim",
                "16",
                *(["--hidden", "24"] if arch != "gpt" else []),
                *(["--heads", "4", "--seq", "8", "--vocab", "32"] if arch != "mlp" else []),
            ]
            cases.run(
                "generate",
                arch,
                *sizes,
                *shlex.split("--dp 2 --tp 2 --pp 2 --microbatches 2 --zero 1 -o"),
                "made-" + arch,
            )
        for arguments, code in cases.verdicts():
            cases.run(
                "verify",
                "-q",
                *arguments,
                "--json",
                "report.json",
                "--fix",
                "fixed.plan.json",
                code=None,
            )
            cases.run("verify", "-q", *arguments, "--json", "report.json", code=code)
            check(" ".join(arguments), "report", read(cases.directory / "report.json"))
        small = ROOT / "tests" / "plans" / "small"
        files = sorted(cases.directory.glob("*.json")) + sorted(p for p in small.rglob("*.json"))
        for file in files:
            value = read(file)
            format_ = value.get("format", "") if isinstance(value, dict) else ""
            if file.name == "broken.plan.json":
                continue  # wrong on purpose
            if "expected" in value and value["expected"] != "input-error":
                # Of tests/plans/small/: model and plan in one file.
                for which in ("model", "plan"):
                    check(f"{file.name}, {which}", which, value[which])
            if format_ in ("shardproof-plan", "shardproof-model"):
                check(file.name, format_.removeprefix("shardproof-"), value)
        right = {which: read(cases.directory / f"mlp.{which}.json") for which in ("model", "plan")}
        for i, (which, edit) in enumerate(MISTAKES):
            count += 1
            value = copy.deepcopy(right[which])
            edit(value)
            if validators[which].is_valid(value):
                failed += 1
                print(f"FAIL  mistake {i} in a {which} is accepted")
        example = read(ROOT / "docs" / "example_sweep.json")
        check("example_sweep.json", "sweep", example)
        (cases.directory / "sweep.json").write_text(
            json.dumps(
                {
                    "format": "shardproof-sweep",
                    "version": 1,
                    "plans": ["mlp*.plan.json", {"plan": "none.plan.json"}],
                    "configurations": [
                        {
                            "arch": "mlp",
                            "layers": 2,
                            "dim": 8,
                            "hidden": 8,
                            "dp": [1, 2],
                            "skip_invalid": True,
                        }
                    ],
                }
            )
        )
        check("sweep.json", "sweep", read(cases.directory / "sweep.json"))
        cases.run("sweep", "sweep.json", "--json", "results.json", "-q", code=None)
        results = read(cases.directory / "results.json")
        check("results of a sweep", "sweep", results)
        if len(results["configurations"]) < 4:
            raise SystemExit("the sweep ran next to nothing")
        for edit in ({"configurations": {}}, {"version": 2}, {"plan": []}):
            count += 1
            if validators["sweep"].is_valid({**example, **edit}):
                failed += 1
                print(f"FAIL  a sweep with {edit} is accepted")
    print(f"{count - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
