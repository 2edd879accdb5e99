# SPDX-License-Identifier: Apache-2.0
"""Files of a report whose verdict was reached without `shardproof verify`.

Ranks that draw other random numbers than one device could, for instance, are a defect of which
there is no plan. The formats are those of docs/ci.md, with one case for the step.
"""

from __future__ import annotations

import html
import json
import re
from xml.sax.saxutils import escape, quoteattr

from ...report import Defect, Report

_PLACE = re.compile(r"(?P<file>\S+):(?P<line>\d+)")


def junit(report: Report, source: str) -> str:
    """A suite with one case, which fails; where nothing is decided, it is an error."""
    kind = "failure" if report.verdict == "NOT EQUIVALENT" else "error"
    counts = 'failures="1" errors="0"' if kind == "failure" else 'failures="0" errors="1"'
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        "<testsuites>\n"
        f'  <testsuite name={quoteattr(source)} tests="1" {counts} skipped="0">\n'
        f'    <testcase name="step" classname={quoteattr(source)}>\n'
        f"      <{kind} message={quoteattr(report.reason)}>{escape(str(report))}</{kind}>\n"
        "    </testcase>\n"
        "  </testsuite>\n"
        "</testsuites>\n"
    )


def sarif(report: Report, source: str) -> str:
    """A result for each defect, or for the reason if there is none."""
    level = "error" if report.verdict == "NOT EQUIVALENT" else "warning"
    defects = report.defects or [Defect("undecided", report.reason, "", [], {})]
    results = []
    for d in defects:
        place = next(filter(None, map(_PLACE.search, d.places)), None)
        where = {"artifactLocation": {"uri": place["file"] if place else source}}
        region = {"region": {"startLine": int(place["line"])}} if place else {}
        results.append(
            {
                "ruleId": d.kind,
                "level": level,
                "message": {"text": d.text},
                "locations": [{"physicalLocation": {**where, **region}}],
            }
        )
    rules = [{"id": kind} for kind in dict.fromkeys(d.kind for d in defects)]
    run = {"tool": {"driver": {"name": "shardproof", "rules": rules}}, "results": results}
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }
    return json.dumps(log, indent=1, ensure_ascii=False) + "\n"


def page(report: Report, source: str) -> str:
    """The text as a page."""
    return (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        f"<title>{html.escape(report.verdict)}: {html.escape(source)}</title></head>\n"
        f"<body><h1>{html.escape(report.verdict)}</h1>\n"
        f"<pre>{html.escape(str(report))}</pre></body>\n</html>\n"
    )


WRITERS = {"--junit": junit, "--sarif": sarif, "--html": page}

__all__ = ["WRITERS", "junit", "page", "sarif"]
