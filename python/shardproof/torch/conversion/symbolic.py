# SPDX-License-Identifier: Apache-2.0
"""Symbolic tensors, and the mode in which a conversion runs on them.

A symbolic tensor has the shape, strides and dtype of the tensor that it stands for. It wraps a
tensor of identities (identities.py) of the same shape and strides. An operator that moves elements
is run on the identities, so views share memory as the real tensors would, and a write through one
view shows in all. All else is done in one of three ways:

* on constants only (indices, masks, padding): the operator runs on the numbers;
* elementwise arithmetic that the caller declared: the result is a term;
* anything else is refused. It would read values of the source, and what the conversion does next
  could depend on them.

A refusal is noted when it is raised, as the conversion may catch it and do something else than it
would do on real tensors. `verify_conversion` looks at the notes when the conversion has ended.

Tensors that are made while the mode is active are symbolic from the start: constants, memory that
nothing has written, random numbers. Tensors from elsewhere are numbers that are known; they cannot
take elements of the source in.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from .identities import ANYTHING, RANDOM, UNINITIALIZED, Identities, name_of


class ConversionError(Exception):
    """A conversion does something that cannot be followed, or a call is wrong."""


class SymbolicTensor(torch.Tensor):
    """See the head of this file. identities: int64, of the tensor's shape and strides."""

    _session: Session
    _identities: torch.Tensor

    @staticmethod
    def __new__(
        cls, session: Session, identities: torch.Tensor, dtype: torch.dtype
    ) -> SymbolicTensor:
        made: SymbolicTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            identities.shape,
            strides=identities.stride(),
            storage_offset=identities.storage_offset(),
            dtype=dtype,
            device=torch.device("cpu"),
            requires_grad=False,
        )
        made._session = session
        made._identities = identities
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # The mode sees every operator of its thread first.
        _session_of((args, kwargs)).refuse(
            f"{func} runs in another thread or after the end, where new tensors are not followed"
        )

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        if name == "__set__" and func == torch.Tensor.data.__set__:
            return _set_data(*args)
        if name == "data_ptr":  # who shares memory with whom is as for real tensors
            return _Pointer(args[0]._session, args[0]._identities.data_ptr())
        if name == "untyped_storage":
            return _Storage(args[0])
        if name == "__deepcopy__":
            with _disable_current_modes():
                return _deepcopy(*args)
        if name == "tolist":
            session = _session_of(args)
            with _disable_current_modes():
                return session.numbers(args[0], name).tolist()
        if name in _UNFOLLOWED:
            _session_of((args, kwargs)).refuse(
                f"it calls {name}, which leaves PyTorch's operators: what happens to the elements "
                "there is not followed"
            )
        return super().__torch_function__(func, types, args, kwargs or {})

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        if _running is not self._session:  # in reports, after the end
            return f"SymbolicTensor(shape={list(self.shape)}, dtype={name_of(self.dtype)})"
        with _disable_current_modes():  # the text has the elements in it
            return repr(self._session.numbers(self, "the text of a tensor"))

    def __format__(self, format_spec: str) -> str:
        if _running is not self._session:
            return repr(self)
        with _disable_current_modes():
            return format(self._session.numbers(self, "the text of a tensor"), format_spec)


_UNFOLLOWED = {
    "__array__",
    "__copy__",
    "__dlpack__",
    "__reduce_ex__",
    "__setstate__",
    "_typed_storage",
    "apply_",
    "as_subclass",
    "map2_",
    "map_",
    "numpy",
    "resize_",
    "set_",
    "share_memory_",
    "storage",
    "to_sparse",
}


class _Pointer:
    """An address: enough to find out which tensors share memory. It is never a number, because what
    is at the address are identities, and its bits differ from run to run."""

    def __init__(self, session: Session, address: int) -> None:
        self._session = session
        self._address = address

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Pointer):
            self._read()
        return isinstance(other, _Pointer) and self._address == other._address

    def __hash__(self) -> int:
        return hash(self._address)

    def _read(self, *_: Any) -> Any:
        self._session.refuse(
            "it uses the address of a tensor as a number, as what reads its bytes does"
        )

    __int__ = __index__ = __bool__ = __format__ = __repr__ = __reduce_ex__ = _read
    __add__ = __radd__ = __sub__ = __rsub__ = __mod__ = __and__ = __rshift__ = __floordiv__ = _read
    __lt__ = __le__ = __gt__ = __ge__ = _read


