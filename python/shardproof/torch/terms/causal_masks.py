# SPDX-License-Identifier: Apache-2.0
"""Constant masks of attention: scores with minus infinity where they are hidden.

Masks are divided into blocks that are open, closed or causal.
"""

from __future__ import annotations

import torch

from .graph import Graph
from .values import Filled, Hidden, Known, Value


def causal_offset(hidden: torch.Tensor) -> int | None:
    """c where exactly the elements with column > row + c of the last two dimensions are hidden.

    None where it is not so in all leading positions.
    """
    if hidden.dim() < 2:
        return None
    rows, columns = hidden.shape[-2:]
    first = hidden.reshape(-1, rows, columns)[0]
    visible = (~first[0]).sum().item()
    offset = int(visible) - 1
    wanted = torch.arange(columns)[None, :] > torch.arange(rows)[:, None] + offset
    return offset if offset >= 0 and bool((hidden == wanted).all()) else None


def causal(g: Graph, rows: int, columns: int, offset: int) -> Value:
    """[1, 1, rows, columns]: 0 where column <= row + offset, minus infinity elsewhere."""
    size = max(rows + offset, columns)
    mask: Value = g.one("create_mask", [Filled(0, (1, size))], (1, 1, size, size))
    return g.slice(g.slice(mask, 2, offset, offset + rows), 3, 0, columns)


def hide(g: Graph, x: Value, hidden: torch.Tensor, shape: tuple[int, ...]) -> Value:
    """x with minus infinity where `hidden`: what attention does not see.

    x itself has no minus infinities.
    """
    mask = (
        _blocks(g, hidden.reshape(hidden.shape[-2:]))
        if hidden.dim() >= 2
        and hidden.numel() == hidden.shape[-1] * hidden.shape[-2]
        and not isinstance(x, (Filled, Known))
        else None
    )
    closed = (
        bool(hidden.expand(torch.broadcast_shapes(hidden.shape, shape[-1:])).all(-1).any())
        or hidden.dim() > 1
        and bool(hidden.all(-2).any())
    )
    if mask is None or len(shape) < 2:
        return Hidden(
            g.expand(x, shape),
            Known(
                (~hidden).double().reshape((1,) * (len(shape) - hidden.dim()) + tuple(hidden.shape))
            ),
        )
    if len(shape) <= 4:
        mask = g.reshape(mask, mask.shape[4 - max(len(shape), 2) :])
    result = g.one("apply_mask", [g.expand(x, shape), mask], shape)
    if closed:
        g.definedness.closed.add(result.name)
    return result


def _blocks(g: Graph, hidden: torch.Tensor) -> Value | None:
    """[1, 1, rows, columns]: a mask of a few blocks that are open, closed or causal; None: too
    many.
    """
    pieces = _divided(hidden)
    if pieces is None or all(kind == "closed" for row in pieces for kind, _ in row):
        return None
    rows: list[Value] = []
    for row in pieces:
        parts: list[Value] = []
        for kind, h in row:
            n, m = h.shape
            if kind == "open":
                parts.append(Filled(0, (1, 1, n, m)))
            elif kind == "closed":
                closed = g.slice(g.slice(causal(g, 2, 2, 0), 2, 0, 1), 3, 1, 2)
                parts.append(g.expand(closed, (1, 1, n, m)))
            else:
                offset = causal_offset(h)
                assert offset is not None
                parts.append(causal(g, n, m, offset))
        rows.append(g.cat(parts, 3))
    return g.cat(rows, 2)


def _kind_of_block(hidden: torch.Tensor) -> str | None:
    if not bool(hidden.any()):
        return "open"
    if bool(hidden.all()):
        return "closed"
    return "causal" if causal_offset(hidden) is not None else None


def _divided(hidden: torch.Tensor, most: int = 32) -> list[list[tuple[str, torch.Tensor]]] | None:
    """The fewest equal rows and columns of blocks of which each is of one kind."""
    n, m = hidden.shape
    for k in range(1, most + 1):
        for j in range(1, most + 1):
            if n % k or m % j or (k > 1 or j > 1) and (n // k == 1 or m // j == 1):
                continue
            blocks = [
                [(_kind_of_block(h), h) for h in rows.split(m // j, 1)]
                for rows in hidden.split(n // k, 0)
            ]
            if all(kind is not None for row in blocks for kind, _ in row):
                return blocks  # type: ignore[return-value]
    return None
