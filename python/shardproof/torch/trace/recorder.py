# SPDX-License-Identifier: Apache-2.0
"""The dispatch mode that sees every operator after autograd, and turns it into nodes.

Each operator is looked up in the table (`aten/`, `collectives.py`). ATen itself decomposes what has
no lowering there, where it can. The rest poisons everything that it returns or writes.
"""

from __future__ import annotations

import collections
import contextlib
import math
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any, cast

import torch

from ..aten import rows as of_rows
from ..aten import table
from ..compat import private
from ..compat.fake_answers import Answers
from ..compat.refusals import fail
from ..compat.user_code import nearest_user_place, own_place
from ..distributed import collectives
from ..distributed.asynchronous import Begun
from ..intercept.data_number import DataDependent, Question, holds_one
from ..terms import arithmetic as ar
from ..terms import assumptions, tables
from ..terms.constants import FOLD_LIMIT
from ..terms.liveness import COMMUNICATION
from ..terms.rows import Order, Place, Positions, Rows
from ..terms.values import (
    Complex,
    Filled,
    Known,
    Named,
    Poison,
    Poisoned,
    Reason,
    Shape,
    Unsupported,
    Value,
    kind_of,
    numel,
)
from .drawn_numbers import DrawnNumbers
from .flat_copies import FlatCopies
from .memory import Memory, constant
from .opaque import Calls
from .operator_calls import (
    Call,
    arguments_of,
    is_composite,
    is_view,
    name_of,
    new_results,
    writes_operands,
)
from .randomness import Randomness
from .raw_views import RawViews, not_followed
from .reading import Reading
from .recording import CaptureError, Decision
from .row_tensors import RowTensors
from .untracked_tensors import UntrackedTensors

FEW = 1 << 10  # elements of constants that are computed with anew rather than looked up
FILL_LIMIT = 1 << 16  # elements of a filled tensor that is written out to compute with it
_PLAIN = (torch.Tensor, private.FakeTensor, torch.nn.Parameter, torch.nn.Buffer)
_DEVICE = torch.ops.prim.device.default
_COPIES = {"aten._to_copy", "aten.clone"}
# what they give, or its shape, depends on numbers
_OF_NUMBERS = frozenset(
    f"aten.{name}"
    for name in (
        "nonzero",
        "repeat_interleave",
        "_unique2",
        "unique_dim",
        "unique_consecutive",
        "bincount",
        "equal",
        "allclose",
    )
)
_BY_MASKS = {
    "aten.index",
    "aten.index_put",
    "aten.index_put_",
    "aten._index_put_impl_",
    "aten._unsafe_index_put",
    "aten._unsafe_index",
}
# of booleans they are "or", or errors
_SUMS = frozenset(
    f"aten.{name}"
    for name in (
        "add",
        "sub",
        "rsub",
        "sum",
        "cumsum",
        "index_add",
        "scatter_add",
        "scatter_reduce",
        "addcmul",
        "addcdiv",
        "mm",
        "bmm",
        "addmm",
        "baddbmm",
        "dot",
        "mv",
        "mean",
        "matmul",
        "logcumsumexp",
        "bincount",
        "diff",
        "trace",
    )
)
# which add up with accumulate=True
_BY_INDEX = {
    "aten.index_put",
    "aten._index_put_impl",
    "aten._unsafe_index_put",
}
_PIECEWISE = {"aten.mul_", "aten.div_"}
_PIECEWISE_COPIES = {"aten.mul", "aten.div"}
# which memory is seen, and how, changes; no element does
_VIEWS_IN_PLACE = {
    f"aten.{name}_"
    for name in (
        "transpose",
        "t",
        "squeeze",
        "unsqueeze",
        "as_strided",
        "swapdims",
        "swapaxes",
        "set",
    )
}


def _identity(x: Any) -> Any:
    """A key of operands: constants by who they are."""
    if isinstance(x, Complex):
        return _identity(x.real), _identity(x.imag)
    if isinstance(x, Filled):
        return x.fill, x.shape, x.kind
    if isinstance(x, Value):
        return id(x)
    return (type(x), *map(_identity, x)) if isinstance(x, (list, tuple)) else (type(x), str(x))


MOST_ANSWERS = 256  # to what a step asks of data at lines whose answer is given


