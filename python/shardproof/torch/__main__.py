# SPDX-License-Identifier: Apache-2.0
"""The command `python -m shardproof.torch` (session/script.py)."""

import sys

from .session.script import main

if __name__ == "__main__":
    sys.exit(main())
