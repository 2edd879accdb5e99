# SPDX-License-Identifier: Apache-2.0
"""Flat buffers of several tensors (FSDP, DDP), which are sent, cut and filled as these tensors.

The same numbers move as if the buffer were one tensor. The proof sees tensors instead of stretches
of memory. Where ranks put a buffer together of other tensors, all is recorded anew with whole
buffers (`InitialState.whole_buffers`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..terms import arithmetic as ar
from ..terms.geometry import Geometry, Segment, contiguous
from ..terms.values import Filled, Poison, Unsupported, Value, numel
from .exchange import Exchange


def segments(recorder: Any, t: torch.Tensor) -> list[Segment] | None:
    """The parts of a flat buffer; None where it is one tensor."""
    if t.is_complex() or recorder._storage(t).unfinished(recorder.geometry(t)):
        return None
    parts = recorder._storage(t).pieces(recorder.g, recorder.geometry(t))
    return (
        parts
        if parts is not None
        and len(parts) > 1
        and not any(isinstance(p.value, Poison) for p in parts)
        else None
    )


def write_flat(recorder: Any, out: torch.Tensor, v: Value) -> None:
    recorder.write(out, recorder.g.reshape(v, tuple(out.shape)))


def all_reduce_in_place(
    recorder: Any,
    t: torch.Tensor,
    ranks: tuple[int, ...],
    reduction: tuple[str, float | None],
    exchange: Exchange | None = None,
) -> None:
    exchange = exchange or Exchange(recorder, ranks)
    whole = recorder.groups.whole_buffers
    parts = None if whole else segments(recorder, t)
    if parts is None:
        v = recorder.read(t)
        joined = [v] if whole or exchange.size == 1 or not v.shape else recorder.g.parts(v)
        if len(joined) > 1:
            exchange.in_parts([numel(part.shape) for part in joined])
            v = recorder.g.cat([exchange.all_reduce(part, reduction) for part in joined], 0)
        else:
            v = exchange.all_reduce(v, reduction)
        recorder.write(t, v)
        return
    exchange.in_parts([numel(part.value.shape) for part in parts])
    s = recorder._storage(t)
    for part in parts:
        s.write(recorder.g, exchange.all_reduce(part.value, reduction), part.at, recorder.g.loc)


def gather_into(recorder: Any, out: torch.Tensor, source: torch.Tensor, exchange: Exchange) -> None:
    """The pieces of all members, one after another.

    A buffer of several tensors stays several tensors, each with a leading dimension for the
    members.
    """
    parts = segments(recorder, source)
    start = recorder.geometry(source).offset
    total = source.numel()
    if parts is None or not all(p.at == contiguous(p.at.size, p.at.offset) for p in parts):
        v = exchange.all_gather(recorder.read(source))
        recorder._storage(out).clear(recorder.geometry(out))
        write_flat(recorder, out, v)
        return
    results = []
    for p in parts:
        v = exchange.all_gather(p.value)
        shape = (exchange.size,) + p.at.size
        at = Geometry(
            shape, (total,) + p.at.stride, recorder.geometry(out).offset + p.at.offset - start
        )
        results.append((recorder.g.reshape(v, shape), at))
    s = recorder._storage(out)
    s.clear(recorder.geometry(out))
    for v, at in results:
        s.write(recorder.g, v, at, recorder.g.loc)


def scatter_into(
    recorder: Any,
    out: torch.Tensor,
    source: torch.Tensor,
    exchange: Exchange,
    reduction: tuple[str, float | None],
) -> None:
    parts = segments(recorder, source)
    per = source.numel() // exchange.size
    start, target = recorder.geometry(source).offset, recorder.geometry(out)
    # one device: its tensors stay apart, too
    if (
        parts is not None
        and exchange.size == 1
        and target == contiguous(target.size, target.offset)
    ):
        s = recorder._storage(out)
        factor = reduction[1] if reduction[0] == "premul_sum" else None
        s.clear(target)
        for p in parts:
            v = p.value if factor is None else ar.binary(recorder.g, "mul", p.value, factor)
            s.write(
                recorder.g,
                v,
                Geometry(p.at.size, p.at.stride, p.at.offset - start + target.offset),
                recorder.g.loc,
            )
        return
    if (
        parts is None
        or exchange.size == 1
        or not all(
            p.at.packed()
            and p.at.packed()[0][:2] == (per, exchange.size)
            and p.at.size[0] == exchange.size
            for p in parts
        )
    ):
        v = recorder.read(source)
        write_flat(recorder, out, exchange.reduce_scatter(v, reduction))
        return
    s = recorder._storage(out)
    results = [(exchange.reduce_scatter(p.value, reduction), p) for p in parts]
    s.clear(target)
    for v, p in results:
        s.write(
            recorder.g,
            recorder.g.reshape(v, p.at.size[1:]),
            Geometry(p.at.size[1:], p.at.stride[1:], target.offset + p.at.offset - start),
            recorder.g.loc,
        )


def copy_in(recorder: Any, args: Any, out: Any) -> None:
    inputs, buffer, sizes, count, rank = args[:5]
    base = recorder.geometry(buffer).offset + int(count) * int(rank)
    s = recorder._storage(buffer)
    s.clear(contiguous((int(count),), base))
    for t, n in zip(inputs, sizes):
        v = recorder.read(t)
        s.write(
            recorder.g,
            recorder.g.reshape(v, (int(n),)),
            contiguous((int(n),), base),
            recorder.g.loc,
        )
        base += int(n)


def split_into(
    recorder: Any,
    source: torch.Tensor,
    sizes: Sequence[int],
    dim: int,
    outs: Sequence[torch.Tensor],
) -> None:
    """Columns of the gathered buffer to one tensor each."""
    at = recorder.geometry(source)
    start = 0
    for n, t in zip(sizes, outs):
        part = Geometry(
            at.size[:dim] + (int(n),) + at.size[dim + 1 :],
            at.stride,
            at.offset + start * at.stride[dim],
        )
        v = recorder._storage(source).read(recorder.g, part, recorder.g.loc)
        recorder.write(t, recorder.g.reshape(v, tuple(t.shape)))
        start += int(n)


def chunk_cat_into(
    recorder: Any, tensors: Sequence[torch.Tensor], dim: int, chunks: int, out: torch.Tensor
) -> None:
    """Each tensor cut along dimension 0 into equal chunks, chunk by chunk side by side.

    The last chunk is padded with zeros.
    """
    if dim != 0:
        raise Unsupported("chunk_cat along another dimension than 0")
    g = recorder.g
    target = recorder.geometry(out)
    if (
        len(target.size) != 2
        or target.size[0] != chunks
        or target != contiguous(target.size, target.offset)
    ):
        raise Unsupported("chunk_cat into another layout")
    per, column = target.size[1], 0
    s = recorder._storage(out)
    values = [recorder.read(t) for t in tensors]
    s.clear(target)
    for v in values:
        rows = -(-v.shape[0] // chunks)
        if rows * chunks > v.shape[0]:
            v = (
                g.cat([v, Filled(0, (rows * chunks - v.shape[0],) + v.shape[1:])], 0)
                if not isinstance(v, Poison)
                else Poison((rows * chunks,) + v.shape[1:], v.reason)
            )
        inner = contiguous((rows,) + v.shape[1:])
        at = Geometry((chunks,) + inner.size, (per,) + inner.stride, target.offset + column)
        s.write(g, g.reshape(v, at.size), at, g.loc)
        column += numel(inner.size)
