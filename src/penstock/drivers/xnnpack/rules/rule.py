"""The table of rules, the accuracy classes that a rule returns, and checks that rules share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

import msgspec

from penstock.driverkit.site import Refused, Site, require
from penstock.drivers.xnnpack.engine import Kernels
from penstock.hal import ACCURACY_RANK, AccuracyClass
from penstock.ir import DType, Operand
from penstock.ir.types import static_shape

EIGHT_BITS: Final = frozenset({DType.INT8, DType.UINT8})
QUANTIZED: Final = EIGHT_BITS | {DType.INT16}


class Classes(msgspec.Struct, frozen=True):
    """The accuracy class of an operation by kernel set; None if the set does not support it.
    *expanded* is the class of XNNPACK for the operation in its expanded form (`hybrid_layers`).
    """

    xnnpack: AccuracyClass | None
    builtin: AccuracyClass | None
    expanded: AccuracyClass | None = None

    def meets(self, accuracy: AccuracyClass) -> list[Kernels]:
        """The kernel sets that meet *accuracy*, the faster one first."""
        pairs: tuple[tuple[Kernels, tuple[AccuracyClass | None, ...]], ...] = (
            ("xnnpack", (self.xnnpack, self.expanded)),
            ("builtin", (self.builtin,)),
        )
        return [k for k, classes in pairs if any(_is_met(c, accuracy) for c in classes)]

    def needs_expansion(self, accuracy: AccuracyClass) -> bool:
        """Whether XNNPACK meets *accuracy* only in the expanded form."""
        return self.expanded is not None and not _is_met(self.xnnpack, accuracy)

    @property
    def best(self) -> AccuracyClass:
        """The best of the classes."""
        known = [c for c in (self.xnnpack, self.builtin, self.expanded) if c is not None]
        return max(known, key=ACCURACY_RANK.__getitem__)


def _is_met(known: AccuracyClass | None, accuracy: AccuracyClass) -> bool:
    return known is not None and ACCURACY_RANK[known] >= ACCURACY_RANK[accuracy]


EXACT: Final = Classes("exact", "exact")
FAITHFUL: Final = Classes("faithful", "faithful")
EXACT_BUILTIN: Final = Classes("faithful", "exact")
"""Quantised operations whose rounding in XNNPACK differs from TFLite's by at most one step."""

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


@functools.cache
def types_of(text: str) -> frozenset[DType]:
    """Element types by name, in one string."""
    return frozenset(map(DType, text.split()))


def among(operand: Operand, known: frozenset[DType], what: str = "values") -> None:
    """Refuses an operand whose element type is not in *known*."""
    if operand.dtype not in known:
        raise Refused(f"{what} of {operand.dtype.value} are not computed here")


def same_scale(first: Operand, *others: Operand) -> None:
    """Refuses integer operands of different quantisation, which LiteRT would move unchanged."""
    for other in others:
        if first.dtype.is_integer and first.quantization != other.quantization:
            raise Refused("it would change the scale of values that LiteRT moves as they are")


def types(site: Site, positions: Iterable[int] = (0,)) -> list[Operand]:
    """The inputs of *site* at *positions*, and its outputs."""
    return [*(site.input(p) for p in positions), *site.outputs]


def clamped(site: Site) -> None:
    """Refuses fused activations that LiteRT's kernels do not have."""
    require(site.activation in CLAMPS, f"no fused activation {site.activation} in LiteRT's kernel")


def is_empty(operand: Operand) -> bool:
    """Whether *operand* is known to have no elements."""
    shape = static_shape(operand.shape)
    return shape is not None and 0 in shape