class _Storage:
    """The storage of a symbolic tensor: enough to find out which tensors share memory."""

    def __init__(self, tensor: SymbolicTensor) -> None:
        self._tensor = tensor

    def data_ptr(self) -> _Pointer:
        session = self._tensor._session
        return _Pointer(session, self._tensor._identities.untyped_storage().data_ptr())

    def nbytes(self) -> int:
        elements = self._tensor._identities.untyped_storage().nbytes() // 8
        return int(elements * self._tensor.element_size())

    size = nbytes

    def __getattr__(self, name: str) -> NoReturn:
        self._tensor._session.refuse(f"it uses {name} of a storage")

    def _read(self, *_: Any) -> Any:
        self._tensor._session.refuse("it reads a storage")

    __iter__ = __len__ = __getitem__ = __setitem__ = __bytes__ = __buffer__ = _read
    __copy__ = __deepcopy__ = __reduce_ex__ = _read


def _set_data(tensor: Any, value: Any) -> None:
    """`tensor.data = value`."""
    session = _session_of((tensor, value))
    if not isinstance(tensor, SymbolicTensor) or not isinstance(value, SymbolicTensor):
        session.refuse("it sets .data of a tensor that is not its own")
    with torch._C.DisableTorchFunctionSubclass():
        torch.Tensor.data.__set__(tensor, value)
    tensor._identities = value._identities


def _deepcopy(tensor: SymbolicTensor, memo: dict[int, Any]) -> Any:
    """Tensors that share memory share it in the copy, too: copies are made of whole storages."""
    if id(tensor) in memo:
        return memo[id(tensor)]
    old = tensor._identities
    key = old.untyped_storage().data_ptr()
    storages = memo.setdefault(id(_Storage), {})
    if key not in storages:
        whole = torch.empty(0, dtype=torch.int64).set_(old.untyped_storage())
        storages[key] = whole.clone()
    made = storages[key].as_strided(old.shape, old.stride(), old.storage_offset())
    memo[id(tensor)] = SymbolicTensor(tensor._session, made, tensor.dtype)
    return memo[id(tensor)]


def _session_of(values: Any) -> Session:
    for leaf in tree_flatten(values)[0]:
        if isinstance(leaf, SymbolicTensor):
            return leaf._session
    raise ConversionError("no symbolic tensor among the operands")


