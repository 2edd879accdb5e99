# SPDX-License-Identifier: Apache-2.0
"""Reads a pickle without executing it.

A pickle is a program for a stack machine, and some of its instructions call what the pickle names.
This machine has all instructions that make data. Those that would call something make an `Inert`
object instead, which only records what would have been called, with which arguments and state.
Nothing is imported, and no object is made but `Inert`, `Global` and Python's plain containers and
numbers. What a pickle would call is checked against a list of what the reader knows, so that
one that would call anything else is refused.
"""

from __future__ import annotations

import dataclasses
import pickletools
from collections.abc import Callable
from typing import Any


class PickleError(ValueError):
    """The file is no pickle, is broken, or names what the reader does not know."""


@dataclasses.dataclass(frozen=True)
class Global:
    """Something that the pickle names: a class, a function, a constant of a module."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclasses.dataclass(eq=False, repr=False)
class Inert:
    """An object that was not made: of this class or by this function, with these arguments.

    state: what BUILD would have set: attributes by name; other states are under "". items: what
    would have been appended. pairs: what would have been set by key, in the order of the pickle.
    """

    made_by: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any] = dataclasses.field(default_factory=dict)
    state: dict[str, Any] = dataclasses.field(default_factory=dict)
    items: list[Any] = dataclasses.field(default_factory=list)
    pairs: list[tuple[Any, Any]] = dataclasses.field(default_factory=list)

    @property
    def kind(self) -> str:
        """The name of the class or function, without its module."""
        return self.made_by.name if isinstance(self.made_by, Global) else ""

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.state.get(name, default)

    def __repr__(self) -> str:
        return f"<{self.made_by}>"


_MARK = object()
_LIMIT = 100_000_000  # instructions
# Of a key: how deep its tuples are nested, and how many values they have. Python hashes a tuple by
# recursion without a limit, and a tuple that is shared once for each place that it is in.
_KEY_DEPTH = 100
_KEY_VALUES = 10_000
_ATOMS = {
    *("BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE"),
    *("BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
_VALUES: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": list,
}


def read_pickle(data: bytes, known: Callable[[str, str], bool]) -> Any:
    """The object of a pickle. Sets are lists, as their elements may be inert.

    known: may something of this module and name be called? Raises PickleError with the place, in
    bytes.
    """
    machine = _Machine(known)
    position = 0
    try:
        for count, (opcode, argument, where) in enumerate(pickletools.genops(data)):
            position = where or 0
            if count > _LIMIT:
                raise PickleError(f"more than {_LIMIT:,} instructions")
            if opcode.name == "STOP":
                return machine.top(1)[0]
            machine.step(opcode.name, argument)
    except PickleError as error:
        raise PickleError(f"byte {position:,}: {error}") from None
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
        raise PickleError(f"byte {position:,}: no valid pickle: {error}") from None
    raise PickleError("the pickle has no end")


class _Machine:
    def __init__(self, known: Callable[[str, str], bool]) -> None:
        self.known = known
        self.stack: list[Any] = []
        self.memory: dict[int, Any] = {}

    def to_mark(self) -> list[Any]:
        """What lies above the topmost mark, in order; the mark goes, too."""
        for i in range(len(self.stack) - 1, -1, -1):
            if self.stack[i] is _MARK:
                found = self.stack[i + 1 :]
                del self.stack[i:]
                return found
        raise ValueError("no mark on the stack")

    def top(self, count: int) -> list[Any]:
        """The topmost values, in order. A mark is none of them."""
        found = self.stack[-count:]
        if len(found) != count or any(x is _MARK for x in found):
            raise ValueError("the stack is too short")
        return found

    def step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _ATOMS:
            stack.append(argument)
        elif name in _VALUES:
            stack.append(_VALUES[name]())
        elif name in ("PROTO", "FRAME"):
            pass
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self.memory[int(argument)])
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self.memory[int(argument)] = self.top(1)[0]
        elif name == "MEMOIZE":
            self.memory[len(self.memory)] = self.top(1)[0]
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            self.named(argument)
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            n = int(name[-1])
            stack[-n:] = [tuple(self.top(n))]
        elif name in ("TUPLE", "LIST", "FROZENSET"):
            taken = self.to_mark()
            stack.append(tuple(taken) if name == "TUPLE" else taken)
        elif name == "DICT":
            made: dict[Any, Any] = {}
            self.set_pairs(made, self.to_mark())
            stack.append(made)
        elif name in ("APPEND", "APPENDS", "ADDITEMS"):
            taken = self.top(1) if name == "APPEND" else self.to_mark()
            if name == "APPEND":
                stack.pop()
            target = stack[-1].items if isinstance(stack[-1], Inert) else stack[-1]
            if not isinstance(target, list):
                raise ValueError(f"{name} to {type(target).__name__}")
            target.extend(taken)
        elif name in ("SETITEM", "SETITEMS"):
            taken = self.top(2) if name == "SETITEM" else self.to_mark()
            if name == "SETITEM":
                del stack[-2:]
            self.set_pairs(stack[-1], taken)
        elif name == "POP":
            stack.pop()
        elif name == "POP_MARK":
            self.to_mark()
        elif name == "DUP":
            stack.append(self.top(1)[0])
        elif name in ("REDUCE", "NEWOBJ"):
            arguments, made_by = stack.pop(), stack.pop()
            self.make(made_by, arguments, {})
        elif name == "NEWOBJ_EX":
            keywords, arguments, made_by = stack.pop(), stack.pop(), stack.pop()
            self.make(made_by, arguments, keywords)
        elif name == "BUILD":
            state = self.top(1)[0]
            stack.pop()
            self.build(state)
        else:  # persistent names, extensions, buffers, OBJ, INST: no plan has them
            raise PickleError(f"the instruction {name} is not supported")

    def named(self, argument: Any) -> None:
        if argument is None:
            name, module = self.stack.pop(), self.stack.pop()
        else:
            module, _, name = argument.partition(" ")
        if not isinstance(module, str) or not isinstance(name, str):
            raise ValueError("a name that is no text")
        self.stack.append(Global(module, name))

    def make(self, made_by: Any, arguments: Any, keywords: Any) -> None:
        if not isinstance(arguments, tuple) or not isinstance(keywords, dict):
            raise ValueError("a call without arguments")
        if not isinstance(made_by, (Global, Inert)):
            raise ValueError(f"a call of {type(made_by).__name__}")
        # An Inert is the result of a call that was checked.
        if isinstance(made_by, Global) and not self.known(made_by.module, made_by.name):
            raise PickleError(
                f"the pickle would call {made_by}, which is not among what is known here; refused, "
                "and nothing was executed"
            )
        self.stack.append(Inert(made_by, arguments, keywords))

    def build(self, state: Any) -> None:
        target = self.stack[-1]
        if not isinstance(target, Inert):
            raise ValueError(f"a state for {type(target).__name__}")
        # Two dictionaries are those of attributes and of slots.
        parts = state if isinstance(state, tuple) and len(state) == 2 else (state,)
        if all(p is None or _is_attributes(p) for p in parts):
            for part in parts:
                target.state.update(part or {})
        else:
            target.state[""] = state

    @staticmethod
    def set_pairs(target: Any, found: list[Any]) -> None:
        if len(found) % 2:
            raise ValueError("a key without a value")
        pairs = list(zip(found[::2], found[1::2]))
        if isinstance(target, dict):
            for key, _ in pairs:
                _check_key(key)
            # An inert key is that object: two of them are equal only if they are one.
            target.update(pairs)
        elif isinstance(target, Inert):
            target.pairs.extend(pairs)
        else:
            raise ValueError(f"an item of {type(target).__name__}")


def _check_key(key: Any) -> None:
    """Refuses a key whose hash Python could not compute. By levels, without recursion."""
    level, values = [key], 0
    for _ in range(_KEY_DEPTH):
        level = [part for x in level if isinstance(x, tuple) for part in x]
        values += len(level)
        if values > _KEY_VALUES:
            raise PickleError(f"a key of a dictionary has more than {_KEY_VALUES:,} values")
        if not level:
            return
    raise PickleError(f"a key of a dictionary is nested more than {_KEY_DEPTH} levels deep")


def _is_attributes(x: Any) -> bool:
    return isinstance(x, dict) and all(isinstance(k, str) for k in x)
