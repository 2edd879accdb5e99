# SPDX-License-Identifier: Apache-2.0
"""Verifies that a PyTorch training step on a mesh of ranks computes what it does on one device.

The step runs on fake tensors, rank by rank in one process.

    import shardproof.torch as sp
    report = sp.verify(step, mesh={"dp": 2, "tp": 2})
"""

import torch

from .compat import tested_versions

try:
    from .compat import private as _private  # noqa: F401
except (ImportError, AttributeError) as e:
    raise ImportError(
        f"shardproof.torch does not run with torch {torch.__version__} ({e}): it is tested with "
        f"{tested_versions.those()}"
    ) from e

from ..layout import Layout, LayoutError, LayoutReport, Part, verify_layout
from .conversion import (
    ConversionError,
    ConversionReport,
    Difference,
    unspecified,
    verify_conversion,
)
from .distributed.mesh import Mesh
from .numbers.loop import tracing
from .numbers.reference_values import UnusableReference
from .numbers.traces import TraceError, trace
from .session import numeric
from .session.capture import Capture, CaptureError, assert_equivalent, capture, verify
from .step.world import World

__all__ = [
    "Capture",
    "CaptureError",
    "ConversionError",
    "ConversionReport",
    "Difference",
    "Layout",
    "LayoutError",
    "LayoutReport",
    "Mesh",
    "Part",
    "TraceError",
    "UnusableReference",
    "World",
    "assert_equivalent",
    "capture",
    "numeric",
    "trace",
    "tracing",
    "unspecified",
    "verify",
    "verify_conversion",
    "verify_layout",
]
