# SPDX-License-Identifier: Apache-2.0
"""Entries of the lineage of a plan."""


def is_cut_point(entry):
    """Whether an entry is a lemma; "checkpoint" is the older name of the role."""
    return entry["role"] in ("cut_point", "checkpoint")
