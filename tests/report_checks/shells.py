# SPDX-License-Identifier: Apache-2.0
"""Completions in their shells, the manual page in man, the screens of docs/reading-reports.md.

shells.py PROGRAM ENVIRONMENT
"""

import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    failed = count = 0

    def check(name, good, message=""):
        nonlocal failed, count
        count += 1
        if not good:
            failed += 1
            print(f"FAIL  {name}: {str(message)[:500]}")

    def run(*command, **more):
        return subprocess.run(
            [str(c) for c in command], capture_output=True, text=True, timeout=60, **more
        )

    with tempfile.TemporaryDirectory() as temporary:
        directory = pathlib.Path(temporary)
        (directory / "some.plan.json").write_text("")
        scripts = {}
        for shell in ("bash", "zsh", "fish"):
            done = run(program, "completion", shell)
            check(shell, done.returncode == 0 and len(done.stdout) > 1000, done.stderr)
            scripts[shell] = directory / f"shardproof.{shell}"
            scripts[shell].write_text(done.stdout)
        check("another shell", run(program, "completion", "tcsh").returncode == 1)

        def bash(*words):
            line = (
                f"source {scripts['bash']}; COMP_WORDS=({' '.join(repr(w) for w in words)}); "
                f"COMP_CWORD={len(words) - 1}; _shardproof; printf '%s\\n' \"${{COMPREPLY[@]}}\""
            )
            return run("bash", "--norc", "-c", line, cwd=directory).stdout.split()

        def fish(line):
            done = run(
                "fish",
                "--no-config",
                "-c",
                f"source {scripts['fish']}; complete -C {line!r}",
                cwd=directory,
                env={"HOME": temporary, "PATH": f"{program.parent}:/usr/bin:/bin"},
            )
            return [x.split("\t")[0] for x in done.stdout.splitlines()]

        for name, complete in (
            ("bash", lambda *w: bash(*w)),
            ("fish", lambda *w: fish(" ".join(w))),
        ):
            check(
                f"{name}: a command",
                complete("shardproof", "ver") == ["verify"],
                complete("shardproof", "ver"),
            )
            check(
                f"{name}: an option",
                complete("shardproof", "verify", "--js") == ["--json"],
                complete("shardproof", "verify", "--js"),
            )
            check(
                f"{name}: a value",
                set(complete("shardproof", "verify", "--color", "")) >= {"auto", "always", "never"},
                complete("shardproof", "verify", "--color", ""),
            )
            check(
                f"{name}: a file",
                "some.plan.json" in complete("shardproof", "verify", "some"),
                complete("shardproof", "verify", "some"),
            )
            check(
                f"{name}: below a command",
                "stats" in complete("shardproof", "cache", "st"),
                complete("shardproof", "cache", "st"),
            )
        check("zsh: syntax", run("zsh", "-f", "-n", scripts["zsh"]).stderr == "")
        done = run(
            "zsh",
            "-f",
            "-c",
            f"autoload -Uz compinit; compinit -u -D; source {scripts['zsh']}; print "
            f"$_comps[shardproof]; which _shardproof_verify",
            cwd=directory,
        )
        check(
            "zsh: it is registered",
            done.stdout.startswith("_shardproof\n") and "--json" in done.stdout and not done.stderr,
            done.stdout + done.stderr,
        )

        page = directory / "shardproof.1"
        page.write_text(run(program, "help", "--man").stdout)
        done = run(
            "man",
            "--warnings",
            "-l",
            page,
            env={"MANPAGER": "cat", "MANWIDTH": "100", "LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"},
        )
        check("man: no warnings", done.returncode == 0 and not done.stderr.strip(), done.stderr)
        commands = [
            line.split()[0]
            for line in run(program, "--help")
            .stdout.split("Subcommands:")[1]
            .split("shardproof help")[0]
            .splitlines()
            if line.startswith("  ") and line[2] != " "
        ]
        check(
            "man: commands",
            len(commands) > 12 and all(c in done.stdout for c in commands),
            commands,
        )
        for option in (
            "--max-causes",
            "--sarif",
            "EXIT STATUS",
            "not equivalent: the plan is wrong",
        ):
            check(f"man: {option}", option in done.stdout, done.stdout[:200])

    done = run(
        sys.executable,
        ROOT / "scripts" / "make_screens.py",
        program,
        "--check",
        ROOT / "docs" / "reading-reports.md",
    )
    check("docs/reading-reports.md", done.returncode == 0, done.stdout + done.stderr)
    print(f"{count - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
