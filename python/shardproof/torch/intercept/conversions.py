# SPDX-License-Identifier: Apache-2.0
"""`float(x)` and `int(x)` in the user's own files.

Python makes these plain numbers, whatever `__float__` and `__int__` return. So in files of a
script, and in functions of a step while it is recorded, such a call becomes one of a function here:
of a tensor, an array or a number that depends on data it gives such a number, as `.item()` does
(data_number.py). Nothing else changes, and no bytecode is written.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import importlib.machinery
import linecache
import runpy
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from ..compat.private import FakeTensor
from ..compat.user_code import is_own
from .data_array import DataArray
from .data_number import DataNumber
from .row_count import RowCount


def _provide() -> None:
    """Converted code finds the functions of this module under their names."""
    for name, function in _FUNCTIONS.items():
        setattr(builtins, _NAME.format(name), function)


def _one_number(x: Any) -> Any:
    """The only element, where it may depend on data; else x."""
    if isinstance(x, FakeTensor) and x.numel() == 1:
        return (x if x.dtype != torch.bool else x.long()).item()
    return x.item() if isinstance(x, DataArray) and x.size == 1 else x


def as_float(x: Any) -> Any:
    """float(x)"""
    x = _one_number(x)
    return x if type(x) is DataNumber else float(x)


def as_int(x: Any) -> Any:
    """int(x)"""
    number = _one_number(x)
    if type(number) is RowCount:
        return number
    if type(number) is not DataNumber or number.drawn is not None:
        return int(number)
    whole = isinstance(x, FakeTensor) and not x.dtype.is_floating_point
    return number if whole else number.computed()


_FUNCTIONS = {"float": as_float, "int": as_int}
_NAME = "__shardproof_{}__"


class _Calls(ast.NodeTransformer):
    def __init__(self, own: set[str]) -> None:
        self.names = set(_FUNCTIONS) - own

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if (
            isinstance(node.func, ast.Name)
            and node.func.id in self.names
            and len(node.args) == 1
            and not node.keywords
            and not isinstance(node.args[0], ast.Starred)
        ):
            name = ast.Name(_NAME.format(node.func.id), ast.Load())
            node.func = ast.copy_location(name, node.func)
        return node


def _code(path: str, source: bytes | str) -> types.CodeType:
    tree = ast.parse(source, path)
    own = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    own |= {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    own |= {a.arg for a in ast.walk(tree) if isinstance(a, ast.arg)}
    own |= {a.asname or a.name for a in ast.walk(tree) if isinstance(a, ast.alias)}
    made: types.CodeType = compile(_Calls(own).visit(tree), path, "exec", dont_inherit=True)
    return made


def _inside(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code itself, and that of the functions that it defines, in order."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _inside(constant)


def _converts(code: types.CodeType) -> bool:
    return any(not _FUNCTIONS.keys().isdisjoint(c.co_names) for c in _inside(code))


@functools.lru_cache(maxsize=256)
def _converted_file(path: str, source: str) -> dict[str, list[tuple[types.CodeType, ...]]]:
    """Of each function's name: (its code, the same with conversions)."""
    found: dict[str, list[tuple[types.CodeType, ...]]] = {}
    try:
        plain = compile(source, path, "exec", dont_inherit=True)
        both = zip(_inside(plain), _inside(_code(path, source)), strict=True)
    except (SyntaxError, ValueError):
        return found
    for code, other in both:
        found.setdefault(code.co_name, []).append((code, other))
    return found


# by id: the code of a function, and the same with conversions, or None
_known: dict[int, tuple[types.CodeType, types.CodeType | None]] = {}


def _converted(code: types.CodeType) -> types.CodeType | None:
    """None where it converts nothing, or is not what its file has now."""
    known = _known.get(id(code))
    if known is None or known[0] is not code:
        known = _known[id(code)] = code, _from_file(code) if _converts(code) else None
    return known[1]


def _from_file(code: types.CodeType) -> types.CodeType | None:
    source = "".join(linecache.getlines(code.co_filename))
    known = _converted_file(code.co_filename, source).get(code.co_name, ()) if source else ()
    return next((other for plain, other in known if plain == code and other != code), None)


def _functions_of(step: Any) -> Iterator[types.FunctionType]:
    """A step's own functions: what it is made of, and those of the user's modules."""
    seen: set[int] = set()
    todo = [step]
    todo += [
        x
        for m in list(sys.modules.values())
        if _is_users(m)
        for x in list(vars(m).values())
        if getattr(x, "__module__", None) == m.__name__
    ]
    while todo:
        x = todo.pop()
        if id(x) in seen:
            continue
        seen.add(id(x))
        if isinstance(x, types.FunctionType):
            todo += [c.cell_contents for c in x.__closure__ or () if _is_filled(c)]
            todo += [*(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values()]
            todo += list(vars(x).values())  # __wrapped__
            if is_own(x.__code__.co_filename):
                yield x
        elif isinstance(x, (types.MethodType, staticmethod, classmethod)):
            todo.append(x.__func__)
        elif isinstance(x, functools.partial):
            todo += [x.func, *x.args, *x.keywords.values()]
        elif isinstance(x, property):
            todo += [x.fget, x.fset]
        elif isinstance(x, type) and _is_users(sys.modules.get(x.__module__)):
            todo += list(vars(x).values())
        elif isinstance(x, (list, tuple)):
            todo += x
        elif type(x) is dict:
            todo += x.values()


def _is_users(module: Any) -> bool:
    return is_own(getattr(module, "__file__", None) or "")


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def prepare(step: Any) -> None:
    """Reads the files of a step's functions, so that forked processes need not."""
    for f in _functions_of(step):
        _converted(f.__code__)


@contextlib.contextmanager
def conversions_of(step: Any) -> Iterator[None]:
    """Inside, functions that a step may call have these functions."""
    before: list[tuple[types.FunctionType, types.CodeType]] = []
    _provide()
    try:
        for f in _functions_of(step):
            code = _converted(f.__code__)
            if code is not None:
                before.append((f, f.__code__))
                f.__code__ = code
        yield
    finally:
        for f, plain in before:
            f.__code__ = plain


@contextlib.contextmanager
def own_conversions() -> Iterator[None]:
    """Inside, files of the user's that are run or imported have these functions."""
    _provide()
    loader = importlib.machinery.SourceFileLoader
    get_code, of_file = loader.get_code, runpy._get_code_from_file  # type: ignore[attr-defined]

    def imported(self: Any, fullname: str) -> Any:
        path = self.get_filename(fullname)
        return _code(path, self.get_data(path)) if is_own(path) else get_code(self, fullname)

    def run(*args: Any) -> Any:
        made, path = of_file(*args), str(args[-1])
        if not path.endswith(".py") or not is_own(path):
            return made
        with open(path, "rb") as f:
            code = _code(path, f.read())
        return (code, *made[1:]) if isinstance(made, tuple) else code

    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    loader.get_code = imported  # type: ignore[method-assign]
    runpy._get_code_from_file = run  # type: ignore[attr-defined]
    try:
        yield
    finally:
        loader.get_code = get_code  # type: ignore[method-assign]
        runpy._get_code_from_file = of_file  # type: ignore[attr-defined]
        sys.dont_write_bytecode = before


__all__ = ["as_float", "as_int", "conversions_of", "own_conversions", "prepare"]
