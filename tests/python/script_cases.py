# SPDX-License-Identifier: Apache-2.0
"""Whole scripts with the verdict that is true of them: `tests/whole_scripts/`.

Each states in its docstring its mesh and its verdict. It may state an assignment that makes it
wrong when it stands in the place of the script's own, a package that it needs, and the script that
the single device runs. A script without a mesh belongs to another one.
"""

import contextlib
import importlib.util
import pathlib
import re
import tempfile

from command import run_command

SCRIPTS = pathlib.Path(__file__).resolve().parents[1] / "whole_scripts"


def run(script, mesh, *options):
    return run_command("--mesh", mesh, *options, script)


def stated(text, key):
    """What the docstring of a script states."""
    return re.search(rf"^{key}: (.*)$", text, re.MULTILINE)[1]


def made_wrong(text):
    """The script with the assignment that makes it wrong."""
    wrong = stated(text, "wrong")
    target = re.escape(wrong.partition(" = ")[0])
    changed, count = re.subn(rf"^{target} = .*$", wrong, text, flags=re.MULTILINE)
    assert count == 1 and changed != text, wrong
    return changed


def _check(case, script, mesh, expected, *options):
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        done = run(str(script), mesh, *options)
    head = re.search(
        r"^(EQUIVALENT|CONDITIONAL|NOT EQUIVALENT|UNDECIDED): (.*)$", done.stdout, re.MULTILINE
    )
    case.assertIsNotNone(head, done.stdout + done.stderr)
    case.assertEqual(head[1], expected, done.stdout)
    case.assertNotIn(".plan.json", head[2])
    case.assertIn(script.name, head[2])


def check_scripts(case, folder):
    """Whether each script of a folder has its verdict, and the wrong one is refuted. Those whose
    package is not installed are skipped.
    """
    scripts = sorted(folder.glob("*.py"))
    case.assertTrue(scripts)
    for script in scripts:
        text = script.read_text()
        if "\nmesh: " not in text:
            continue
        mesh = stated(text, "mesh")
        single = script.with_name(stated(text, "single")) if "\nsingle: " in text else None
        options = ["--single", str(single)] if single else []
        with case.subTest(script=script.name):
            if "\npackage: " in text:
                package = stated(text, "package")
                if importlib.util.find_spec(package) is None:
                    case.skipTest(f"{package} is not installed")
            _check(case, script, mesh, stated(text, "expected"), *options)
            if "\nwrong: " not in text:
                continue
            with tempfile.TemporaryDirectory() as parent:
                wrong = pathlib.Path(parent) / script.name
                wrong.write_text(made_wrong(text))
                _check(case, wrong, mesh, "NOT EQUIVALENT", *options)


__all__ = ["SCRIPTS", "check_scripts", "run"]