class Session:
    """One verification. elementwise: names of ATen operators whose arithmetic is followed."""

    def __init__(self, elementwise: Sequence[str] = ()) -> None:
        self.refused: ConversionError | None = None
        self.failed: ConversionError | None = None  # an operator, which ended the run or did not
        self.identities = Identities(self.refuse)
        self.elementwise = frozenset(elementwise)
        self.writes = 0  # operators that wrote to a tensor
        self.specifying = False  # the specification runs, not the conversion

    def refuse(self, what: str) -> NoReturn:
        who = "the specification" if self.specifying else "the conversion"
        error = ConversionError(f"{who} cannot be followed: {what}")
        self.refused = self.refused or error
        raise error

    @contextlib.contextmanager
    def active(self, specifying: bool) -> Iterator[None]:
        """Tensors that are made inside are symbolic. Raises what was noted, at the end."""
        global _running
        self.specifying, _running = specifying, self
        try:
            with _Mode(self), torch.no_grad():
                yield
        except Exception as error:
            if self.refused is not None and error is not self.refused:
                raise self.refused from error
            raise
        finally:
            _running = None
        if noted := self.refused or self.failed:
            raise noted

    # ---- operators

    def held(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """The identities that a tensor of the target has now. Raises ConversionError."""
        if type(x) not in (SymbolicTensor, torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            self.refuse(f"{name} is a {type(x).__name__}")
        if isinstance(x, SymbolicTensor) and x._session is not self:
            self.refuse(f"{name} is a tensor of another verification")
        if x.layout != torch.strided:
            self.refuse(f"{name} is no dense tensor")
        if x.is_meta:
            return torch.full(x.shape, UNINITIALIZED, dtype=torch.int64)
        return self.ids(x).clone()

    def wrap(self, identities: torch.Tensor, dtype: torch.dtype) -> SymbolicTensor:
        return SymbolicTensor(self, identities, dtype)

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One ATen operator. That it fails is noted: on real tensors it may not."""
        try:
            return self._call(func, args, kwargs)
        except ConversionError:
            raise
        except Exception as error:
            self.failed = self.failed or ConversionError(
                f"the conversion cannot be followed: it goes on after {func} failed: {error}"
            )
            raise

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.writes += func._schema.is_mutable
        name = func._schema.name.removeprefix("aten::")
        if func._schema.is_mutable:
            self._check_overlap(func, name, args, kwargs)
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        for x in tensors:
            if not isinstance(x, SymbolicTensor):
                self.check_memory(x)
            elif x._session is not self:
                self.refuse("it uses a symbolic tensor of another verification")
        if "device" in kwargs and kwargs["device"] is not None:
            if torch.device(kwargs["device"]).type == "meta":
                return func(*tree_map(_as_meta, args), **tree_map(_as_meta, kwargs))
            kwargs = {**kwargs, "device": torch.device("cpu")}  # where it lies makes no difference
        kwargs = {k: v for k, v in kwargs.items() if k not in ("pin_memory", "non_blocking")}
        symbolic = any(isinstance(x, SymbolicTensor) for x in tensors)
        if torch.Tag.inplace_view in func.tags or name in ("resize_", "resize_as_", "set_"):
            if symbolic:
                self.refuse(f"{name} changes the shape or the memory of a tensor in place")
            return func(*args, **kwargs)
        if symbolic and any(a.is_out for a in func._schema.arguments):
            self.refuse(f"{name} writes to a tensor that is named with out=")
        if name in _SHAPES_ONLY:  # only the shape of the operand is read
            args = (_blank(args[0]), *args[1:])
            symbolic = any(isinstance(x, SymbolicTensor) for x in tree_flatten(args[1:])[0])
        if name in _EMPTY:
            made = func(*args, **kwargs)
            return self._filled(made, UNINITIALIZED)
        if torch.Tag.nondeterministic_seeded in func.tags:
            return self._random(func, args, kwargs)
        if symbolic:
            if name == "_to_copy":
                return self._to_copy(args[0], **kwargs)
            if name in ("view", "detach", "alias", "lift_fresh") and (
                len(args) > 1 and isinstance(args[1], torch.dtype)
            ):
                if args[1] == args[0].dtype:
                    return self.wrap(args[0]._identities.view(args[0].shape), args[1])
                self.refuse("it reads the bits of elements as another dtype")
            if name in _VIEWS:
                return self._view(func, args, kwargs)
            if name in _MOVES:
                return _MOVES[name](self, func, args, kwargs)
            base = name.rstrip("_") if not name.startswith("_") else name
            known = all(self._known(x) for x in tensors)
            if not known and base in self.elementwise:
                return self._arithmetic(func, base, args, kwargs)
        return self._on_numbers(func, name, args, kwargs, symbolic)

    def _check_overlap(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """PyTorch reads elements that it has written already where a written operand shares memory
        with another operand. The result then depends on dtypes, vector sizes and threads. Only
        elementwise operators on the same elements in the same places are free of that."""
        written, read = (
            [x for x in found if isinstance(x, SymbolicTensor)]
            for found in _operands(func, args, kwargs)
        )
        aligned = name == "copy_" or torch.Tag.pointwise in func.tags
        for i, x in enumerate(written):
            if _overlaps_itself(x._identities):
                self.refuse(
                    f"{name} writes to a view that has one element in several places, in an order "
                    "that PyTorch leaves open; write to a copy (.clone())"
                )
            for other in (*read, *written[i + 1 :]):
                a, b = x._identities, other._identities
                if _share_elements(a, b) and not (aligned and _same_places(a, b)):
                    self.refuse(
                        f"{name} writes elements that it also reads in other places, so that it "
                        "may read what it has written; read from a copy (.clone())"
                    )

    def check_memory(self, tensor: torch.Tensor) -> None:
        """A symbolic tensor whose class was taken away has no memory to read."""
        if not tensor.is_meta and tensor.numel() and not tensor.data_ptr():
            self.refuse("it uses a tensor that has no memory (was its class changed?)")

    def _known(self, tensor: torch.Tensor) -> bool:
        return not isinstance(tensor, SymbolicTensor) or self.identities.all_known(
            tensor._identities
        )

    def ids(self, tensor: Any) -> torch.Tensor:
        """The identities of a tensor, symbolic or not."""
        if isinstance(tensor, SymbolicTensor):
            return tensor._identities
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            self.refuse(f"it uses a {type(tensor).__name__}")
        self.check_memory(tensor)
        return self.identities.of_values(tensor)

    def ids_as(self, tensor: Any, dtype: torch.dtype) -> torch.Tensor:
        """The same after a cast."""
        if tensor.dtype == dtype:
            return self.ids(tensor)
        return self.identities.cast(self.ids(tensor), tensor.dtype, dtype)

    def number(self, value: Any, dtype: torch.dtype) -> int:
        """The identity of a Python number in a tensor of that dtype."""
        return int(self.identities.of_values(torch.tensor(value, dtype=dtype)))

    def numbers(self, tensor: Any, what: str) -> Any:
        """The numbers of a tensor of constants: what its operator reads."""
        if not isinstance(tensor, SymbolicTensor):
            return tensor
        if not self._known(tensor):
            identities = tensor._identities.reshape(-1)
            unknown = next(
                i for i in identities.unique().tolist() if not self.identities.all_known(_one(i))
            )
            self.refuse(
                f"{what} uses the value of {self.identities.describe(unknown)}; only "
                "arithmetic that is declared (arithmetic=...) may do so, and no decision"
            )
        return self.identities.values(tensor._identities, tensor.dtype)

    def _filled(self, made: Any, identity: int) -> Any:
        if made.is_meta:
            return made
        identities = torch.empty_strided(made.shape, made.stride(), dtype=torch.int64)
        return self.wrap(identities.fill_(identity), made.dtype)

    def _random(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        written = args[0] if func._schema.name.endswith("_") else None
        if isinstance(written, SymbolicTensor):
            written._identities.fill_(RANDOM)
            return written
        if written is not None:
            return func(*args, **kwargs)
        made = func(
            *tree_map(lambda x: _blank(x) if isinstance(x, torch.Tensor) else x, args), **kwargs
        )
        flat, structure = tree_flatten(made)
        return tree_unflatten([self._filled(x, RANDOM) for x in flat], structure)

    def _view(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        dtype = args[0].dtype
        made = func(args[0]._identities, *args[1:], **kwargs)
        return tree_map(lambda x: self.wrap(x, dtype), made)

    def _to_copy(self, tensor: Any, *, dtype: Any = None, **others: Any) -> Any:
        if others.get("layout") not in (None, torch.strided):
            self.refuse("it makes a tensor that is not dense")
        memory = others.get("memory_format") or torch.preserve_format
        ids = self.ids_as(tensor, dtype or tensor.dtype).clone(memory_format=memory)
        return self.wrap(ids, dtype or tensor.dtype)

    def _arithmetic(
        self, func: Any, base: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A declared elementwise operator, in place or not. The key has all that its result depends
        on but the values: the overload, numbers, and the dtypes of operands and result."""
        in_place = func._schema.name.endswith("_")
        if in_place and not isinstance(args[0], SymbolicTensor):
            self.refuse(f"{base}_ writes elements of the source to a tensor from elsewhere")
        plain = getattr(torch.ops.aten, base)
        plain = getattr(plain, func._overloadname)
        flat, structure = tree_flatten((args, kwargs))
        operands = [x for x in flat if isinstance(x, torch.Tensor)]
        for x in operands:
            if isinstance(x, SymbolicTensor) and bool(
                torch.isin(x._identities, torch.tensor([UNINITIALIZED, RANDOM, ANYTHING])).any()
            ):
                self.refuse(f"{base} of elements that have no definite value")
        shapes_args, shapes_kwargs = tree_unflatten([_as_meta(x) for x in flat], structure)
        shaped = plain(*shapes_args, **shapes_kwargs)
        shape = torch.broadcast_shapes(*(x.shape for x in operands))
        if shaped.shape != shape:
            self.refuse(f"{base} is not elementwise")
        key = (
            str(plain),
            repr([x.dtype if isinstance(x, torch.Tensor) else x for x in flat]),
            str(structure),
            shaped.dtype,
        )
        words = ", ".join(
            "{}" if isinstance(x, torch.Tensor) else str(x).replace("{", "{{").replace("}", "}}")
            for x in flat
            if x is not None
        )
        ids = self.identities.term(
            key, f"{base}({words})", [self.ids(x).expand(shape) for x in operands], shaped.dtype
        )
        result = self.wrap(ids, shaped.dtype)
        if in_place:
            args[0]._identities.copy_(self.ids_as(result, args[0].dtype))
            return args[0]
        return result

    def _on_numbers(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], symbolic: bool
    ) -> Any:
        """Any other operator: all its operands have to be known."""
        written, _ = _operands(func, args, kwargs)
        aliases = any(r.alias_info is not None for r in func._schema.returns)
        if symbolic and aliases and not written:
            self.refuse(f"the view {name} is not followed")
        pairs: list[tuple[SymbolicTensor, torch.Tensor]] = []

        def known(x: Any) -> Any:
            if not isinstance(x, SymbolicTensor):
                return x
            for old, new in pairs:
                if old is x:
                    return new
            pairs.append((x, self.numbers(x, name)))
            return pairs[-1][1]

        results = func(*tree_map(known, args), **tree_map(known, kwargs))
        for old, new in pairs:
            if any(w is old for w in written):
                if old.shape != new.shape:
                    self.refuse(f"{name} changes the shape of a tensor in place")
                old._identities.copy_(self.identities.of_values(new))

        def back(x: Any) -> Any:
            if not isinstance(x, torch.Tensor) or x.is_meta:
                return x
            for old, new in pairs:
                if new is x:
                    return old
            if not symbolic and aliases and name != "lift_fresh":
                return x  # a view of a tensor from elsewhere, or that tensor
            return self.wrap(self.identities.of_values(x), x.dtype)

        return tree_map(back, results)


class _Mode(TorchDispatchMode):
    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.session.call(func, args, kwargs or {})


_running: Session | None = None


def running() -> bool:
    """Is a conversion being verified?"""
    return _running is not None


def unspecified(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Elements of the target that are not compared, as the rows that pad a vocabulary.

    For specifications only: the report counts them. Raises ConversionError elsewhere.
    """
    if _running is None or not _running.specifying:
        raise ConversionError("unspecified() is for the target of verify_conversion only")
    session = _running
    with _disable_current_modes():
        return session.wrap(torch.full(shape, ANYTHING), dtype)


def _operands(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The tensors that an operator writes to, and those that it only reads."""
    written: list[torch.Tensor] = []
    read: list[torch.Tensor] = []
    for i, argument in enumerate(func._schema.arguments):
        value = args[i] if i < len(args) else kwargs.get(argument.name)
        writes = argument.alias_info is not None and argument.alias_info.is_write
        found = [x for x in tree_flatten(value)[0] if isinstance(x, torch.Tensor)]
        (written if writes else read).extend(found)
    return written, read


def _end(x: torch.Tensor) -> int:
    """The offset behind the last element, in the storage."""
    extent = sum((n - 1) * k for n, k in zip(x.shape, x.stride()))
    return int(x.storage_offset() + extent) + 1


def _overlaps_itself(x: torch.Tensor) -> bool:
    """Are two elements of the tensor one element of its storage?"""
    if not x.numel():
        return False
    dimensions = sorted((k, n) for n, k in zip(x.shape, x.stride()) if n > 1)
    extent = 1
    for stride, size in dimensions:
        if stride == 0:
            return True
        if stride < extent:
            break
        extent += (size - 1) * stride
    else:
        return False
    offsets = torch.arange(_end(x)).as_strided(x.shape, x.stride(), x.storage_offset())
    return bool(offsets.unique().numel() != x.numel())


def _share_elements(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Is an element of the storage in both tensors?"""
    if not a.numel() or not b.numel():
        return False
    if a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return False
    low = min(a.storage_offset(), b.storage_offset())
    if a.storage_offset() >= _end(b) or b.storage_offset() >= _end(a):
        return False
    hit = torch.zeros(max(_end(a), _end(b)) - low, dtype=torch.bool)
    hit.as_strided(a.shape, a.stride(), a.storage_offset() - low).fill_(True)
    return bool(hit.as_strided(b.shape, b.stride(), b.storage_offset() - low).any())


def _same_places(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Has b, broadcast to the shape of a, each element where a has it?"""
    if a.storage_offset() != b.storage_offset() or b.dim() > a.dim():
        return False
    strides = b.expand(a.shape).stride()
    return all(n == 1 or j == k for n, j, k in zip(a.shape, a.stride(), strides))


def _one(identity: int) -> torch.Tensor:
    return torch.tensor([identity], dtype=torch.int64)


def _blank(tensor: Any) -> Any:
    """A tensor of the same shape, strides and dtype, whose values are not read."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)


def _as_meta(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


_EMPTY = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty"} | {
    "new_empty_strided"
}
_SHAPES_ONLY = {"empty_like", "new_empty", "new_empty_strided", "new_full", "new_ones"} | {
    "new_zeros",
    "zeros_like",
    "ones_like",
    "full_like",
    "rand_like",
    "randn_like",
    "randint_like",
}
_VIEWS = {
    "_reshape_alias",
    "_unsafe_view",
    "alias",
    "detach",
    "diagonal",
    "expand",
    "lift_fresh",
} | {
    "permute",
    "select",
    "slice",
    "split",
    "split_with_sizes",
    "squeeze",
    "t",
    "transpose",
    "unbind",
    "unfold",
    "unsqueeze",
    "view",
}

# ---- operators that move elements. Each is run on the identities of its values; its indices and
# masks are numbers.

_Move = Callable[[Session, Any, tuple[Any, ...], dict[str, Any]], Any]
_MOVES: dict[str, _Move] = {}


def _move(*names: str) -> Callable[[_Move], _Move]:
    def register(function: _Move) -> _Move:
        for name in names:
            _MOVES[name] = function
        return function

    return register


@_move("clone", "repeat", "flip", "roll", "rot90", "index_select", "gather", "take", "index")
@_move("masked_select", "unsafe_split", "unsafe_split_with_sizes", "contiguous")
def _copies(session: Session, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Copies of elements of the first operand; the others are indices and masks."""
    name = func._schema.name.removeprefix("aten::")
    others, named = tree_map(lambda x: session.numbers(x, name), (args[1:], kwargs))
    made = func(session.ids(args[0]), *others, **named)
    return tree_map(lambda x: session.wrap(x, args[0].dtype), made)


@_move("cat", "stack")
def _joined(session: Session, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    dtype = func([_as_meta(x) for x in args[0]], *args[1:], **kwargs).dtype
    made = func([session.ids_as(x, dtype) for x in args[0]], *args[1:], **kwargs)
    return session.wrap(made, dtype)


@_move("where")
def _where(session: Session, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) != 3:
        session.refuse("where() without values reads the elements")
    dtype = func(*map(_as_meta, args)).dtype
    mask = session.numbers(args[0], "where")
    return session.wrap(
        func(mask, session.ids_as(args[1], dtype), session.ids_as(args[2], dtype)), dtype
    )


@_move("constant_pad_nd")
def _padded(session: Session, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = args[2] if len(args) > 2 else kwargs.get("value", 0)
    dtype = args[0].dtype
    return session.wrap(func(args[0]._identities, args[1], session.number(value, dtype)), dtype)


@_move("copy_")
def _copied(session: Session, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    target, source = args[:2]
    if not isinstance(target, SymbolicTensor):
        return _foreign(session, "copy_")
    # A cast copies; without one, copy_ itself is right where both share memory.
    target._identities.copy_(session.ids_as(source, target.dtype))
    return target


@_move("fill_", "zero_", "fill")
def _fills(session: Session, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    target = args[0]
    value = args[1] if len(args) > 1 else 0
    in_place = func._schema.name.endswith("_")
    if in_place and not isinstance(target, SymbolicTensor):
        return _foreign(session, "fill_")
    identities = session.ids(target) if in_place else session.ids(target).clone()
    if isinstance(value, torch.Tensor):
        identities.copy_(session.ids_as(value, target.dtype))
    else:
        identities.fill_(session.number(value, target.dtype))
    return target if in_place else session.wrap(identities, target.dtype)


@_move("index_put", "index_put_", "_index_put_impl_", "scatter", "scatter_", "index_copy")
@_move("index_copy_", "index_fill", "index_fill_", "masked_fill", "masked_fill_")
@_move("masked_scatter", "masked_scatter_", "slice_scatter", "select_scatter")
@_move("diagonal_scatter")
def _writes(session: Session, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Elements of the first operand are replaced. By the schema's names: `self` and the new values
    are elements, every other tensor is an index or a mask."""
    name = func._schema.name.removeprefix("aten::")
    bound = dict(zip((a.name for a in func._schema.arguments), args)) | kwargs
    target = bound["self"]
    in_place = name.endswith("_")
    if in_place and not isinstance(target, SymbolicTensor):
        return _foreign(session, name)
    if bound.get("accumulate") or bound.get("reduce") is not None:
        session.refuse(f"{name} adds elements up")
    given: dict[str, Any] = {}
    for key, value in bound.items():
        if key == "self":
            given[key] = session.ids(value)
        elif key in ("values", "value", "src", "source"):
            if isinstance(value, torch.Tensor):
                if value.dtype != target.dtype and value.dim():
                    session.refuse(
                        f"{name} writes {name_of(value.dtype)} to {name_of(target.dtype)}"
                    )
                given[key] = session.ids_as(value, target.dtype)
            else:
                given[key] = session.number(value, target.dtype)
        else:
            given[key] = tree_map(lambda x: session.numbers(x, name), value)
    _check_distinct(session, name, given)
    made = func(**given)
    return target if in_place else session.wrap(made, target.dtype)


def _check_distinct(session: Session, name: str, given: dict[str, Any]) -> None:
    """Where an element is written twice, PyTorch does not define which write is the last."""
    shape = given["self"].shape
    places = torch.arange(given["self"].numel()).view(shape)
    if name in ("index_put", "index_put_", "_index_put_impl_"):
        hit = torch.ops.aten.index.Tensor(places, given["indices"])
    elif name in ("scatter", "scatter_"):
        index = given["index"]
        hit = places[tuple(slice(0, n) for n in index.shape)] if index.dim() else places
        dim = given["dim"]
        widened = [slice(0, n) for n in index.shape]
        if index.dim():
            widened[dim] = slice(None)
            hit = places[tuple(widened)].gather(dim, index)
    elif name in ("index_copy", "index_copy_"):
        hit = given["index"]
    else:
        return
    if hit.unique().numel() != hit.numel():
        session.refuse(f"{name} writes an element twice, in an order that PyTorch leaves open")


def _foreign(session: Session, name: str) -> NoReturn:
    session.refuse(
        f"{name} writes elements of the source to a tensor that the conversion did not make; make "
        "it inside of the conversion, by PyTorch's functions and in the same thread"
    )
