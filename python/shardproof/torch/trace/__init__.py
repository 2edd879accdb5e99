# SPDX-License-Identifier: Apache-2.0
"""Recording: runs a training step once, as one rank or as the single device, and keeps its
operators.
"""
