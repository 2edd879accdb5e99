# SPDX-License-Identifier: Apache-2.0
"""A thousand sums in place of the elements of a large tensor.

Each element goes, with a sign, into one of BUCKETS sums; sign and sum follow from a hash of its
place in the whole tensor (a count sketch: Charikar, Chen and Farach-Colton, 2002). Sketches of
parts and of summands add up to that of the whole tensor, so that traces are merged and compared
by them. `shardproof compare` has the same hash, and compares a sketch with elements as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from .layout import Layout

BUCKETS = 1024
_STRETCH = 1 << 20  # elements that are hashed at a time


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _shifted(z: torch.Tensor, bits: int) -> torch.Tensor:
    """An unsigned shift to the right, of int64."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def hashes(places: torch.Tensor) -> torch.Tensor:
    """Hashes of elements' places, in row-major order: splitmix64 (Steele, Lea, Flood, 2014).

    places, result: int64 of one shape.
    """
    z = places + _signed(0x9E3779B97F4A7C15)
    z = (z ^ _shifted(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shifted(z, 27)) * _signed(0x94D049BB133111EB)
    return z ^ _shifted(z, 31)


def _places(
    layout: Layout, low: Sequence[int], size: Sequence[int], device: torch.device
) -> Iterator[torch.Tensor]:
    """The places of a box's elements in the whole tensor, a stretch after another."""
    count = torch.Size(size).numel()
    for begin in range(0, count, _STRETCH):
        local = torch.arange(begin, min(begin + _STRETCH, count), device=device)
        place = torch.zeros_like(local)
        stride = 1
        for n, first, whole in reversed([*zip(size, low, layout.shape)]):
            place += (local % n + first) * stride
            local //= n
            stride *= whole
        yield place


def sketch(local: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The sketch of what a rank has of a tensor.

    local: of any shape, whose elements are those of the boxes of layout.parts. Returns BUCKETS sums
    in double precision, on the CPU.
    """
    flat = local.detach().reshape(-1)
    sums = torch.zeros(BUCKETS, dtype=torch.float64, device=flat.device)
    for at, low, size in layout.parts:
        for places in _places(layout, low, size, flat.device):
            found = hashes(places)
            values = flat[at : at + len(places)].to(torch.float64)
            sums.index_add_(0, found % BUCKETS, torch.where(found < 0, -values, values))
            at += len(places)
    return sums.cpu()
