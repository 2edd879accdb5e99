# SPDX-License-Identifier: Apache-2.0
"""Signs of life on standard error, of this process and of the program."""

import contextlib
import io
import pathlib
import tempfile
import time
import unittest
from unittest import mock

from shardproof import progress
from shardproof.program import ProgramError, run_verify

# a program that goes on after each line until what it wrote was seen
PROGRAM = """#!/bin/sh
echo "shardproof: 30.0 s: proving, 3 of 9" >&2
echo "a warning" >&2
for i in $(seq 200); do [ -e SEEN ] && break; sleep 0.05; done
[ -e SEEN ] || exit 6
echo EQUIVALENT
while [ "$1" != --json ]; do shift; done
echo '{"verdict": "equivalent"}' > "$2"
exit CODE
"""


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Log(io.StringIO):
    """What is called when it is written to."""

    def __init__(self, wrote=lambda: None):
        super().__init__()
        self.wrote = wrote

    def write(self, text):
        self.wrote()
        return super().write(text)


class OwnLines(unittest.TestCase):
    def test_a_line_that_is_written_over(self):
        stream = Terminal()
        shown = progress.Progress(stream)
        shown.phase("recording rank 1 of 8")
        shown.phase("proving")
        shown.end()
        self.assertEqual(
            stream.getvalue(),
            "\rshardproof: recording rank 1 of 8\x1b[K\rshardproof: proving\x1b[K\r\x1b[K",
        )

    def test_lines_in_a_log(self):
        stream = Log()
        with mock.patch.object(progress, "BETWEEN_LINES", 0.02):
            shown = progress.Progress(stream)
            shown.phase("recording rank 1 of 8")
            limit = time.monotonic() + 10
            while stream.getvalue().count("\n") < 2 and time.monotonic() < limit:
                time.sleep(0.01)
            shown.end()
        lines = stream.getvalue().splitlines()
        self.assertGreaterEqual(len(lines), 2)
        self.assertRegex(lines[0], r"^shardproof: 0\.\d s: recording rank 1 of 8$")

    def test_a_short_run_writes_nothing_into_a_log(self):
        stream = Log()
        with contextlib.redirect_stderr(stream), progress.showing():
            progress.phase("recording the single device")
        self.assertEqual(stream.getvalue(), "")


class LinesOfTheProgram(unittest.TestCase):
    def run_program(self, code):
        with tempfile.TemporaryDirectory() as folder:
            seen, program = pathlib.Path(folder) / "seen", pathlib.Path(folder) / "program"
            program.write_text(PROGRAM.replace("SEEN", str(seen)).replace("CODE", str(code)))
            program.chmod(0o755)
            stream = Log(seen.touch)
            with contextlib.redirect_stderr(stream):
                return run_verify("p", program=str(program)), stream.getvalue()

    def test_they_come_while_it_runs(self):
        (raw, done), text = self.run_program(0)
        self.assertEqual(raw["verdict"], "equivalent")
        self.assertEqual(done.stdout, "EQUIVALENT\n")
        self.assertEqual(text, "shardproof: 30.0 s: proving, 3 of 9\n")

    def test_an_error_has_the_other_lines(self):
        with self.assertRaisesRegex(ProgramError, "exit code 2: a warning$"):
            self.run_program(2)


if __name__ == "__main__":
    unittest.main()
