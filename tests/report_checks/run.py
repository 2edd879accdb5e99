# SPDX-License-Identifier: Apache-2.0
"""Runs one of the checks with the interpreter that has its packages.

    run.py ENVIRONMENT CHECK PROGRAM

ENVIRONMENT: the virtual environment of scripts/setup_report_checks.
"""

import pathlib
import subprocess
import sys

environment, check, program = sys.argv[1:]
python = pathlib.Path(environment) / "venv" / "bin" / "python"
if not python.exists():
    sys.exit(f"{environment} is not there: run scripts/setup_report_checks")
sys.exit(
    subprocess.run(
        [
            str(python),
            str(pathlib.Path(__file__).resolve().parent / check),
            program,
            *([environment] if check != "browser.py" else []),
        ],
        check=False,
    ).returncode
)
