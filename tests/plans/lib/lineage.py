# SPDX-License-Identifier: Apache-2.0
"""Plans as documents, and entries of their lineage."""

import gzip
import json


def read(path):
    """A plan or a model, gzipped or not."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else open(path) as file:
        return json.load(file)


def is_cut_point(entry):
    """Whether an entry is a lemma; "checkpoint" is the older name of the role."""
    return entry["role"] in ("cut_point", "checkpoint")
