# SPDX-License-Identifier: Apache-2.0
"""Installs the library, builds this directory's program against it as a user would, and runs it.

usage: installed_library.py CMAKE BUILD PROGRAM
"""

import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
EXPECTED = """read: equivalent, 9 of 9 outputs proved
built: equivalent, 1 of 1 outputs proved
wrong: not-equivalent, 0 of 1 outputs proved
  lineage: y[0:4, 0:6] == part on rank 0 (tp=0)
    /programs/0/nodes/0 matmul layer.py:12
    /nodes/0 matmul 
"""


def run(*command):
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(
            f"{' '.join(map(str, command))}: exit code {result.returncode}\n"
            f"{result.stdout}{result.stderr}"
        )
    return result.stdout


def main():
    cmake, build, program = sys.argv[1:]
    with tempfile.TemporaryDirectory() as directory:
        place = pathlib.Path(directory)
        run(cmake, "--install", build, "--component", "library", "--prefix", place / "installed")
        # Without the build's own compiler cache and warnings: only what a user has.
        run(
            cmake,
            "-G",
            "Ninja",
            "-S",
            HERE,
            "-B",
            place / "build",
            f"-DCMAKE_PREFIX_PATH={place / 'installed'}",
            "-DCMAKE_BUILD_TYPE=Release",
        )
        run(cmake, "--build", place / "build")
        run(program, "generate", "mlp", "--tp", "2", "--output", place / "mlp")
        found = run(place / "build" / "check_step", place / "mlp.plan.json")
    if found != EXPECTED:
        sys.exit(f"found:\n{found}\nexpected:\n{EXPECTED}")


if __name__ == "__main__":
    main()
