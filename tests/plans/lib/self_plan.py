# SPDX-License-Identifier: Apache-2.0
"""A model as its own plan: one rank runs its nodes, and lineage maps each tensor to itself."""

import copy

INPUTS, CUT_POINTS = "inputs", "cut_points"


def self_plan(model, model_file, cut_points):
    """`cut_points`: a predicate on the names of the tensors that get a cut point besides."""
    tensors = copy.deepcopy(model["tensors"])
    for tensor in tensors.values():
        tensor.pop("grad_of", None)  # of models only
    outputs = set(model["outputs"])
    lineage = []

    def state(name, role):
        box = [[0, n] for n in tensors[name]["shape"]]
        lineage.append(
            {"tensor": name, "role": role, "shards": [{"box": box, "parts": [{"local": name}]}]}
        )

    for name, tensor in tensors.items():
        kind = tensor.get("kind")
        if kind in ("input", "parameter"):
            state(name, "input")
        if name in outputs:
            state(name, "output")
        elif kind is None and cut_points(name):
            state(name, "cut_point")
    return {
        "format": "shardproof-plan",
        "version": 1,
        "model": model_file,
        "mesh": [],
        "programs": [{"tensors": tensors, "nodes": copy.deepcopy(model["nodes"])}],
        "lineage": lineage,
    }
