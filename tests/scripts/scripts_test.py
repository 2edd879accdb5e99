# SPDX-License-Identifier: Apache-2.0
"""What the scripts run, and what they do where they cannot: scripts_test.py"""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"


def run(*command, **variables):
    environment = {**os.environ, **variables}
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        check=False,
        env={k: v for k, v in environment.items() if v is not None},
    )
    return done.returncode, done.stdout + done.stderr


def executable(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)


class FailedTests(unittest.TestCase):
    def test_the_end_of_what_a_failed_test_printed_is_shown(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        executable(folder / "bad", "#!/bin/sh\nseq 100\necho '<the reason>'\nexit 1\n")
        executable(folder / "good", "#!/bin/sh\necho nothing to see\n")
        (folder / "CTestTestfile.cmake").write_text(
            "".join(f'add_test({name} "{folder / name}")\n' for name in ("bad", "good"))
        )
        results = folder / "results.xml"
        code, printed = run(
            SCRIPTS / "tools.sh", "ctest", "--test-dir", folder, "--output-junit", results
        )
        self.assertNotEqual(code, 0, printed)
        code, printed = run(SCRIPTS / "failed_tests", results)
        self.assertEqual(code, 0, printed)
        self.assertIn("bad failed", printed)
        self.assertIn("\n100\n<the reason>\n", printed)
        self.assertNotIn("nothing to see", printed)
        self.assertLess(len(printed.splitlines()), 50)


class Tools(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        executable(self.folder / "cmake", "#!/bin/sh\necho another cmake\n")
        self.path = f"{self.folder}:{os.environ['PATH']}"

    @unittest.skipUnless(shutil.which("apt-get") and shutil.which("dpkg-query"), "not Debian")
    def test_the_callers_path_is_not_used(self):
        said = run(SCRIPTS / "tools.sh", "cmake", "--version", PATH=self.path, SHARDPROOF_PATH=None)
        self.assertNotIn("another cmake", said[1])

    def test_it_is_where_it_is_asked_for(self):
        said = run(SCRIPTS / "tools.sh", "cmake", PATH=self.path, SHARDPROOF_PATH=self.path)
        self.assertEqual(said, (0, "another cmake\n"))

    def test_every_shell_script_takes_its_tools_from_there(self):
        shell = [
            f
            for f in SCRIPTS.iterdir()
            if f.is_file() and re.match(rb"#!.*sh\n", f.read_bytes()[:40])
        ]
        self.assertGreater(len(shell), 10)
        # setup installs them, with the machine's own apt; with_slurm runs a command of the caller.
        without = sorted(f.name for f in shell if "scripts/tools.sh" not in f.read_text())
        self.assertEqual(without, ["setup", "with_slurm"])

    def test_every_cmake_script_states_its_policies(self):
        for file in SCRIPTS.glob("*.cmake"):
            commands = [line for line in file.read_text().splitlines() if line and line[0] != "#"]
            self.assertRegex(commands[0], r"^cmake_minimum_required\(", file.name)


class BareMachine(unittest.TestCase):
    def test_inside_one_there_is_no_other(self):
        said = run(SCRIPTS / "bare_machine", "true", SHARDPROOF_BARE_MACHINE="inside")
        self.assertEqual(said[0], 77)
        self.assertIn("already", said[1])

    def test_only_root(self):
        nobody = []
        if os.geteuid() == 0:
            nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
            if run(*nobody, "test", "-r", SCRIPTS / "bare_machine")[0] != 0:
                self.skipTest("the checkout is root's alone")
        said = run(*nobody, SCRIPTS / "bare_machine", "true", SHARDPROOF_BARE_MACHINE=None)
        self.assertEqual(said[0], 77)
        self.assertIn("only root", said[1])


class ContinuousIntegration(unittest.TestCase):
    """.ci/run passes where the bare machine does, fails where it does, else runs the tests."""

    def outcome(self, bare, tests):
        with tempfile.TemporaryDirectory() as folder:
            place = pathlib.Path(folder)
            shutil.copytree(ROOT / ".ci", place / ".ci")
            executable(place / "scripts" / "bare_machine", f"#!/bin/sh\nexit {bare}\n")
            executable(place / "scripts" / "test", f"#!/bin/sh\necho tests\nexit {tests}\n")
            code, said = run("bash", place / ".ci" / "run")
            return code, said.startswith("tests\n")

    def test_outcomes(self):
        self.assertEqual(self.outcome(bare=0, tests=1), (0, False))
        self.assertEqual(self.outcome(bare=1, tests=0), (1, False))
        self.assertEqual(self.outcome(bare=77, tests=0), (0, True))
        self.assertEqual(self.outcome(bare=77, tests=8), (8, True))


if __name__ == "__main__":
    unittest.main()
