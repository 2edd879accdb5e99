# SPDX-License-Identifier: Apache-2.0
"""What a training step works with: its world, its models, parameters and optimizers.

Recording and real processes share it.
"""
