# SPDX-License-Identifier: Apache-2.0
"""Which file and line of the user's program runs: neither PyTorch's nor this package's."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from .private import torch_folder

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_NOT_THE_USERS = (torch_folder, _PACKAGE, "<")
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_PYTHON = os.path.dirname(os.__file__) + os.sep
_HOOKS = ("sized", "of_rows", "_called", "__torch_function__")
_DECORATORS = ("typing_extensions.py", "contextlib.py", "functools.py")


@functools.cache
def short_name(file: str) -> str | None:
    """How reports name a file of the user's program; None for a file of PyTorch or this package."""
    if file.startswith(_NOT_THE_USERS) or os.path.basename(file) in _DECORATORS:
        return None
    return (
        os.path.relpath(file) if file.startswith(os.getcwd() + os.sep) else os.path.basename(file)
    )


def is_pythons(file: str) -> bool:
    """Whether a file is of Python's own library."""
    return file.startswith(_PYTHON) and _INSTALLED.isdisjoint(file.split(os.sep))


@functools.cache
def is_own(file: str) -> bool:
    """Whether a file is the user's own: of no installed package, and not Python's."""
    return (
        bool(file)
        and short_name(file) is not None
        and _INSTALLED.isdisjoint(file.split(os.sep))
        and not file.startswith(_PYTHON)
    )


def user_place(frame: Any) -> str:
    """FILE:LINE of a frame of the user's program; empty for any other frame."""
    short = short_name(frame.f_code.co_filename)
    return f"{short}:{frame.f_lineno}" if short is not None else ""


def in_package() -> bool:
    """Whether a line of this package made the call of PyTorch that hooks handle now."""
    f: Any = sys._getframe(1)
    while f is not None and f.f_code.co_name in _HOOKS:
        f = f.f_back
    return f is not None and f.f_code.co_filename.startswith(_PACKAGE)


def raised_by_user(e: Exception) -> bool:
    """Whether a line of the user's program raised it, and no library."""
    trace = e.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and bool(user_place(trace.tb_frame))


def own_place() -> str:
    """FILE:LINE of `own_frame`; empty without one."""
    frame = own_frame()
    return user_place(frame) if frame is not None else ""


def own_frame() -> Any:
    """The innermost frame of a program that is not an installed package; None without one."""
    f: Any = sys._getframe(1)
    while f is not None:
        file = f.f_code.co_filename
        if _INSTALLED.isdisjoint(file.split(os.sep)) and short_name(file) is not None:
            break
        f = f.f_back
    return f


def nearest_user_place(stop_at_backward: bool = False) -> str:
    """FILE:LINE of the innermost frame of the user's program.

    stop_at_backward: empty where the autograd engine runs between that frame and here.
    """
    f: Any = sys._getframe(1)
    while f is not None:
        if stop_at_backward and f.f_code.co_filename.endswith("autograd/graph.py"):
            return ""
        # no call of user_place: this runs for every operator
        short = short_name(f.f_code.co_filename)
        if short is not None:
            return f"{short}:{f.f_lineno}"
        f = f.f_back
    return ""
