# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of docs/tutorial.md in order and compares their output with the page.

--write puts the output there. A command is a line `    $ ...`. The lines after it with the same
indentation are its output, but for times and memory. `...` stands for any lines.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
INDENT = "    "
MOST_LINES = 26  # of one output on the page
CHANGING = ("Time:", "Memory:")


def run(command, program, directory):
    done = subprocess.run(
        command,
        shell=True,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120,
        env={
            "PATH": f"{pathlib.Path(program).resolve().parent}:{os.environ['PATH']}",
            "LC_ALL": "C.UTF-8",
        },
    )
    return [line.rstrip() for line in (done.stdout + done.stderr).splitlines()]


def kept(lines):
    return [line for line in lines if line and not line.startswith(CHANGING)]


def compared(lines):
    """Without the times and megabytes of a sweep's table."""
    return [
        re.sub(r"; [\d.]+ s$", "", re.sub(r" +\d+\.\d\d +\d+\.\d\d +\d+", "", line))
        for line in kept(lines)
    ]


def agrees(shown, printed):
    """Whether the lines are those, in order; `...` may be any number of lines, none too."""
    if not shown:
        return not printed
    if shown[0].strip() == "...":
        return any(agrees(shown[1:], printed[i:]) for i in range(len(printed) + 1))
    return bool(printed) and shown[0] == printed[0] and agrees(shown[1:], printed[1:])


def blocks(page):
    """(text, None) and (command, lines of output), in order."""
    lines, i = page.split("\n"), 0
    while i < len(lines):
        if not lines[i].startswith(INDENT + "$ "):
            yield lines[i], None
            i += 1
            continue
        command, i, output = lines[i][len(INDENT) + 2 :], i + 1, []
        while (
            i < len(lines)
            and lines[i].startswith(INDENT)
            and not lines[i].startswith(INDENT + "$ ")
        ):
            output.append(lines[i][len(INDENT) :])
            i += 1
        yield command, output


def main():
    program, write = sys.argv[1], "--write" in sys.argv[2:]
    page, written, failed = PAGE.read_text(), [], 0
    with tempfile.TemporaryDirectory() as directory:
        sweep = re.search(r"```json\n(.*?)```", page, re.DOTALL).group(1)
        json.loads(sweep)
        (pathlib.Path(directory) / "sweep.json").write_text(sweep)
        for text, output in blocks(page):
            if output is None:
                written.append(text)
                continue
            printed = kept(run(text, program, directory))
            right = agrees(compared(output), compared(printed))
            written.append(f"{INDENT}$ {text}")
            written += [
                INDENT + line
                for line in (
                    output
                    if right
                    else printed
                    if len(printed) <= MOST_LINES
                    else [*printed[: MOST_LINES - 1], "..."]
                )
            ]
            if not right:
                failed += 1
                print("FAIL ", text, *printed, sep="\n      ")
            else:
                print("ok ", text)
    if write:
        PAGE.write_text("\n".join(written))
        return 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
