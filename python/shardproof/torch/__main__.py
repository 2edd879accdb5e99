# SPDX-License-Identifier: Apache-2.0
"""The command `python -m shardproof.torch` (session/script.py)."""

import os
import sys

from .session.script import main

if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # what the script has left (atexit, threads that it stops on its last line) neither changes the
    # exit code nor keeps this process
    os._exit(code)
