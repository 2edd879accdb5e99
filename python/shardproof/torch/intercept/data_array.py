# SPDX-License-Identifier: Apache-2.0
"""Arrays of NumPy that depend on data: what `.numpy()` of a tensor gives while it is recorded.

Their elements are numbers that depend on data (data_number.py), so that whatever reads an element
gets one of these, and nothing reads memory. Sums, products and means of small arrays are computed
element by element, and are followed. What any other function yields has numbers of which nothing is
known: its shape and dtype are those that the function yields for zeros. Functions whose shape
depends on the numbers (`np.unique`, an index by a mask) are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from ..compat.private import FakeTensor, changes, outside, set_attribute
from .data_number import DataDependent, DataNumber, Follower, Text
from .row_count import RowCounts

MOST_FOLLOWED = 64  # elements; of larger arrays nothing is known

_ELEMENTWISE = frozenset({np.add, np.subtract, np.multiply, np.true_divide, np.negative})


def _named(names: str) -> list[tuple[str, Any]]:
    """Functions of NumPy, where this version has them."""
    return [(name, getattr(np, name)) for name in names.split() if hasattr(np, name)]


# whose results have a shape that does not depend on numbers
_FUNCTIONS = frozenset(
    f
    for _, f in _named(
        "all allclose amax amin any argmax argmin argsort array_equal around atleast_1d atleast_2d "
        "average clip concatenate corrcoef cov cumsum diff dot dstack einsum expand_dims flip "
        "hstack isclose matmul max mean median min moveaxis nanmean nansum outer percentile prod "
        "ptp quantile ravel reshape roll round sort squeeze stack std sum swapaxes take_along_axis "
        "trace transpose var vstack"
    )
)
_REARRANGING = frozenset(
    f
    for _, f in _named(
        "atleast_1d atleast_2d concatenate expand_dims hstack moveaxis ravel reshape squeeze stack "
        "swapaxes transpose vstack"
    )
)


_READ_MEMORY = frozenset(
    {
        "byteswap",
        "choose",
        "compress",
        "dump",
        "dumps",
        "fill",
        "getfield",
        "nonzero",
        "partition",
        "put",
        "searchsorted",
        "setfield",
        "sort",
        "take",
        "tobytes",
        "tofile",
    }
)


class DataArray(np.ndarray):
    """loc: where it was made. Its own dtype is that of objects."""

    loc: str
    follower: Follower
    kind: np.dtype[Any]

    def __array_finalize__(self, source: Any) -> None:
        for name in ("loc", "follower", "kind"):
            if hasattr(source, name):
                setattr(self, name, getattr(source, name))

    dtype = property(lambda self: self.kind)
    itemsize = property(lambda self: self.kind.itemsize)
    nbytes = property(lambda self: self.kind.itemsize * self.size)

    def refuse(self, what: str) -> DataDependent:
        return DataDependent(
            f"{self.loc + ': ' if self.loc else ''}a tensor becomes an array of NumPy, and {what} "
            "(what depends on data can be written with tensors)"
        )

    # ---- functions ----
    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        out = options.pop("out", None)
        if method not in ("__call__", "reduce", "accumulate", "outer"):
            raise self.refuse(f"what numpy.{ufunc.__name__}.{method} makes of it is not followed")
        of_zeros = self._of_zeros(lambda *x, **o: getattr(ufunc, method)(*x, **o), inputs, options)
        if (
            ufunc in _ELEMENTWISE
            and (method == "__call__" or method == "reduce" and ufunc is np.add)
            and not {"where", "initial"} & options.keys()
            and all(_zeros(x).size <= MOST_FOLLOWED for x in inputs if isinstance(x, np.ndarray))
        ):
            options.pop("dtype", None)
            made = getattr(ufunc, method)(*map(_objects, inputs), **options)
            result = self._wrapped(np.asarray(made, dtype=object), of_zeros)
        else:
            result = self._unknown(of_zeros)
        return result if out is None else self._written(result, out)

    def _written(self, result: Any, out: Any) -> Any:
        (target,) = out if isinstance(out, tuple) else (out,)
        if not isinstance(target, DataArray):
            raise self.refuse("is written to one that is not")
        _objects(target)[...] = _objects(result)
        return target

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        if function not in _FUNCTIONS or options.get("out") is not None:
            raise self.refuse(f"what numpy.{function.__name__} makes of it is not followed")
        of_zeros = self._of_zeros(function, args, options)
        if function in _REARRANGING and isinstance(of_zeros, np.ndarray):
            made = function(*_mapped(args, _objects), **_mapped(options, _objects))
            return self._wrapped(made, of_zeros)
        if function in (np.mean, np.sum) and len(args) == 1 and isinstance(args[0], DataArray):
            total = np.add.reduce(
                args[0], options.get("axis"), keepdims=bool(options.get("keepdims"))
            )
            count = args[0].size // max(1, np.asarray(of_zeros).size)
            return total if function is np.sum else total / count
        return self._unknown(of_zeros)

    def _of_zeros(self, function: Callable[..., Any], args: Any, options: Any) -> Any:
        """What a function yields for zeros, whose shape and dtype count."""
        with np.errstate(all="ignore"):
            return function(*_mapped(args, _zeros), **_mapped(options, _zeros))

    def _wrapped(self, objects: Any, like: Any) -> DataArray:
        made: DataArray = np.asarray(objects, dtype=object).view(DataArray)
        made.loc, made.follower, made.kind = self.loc, self.follower, np.asarray(like).dtype
        return made

    def _unknown(self, like: Any) -> Any:
        if isinstance(like, (list, tuple)):
            return type(like)(map(self._unknown, like))
        numbers = np.empty(np.shape(like), dtype=object)
        numbers.fill(DataNumber(self.loc, None, self.follower))
        return self._wrapped(numbers, like)

    # ---- methods ----
    def astype(self, dtype: Any, *args: Any, **options: Any) -> Any:
        if np.dtype(dtype).kind == self.kind.kind or np.dtype(dtype).kind in "fc":
            return self._wrapped(_objects(self).copy(), np.zeros(0, dtype))
        return self._unknown(np.zeros(self.shape, dtype))

    def copy(self, *args: Any, **options: Any) -> Any:
        return self._wrapped(_objects(self).copy(), self)

    __copy__ = copy

    def __deepcopy__(self, memo: Any) -> Any:
        return self.copy()

    def __getitem__(self, index: Any) -> Any:
        places = index if isinstance(index, tuple) else (index,)
        if any(isinstance(i, DataArray) and i.kind.kind == "b" for i in places):
            raise self.refuse("a mask that depends on data chooses of it")
        if any(isinstance(i, (DataArray, DataNumber)) for i in places):
            return self._unknown(_zeros(self)[tuple(map(_zeros, places))])
        return self._wrapped(_objects(self)[index], self)

    def __setitem__(self, index: Any, value: Any) -> None:
        places = index if isinstance(index, tuple) else (index,)
        if any(isinstance(i, (DataArray, DataNumber)) for i in places):
            raise self.refuse("it is written at places that depend on data")
        _objects(self)[index] = _objects(value)

    def item(self, *place: Any) -> Any:
        return _objects(self).item(*place)

    def tolist(self) -> Any:
        return _objects(self).tolist()

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def _text(self, *args: Any) -> Any:
        for number in _objects(self).reshape(-1)[:MOST_FOLLOWED]:
            if type(number) is DataNumber:
                self.follower.printed(number.value)
        return Text(self.loc)

    __repr__ = __str__ = __format__ = _text

    def __bool__(self) -> bool:
        return bool(_objects(self).item()) if self.size == 1 else bool(_zeros(self))

    def __float__(self) -> float:
        return float(_objects(self).item())

    def __int__(self) -> int:
        return int(_objects(self).item())

    __index__ = __int__

    def __hash__(self) -> int:
        raise TypeError("unhashable type: 'numpy.ndarray'")


def _method(function: Any) -> Callable[..., Any]:
    def method(self: DataArray, *args: Any, **options: Any) -> Any:
        return self.__array_function__(function, (DataArray,), (self, *args), options)

    return method


def _refused_method(function: Any) -> Callable[..., Any]:
    def method(self: DataArray, *args: Any, **options: Any) -> Any:
        raise self.refuse(f"what its method {function.__name__} gives is not followed")

    return method


for _name, _function in _named(
    "all any argmax argmin argsort clip cumsum dot max mean min prod ptp round std sum var"
):
    setattr(DataArray, _name, _method(_function))
for _name in dir(np.ndarray):
    # what reads memory, and what gives or makes an array whose shape depends on numbers
    if _name in _READ_MEMORY:
        setattr(DataArray, _name, _refused_method(getattr(np.ndarray, _name)))


def _objects(x: Any) -> Any:
    """An array as one of objects, which no method of DataArray sees."""
    return x.view(np.ndarray) if isinstance(x, DataArray) else x


def _zeros(x: Any) -> Any:
    if isinstance(x, DataArray):
        return np.broadcast_to(np.zeros((), x.kind), x.shape)
    return 0.0 if type(x) is DataNumber else x


def _mapped(x: Any, f: Callable[[Any], Any]) -> Any:
    if isinstance(x, (list, tuple)):
        return type(x)(_mapped(y, f) for y in x)
    if isinstance(x, dict):
        return {name: _mapped(y, f) for name, y in x.items()}
    return f(x)


def array_of(t: torch.Tensor, follower: Follower) -> DataArray:
    """An array of what a tensor holds."""
    loc = follower.where()
    kind = np.zeros(0, str(t.dtype).removeprefix("torch."))
    shape = tuple(int(n) for n in t.shape)
    flat = t.detach().reshape(-1)
    numbers = np.empty(flat.numel(), dtype=object)
    if flat.numel() <= MOST_FOLLOWED:
        flat = flat.long() if t.dtype == torch.bool else flat
        for i in range(flat.numel()):
            numbers[i] = flat[i].item()
    else:
        numbers.fill(DataNumber(loc, None, follower))
    made: DataArray = numbers.reshape(shape).view(DataArray)
    made.loc, made.follower, made.kind = loc, follower, kind.dtype
    return made


_SAME_IN_NUMPY = frozenset(
    {torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64}
)


class _Memory:
    """A real tensor's memory, for an array. `Tensor.numpy` would mark it as not resizable, and fake
    views of it that come from a cache fail then.
    """

    def __init__(self, t: torch.Tensor) -> None:
        self.tensor = t
        kind = np.dtype(str(t.dtype).removeprefix("torch."))
        self.__array_interface__ = {
            "version": 3,
            "shape": tuple(t.shape),
            "typestr": kind.str,
            "data": (t.data_ptr(), False),
            "strides": tuple(n * kind.itemsize for n in t.stride()),
        }


@contextmanager
def data_arrays(follower: Follower, constant: Callable[[Any], Any]) -> Iterator[None]:
    """Inside, `numpy()` of a tensor gives such an array, and no tensor is made of one.

    constant(x): the numbers of a constant tensor as a real one; else x.
    """
    to_array, to_numpy = torch.Tensor.__array__, torch.Tensor.numpy

    def as_numpy(t: torch.Tensor, *args: Any, force: bool = False) -> Any:
        if not isinstance(t, FakeTensor):
            plain = type(t) is torch.Tensor and t.numel() and t.dtype in _SAME_IN_NUMPY
            if plain and not t.requires_grad and t.layout == torch.strided:
                return np.asarray(_Memory(t))
            return to_numpy(t, *args, force=force)
        known = constant(t)
        if not isinstance(known, FakeTensor):
            with outside():
                numbers = to_numpy(known.to(t.dtype).clone())
            numbers.flags.writeable = False  # the tensor has memory of its own
            return numbers
        if t.requires_grad and not force:
            raise RuntimeError(
                "Can't call numpy() on Tensor that requires grad. "
                "Use tensor.detach().numpy() instead."
            )
        if t.dim() == 1 and (counts := follower.row_counts(t)) is not None:
            return RowCounts(counts)
        return array_of(t, follower)

    def as_array(t: torch.Tensor, *args: Any, **options: Any) -> Any:
        if not isinstance(t, FakeTensor):
            return to_array(t, *args, **options)
        made = as_numpy(t)
        return np.asarray(made, dtype=object) if isinstance(made, DataArray) else made

    def refusing(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **options: Any) -> Any:
            for x in args:
                for y in x if isinstance(x, (list, tuple)) else (x,):
                    if isinstance(y, DataArray):
                        raise y.refuse("that becomes a tensor")
            return make(*args, **options)

        return made

    own = {
        name: vars(torch.Tensor)[name]
        for name in ("numpy", "__array__")
        if name in vars(torch.Tensor)
    }
    try:
        torch.Tensor.numpy = as_numpy
        torch.Tensor.__array__ = as_array
        with changes() as undo:
            for name in ("from_numpy", "tensor", "as_tensor"):
                set_attribute(torch, name, refusing(getattr(torch, name)), undo)
            yield
    finally:
        for name in ("numpy", "__array__"):
            setattr(torch.Tensor, name, own[name]) if name in own else delattr(torch.Tensor, name)


__all__ = ["DataArray", "data_arrays"]
