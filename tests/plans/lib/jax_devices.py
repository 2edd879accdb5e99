# SPDX-License-Identifier: Apache-2.0
"""Eight devices of jax on the CPU, and meshes of them: for tests that are given the program.

Importing this ends the process with 77 where there is no jax (jax_package.py).
"""

import os
import sys

from jax_package import ROOT, with_jax

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
with_jax()

import jax  # noqa: E402
from jax.sharding import AxisType  # noqa: E402

sys.path.insert(0, os.path.join(ROOT, "python"))

PROGRAM = os.path.abspath(sys.argv[1])
SIZES, AXES = (2, 4), ("dp", "tp")
AUTO = jax.make_mesh(SIZES, AXES, axis_types=(AxisType.Auto,) * 2)
EXPLICIT = jax.make_mesh(SIZES, AXES, axis_types=(AxisType.Explicit,) * 2)
