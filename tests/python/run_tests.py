# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of the Python package with the interpreter that has PyTorch.

    run_tests.py ENVIRONMENT PROGRAM [arguments of unittest]

ENVIRONMENT: the virtual environment of scripts/setup_pytorch, scripts/setup_packages or
scripts/setup_engines. PROGRAM: shardproof. The exit code is 77 (skipped) if the environment does
not exist and SHARDPROOF_NO_PYTORCH=1, or if it is not that of PyTorch alone.
"""

import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def main() -> int:
    environment, program, *rest = sys.argv[1:]
    python = pathlib.Path(environment) / "bin" / "python"
    if not python.exists():
        if os.environ.get("SHARDPROOF_NO_PYTORCH") == "1":
            print("skipped: SHARDPROOF_NO_PYTORCH=1 and PyTorch is not installed")
            return 77
        if python.parents[1].name != "pytorch":
            print(
                f"skipped: {environment} is not there: run scripts/setup_{python.parents[1].name}"
            )
            return 77
        print(
            f"PyTorch is not installed in {environment}: run scripts/setup_pytorch", file=sys.stderr
        )
        return 1
    paths = [ROOT / "python", ROOT / "examples" / "torch", ROOT / "tests" / "examples", HERE]
    variables = {
        **os.environ,
        "SHARDPROOF": program,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": "1",
        "SHARDPROOF_NUMBERS": "0",  # real_run_test asks for it
    }
    return subprocess.run(
        [
            str(python),
            "-W",
            "ignore",
            "-m",
            "unittest",
            *(rest or ["discover", "-s", str(HERE), "-p", "*_test.py"]),
        ],
        env=variables,
        cwd=HERE,
        check=False,
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
