# SPDX-License-Identifier: Apache-2.0
"""The command `python -m shardproof.torch.trace` (numbers/script.py)."""

import sys

from ..numbers.script import main

if __name__ == "__main__":
    sys.exit(main())
