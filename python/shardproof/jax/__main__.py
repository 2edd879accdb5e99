# SPDX-License-Identifier: Apache-2.0
"""python -m shardproof.jax PROGRAM [--single PROGRAM] [options of shardproof verify]

Verifies a program in a file: an artifact of jax.export, StableHLO, or HLO text from before
partitioning. The exit code is that of `shardproof verify`.
"""

from __future__ import annotations

import argparse
import sys

from ..program import ProgramError
from . import CODES, verify


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m shardproof.jax",
        description="Proves that XLA's partitioning of a program computes what the program "
        "computes on one device. Other options go to shardproof verify.",
        allow_abbrev=False,
    )
    parser.add_argument("program", help="an artifact of jax.export, StableHLO, or HLO text")
    parser.add_argument("--single", help="the same computation for one device")
    parser.add_argument("--directory", help="where the two HLO texts are written and kept")
    options, others = parser.parse_known_args()
    try:
        report = verify(
            options.program,
            single=options.single,
            directory=options.directory,
            arguments=others,
        )
    except ProgramError as error:
        print(f"shardproof: {error}", file=sys.stderr)
        return 2
    print(report)
    return CODES[report.verdict]


if __name__ == "__main__":
    sys.exit(main())
