# SPDX-License-Identifier: Apache-2.0
"""Everything that depends on a version of PyTorch.

That is its private names, and operators that it has for GPUs only. Other packages take PyTorch's
private parts from here.
"""
