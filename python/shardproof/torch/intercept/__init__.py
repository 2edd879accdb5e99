# SPDX-License-Identifier: Apache-2.0
"""What is replaced in PyTorch while a step is recorded.

The program runs unchanged on fake tensors in one process.
"""
