"""The dispatch mode that sees every operator after autograd, and turns it into nodes.

Each operator is looked up in the table (`aten/`, `collectives.py`); what has no line there is decomposed by ATen itself where it can be; the rest poisons everything that it returns or writes.
"""

from __future__ import annotations

import math
import os
import sys
from fractions import Fraction
from typing import Any, Callable

import torch

from . import _private as private
from . import tables
from .graph import FOLD_LIMIT, Graph, number
from .storage import Geometry, Storage, as_real, contiguous, pair, unpair
from .values import Complex, Filled, Known, Named, Poison, Poisoned, Reason, Unsupported, Value, kind_of, numel

FILL_LIMIT = 1 << 16  # elements of a filled tensor that is written out to compute with it
_PLAIN = (torch.Tensor, private.FakeTensor, torch.nn.Parameter, torch.nn.Buffer)
_PIECEWISE = {"aten.mul_", "aten.div_"}
_VIEWS_IN_PLACE = {f"aten.{name}_" for name in ("transpose", "t", "squeeze", "unsqueeze", "as_strided", "swapdims", "swapaxes")}  # sizes and strides change, no element does
_NOT_THE_USERS = (private.torch_folder, os.path.dirname(os.path.abspath(__file__)), "<")
_DECORATORS = ("typing_extensions.py", "contextlib.py", "functools.py")


class Call:
    """One operator call, for the lines of the table: what ATen made of shapes, and the recorder."""

    def __init__(self, recorder: "Recorder", name: str, overload: str, outs: list[Any]) -> None:
        self.recorder, self.name, self.overload, self.outs = recorder, name, overload, outs

    def shape(self, i: int = 0) -> tuple[int, ...]:
        return tuple(self.outs[i].shape)


def shortest(x: float, dtype: torch.dtype) -> float:
    """The number that a constant of a short dtype was written as: a fraction of small numbers, else the fewest decimals."""
    if not math.isfinite(x) or dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return x
    near = Fraction(x).limit_denominator(1 << 10)
    if near and float(torch.tensor(float(near), dtype=dtype)) == x:
        return float(near)
    for digits in range(1, 10):
        y = float(f"{x:.{digits}g}")
        if float(torch.tensor(y, dtype=dtype)) == x:
            return y
    return x


def constant(data: torch.Tensor) -> Value:
    """A real tensor as a value: one number where all are equal."""
    kind = kind_of(data.dtype)
    if kind == "complex":
        return Complex(constant(data.real.contiguous()), constant(data.imag.contiguous()))
    if data.numel() == 0:
        return Filled(0, data.shape, kind)
    first = data.reshape(-1)[0]
    if data.numel() == 1 or bool((data == first).all()):
        x = first.item()
        return Filled(number(shortest(x, data.dtype) if kind == "real" and not math.isnan(x) else x), data.shape, kind) if not (isinstance(x, float) and math.isnan(x)) else Known(data)
    return Known(data)


