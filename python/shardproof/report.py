# SPDX-License-Identifier: Apache-2.0
"""The report of `shardproof verify --json` as Python objects."""

from __future__ import annotations

import dataclasses
from typing import Any

VERDICTS = {
    "equivalent": "EQUIVALENT",
    "not-equivalent": "NOT EQUIVALENT",
    "undecided": "UNDECIDED",
    "conditional": "CONDITIONAL",
}


@dataclasses.dataclass
class Defect:
    """One place where the plan is wrong.

    kind: as in README.md. text: one sentence. places: where to look, nearest first.
    """

    kind: str
    text: str
    tensor: str
    places: list[str]
    details: dict[str, Any]


@dataclasses.dataclass
class Agreement:
    """Whether the recorded programs compute what the step computes where it runs with numbers.

    compared: how many tensors agree, of one device and all ranks. differs: the first that does not,
    in one sentence. because: why nothing was compared. seconds: that it took.
    """

    compared: int = 0
    differs: str = ""
    because: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        if self.differs:
            return f"Numbers: {self.differs}"
        if self.because:
            return f"Numbers: not compared with PyTorch's: {self.because}"
        return (
            f"Numbers: {self.compared} tensors of the recorded programs are those of the step "
            f"that ran with PyTorch ({self.seconds:.1f} s)"
        )


@dataclasses.dataclass
class Report:
    """The report of one verification. Its truth value is whether the plan is equivalent.

    outputs, outputs_proved: how many. seconds_capture: how long the recording of a step took.
    likely_mistake: which of the common mistakes a wrong step makes; empty: none that is known.
    numbers: of a recorded step; None: it was not run.
    """

    verdict: str  # EQUIVALENT, NOT EQUIVALENT, UNDECIDED, CONDITIONAL
    reason: str
    outputs: int
    outputs_proved: int
    defects: list[Defect]
    text: str  # what the program printed
    raw: dict[str, Any]  # the whole JSON report
    assumptions: list[str] = dataclasses.field(default_factory=list)
    not_compared: list[str] = dataclasses.field(default_factory=list)
    seconds_capture: float = 0.0
    likely_mistake: str = ""
    numbers: Agreement | None = None

    @property
    def equivalent(self) -> bool:
        return self.verdict == "EQUIVALENT"

    def __bool__(self) -> bool:
        return self.equivalent

    def __str__(self) -> str:
        lines = [self.text.rstrip()]
        listed = {a["text"] for a in self.raw.get("assumptions", [])}  # of the plan: in the text
        if others := [a for a in self.assumptions if a not in listed]:
            lines += ["", "Assumed:", *(f"  {a}" for a in others)]
        if self.numbers is not None:
            lines += ["", str(self.numbers)]
        if self.seconds_capture:
            lines.append(f"Recorded in {self.seconds_capture:.1f} s")
        return "\n".join(lines)
