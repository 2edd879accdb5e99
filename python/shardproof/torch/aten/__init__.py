# SPDX-License-Identifier: Apache-2.0
"""The table of operators: ATen on the left, the operators of docs/operators.md on the right. One module for each family; `table.lookup` finds a line."""
