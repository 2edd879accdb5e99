# SPDX-License-Identifier: Apache-2.0
"""python -m shardproof.nnscaler SINGLE.pkl PARALLEL.pkl PREFIX: writes PREFIX.model.json and
PREFIX.plan.json for `shardproof verify`."""

import argparse
import sys

from . import PlanError, convert


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m shardproof.nnscaler", description=__doc__)
    parser.add_argument("single", help="the pickled plan of one device: the specification")
    parser.add_argument("parallel", help="the pickled plan to verify")
    parser.add_argument("prefix", help="where the two files are written, without .plan.json")
    parser.add_argument(
        "--order",
        choices=("runtime", "annotation"),
        default="runtime",
        help="the order of pieces in gathers and chunks (default: the runtime's)",
    )
    given = parser.parse_args()
    try:
        print(convert(given.single, given.parallel, given.prefix, given.order))
    except (PlanError, OSError) as error:
        print(f"shardproof.nnscaler: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
