"""One operation as its rule sees it, and how well each of LiteRT's kernel sets computes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from penstock.driverkit.site import Refused
from penstock.drivers.xnnpack.engine import Kernels
from penstock.hal import ACCURACY_RANK, AccuracyClass
from penstock.interrupts import polled
from penstock.ir import DType, Model, NDArray, Operand, Operation
from penstock.ir.types import static_shape

EIGHT_BITS: Final = frozenset({DType.INT8, DType.UINT8})
QUANTIZED: Final = EIGHT_BITS | {DType.INT16}


class Classes(msgspec.Struct, frozen=True):
    """The class in which each of LiteRT's kernel sets computes an operation; None where it does
    not. *expanded* is XNNPACK's where the operation is written as several (`whole_numbers`).
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
        """Whether XNNPACK meets *accuracy* only so."""
        return self.expanded is not None and not _is_met(self.xnnpack, accuracy)

    @property
    def best(self) -> AccuracyClass:
        """The best of them."""
        known = [c for c in (self.xnnpack, self.builtin, self.expanded) if c is not None]
        return max(known, key=ACCURACY_RANK.__getitem__)


def _is_met(known: AccuracyClass | None, accuracy: AccuracyClass) -> bool:
    return known is not None and ACCURACY_RANK[known] >= ACCURACY_RANK[accuracy]


EXACT: Final = Classes("exact", "exact")
FAITHFUL: Final = Classes("faithful", "faithful")
EXACT_BUILTIN: Final = Classes("faithful", "exact")
"""Quantised arithmetic that XNNPACK rounds otherwise, by a step at most."""


class Site(msgspec.Struct, frozen=True):
    """An operation with its operands (None: omitted), and how the subgraph reads and gives them.

    *is_input*, *is_output* say of an operand's index whether the entry subgraph has it among its
    inputs or outputs; *readers* how many operations read it. *judged* is for whoever judges
    subgraphs, each once: what was found, by its own keys, which all sites of one model share.
    """

    operation: Operation
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand, ...]
    value_of: Callable[[Operand], NDArray]
    is_input: Callable[[int], bool]
    is_output: Callable[[int], bool]
    readers: Callable[[int], int]
    model: Model
    judged: dict[tuple[str, int], Any]

    def sites_of(self, index: int) -> list[Site]:
        """The operations of a subgraph that the operation refers to."""
        return make_sites(self.model, index, self.judged)

    def has(self, position: int) -> bool:
        return position < len(self.inputs) and self.inputs[position] is not None

    def input(self, position: int = 0) -> Operand:
        """Input *position*, which the rule knows to be there."""
        operand = self.inputs[position] if position < len(self.inputs) else None
        if operand is None:
            raise Refused(f"input {position} is omitted")
        return operand

    def output(self, position: int = 0) -> Operand:
        return self.outputs[position]

    def rank(self, position: int = 0) -> int:
        return len(self.input(position).shape or ())

    def constant(self, position: int, what: str) -> NDArray:
        """The value of input *position*, which must be constant."""
        operand = self.input(position)
        if not operand.is_constant:
            raise Refused(f"{what} is known only when it runs")
        return self.value_of(operand)

    def types(self, positions: Iterable[int] = (0,)) -> list[Operand]:
        """The operands at *positions*, and the outputs."""
        return [*(self.input(p) for p in positions), *self.outputs]

    def flag(self, name: str) -> bool:
        return name in self.operation.attributes and self.operation.attributes.flag(name)

    @property
    def activation(self) -> str:
        """The fused activation; NONE where the type has none."""
        return str(self.operation.attributes.get("fused_activation_function", "NONE"))


def same_scale(first: Operand, *others: Operand) -> None:
    """Of integer operands that are moved as they are: one scale and zero point for all, or none."""
    for other in others:
        if first.dtype.is_integer and first.quantization != other.quantization:
            raise Refused("it would change the scale of values that LiteRT moves as they are")


def make_sites(
    model: Model, index: int | None = None, judged: dict[tuple[str, int], Any] | None = None
) -> list[Site]:
    """The operations of subgraph *index* (None: the entry), in order."""
    judged = {} if judged is None else judged
    subgraph = model.entry if index is None else model.subgraphs[index]
    given, made = frozenset(subgraph.inputs), frozenset(subgraph.outputs)
    readers = Counter(i for operation in polled(subgraph.operations) for i in operation.inputs)
    operands = subgraph.operands
    return [
        Site(
            operation,
            tuple(operands[i] if operands[i].has_value else None for i in operation.inputs),
            tuple(operands[i] for i in operation.outputs),
            model.constant,
            given.__contains__,
            made.__contains__,
            readers.__getitem__,
            model,
            judged,
        )
        for operation in polled(subgraph.operations)
    ]


def is_empty(operand: Operand) -> bool:
    """Whether *operand* is known to have no elements."""
    shape = static_shape(operand.shape)
    return shape is not None and 0 in shape
