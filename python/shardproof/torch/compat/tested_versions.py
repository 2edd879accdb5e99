# SPDX-License-Identifier: Apache-2.0
"""The versions of PyTorch that shardproof is tested with."""

TESTED = ("2.13", "2.14", "2.15")


def those() -> str:
    """Them, in a sentence."""
    return f"torch {', '.join(TESTED[:-1])} and {TESTED[-1]}"


__all__ = ["TESTED", "those"]
