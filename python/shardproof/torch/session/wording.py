# SPDX-License-Identifier: Apache-2.0
"""The verdict's first paragraph in the words of what the user called.

`shardproof verify` names the two files that it reads, and its own options. Of a step these files
are temporary, and `sp.verify` has parameters in place of options. So both are replaced here.
"""

from __future__ import annotations

import dataclasses
import json
import re
import textwrap
from collections.abc import Sequence
from typing import Any

from ...report import Report

_MOST_CONDITIONS = 3  # named in one line, as `shardproof verify` does
_FILES = re.compile(
    r"plan\s+\S.*?\s+(computes|does\s+not\s+compute)\s+what\s+model\s+\S.*?\s+(?:says|computes)\b",
    re.DOTALL,
)
_ADVICE = re.compile(r"\bto\s+accept:\s.*", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Wording:
    """source: the script or the step's function. reference: whose model it is compared with.

    files: they are kept, so that their names are useful. command: the user called a command,
    which has options.
    """

    source: str
    mesh: str
    reference: str
    files: bool
    command: bool

    def put(self, report: Report, arguments: Sequence[str] = ()) -> None:
        """Replaces the first paragraph of the report's text. arguments: of `shardproof verify`."""
        head, gap, rest = report.text.partition("\n\n")
        before = head
        if not self.files:
            subject = f"{self.source} on mesh {self.mesh}"
            head = _FILES.sub(
                lambda found: f"{subject} {found[1]} what {self.reference}", head, count=1
            )
        if not self.command and report.verdict == "CONDITIONAL":
            most = None if {"-v", "--verbose"} & set(arguments) else _MOST_CONDITIONS
            head = _ADVICE.sub(lambda _: f"to accept: {parameters(report.raw, most)}", head)
        if head != before:
            lines = before.rstrip("\n").split("\n")
            if len(lines) > 1:  # they were wrapped, to the longest of them at least
                head = "\n".join(
                    textwrap.wrap(
                        " ".join(head.split()),
                        max(map(len, lines)),
                        subsequent_indent="  ",
                        break_long_words=False,
                        break_on_hyphens=False,
                    )
                )
            elif not gap:
                head = head.rstrip("\n") + "\n"
        report.text = head + gap + rest


def with_second_paragraph(text: str, paragraph: str) -> str:
    """A report's text with a paragraph after its first one."""
    head, gap, rest = text.partition("\n\n")
    return f"{head.rstrip()}\n\n{paragraph}\n{gap and chr(10)}{rest}"


def wording(steps: Sequence[Any], mesh: str, files: bool) -> Wording:
    """steps: as `verify` is given them, one or two."""
    single = source_of(steps[0])
    return Wording(
        source_of(steps[-1]),
        mesh,
        "its single device computes"
        if len(steps) == 1
        else f"{single} computes on a single device",
        files,
        getattr(steps[-1], "whole_script", False),
    )


def source_of(step: Any) -> str:
    """The script, or the function's name."""
    name = getattr(step, "source", None) or getattr(step, "__name__", None)
    return name if isinstance(name, str) else "the step"


def parameters(raw: dict[str, Any], most: int | None = None) -> str:
    """The parameters of `verify` that accept the conditions of a JSON report."""
    risks = dict.fromkeys(
        a["name"] for a in raw["assumptions"] if a["class"] == "risk" and not a["accepted"]
    )
    found = [("accept", name) for name in risks]
    found += [("allow_uncompared", n["what"]) for n in raw["not_compared"] if not n["allowed"]]
    shown = found[:most]
    texts = []
    for parameter in dict.fromkeys(p for p, _ in shown):
        names = [json.dumps(name, ensure_ascii=False) for p, name in shown if p == parameter]
        if parameter == shown[-1][0] and len(shown) < len(found):
            names.append("...")
        texts.append(f"{parameter}=[{', '.join(names)}]")
    return ", ".join(texts)
