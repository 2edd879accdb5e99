# SPDX-License-Identifier: Apache-2.0
"""From a step to a verdict: which ranks are recorded and in which process, and the report."""
