# SPDX-License-Identifier: Apache-2.0
"""From what a user has, a function with its arguments, to the program that JAX lowers it to."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ..program import ProgramError
from .files import is_written, module_of


@dataclasses.dataclass(frozen=True)
class Lowered:
    """What JAX lowered, and for which platform: `cpu`, or an accelerator's."""

    module: Any
    platform: str
    lowered: Any = None  # jax.stages.Lowered, of what is no file


def is_jitted(step: Any) -> bool:
    return callable(getattr(step, "lower", None)) and callable(getattr(step, "trace", None))


def is_lowered(step: Any) -> bool:
    return callable(getattr(step, "compiler_ir", None)) and hasattr(step, "args_info")


def has_arguments(step: Any) -> bool:
    """Whether `step` has its arguments already: what was lowered, exported or written."""
    return is_written(step) or is_lowered(step)


def lower(
    step: Any,
    arguments: Sequence[Any],
    in_shardings: Any,
    out_shardings: Any,
    same_parameters: bool,
) -> Lowered:
    """What jit lowers `step` to, for the devices of its shardings.

    A function that is jitted already keeps its own shardings and options, and its arguments theirs.
    same_parameters: another program has to have the same ones, so none may be dropped.
    """
    import jax

    stated = {
        name: value
        for name, value in (("in_shardings", in_shardings), ("out_shardings", out_shardings))
        if value is not None
    }
    if has_arguments(step):
        if arguments or stated:
            raise ProgramError("found arguments or shardings beside a program that has its own")
        if is_written(step):
            return Lowered(module_of(step, same_parameters), "cpu")
        made = _of(step)
    elif is_jitted(step):
        if stated:
            raise ProgramError(
                f"found {' and '.join(stated)} for a function that is jitted already: pass it "
                "before jit, or state the shardings there"
            )
        made = _lowered(step, arguments)
    else:
        if in_shardings is not None:
            arguments = without_shardings(arguments)
        made = _lowered(jax.jit(step, keep_unused=True, **stated), arguments)
    if same_parameters:
        _check_parameters(made)
    return made


def without_shardings(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Shapes and types of arguments. Numbers of Python stay: they may be static."""
    import jax

    def shape(x: Any) -> Any:
        if not (hasattr(x, "shape") and hasattr(x, "dtype")):
            return x
        return jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=getattr(x, "weak_type", False))

    made: tuple[Any, ...] = jax.tree.map(shape, tuple(arguments))
    return made


def _lowered(jitted: Any, arguments: Sequence[Any]) -> Lowered:
    traced = jitted.trace(*arguments)
    try:
        lowered = traced.lower()
    except ValueError as error:
        # An AbstractMesh has sizes and no devices. XLA partitions for CPUs as well.
        if "lowering_platforms" not in str(error):
            raise
        return _of(traced.lower(lowering_platforms=("cpu",)), "cpu")
    return _of(lowered)


def _of(lowered: Any, platform: str | None = None) -> Lowered:
    import jax

    if platform is None:
        try:
            platform = str(lowered._lowering.compile_args["backend"].platform)
        except (AttributeError, KeyError, TypeError):
            platform = str(jax.default_backend())
    return Lowered(lowered.compiler_ir("stablehlo"), platform, lowered)


def _check_parameters(made: Lowered) -> None:
    import jax

    from .modules import attributes_of_arguments, main_of

    expected = len(jax.tree.leaves(made.lowered.args_info))
    module = made.module
    with module.context:
        found = len(attributes_of_arguments(main_of(module)))
    if found != expected:
        raise ProgramError(
            f"found {found} parameters in a jitted function of {expected} arguments: those that it "
            "does not use are dropped, and which ones is not known; jit it with keep_unused=True"
        )