class Recorder(Memory, private.TorchDispatchMode):
    """Records one side: the single device or one rank."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return (
            False  # nothing is compiled while a step is recorded: no wrapper around each operator
        )

    def __init__(self, rank: int, answers: Answers | None = None) -> None:
        super().__init__()
        self.rank = rank
        # operators without translation, and where they were met first
        self.unknown: dict[str, str] = {}
        self.modules: list[str] = []  # the path of the modules whose forward runs
        self.paused = False
        self.fake = answers or Answers()
        # placements of DTensors by mesh, placements and sizes (tracked_tensors.place)
        self.placed: dict[Any, Any] = {}
        self.flat_copies = FlatCopies(self, self.fake)
        self.random = Randomness(self)
        self.rows = RowTensors(self)
        self.raw = RawViews()
        self.opaque = Calls(self.g)
        self.untracked = UntrackedTensors(
            lambda t: self.random.kept(self.read(t)), lambda t: self.is_activation(self.read(t))
        )
        # called with tensors before an operator computes with them, in the rest of a script,
        self.uses: Callable[[Sequence[torch.Tensor]], None] = lambda tensors: None
        # with operands before one computes with them, outside of backward,
        self.reads: Callable[[Sequence[Any]], None] = lambda tensors: None
        # and before it writes them; whether a backward has ended
        self.writes: Callable[[Sequence[torch.Tensor], bool], None] = (
            lambda tensors, differentiated: None
        )
        # what an asynchronous call of c10d writes (True) and sends, while it is made
        self.issued: list[tuple[torch.Tensor, str, bool]] | None = None
        self.begun = Begun(self.g)
        self.drawn = DrawnNumbers(self)
        self.reading = Reading(self)
        self._forward_locs: dict[int, str] = {}
        self._item_value: Value | None = None
        self._item_drawn: float | None = None
        self._item_keys: dict[str, str] = {}  # by the place of item()
        self.decisions: list[Decision] = []  # questions about data that were answered
        self.answers_at: dict[str, bool] = {}  # InitialState.answers
        self.asks_again: Callable[[str], None] = lambda place: None  # before it is answered
        # by these: where, what was asked, and of which numbers
        self.answered: list[tuple[str, Question, Sequence[Named]]] = []
        self.decided_by: list[Sequence[Value | None]] = []  # what each was about
        self.answers: Sequence[bool] = ()  # to the first of them
        self.in_rest = False  # a script's optimizers have stepped, and it goes on
        self.gave_in_step = False  # numbers that depend on data, before that
        # of a script: where text is made of numbers that depend on data, and these
        self.prints: list[tuple[str, Value | None]] | None = None
        # FILE:LINE -> keys of the draws by whose numbers Python decided there
        self.read_draws: dict[str, list[str]] = collections.defaultdict(list)
        self.counting = 0
        self._parts = 0  # decompositions that run
        self._alive: list[torch.Tensor] = []  # fake tensors that stand for real ones
        # what was computed of large constants
        self._folds: dict[Any, tuple[list[Value | None], list[Value]]] = {}
        self.groups: Any = None  # collectives.Groups, set by the capture

    def holding(self) -> list[object]:
        """What holds tensors of the program for the recorder's purposes."""
        return [self._alive, *self.untracked.holding()]

    def is_activation(self, v: Value, distributed: bool = False) -> bool:
        """Whether the value was computed of the batch, or came from other ranks.

        A leaf that holds it is no parameter but where backward is cut in two. distributed:
        parameters may come from others, too.
        """
        todo = [v.name] if isinstance(v, Named) else []
        seen = set(todo)
        while todo:
            name = todo.pop()
            node = self.g.producer(name)
            if (
                node is None
                and self.g.tensors.get(name, {}).get("kind") == "input"
                and not name.startswith("%")
            ):
                return True
            if node is not None and node["op"] in COMMUNICATION and not distributed:
                return True
            new = (
                [x for x in node["in"] if x is not None and x not in seen]
                if node is not None
                else []
            )
            seen.update(new)
            todo += new
        return False

    def _of_shared_constants(self, v: Value | None) -> list[str]:
        """The results of communication that a value is computed of, where that is all, and each is
        one of constants that is not known yet.
        """
        open_results = self.groups.constants.open if self.groups is not None else {}
        if not open_results or not isinstance(v, Named):
            return []
        found: dict[str, None] = {}
        todo, seen = [v.name], {v.name}
        while todo:
            name = todo.pop()
            node = self.g.producer(name)
            if name in open_results:
                found[name] = None
            elif node is None:
                if self.g.tensors.get(name, {}).get("kind") != "constant":
                    return []
            elif node["op"] in COMMUNICATION:
                return []
            else:
                new = [x for x in node["in"] if x is not None and x not in seen]
                seen.update(new)
                todo += new
        return list(found)

    # ---- where we are ----
    def where(self) -> str:
        """The module's path and the user's file and line; of the forward operator while backward
        runs.
        """
        node = private.current_node()
        if node is not None:
            try:
                loc = self._forward_locs.get(node._sequence_nr())
            except Exception:
                loc = None
            frame = nearest_user_place(stop_at_backward=True)
            if loc is not None and not frame:
                return f"{loc} (backward)"
            if frame:
                return f"{frame} (backward)"
        frame = nearest_user_place()
        path = self.modules[-1] if self.modules else ""
        return f"{path} {frame}".strip() if path else frame

    # ---- dispatch ----
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE and isinstance(args[0], private.FakeTensor):
            return args[0].device  # called by C++, many times for each operator
        try:
            # devices were put in place above: what is below is no call of the script's
            with torch._C.DisableTorchFunction():
                return self._dispatched(func, types, args, kwargs or {})
        except Exception as e:
            if not self.paused:
                fail(e)
            raise

    def _dispatched(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if self.reading.now and not self.paused:
            out = self.reading.call(func, args, kwargs)
            if out is not NotImplemented:
                return out
        numbers = None
        write = None
        namespace, name = name_of(func)
        # what communication gives is made of what others have, too
        alone = namespace not in collectives.NAMESPACES
        if not self.paused and not is_view(func) and alone and name not in table.RANDOM:
            if not writes_operands(func):
                numbers = self.drawn.operands(args, kwargs)
            else:
                with private.outside():
                    write = self.drawn.before_write(args, kwargs)
        out = self._followed(func, types, args, kwargs)
        if numbers is not None:
            self.drawn.follow(func, numbers, out)
        if write is not None:
            self.drawn.wrote(func, write, self._written(func, args, kwargs))
        return out

    @staticmethod
    def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
        """The operands that an operator writes."""
        found: list[torch.Tensor] = private.tensors(
            [
                kwargs.get(argument) if by_name or i >= len(args) else args[i]
                for i, argument, by_name, is_written, _ in arguments_of(func)
                if is_written
            ]
        )
        return found

    def _followed(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        namespace, name = name_of(func)
        if (
            not self.paused
            and name != "aten.detach"
            and torch.is_grad_enabled()
            and private.current_node() is None
        ):
            self.reads(args)
        if any(t not in _PLAIN and not issubclass(t, torch.nn.Parameter) for t in types):
            return NotImplemented
        if self.paused:
            return self.fake(func, args, kwargs)
        if namespace in ("prim", "profiler") or name in _VIEWS_IN_PLACE:
            return func(*args, **kwargs)
        previous = self.g.loc
        self.g.loc = self.where()
        try:
            if self.in_rest:
                self.uses(private.tensors(args, kwargs))
            if self.untracked.begun:
                for t in args:
                    if isinstance(t, torch.Tensor) and t.requires_grad:
                        self.untracked.note(t)
                if writes_operands(func):
                    written = self._written(func, args, kwargs)
                    self.writes(written, self.untracked.differentiated)
                    self.untracked.writes(written)
            if private.current_node() is None:
                self._forward_locs.setdefault(private.sequence_number(), self.g.loc)
            if self.raw:
                if self.raw.keeps(name, args):
                    same = self.fake(func, args, kwargs)
                    self.raw.add(same, self.raw.numbers(args[0]))
                    return same
                args, kwargs = self.raw.sent(name, args, kwargs, self.g.loc)
            if name == "aten._local_scalar_dense":
                return self._item(args[0])
            if namespace in collectives.NAMESPACES:
                return collectives.dispatch(self, name, func, args, kwargs)
            if name == "aten.view" and func._overloadname == "dtype" and args[1] != args[0].dtype:
                if args[1].is_floating_point or args[1].is_complex:
                    raise not_followed(args[0], args[1], f"at {self.g.loc}")
                raw = self.fake(func, args, kwargs)
                self.raw.add(raw, args[0])
                return raw
            if self.rows.begun and name == "aten.unbind":
                out = self.rows.call(name, func, args, kwargs)
                if out is not NotImplemented:
                    return out
            if is_view(func):
                out = self._view(func, args, kwargs)
                if out is not None:
                    return out
            if name in _OF_NUMBERS:
                with private.outside():
                    known = private.tree_map(self.numbers, (args, kwargs))
                    if not any(isinstance(t, private.FakeTensor) for t in private.tensors(*known)):
                        return func(*known[0], **known[1])
            if name == "aten.masked_select" and not isinstance(
                self.numbers(args[1]), private.FakeTensor
            ):
                shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
                with self:
                    return args[0].expand(shape)[args[1].expand(shape)]
            out = self.rows.call(name, func, args, kwargs)
            if out is not NotImplemented:
                return out
            if (
                self.rows.begun
                and namespace not in ("aten", "prims")
                and any(isinstance(self.read(t), Rows) for t in private.tensors(args, kwargs))
                and (body := private.python_body(func)) is not None
            ):
                # of an opaque function nothing is known of rows: what it runs is recorded
                with self:
                    return body(*args, **kwargs)
            if name in _BY_MASKS:
                args = self.rows.masks_as_positions(self._without_masks(args))
            if self.random.batch:
                args = self.random.of_all_ranks(name, args)
            lowering = table.lookup(name, func._overloadname)
            if self._not_a_number(name, args, kwargs):
                # ATen's parts and folds would compute with not-a-number
                return self._record(name, func, lowering, args, kwargs)
            if (
                lowering is None
                and (not is_view(func) or is_composite(func))
                and name not in table.RANDOM | table.UNDEFINED
                and not self._constant_operands(args, kwargs)
                and not (self.rows.begun and self._of_rows_whole(func, name, args, kwargs))
            ):
                out = self._decomposed(func, args, kwargs)
                if out is not NotImplemented:
                    return out
            if name == "aten.copy_" and self.flat_copies.copy(args[0], args[1]):
                self.fake(func, args, kwargs)
                return args[0]
            if name in _COPIES and (out := self.flat_copies.copied(func, args, kwargs)) is not None:
                return out
            if name in _PIECEWISE and self.flat_copies.scale(name, func, lowering, args, kwargs):
                return args[0]
            if (
                name in _PIECEWISE_COPIES
                and lowering is not None
                and (out := self.flat_copies.scaled(name, func, lowering, args, kwargs)) is not None
            ):
                return out
            return self._record(name, func, lowering, args, kwargs)
        finally:
            self.g.loc = previous

    def _without_masks(self, args: Any) -> Any:
        """Constant masks among indices as the positions that they name, on which shapes of results
        depend.

        One number is written by the mask itself, if it is the only index.
        """
        if (
            len(args) < 2
            or len(args) > 2
            and args[2].numel() == 1
            and sum(i is not None for i in args[1]) == 1
        ):
            return args
        indices: list[Any] = []
        for i in args[1]:
            known = (
                self.numbers(i) if isinstance(i, torch.Tensor) and i.dtype == torch.bool else None
            )
            if known is None or isinstance(known, private.FakeTensor):
                indices.append(i)
            else:
                with private.outside():
                    # each with memory of its own
                    indices += [i.clone() for i in known.nonzero(as_tuple=True)]
        return (args[0], indices, *args[2:])

    def _is_memory_of(self, t: torch.Tensor, keys: Set[int]) -> bool:
        """Whether a tensor lies in one of these memories, or stands for a real tensor in one."""
        key = private.storage_key(t)
        of = self.storages.get(key)
        return key in keys or of is not None and any(self.storages.get(k) is of for k in keys)

    def _view(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of a view, which reads nothing: its geometry has its elements.

        None where ATen made a copy after all (reshape).
        """
        given = private.tensors(args, kwargs)
        keys = {private.storage_key(t) for t in given}
        for t in given:
            if type(t) is not private.FakeTensor:
                with private.outside():
                    s = self._storage(t)  # a tensor from outside is taken in whole, not as the view
                # what it becomes among fake tensors, of which the view is one
                if type(t) in (torch.Tensor, torch.nn.Parameter):
                    fake = self.mode.from_tensor(t)
                    self._alive.append(fake)  # so that no other has its memory
                    key = private.storage_key(fake)
                    self.storages.setdefault(key, s)
                    keys.add(key)
        out = self.fake(func, args, kwargs)
        results = out if isinstance(out, (list, tuple)) else (out,)
        return (
            out
            if all(isinstance(t, torch.Tensor) and private.storage_key(t) in keys for t in results)
            else None
        )

    def _constant_operands(self, args: Any, kwargs: Any) -> bool:
        """Whether ATen's own result can be used: there are tensors among the operands, all
        constants.
        """
        values = [self.read(t) for t in private.tensors(args, kwargs)]
        return bool(values) and all(isinstance(v, (Filled, Known)) for v in values)

    def _of_rows_whole(self, func: Any, name: str, args: Any, kwargs: Any) -> bool:
        """Whether the operator has operands with rows, whose sizes its parts may read."""
        return not of_rows.works_in_parts(func, name) and any(
            isinstance(self.read(t), Rows) for t in private.tensors(args, kwargs)
        )

    def _not_a_number(self, name: str, args: Any, kwargs: Any) -> bool:
        """Whether a number that depends on data is among the operands that are no tensors.

        What decompositions choose by themselves (xlogy's, of not-a-numbers) is none.
        """
        return not (self._parts and name == "aten.where") and (
            holds_one(args) or bool(kwargs) and holds_one(kwargs)
        )

    def _decomposed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs the operator as ATen's own decomposition, whose parts are seen here."""
        self._parts += 1
        try:
            return self._in_parts(func, args, kwargs)
        finally:
            self._parts -= 1

    def _in_parts(self, func: Any, args: Any, kwargs: Any) -> Any:
        if is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        rule = table.decomposition(func)
        if any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments):
            return self._in_place(func, args, kwargs)
        if rule is None:
            return NotImplemented
        with self:
            return rule(*args, **kwargs)

    def _in_place(self, func: Any, args: Any, kwargs: Any) -> Any:
        """x.f_(...) as x.copy_(f(x, ...)), where the functional operator is known."""
        namespace, _, base = func._schema.name.partition("::")
        packet = (
            getattr(getattr(torch.ops, namespace), base[:-1], None) if base.endswith("_") else None
        )
        functional = (
            getattr(packet, func._overloadname or "default", None) if packet is not None else None
        )
        rule = table.decomposition(functional) if functional is not None else None
        if rule is None or not isinstance(args[0], torch.Tensor):
            return NotImplemented
        with self:
            args[0].copy_(rule(*args, **kwargs))
        return args[0]

    def _item(self, t: torch.Tensor) -> Any:
        v = self.read(t)
        if isinstance(v, Filled):
            return (
                (v.fill != 0)
                if t.dtype == torch.bool
                else int(v.fill)
                if kind_of(t.dtype) == "int"
                else float(v.fill)
            )
        if isinstance(v, Known) and numel(v.shape) == 1:
            with private.outside():
                return v.data.item()
        self.groups.constants.want(self._of_shared_constants(v))
        drawn = self.drawn.of(t)
        with private.outside():
            number = drawn.item() if drawn is not None else None
        if number is not None and not t.dtype.is_floating_point:
            self.decided_by_drawn(self.g.loc, self.drawn.keys_of(t))
            return number
        if t.dtype.is_floating_point or self.counting and t.dtype != torch.bool:
            self._item_value, self._item_drawn = v, number
            if number is not None:
                self._item_keys[self.g.loc] = self.drawn.keys_of(t)
            self._gives_number()
            # poisons any tensor that it goes into; to Python a number of data_number.py, which
            # knows its value
            return math.nan
        if t.dtype == torch.bool and private.initialising():
            # whether numbers are resampled, of parameters that are inputs afterwards
            return False
        if t.dtype == torch.bool:
            return self.decide(self.g.loc, [v], ("__bool__",))
        raise DataDependent(
            f"{self.g.loc}: the program asks for a number that depends on data (Tensor.item(), "
            "bool() or int() of a tensor)"
        )

    def decide(self, loc: str, values: Sequence[Value | None], question: Question) -> bool:
        """The answer to a question about these values, which depend on data (decisions.py)."""
        followed = all(isinstance(v, Named) for v in values)
        asked = (own_place() or loc) if followed else ""
        if asked in self.answers_at:
            if len(self.answered) >= MOST_ANSWERS:
                raise CaptureError(
                    f"{asked} asks what depends on data more than {MOST_ANSWERS} times"
                )
            self.asks_again(asked)
            self.answered.append((asked, question, cast("list[Named]", values)))
            return self.answers_at[asked]
        n = len(self.decisions)
        answer = self.answers[n] if n < len(self.answers) else False
        self.decisions.append(Decision(loc, answer, asked=asked))
        self.decided_by.append(values)
        return answer

    def row_counts(self, t: torch.Tensor) -> Any:
        """The numbers of a tensor that counts rows; None for any other tensor."""
        return self.rows.counts(t) if self.g.row_counts or self.rows.begun else None

    def unknown_text(self, t: torch.Tensor) -> bool:
        """Whether what is printed of a tensor depends on data."""
        if (
            not isinstance(t, private.FakeTensor)
            or isinstance(self.numbers(t), torch.Tensor)
            and not isinstance(self.numbers(t), private.FakeTensor)
        ):
            return False
        self._gives_number()
        self.printed(self.read(t))
        return True

    def printed(self, value: Value | None) -> None:
        """The text of a number that depends on data is made. value: None if it is not followed."""
        if self.prints is not None:
            self.prints.append((own_place() or self.where(), value))

    def _gives_number(self) -> None:
        self.g.assume(assumptions.NUMBER_TEXT)
        self.g.gave_numbers = self.g.gave_numbers or self.g.loc or self.where()
        self.gave_in_step = self.gave_in_step or not self.in_rest

    def decided_by_drawn(self, loc: str, keys: str = "") -> None:
        """Python code decides by a number that was drawn. keys: of the draws that it is made of;
        empty: they were noted when item() gave the number at `loc`.
        """
        place = own_place() or loc
        self.read_draws[place].append(keys or self._item_keys.get(loc, ""))
        self.g.assume(assumptions.drawn_number(place))

    def taken(self) -> tuple[Value | None, float | None]:
        """The value whose number was taken last, and the number that was drawn."""
        v, self._item_value = self._item_value, None
        drawn, self._item_drawn = self._item_drawn, None
        return (v if isinstance(v, Named) and numel(v.shape) == 1 else None), drawn

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Nodes that are made inside are made by the line that runs."""
        before, self.g.loc = self.g.loc, self.where()
        try:
            yield
        finally:
            self.g.loc = before

    def computed(self, make: Callable[[Any], Value]) -> Value | None:
        """A value made of numbers in Python; None where it cannot be."""
        try:
            with self.here(), private.outside():
                v = make(self.g)
            return None if isinstance(v, Poison) else v
        except (Unsupported, Poisoned, ZeroDivisionError, OverflowError):
            return None

    def number_tensor(self, value: Value | None, dtype: torch.dtype) -> torch.Tensor:
        """A number that depends on data, as a tensor."""
        t = torch.empty((), dtype=dtype)
        self.write(
            t,
            Poison(
                (),
                Reason(
                    "a number that depends on data in a way that is not followed (Tensor.item())",
                    self.where(),
                ),
            )
            if value is None
            else self.g.reshape(value, ()),
        )
        return t

    def _record(
        self, name: str, func: Any, lowering: Callable[..., Any] | None, args: Any, kwargs: Any
    ) -> Any:
        written: list[Any] = []  # tensors, or lists of them, that the operator writes
        outputs_only: set[str] = set()
        for i, argument, by_name, is_written, is_out in arguments_of(func):
            v = kwargs.get(argument) if by_name or i >= len(args) else args[i]
            if is_written and v is not None:
                written.append(v)
                if is_out:
                    outputs_only.add(argument)
        inputs_before = {private.storage_key(t) for t in private.tensors(args, kwargs)}
        # operands are read before the call: the call itself changes no recorded contents
        values_args, values_kwargs, operands = self._operands(args, kwargs, outputs_only)
        out = self.fake(func, args, kwargs)
        outs = private.tensors(out)
        if not written and outs and all(private.storage_key(t) in inputs_before for t in outs):
            return out  # views: the geometry has all of it
        if name in table.UNDEFINED:
            return out  # memory that holds nothing yet
        call = Call(self, name, func._overloadname, outs, private.tensors(args, kwargs))
        targets = (
            [
                *private.tensors(written),
                *(
                    t
                    for t in private.tensors(new_results(func, out))
                    if not self._is_memory_of(t, inputs_before)
                ),
            ]
            if written
            else outs
        )
        try:
            adds = (
                name.removesuffix("_") in _SUMS
                or name.removesuffix("_") in _BY_INDEX
                and len(args) > 3
                and args[3] is True
            )
            if (
                adds
                and any(t.dtype == torch.bool for t in targets)
                and not all(isinstance(v, (Filled, Known)) for v in operands)
            ):
                raise Unsupported(
                    "a sum of booleans, which is true or false in PyTorch and not a count "
                    "(.float() or .long() before makes it one)"
                )
            with private.outside():
                results = self._results(
                    call,
                    name,
                    func,
                    lowering,
                    values_args,
                    values_kwargs,
                    operands,
                    args,
                    kwargs,
                    bool(written),
                )
        except (
            Exception
        ) as e:  # whatever goes wrong in a line: what it would have written is not known
            reason = (
                e.reason
                if isinstance(e, Poisoned)
                else Reason(
                    f"{name}: {e}"
                    if isinstance(e, Unsupported)
                    else f"{name}: {type(e).__name__}: {e}",
                    self.g.loc,
                    tables.unknown_range(self.g, operands),
                )
            )
            self.unknown.setdefault(reason.text, reason.loc)
            results = [Poison(t.shape, reason) for t in targets]
        if results:
            self.rows.follow(name, operands, results)
        if len(results) < len(targets):
            results = [*results, *[None] * (len(targets) - len(results))]
        for t, v in zip(targets, results):
            if v is None:
                v = Poison(t.shape, Reason(f"{name}: a result that has no translation", self.g.loc))
            if (
                not isinstance(v, Poison)
                and lowering is not None
                and tuple(v.shape) != tuple(t.shape)
                and not written
            ):
                v = Poison(
                    t.shape,
                    Reason(
                        f"{name}: translated to shape {list(v.shape)} where ATen has "
                        f"{list(t.shape)}",
                        self.g.loc,
                    ),
                )
            self.write(t, v)
        return out

    def _operands(
        self, args: Any, kwargs: Any, outputs_only: set[str]
    ) -> tuple[list[Any], dict[str, Any], list[Value]]:
        operands: list[Value] = []

        with private.outside():
            values = [self._operand(x, operands) for x in args]
            return (
                values,
                {k: self._operand(v, operands) for k, v in kwargs.items() if k not in outputs_only},
                operands,
            )

    def _operand(self, x: Any, operands: list[Value]) -> Any:
        """The value of an operand; tensors' values are also entered into `operands`.

        It is no function inside of a function: one that calls itself would be a reference cycle for
        each operator.
        """
        if isinstance(x, torch.Tensor):
            v = self._read(x)
            operands.append(v)
            return v
        return [self._operand(y, operands) for y in x] if isinstance(x, (list, tuple)) else x

    def _results(
        self,
        call: Call,
        name: str,
        func: Any,
        lowering: Any,
        values: list[Any],
        keywords: dict[str, Any],
        operands: list[Value],
        args: Any,
        kwargs: Any,
        writes: bool,
    ) -> list[Value | None]:
        if self._not_a_number(name, values, keywords):
            raise Unsupported(
                "a number that depends on data (Tensor.item()), or not-a-number, is used in a way "
                "that is not followed"
            )
        if (
            name in table.RANDOM
            or torch.Tag.nondeterministic_seeded in func.tags
            and lowering is None
        ):
            return self.random.results(call, name, values, keywords, kwargs.get("generator"))
        if name in table.CHOOSING:
            which, count = table.CHOOSING[name]
            if isinstance(values[which], Poison):
                tables.note_classes(self.g, values[which], count(values))
        if any(isinstance(v, (Rows, Positions, Order, Place)) for v in operands):
            return self._of_rows(call, name, func, lowering, values, keywords, args, kwargs)
        for v in operands:
            if isinstance(v, Poison) and not getattr(lowering, "reads_selectively", False):
                raise Poisoned(v.reason)
        # lines know what to do with one number everywhere
        large = lowering is not None and any(
            isinstance(v, Filled) and numel(v.shape) > FILL_LIMIT for v in operands
        )
        folded = None if large else self._folded(call, func, values, keywords, operands)
        if folded is not None:
            return folded
        if lowering is None:
            return self._opaque(call, name, func, operands, args, kwargs, writes)
        result = lowering(call, self.g, *values, **keywords)
        if result is NotImplemented:
            return self._opaque(call, name, func, operands, args, kwargs, writes)
        return list(result) if isinstance(result, (list, tuple)) else [result]

    def _of_rows(
        self,
        call: Call,
        name: str,
        func: Any,
        lowering: Any,
        values: list[Any],
        keywords: dict[str, Any],
        args: Any,
        kwargs: Any,
    ) -> list[Value | None]:
        """An operator on tensors whose rows depend on data, by dense ones (aten/rows.py)."""

        def compute(
            values: list[Any], keywords: dict[str, Any], shapes: list[Shape]
        ) -> list[Value | None]:
            outs = [
                torch.empty(shape, dtype=t.dtype, device="meta")
                for shape, t in zip(shapes, call.outs)
            ]
            dense = Call(self, call.name, call.overload, outs, call.given)
            operands = [
                v for v in private.tree_flatten((values, keywords))[0] if isinstance(v, Value)
            ]
            return self._results(
                dense, name, func, lowering, values, keywords, operands, args, kwargs, False
            )

        overwritten = name.startswith("aten.copy") or name.removesuffix("_") in _BY_INDEX
        for v in private.tree_flatten((values[1:] if overwritten else values, keywords))[0]:
            if isinstance(v, Poison):
                raise Poisoned(v.reason)
        return of_rows.results(call, self.g, func, values, keywords, compute)

    def _opaque(
        self,
        call: Call,
        name: str,
        func: Any,
        operands: list[Value],
        args: Any,
        kwargs: Any,
        writes: bool,
    ) -> list[Value | None]:
        """An operator without lowering and decomposition is an opaque function (opaque.py).

        It is one of its whole arguments, or of each element or matrix.
        """
        outs = [t for t in call.outs if 0 not in t.shape]
        if writes or not operands or not outs or any(t.is_complex() for t in outs):
            raise Unsupported("no line in the table of operators")
        lead, operands = self._leading_dimensions(
            name, func, operands, [tuple(t.shape) for t in call.outs]
        )
        settings = private.tree_map(
            lambda x: "_" if isinstance(x, torch.Tensor) else x, (args, kwargs)
        )
        results = iter(
            self.opaque.call(
                f"{func.name()}{settings[0]}{settings[1] or ''}",
                name,
                self.modules[-1] if self.modules else "",
                operands,
                outs,
                lead,
            )
        )
        return [
            Filled(0, t.shape, kind_of(t.dtype)) if 0 in t.shape else next(results)
            for t in call.outs
        ]

    def _leading_dimensions(
        self, name: str, func: Any, operands: list[Value], results: list[Shape]
    ) -> tuple[int, list[Value]]:
        """The number of leading dimensions that an operator treats independently, and its operands
        with them.
        """
        if table.is_elementwise(func):
            if len(set(results)) > 1 or ar.broadcast(*operands) != results[0]:
                return 0, operands
            return len(results[0]), [self.g.expand(v, results[0]) for v in operands]
        inner = table.inner_dimensions(name, [v.shape for v in operands], len(results))
        lead = (
            {shape[: len(shape) - n] for shape, n in zip(results, inner[1]) if 0 not in shape}
            if inner is not None
            else set()
        )
        if inner is None or len(lead) != 1:
            return 0, operands
        outer = lead.pop()
        return len(outer), [
            self.g.expand(v, outer + v.shape[len(v.shape) - n :])
            for v, n in zip(operands, inner[0])
        ]

    def _folded(
        self,
        call: Call,
        func: Any,
        values: list[Any],
        keywords: dict[str, Any],
        operands: list[Value],
    ) -> list[Value | None] | None:
        """ATen's own result where all operands are constants and none is large."""
        if not all(
            isinstance(v, (Filled, Known))
            or isinstance(v, Complex)
            and isinstance(v.real, (Filled, Known))
            and isinstance(v.imag, (Filled, Known))
            for v in operands
        ):
            return None
        if (
            call.name in table.NOT_FOLDED
            or sum(numel(v.shape) for v in operands) > FOLD_LIMIT
            or sum(t.numel() for t in call.outs) > FOLD_LIMIT
        ):
            return None
        if not operands and not call.outs:
            return None
        key = None
        if sum(numel(v.shape) for v in operands) > FEW:
            # a rotary table, say, which every layer computes
            key = (
                func,
                _identity(values),
                _identity(list(keywords.items())),
            )
            if key in self._folds:
                return self._folds[key][0]

        with torch.no_grad():
            try:
                given = [self._numbers_of(x) for x in values]
                result = func(*given, **{k: self._numbers_of(v) for k, v in keywords.items()})
            except (RuntimeError, IndexError, TypeError):
                return None
            written = [
                g
                for a, g in zip(func._schema.arguments, given)
                if a.alias_info is not None and a.alias_info.is_write
            ]
            made: list[Value | None] = [
                constant(t.detach()) for t in private.tensors(written if written else result)
            ]
            if any(isinstance(v, Known) and v.host for v in operands):
                made = [Known(v.data, host=True) if isinstance(v, Known) else v for v in made]
        if key is not None:
            self._folds[key] = (made, operands)  # they are kept, so that their ids stay their own
        return made

    def _numbers_of(self, x: Any) -> Any:
        """An operand as ATen takes it, with tensors of its own."""
        if isinstance(x, Complex):
            return torch.complex(self.g.data(x.real).double(), self.g.data(x.imag).double())
        if isinstance(x, (Filled, Known)):
            d = self.g.data(x)
            return (
                d.double() if d.dtype.is_floating_point and d.dtype != torch.float64 else d.clone()
            )
        if isinstance(x, list):
            return [self._numbers_of(y) for y in x]
        return torch.device("cpu") if isinstance(x, torch.device) else x

    def forget(self) -> None:
        """Drops what tensors held: the recorder is in reference cycles, which take long to be
        found.
        """
        for kept in (self.storages, self._pairs, self._folds, self._forward_locs, self.placed):
            kept.clear()
        self.untracked.forget()
        self.drawn.forget()
        self._alive.clear()
