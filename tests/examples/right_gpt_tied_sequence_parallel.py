# SPDX-License-Identifier: Apache-2.0
"""A GPT by hand: sequence parallel, tied vocabulary-parallel embedding."""

from gpt_parallel import step  # noqa: F401

MESH, EXPECT = {"tp": 2}, "EQUIVALENT"
