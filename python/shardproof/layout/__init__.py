# SPDX-License-Identifier: Apache-2.0
"""Compares checkpoints by their metadata alone: which file or rank has which box of which tensor.

from shardproof import Layout, verify_layout
report = verify_layout(Layout.dcp("step-100"), Layout.safetensors("model.safetensors.index.json"))
"""

from .layouts import Layout, LayoutError, Piece, TensorLayout
from .verify import LayoutReport, Part, verify_layout

__all__ = [
    "Layout",
    "LayoutError",
    "LayoutReport",
    "Part",
    "Piece",
    "TensorLayout",
    "verify_layout",
]
