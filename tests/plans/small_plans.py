# SPDX-License-Identifier: Apache-2.0
"""Small plans with their verdicts.

Each once had another: tests/plans/small, one file for each, with why.
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from plan_edit import (
    CONDITIONAL,
    EQUIVALENT,
    INPUT_ERROR,
    NOT_EQUIVALENT,
    ROOT,
    UNDECIDED,
    Failure,
    Runner,
    expect_code,
)

PLANS = ROOT / "tests" / "plans" / "small"
CODES = {
    "equivalent": EQUIVALENT,
    "not-equivalent": NOT_EQUIVALENT,
    "undecided": UNDECIDED,
    "conditional": CONDITIONAL,
    "input-error": INPUT_ERROR,
}


def check(runner, file):
    case = json.loads(file.read_text())
    directory = runner.path(file.stem)
    directory.mkdir()
    plan, model = directory / "p.plan.json", directory / case["plan"]["model"]
    plan.write_text(json.dumps(case["plan"]))
    model.write_text(json.dumps(case["model"]))
    result = runner.verify(plan, model)
    expect_code(result, CODES[case["expected"]])
    for line in case.get("says", []):
        if line not in result.out:
            raise Failure(f"the report does not say {line!r}:\n{result.out}")
    if result.code != INPUT_ERROR and result.report["statistics"]["workers_lost"]:
        raise Failure("a worker process crashed: " + result.summary())
    return case["expected"]


def main():
    runner = Runner(sys.argv[1])
    for file in sorted(PLANS.glob("*.json")):
        runner.case(file.stem, check, file)
    return runner.run()


if __name__ == "__main__":
    sys.exit(main())