class Recorder(private.TorchDispatchMode):
    """Records one side: the single device or one rank."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.g = Graph()
        self.rank = rank
        self.storages: dict[int, Storage] = {}
        self.unknown: dict[str, str] = {}  # operators without translation, and where they were met first
        self.modules: list[str] = []       # the path of the modules whose forward runs
        self.paused = False
        self.randomness = "input"          # or "poison": once the step computes
        self.random_inputs: list[tuple[Named, str]] = []
        self.issued: list[tuple[torch.Tensor, str]] | None = None  # what an asynchronous call of c10d writes, while it is made
        self._pairs: dict[tuple[int, bool], tuple[Value, Value]] = {}
        self._forward_locs: dict[int, str] = {}
        self.groups: Any = None            # collectives.Groups, set by the capture

    # ---- memory ----
    def _storage(self, t: torch.Tensor) -> Storage:
        key = private.storage_key(t)
        s = self.storages.get(key)
        if s is None:
            s = self.storages[key] = Storage(t.untyped_storage())
            if not isinstance(t, private.FakeTensor) and t.device.type != "meta":
                self._adopt(s, t)
        return s

    def _adopt(self, s: Storage, t: torch.Tensor) -> None:
        """A real tensor that was made outside: its numbers are constants."""
        with private.outside():
            plain = t.detach()
            size = tuple(plain.shape)
            if plain.numel() > FOLD_LIMIT:
                s.segments = []
                value: Value = Poison(size, Reason("a large tensor that was made before the step", self.where()))
            else:
                value = constant(plain.clone().contiguous() if not plain.is_complex() else plain.clone().resolve_conj().contiguous())
            geometry = Geometry(size, tuple(plain.stride()), plain.storage_offset())
        self._put(s, value, geometry, t.is_complex())

    def _put(self, s: Storage, value: Value, at: Geometry, is_complex: bool) -> None:
        if is_complex:
            at, value = as_real(at), unpair(self.g, value)
        s.write(self.g, value, at, self.g.loc)

    @staticmethod
    def geometry(t: torch.Tensor) -> Geometry:
        return Geometry(tuple(int(n) for n in t.shape), tuple(int(n) for n in t.stride()), int(t.storage_offset()))

    def read(self, t: torch.Tensor) -> Value:
        """What a tensor holds now."""
        with private.outside():
            return self._read(t)

    def _read(self, t: torch.Tensor) -> Value:
        if isinstance(t, private.AsyncCollectiveTensor):
            t = t.elem
        if t.layout != torch.strided:
            return Poison(t.shape, Reason("a sparse tensor", self.g.loc))
        s = self._storage(t)
        at = self.geometry(t)
        if s.pending and (name := s.unfinished(as_real(at) if t.is_complex() else at)) is not None:
            return Poison(t.shape, Reason(f"the result of an asynchronous {name} is read before its wait", self.g.loc))
        try:
            if t.is_complex():
                return self._complex(s.read(self.g, as_real(at), self.g.loc), t.is_conj())
            v = s.read(self.g, at, self.g.loc)
            if t.is_neg():
                from . import arithmetic

                v = arithmetic.negate(self.g, v)
            return v
        except Unsupported as e:
            return Poison(t.shape, Reason(str(e), self.g.loc))

    def _complex(self, real: Value, conjugate: bool) -> Value:
        """The pairs of a real value; once for each value."""
        before = self._pairs.get((id(real), conjugate))
        if before is None:
            v = pair(self.g, real)
            if conjugate and isinstance(v, Complex):
                from . import arithmetic

                v = Complex(v.real, arithmetic.negate(self.g, v.imag))
            before = self._pairs[(id(real), conjugate)] = (real, v)
        return before[1]

    def write(self, t: torch.Tensor, value: Value) -> None:
        """The tensor's elements become the value, whose shape is broadcast to the tensor's."""
        with private.outside():
            self._write(t, value)

    def _write(self, t: torch.Tensor, value: Value) -> None:
        if isinstance(t, private.AsyncCollectiveTensor):
            t = t.elem
        shape = tuple(int(n) for n in t.shape)
        try:
            if value.shape != shape:
                value = self.g.expand(value, shape)
            if t.is_conj() or t.is_neg():
                raise Unsupported("a write to a conjugate view")
            if not t.is_complex() and isinstance(value, Complex):
                raise Unsupported("a complex value is written to a real tensor")
            if kind_of(t.dtype) in ("int", "bool") and getattr(value, "kind", "") != kind_of(t.dtype) and isinstance(value, (Filled, Known)):
                value = self._to_integer(value, t.dtype)
            if t.is_complex() and not isinstance(value, (Complex, Poison)):
                value = Complex(value, Filled(0, value.shape))
        except (Unsupported, Poisoned) as e:
            value = Poison(shape, self._reason(e))
        s = self._storage(t)
        self._put(s, value, self.geometry(t), t.is_complex())

    @staticmethod
    def _to_integer(value: Filled | Known, dtype: torch.dtype) -> Value:
        if isinstance(value, Filled):
            return Filled(int(value.fill) if dtype != torch.bool else int(value.fill != 0), value.shape, kind_of(dtype))
        return Known(value.data.to(dtype))

    def _reason(self, e: Exception) -> Reason:
        return e.reason if isinstance(e, Poisoned) else Reason(str(e), self.g.loc)

    def pend(self, t: torch.Tensor, name: str, token: object) -> None:
        """An asynchronous operator writes the tensor until `finish(token)`."""
        low, high = self.geometry(t).span()
        self._storage(t).pending[token] = (low, high, name)

    def finish(self, token: object) -> None:
        for s in self.storages.values():
            s.pending.pop(token, None)

    def freed(self, key: int) -> None:
        """Memory was given back: what it held is gone."""
        s = self.storages.get(key)
        if s is not None:
            s.segments, s._cache = [], {}

    # ---- where we are ----
    def where(self) -> str:
        """The module's path and the user's file and line; of the forward operator while backward runs."""
        node = private.current_node()
        if node is not None:
            try:
                loc = self._forward_locs.get(node._sequence_nr())
            except Exception:
                loc = None
            frame = self._frame(stop_at_backward=True)
            if loc is not None and not frame:
                return f"{loc} (backward)"
            if frame:
                return f"{frame} (backward)"
        frame = self._frame()
        path = self.modules[-1] if self.modules else ""
        return f"{path} {frame}".strip() if path else frame

    @staticmethod
    def _frame(stop_at_backward: bool = False) -> str:
        f: Any = sys._getframe(2)
        while f is not None:
            name = f.f_code.co_filename
            if stop_at_backward and name.endswith(("autograd/graph.py",)):
                return ""
            if not name.startswith(_NOT_THE_USERS) and os.path.basename(name) not in _DECORATORS:
                short = os.path.relpath(name) if name.startswith(os.getcwd() + os.sep) else os.path.basename(name)
                return f"{short}:{f.f_lineno}"
            f = f.f_back
        return ""

    # ---- dispatch ----
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(t not in _PLAIN and not issubclass(t, torch.nn.Parameter) for t in types):
            return NotImplemented
        if self.paused:
            return func(*args, **kwargs)
        namespace, _, base = func._schema.name.partition("::")
        name = f"{namespace}.{base}"
        if namespace in ("prim", "profiler") or name in _VIEWS_IN_PLACE:
            return func(*args, **kwargs)
        from . import collectives
        from .aten import table

        previous = self.g.loc
        self.g.loc = self.where()
        try:
            if private.current_node() is None:
                self._forward_locs.setdefault(private.sequence_number(), self.g.loc)
            if name == "aten._local_scalar_dense":
                return self._item(args[0])
            if namespace in collectives.NAMESPACES:
                return collectives.dispatch(self, name, func, args, kwargs)
            line = table.lookup(name, func._overloadname)
            if line is None and not self._is_view(func) and name not in table.RANDOM and not self._constant_operands(args, kwargs):
                out = self._decomposed(func, args, kwargs)
                if out is not NotImplemented:
                    return out
            if name == "aten.copy_" and self.copy_pieces(args[0], args[1]):
                func(*args, **kwargs)
                return args[0]
            if name in _PIECEWISE and self._piece_by_piece(name, func, line, args, kwargs):
                return args[0]
            return self._record(name, func, line, args, kwargs)
        finally:
            self.g.loc = previous

    def copy_pieces(self, target: Any, source: Any) -> bool:
        """A flat buffer of several tensors is copied as these, so that they stay apart. False where it is no such thing."""
        if not isinstance(source, torch.Tensor) or target.dtype.is_complex or source.dtype.is_complex or kind_of(target.dtype) != kind_of(source.dtype):
            return False
        if any(type(t) is not private.FakeTensor or t.is_neg() for t in (target, source)) or target.numel() != source.numel():
            return False
        with private.outside():
            a, b = self.geometry(source), self.geometry(target)
            s, d = self._storage(source), self._storage(target)
            if s is d or s.pending or a != contiguous(a.size, a.offset) or b != contiguous(b.size, b.offset):
                return False
            parts = s.pieces(self.g, a)
            if parts is None or len(parts) < 2 or any(isinstance(p.value, Poison) for p in parts):
                return False
            d.clear(b)
            for p in parts:
                d.write(self.g, p.value, Geometry(p.at.size, p.at.stride, p.at.offset - a.offset + b.offset), self.g.loc)
        return True

    def _piece_by_piece(self, name: str, func: Any, line: Any, args: Any, kwargs: Any) -> bool:
        """A flat buffer of several tensors times a number: each of them is, so that they stay apart. False where it is no such thing."""
        t, factor = args[0], args[1]
        if kwargs or t.is_complex() or type(t) is not private.FakeTensor or isinstance(factor, torch.Tensor) and factor.numel() != 1:
            return False
        with private.outside():
            s = self._storage(t)
            if s.pending or t.is_neg():
                return False
            parts = s.pieces(self.g, self.geometry(t))
            if parts is None or len(parts) < 2 or any(isinstance(p.value, Poison) for p in parts):
                return False
            by: Any = self._read(factor) if isinstance(factor, torch.Tensor) else factor
            if isinstance(by, Value):
                if isinstance(by, Poison):
                    return False
                by = self.g.reshape(by, ())
            call = Call(self, name, func._overloadname, [t])
            try:
                results = [line(call, self.g, p.value, by) for p in parts]
            except (Unsupported, Poisoned):
                return False
        func(*args)
        with private.outside():
            for p, v in zip(parts, results):
                s.write(self.g, v, p.at, self.g.loc)
        return True

    def _constant_operands(self, args: Any, kwargs: Any) -> bool:
        """Whether ATen's own result can be taken: there are tensors among the operands, and all are constants."""
        values = [self.read(t) for t in private.tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)]
        return bool(values) and all(isinstance(v, (Filled, Known)) for v in values)

    def _decomposed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs the operator as ATen's own decomposition, whose parts are seen here."""
        from .aten import table

        if func._can_decompose() and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
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
        from .aten import table

        namespace, _, base = func._schema.name.partition("::")
        packet = getattr(getattr(torch.ops, namespace), base[:-1], None) if base.endswith("_") else None
        functional = getattr(packet, func._overloadname or "default", None) if packet is not None else None
        rule = table.decomposition(functional) if functional is not None else None
        if rule is None or not isinstance(args[0], torch.Tensor):
            return NotImplemented
        with self:
            args[0].copy_(rule(*args, **kwargs))
        return args[0]

    @staticmethod
    def _is_view(func: Any) -> bool:
        return func.is_view or any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)

    def _item(self, t: torch.Tensor) -> Any:
        v = self.read(t)
        if isinstance(v, Filled):
            return (v.fill != 0) if t.dtype == torch.bool else int(v.fill) if kind_of(t.dtype) == "int" else float(v.fill)
        if isinstance(v, Known) and numel(v.shape) == 1:
            return v.data.item()
        if t.dtype.is_floating_point:
            return math.nan  # formats, and poisons any tensor that it goes into
        raise DataDependent(f"{self.g.loc}: the program asks for a number that depends on data (Tensor.item(), bool() or int() of a tensor)")

    def _record(self, name: str, func: Any, line: Callable[..., Any] | None, args: Any, kwargs: Any) -> Any:
        from .aten import table

        schema = func._schema
        written: list[Any] = []  # tensors, or lists of them, that the operator writes
        bound: dict[str, Any] = {}
        outputs_only: set[str] = set()
        for i, a in enumerate(schema.arguments):
            v = kwargs.get(a.name) if a.kwarg_only or i >= len(args) else args[i]
            bound[a.name] = v
            if a.alias_info is not None and a.alias_info.is_write and v is not None:
                written.append(v)
                if a.is_out:
                    outputs_only.add(a.name)
        inputs_before = {private.storage_key(t) for t in private.tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)}
        # operands are read before the call: the call itself changes no recorded contents
        values_args, values_kwargs, operands = self._operands(schema, args, kwargs, outputs_only)
        out = func(*args, **kwargs)
        outs = [t for t in private.tree_flatten(out)[0] if isinstance(t, torch.Tensor)]
        if not written and outs and all(private.storage_key(t) in inputs_before for t in outs):
            return out  # views: the geometry says it all
        if name in table.UNDEFINED:
            return out  # memory that holds nothing yet
        call = Call(self, name, func._overloadname, outs)
        targets = private.tree_flatten(written)[0] if written else outs
        targets = [t for t in targets if isinstance(t, torch.Tensor)]
        try:
            with private.outside():
                results = self._results(call, name, func, line, values_args, values_kwargs, operands, args, kwargs, bool(written))
        except Exception as e:  # whatever goes wrong in a line: what it would have written is not known
            reason = e.reason if isinstance(e, Poisoned) else Reason(f"{name}: {e}" if isinstance(e, Unsupported) else f"{name}: {type(e).__name__}: {e}", self.g.loc,
                                                                 tables.unknown_range(self.g, operands))
            self.unknown.setdefault(reason.text, reason.loc)
            results = [Poison(t.shape, reason) for t in targets]
        if len(results) < len(targets):
            results = [*results, *[None] * (len(targets) - len(results))]
        for t, v in zip(targets, results):
            if v is None:
                v = Poison(t.shape, Reason(f"{name}: a result that has no translation", self.g.loc))
            if not isinstance(v, Poison) and line is not None and tuple(v.shape) != tuple(t.shape) and not written:
                v = Poison(t.shape, Reason(f"{name}: translated to shape {list(v.shape)} where ATen has {list(t.shape)}", self.g.loc))
            self.write(t, v)
        return out

    def _operands(self, schema: Any, args: Any, kwargs: Any, outputs_only: set[str]) -> tuple[list[Any], dict[str, Any], list[Value]]:
        operands: list[Value] = []

        def value(x: Any) -> Any:
            if isinstance(x, torch.Tensor):
                v = self.read(x)
                operands.append(v)
                return v
            if isinstance(x, (list, tuple)):
                return [value(y) for y in x]
            return x

        values = [value(x) for x in args]
        return values, {k: value(v) for k, v in kwargs.items() if k not in outputs_only}, operands

    def _results(self, call: Call, name: str, func: Any, line: Any, values: list[Any], keywords: dict[str, Any], operands: list[Value], args: Any, kwargs: Any,
                 writes: bool) -> list[Value | None]:
        from .aten import table

        if name in table.RANDOM or torch.Tag.nondeterministic_seeded in func.tags and line is None:
            return self._random(call, name, values, writes)
        if name in table.CHOOSING:
            which, count = table.CHOOSING[name]
            if isinstance(values[which], Poison):
                tables.note_classes(self.g, values[which], count(values))
        for v in operands:
            if isinstance(v, Poison) and not getattr(line, "reads_selectively", False):
                raise Poisoned(v.reason)
        large = line is not None and any(isinstance(v, Filled) and numel(v.shape) > FILL_LIMIT for v in operands)  # lines know what to do with one number everywhere
        folded = None if large else self._folded(call, func, values, keywords, operands)
        if folded is not None:
            return folded
        if line is None:
            raise Unsupported("no line in the table of operators")
        result = line(call, self.g, *values, **keywords)
        return list(result) if isinstance(result, (list, tuple)) else [result]

    def _folded(self, call: Call, func: Any, values: list[Any], keywords: dict[str, Any], operands: list[Value]) -> list[Value | None] | None:
        """ATen's own result where all operands are constants and none is large."""
        from .aten import table

        if not all(isinstance(v, (Filled, Known)) or isinstance(v, Complex) and isinstance(v.real, (Filled, Known)) and isinstance(v.imag, (Filled, Known)) for v in operands):
            return None
        if call.name in table.NOT_FOLDED or sum(numel(v.shape) for v in operands) > FOLD_LIMIT or sum(t.numel() for t in call.outs) > FOLD_LIMIT:
            return None
        if not operands and not call.outs:
            return None
        def data(x: Any) -> Any:
            if isinstance(x, Complex):
                return torch.complex(self.g.data(x.real).double(), self.g.data(x.imag).double())
            if isinstance(x, (Filled, Known)):
                d = self.g.data(x)
                return d.double() if d.dtype.is_floating_point and d.dtype != torch.float64 else d.clone()
            if isinstance(x, list):
                return [data(y) for y in x]
            return torch.device("cpu") if isinstance(x, torch.device) else x

        with torch.no_grad():
            try:
                given = [data(x) for x in values]
                result = func(*given, **{k: data(v) for k, v in keywords.items()})
            except (RuntimeError, IndexError, TypeError):
                return None
            written = [g for a, g in zip(func._schema.arguments, given) if a.alias_info is not None and a.alias_info.is_write]
            flat = private.tree_flatten(written if written else result)[0]
            return [constant(t.detach()) for t in flat if isinstance(t, torch.Tensor)]

    def _random(self, call: Call, name: str, values: list[Any], writes: bool) -> list[Value | None]:
        """Random numbers drawn before the step computes are inputs, counted in the order in which they are drawn; later they are not known."""
        if self.randomness != "input":
            raise Unsupported("random numbers inside the step (dropout and noise are not supported)")
        shapes = [tuple(values[0].shape)] if writes else [tuple(t.shape) for t in call.outs]
        return [self.random_input(shape, call) for shape in shapes]

    def random_input(self, shape: tuple[int, ...], call: Call) -> Value:
        name = f"%random.{len(self.random_inputs)}"
        integer = bool(call.outs) and kind_of(call.outs[0].dtype) == "int"
        if 0 in shape:
            return Filled(0, shape)
        v = self.g.declare(name, shape, "int" if integer else "real", "input")
        self.random_inputs.append((v, self.g.loc))
        return v


class DataDependent(RuntimeError):
    """The program's course depends on data."""
