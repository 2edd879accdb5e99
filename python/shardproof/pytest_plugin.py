# SPDX-License-Identifier: Apache-2.0
"""For pytest: the fixture `assert_equivalent`, and a marker with its options.

    @pytest.mark.shardproof(mesh={"dp": 2})
    def test_step(assert_equivalent):
        assert_equivalent(step)

The plugin is there as soon as the package is installed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MARKER = "shardproof"
_MARKED = (
    f"{MARKER}(mesh=..., **options): options of shardproof.torch.verify for the fixture "
    "assert_equivalent; those of the test come before those of its class and module"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("shardproof").addoption(
        "--shardproof-reports",
        metavar="DIRECTORY",
        help="write the report of each step that assert_equivalent verifies here, as HTML and JSON",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKED)


def _assert_equivalent(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`shardproof.torch.assert_equivalent` with the options of the test's markers.

    Options of a call come before these. Fails with the report's text unless the verdict is
    EQUIVALENT. Raises CaptureError and ProgramError as `verify` does.
    """
    options: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers(MARKER))):  # the nearest comes first
        if marker.args:
            raise pytest.UsageError(f"{MARKER}: options have names, as in {MARKER}(mesh='dp=2')")
        options.update(marker.kwargs)
    reports = request.config.getoption("--shardproof-reports")
    calls = 0

    def check(*steps: Callable[..., Any], **own: Any) -> Any:
        import shardproof.torch as sp

        __tracebackhide__ = True
        nonlocal calls
        calls += 1
        given = {**options, **own}
        if "mesh" not in given:
            raise pytest.UsageError(
                f"assert_equivalent needs a mesh: @pytest.mark.{MARKER}(mesh={{'dp': 2}}), or "
                "assert_equivalent(step, mesh={'dp': 2})"
            )
        if reports is not None:
            given["arguments"] = [*given.get("arguments", ()), *_files(reports, request, calls)]
        return sp.assert_equivalent(*steps, **given)

    return check


assert_equivalent = pytest.fixture(name="assert_equivalent")(_assert_equivalent)


def _files(reports: str, request: pytest.FixtureRequest, call: int) -> list[str]:
    """Options for the files of a call's report."""
    folder = Path(reports)
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w.-]+", "_", request.node.nodeid) + (f"_{call}" if call > 1 else "")
    return ["--html", str(folder / f"{name}.html"), "--json", str(folder / f"{name}.json")]
