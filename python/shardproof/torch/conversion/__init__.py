# SPDX-License-Identifier: Apache-2.0
"""Proofs about functions that convert checkpoints."""

from .symbolic import ConversionError, unspecified
from .verify import ConversionReport, Difference, verify_conversion

__all__ = [
    "ConversionError",
    "ConversionReport",
    "Difference",
    "unspecified",
    "verify_conversion",
]
