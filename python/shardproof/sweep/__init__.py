# SPDX-License-Identifier: Apache-2.0
"""`shardproof sweep` on many machines: `shardproof-sweep` (docs/engines.md)."""
