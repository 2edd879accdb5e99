# SPDX-License-Identifier: Apache-2.0
"""`python -m shardproof.sweep`."""

import sys

from .command import main

if __name__ == "__main__":  # not where a process of an engine imports it
    sys.exit(main())
