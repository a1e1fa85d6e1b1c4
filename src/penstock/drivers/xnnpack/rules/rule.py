"""The table of rules, and checks that rules share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from penstock.driverkit.checks import one_scale
from penstock.driverkit.site import Refused, Site, require
from penstock.drivers.xnnpack.rules.classes import EXACT, Classes
from penstock.ir import DType, Operand
from penstock.ir.types import static_shape

Check: TypeAlias = Callable[[Site], Classes]
"""Returns the accuracy classes of an operation; raises `Refused` if it is not supported."""

CLAMPS: Final = frozenset({"NONE", "RELU", "RELU6", "RELU_N1_TO_1"})
"""Fused activations of LiteRT's kernels."""

RULES: Final[dict[str, Check]] = {}
"""Modules of this package register their checks here."""


def rule(*types: str) -> Callable[[Check], Check]:
    """Registers a function as the check of *types*."""

    def register(check: Check) -> Check:
        RULES.update(dict.fromkeys(types, check))
        return check

    return register


def row(
    kinds: str, *types: str, constant: Mapping[int, str] = {}, alike: Iterable[int] | None = ()
) -> None:
    """Registers a check of element types and scales alone for the operation types *kinds*.

    *types* has the element types of each input ("": not checked), behind the name that errors use:
    "indexes: int32 int64". *constant* names the inputs that must be constant. The inputs *alike*
    (None: all) have the quantisation of the outputs.
    """

    def check(site: Site) -> Classes:
        for position, known in enumerate(types):
            what, _, names = known.rpartition(": ")
            if names:
                among(site.input(position), names, what or "values")
        for position, what in constant.items():
            site.value(position, what)
        positions = range(len(site.inputs)) if alike is None else alike
        if same := [site.input(p) for p in positions]:
            same_scale(*same, *site.outputs)
        return EXACT

    rule(*kinds.split())(check)


def by_type(table: Mapping[str, str]) -> dict[str, str]:
    """Element types by operation type. *table* has the operation types by element types."""
    return {kind: types for types, kinds in table.items() for kind in kinds.split()}


@functools.cache
def types_of(names: str) -> frozenset[DType]:
    """Element types by name, in one string."""
    return frozenset(map(DType, names.split()))


def among(operand: Operand, known: str, what: str = "values") -> None:
    """Refuses an operand whose element type is not named in *known*."""
    if operand.dtype not in types_of(known):
        raise Refused(f"{what} of {operand.dtype.value} are not computed here")


def same_scale(first: Operand, *others: Operand) -> None:
    """Refuses integer operands of different quantisation, which LiteRT would move unchanged."""
    for other in others:
        if first.dtype.is_integer and first.quantization != other.quantization:
            raise Refused("it would change the scale of values that LiteRT moves as they are")


def scales_of(site: Site, positions: Iterable[int] = (0,)) -> list[tuple[float, int]]:
    """Scales and zero points of inputs *positions* and outputs. Refuses any other quantisation."""
    return [one_scale(o) for o in (*map(site.input, positions), *site.outputs)]


def clamped(site: Site) -> None:
    """Refuses fused activations that LiteRT's kernels do not have."""
    require(site.activation in CLAMPS, f"no fused activation {site.activation} in LiteRT's kernel")


def is_empty(operand: Operand) -> bool:
    """Whether *operand* is known to have no elements."""
    shape = static_shape(operand.shape)
    return shape is not None and 0 in shape
