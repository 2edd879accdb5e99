# SPDX-License-Identifier: Apache-2.0
"""DTensor while a step is recorded. As private as `compat.private`."""

from __future__ import annotations

import functools
from typing import Any

from ..compat.private import Undo, replace_everywhere, set_attribute
from .hooks import Hooks


def patch_shape_propagation(undo: Undo, hooks: Hooks) -> None:
    """DTensor runs operators on tensors of its own to get the shapes of results.

    They are no part of the program.
    """
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    for name in ("_propagate_tensor_meta_non_cached", "_propagate_tensor_meta"):
        if name in vars(ShardingPropagator):
            original = vars(ShardingPropagator)[name]

            def propagate(self: Any, *args: Any, _original: Any = original, **kwargs: Any) -> Any:
                with hooks.quiet():
                    return _original(self, *args, **kwargs)

            set_attribute(ShardingPropagator, name, propagate, undo)


def patch_sharding_strategies(undo: Undo) -> None:
    """DTensor's strategies for an operator are cached by its operands' placements and shapes.

    A foreach operator has hundreds of parameters, most of which are equal in these.
    """
    import torch.distributed.tensor._ops.utils as utils
    import torch.distributed.tensor._sharding_prop as propagation
    from torch.distributed.tensor._op_schema import OpStrategy

    original = utils.expand_to_full_mesh_op_strategy
    known: dict[Any, Any] = {}

    @functools.wraps(original)
    def expand(mesh: Any, op_schema: Any, single: Any, **options: Any) -> Any:
        operands = (*op_schema.args_strategy, *op_schema.kwargs_strategy)
        simple = (
            options.get("is_valid_strategy_cb") is None
            and options.get("different_mesh_args") is None
            and not op_schema.is_out_variant_op()
        )
        if not simple or any(len(operand.strategies) != 1 for operand in operands):
            return original(mesh, op_schema, single, **options)
        specs = tuple(
            (spec, spec.tensor_meta, spec.shard_order)
            for spec in (operand.strategies[0].output_spec for operand in operands)
        )
        try:
            key = (
                mesh,
                op_schema.op,
                specs,
                tuple(map(tuple, single)),
                tuple(
                    (k, tuple(v) if isinstance(v, list) else v) for k, v in sorted(options.items())
                ),
            )
            if key not in known:
                known[key] = original(mesh, op_schema, single, **options).strategies
        except TypeError:  # an operand that has no hash
            return original(mesh, op_schema, single, **options)
        return OpStrategy(list(known[key]))

    flags = propagation._propagate_use_strided_shard_flag
    # the operator that was last asked about, and whether there is anything to do
    looked_through: list[Any] = [
        None,
        False,
    ]

    @functools.wraps(flags)
    def propagate_flags(op_strategy: Any, op_schema: Any) -> None:
        # called for each tensor of a foreach operator, about all of them
        if looked_through[0] is not op_schema:
            looked_through[:] = (
                op_schema,
                any(
                    isinstance(p, propagation._StridedShard)
                    for spec in op_schema.args_spec
                    for p in spec.placements
                ),
            )
        if looked_through[1]:
            flags(op_strategy, op_schema)

    replace_everywhere([(original, expand), (flags, propagate_flags)], undo)
