# SPDX-License-Identifier: Apache-2.0
"""`python -m shardproof.torch` for tests that run it many times.

Importing PyTorch takes longer than most scripts. So one process imports what the command imports,
and forks one for each run, which then has what a new interpreter would have. script_test runs the
command itself.
"""

import atexit
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

# Reads a line of JSON for each run, and writes its exit code. In the forked process it ends like a
# script, so that the interpreter is shut down as usual.
_SERVER = """
import json, os, sys
import shardproof.torch.session.script
requests, answers = sys.stdin, os.fdopen(os.dup(1), "w")
for line in requests:
    request = json.loads(line)
    pid = os.fork()
    if pid == 0:
        break
    answers.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\\n")
    answers.flush()
else:
    os._exit(0)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
for number, path in ((1, request["stdout"]), (2, request["stderr"])):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
os.environ.clear()
os.environ.update(request["environment"])
os.chdir(request["folder"])
sys.path[0] = request["folder"]
sys.argv = ["python -m shardproof.torch", *request["arguments"]]
import runpy
runpy.run_module("shardproof.torch", run_name="__main__", alter_sys=True)
"""


@functools.cache
def _server() -> subprocess.Popen:
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def end() -> None:
        server.stdin.close()
        server.stdout.close()
        server.wait()

    atexit.register(end)
    return server


def run_command(*arguments: str) -> subprocess.CompletedProcess:
    """Runs it with these arguments."""
    server = _server()
    with tempfile.TemporaryDirectory() as place:
        out, err = (pathlib.Path(place) / name for name in ("stdout", "stderr"))
        request = {
            "arguments": arguments,
            "folder": os.getcwd(),
            "environment": dict(os.environ),
            "stdout": str(out),
            "stderr": str(err),
        }
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        assert answer, "the process that runs the command ended"
        return subprocess.CompletedProcess(
            [*arguments], int(answer), out.read_text(), err.read_text()
        )
