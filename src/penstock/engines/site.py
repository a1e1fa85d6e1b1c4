"""One operation as its rule sees it, and the words in which a rule refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn

import msgspec

from penstock.interrupts import polled
from penstock.ir import DType, Model, NDArray, Operand, Operation
from penstock.ir.types import static_shape

QUANTIZED: Final = frozenset({DType.INT8, DType.UINT8})
"""Activations that engines compute in 8 bits."""


class Refused(Exception):
    """The operation stays with another device; the text says why."""


def require(condition: object, reason: str) -> None:
    """Raises `Refused` with *reason* unless *condition* holds."""
    if not condition:
        raise Refused(reason)


class Site(msgspec.Struct, frozen=True):
    """An operation with its operands (None: omitted) and the values of those that are constant.

    *input_indexes* and *output_indexes* number the operands in its subgraph.
    """

    operation: Operation
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand, ...]
    value_of: Callable[[Operand], NDArray]
    model: Model

    @property
    def input_indexes(self) -> tuple[int, ...]:
        return self.operation.inputs

    @property
    def output_indexes(self) -> tuple[int, ...]:
        return self.operation.outputs

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

    def shape(self, position: int = 0) -> tuple[int, ...]:
        """The known shape of input *position*."""
        return known_shape(self.input(position), f"input {position}")

    def output_shape(self, position: int = 0) -> tuple[int, ...]:
        return known_shape(self.output(position), f"output {position}")

    def constant(self, position: int, what: str) -> NDArray:
        """The value of input *position*, which must be constant."""
        operand = self.input(position)
        if not operand.is_constant:
            raise Refused(f"{what} is not constant")
        return self.value_of(operand)

    def integers(self, position: int, what: str) -> list[int]:
        """The value of a constant input of whole numbers, flat."""
        values = self.constant(position, what)
        if values.dtype.kind not in "iu":
            raise Refused(f"{what} is {values.dtype}, not whole numbers")
        return [int(v) for v in values.reshape(-1)]

    @property
    def is_quantized(self) -> bool:
        return self.output().dtype in QUANTIZED

    def refuse_types(self) -> NoReturn:
        given = ", ".join(o.dtype.value for o in self.inputs if o is not None)
        raise Refused(f"{given} to {self.output().dtype.value} is not computed here")


def known_shape(operand: Operand, what: str) -> tuple[int, ...]:
    """The shape of *operand*, which must be complete and hold an element."""
    shape = static_shape(operand.shape)
    if shape is None:
        raise Refused(f"the shape of {what} is known only when it runs (shapes= makes it known)")
    if 0 in shape:
        raise Refused(f"{what} has no elements")
    return shape


def make_sites(model: Model, index: int | None = None) -> list[Site]:
    """The operations of subgraph *index* (None: the entry), in order."""
    entry = model.entry if index is None else model.subgraphs[index]
    return [
        Site(
            operation,
            tuple(
                entry.operands[i] if entry.operands[i].has_value else None for i in operation.inputs
            ),
            tuple(entry.operands[i] for i in operation.outputs),
            model.constant,
            model,
        )
        for operation in polled(entry.operations)
    ]
