# SPDX-License-Identifier: Apache-2.0
"""From recordings to the two files of `shardproof verify`: the model's, and the plan's with
lineage.
"""
