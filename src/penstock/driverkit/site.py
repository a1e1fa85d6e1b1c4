"""`Site`: an operation with its operands, as a driver sees it; and `Refused`, raised by rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from functools import cached_property
from typing import Any, Final, NoReturn

import msgspec

from penstock.hal import ExtensionAttribute
from penstock.interrupts import polled
from penstock.ir import Attributes, DType, Model, NDArray, Operand, Operation
from penstock.ir.types import static_shape

QUANTIZED: Final = frozenset({DType.INT8, DType.UINT8})
"""Element types of quantised values that engines compute in 8 bits."""

ACTIVATION: Final = "fused_activation_function"


class Refused(Exception):
    """The driver does not support the operation; the text says why."""


def require(condition: object, reason: str) -> None:
    """Raises `Refused` with *reason* unless *condition* holds."""
    if not condition:
        raise Refused(reason)


class Surroundings:
    """Data that the sites of one subgraph share: *model*, *subgraph*, and the readers of each
    operand.

    *judged* is a memo for drivers that judge nested subgraphs. Each driver chooses its own keys.
    The sites of all subgraphs of one model share it.
    """

    def __init__(
        self, model: Model, index: int | None = None, judged: dict[Any, Any] | None = None
    ) -> None:
        self.model = model
        self.subgraph = model.entry if index is None else model.subgraphs[index]
        self.judged: dict[Any, Any] = {} if judged is None else judged

    @cached_property
    def inputs(self) -> frozenset[int]:
        """The operands that are inputs of the subgraph."""
        return frozenset(self.subgraph.inputs)

    @cached_property
    def outputs(self) -> frozenset[int]:
        """The operands that are outputs of the subgraph."""
        return frozenset(self.subgraph.outputs)

    @cached_property
    def readers(self) -> Counter[int]:
        """The number of operation inputs that read each operand."""
        return Counter(i for o in polled(self.subgraph.operations) for i in o.inputs)


class Layout(msgspec.Struct, frozen=True):
    """Whether an operation computes channels *first*, and which operands are channels first."""

    first: bool = False
    inputs: tuple[bool, ...] = ()
    outputs: tuple[bool, ...] = ()


class Site(msgspec.Struct, frozen=True):
    """Operation *index* of a subgraph, with its operands.

    *inputs* and *outputs* are operands: element type, shape (None: unknown until run time) and
    quantisation. An omitted input is None. *hints* are the attributes of extensions from the
    compile and from the run. *layout* is the decision of the layout pass.
    """

    around: Surroundings
    index: int
    operation: Operation
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand, ...]
    hints: tuple[ExtensionAttribute, ...] = ()
    layout: Layout = Layout()

    @property
    def first(self) -> bool:
        """Whether the operation computes channels first."""
        return self.layout.first

    @property
    def model(self) -> Model:
        return self.around.model

    @property
    def attributes(self) -> Attributes:
        """The operation's attributes, by typed getters: `site.attributes.text("padding")`."""
        return self.operation.attributes

    @property
    def input_indexes(self) -> tuple[int, ...]:
        """The numbers of the inputs in the subgraph."""
        return self.operation.inputs

    @property
    def output_indexes(self) -> tuple[int, ...]:
        """The numbers of the outputs in the subgraph."""
        return self.operation.outputs

    @property
    def activation(self) -> str:
        """The fused activation; NONE if the operation type has none."""
        return str(self.attributes.get(ACTIVATION) or "NONE")

    @property
    def is_quantized(self) -> bool:
        return self.output().dtype in QUANTIZED

    def has(self, position: int) -> bool:
        """Whether input *position* is present."""
        return position < len(self.inputs) and self.inputs[position] is not None

    def input(self, position: int = 0) -> Operand:
        """Input *position*. Raises `Refused` if it is omitted."""
        operand = self.inputs[position] if position < len(self.inputs) else None
        if operand is None:
            raise Refused(f"input {position} is omitted")
        return operand

    def output(self, position: int = 0) -> Operand:
        return self.outputs[position]

    def shape(self, position: int = 0) -> tuple[int, ...]:
        """The shape of input *position*. Raises `Refused` unless it is known and has elements."""
        return known_shape(self.input(position), f"input {position}")

    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of all inputs. Raises `Refused` as `shape` does."""
        return [self.shape(position) for position in range(len(self.inputs))]

    def output_shape(self, position: int = 0) -> tuple[int, ...]:
        """The shape of output *position*. Raises `Refused` unless it is known and has elements."""
        return known_shape(self.output(position), f"output {position}")

    def rank(self, position: int = 0) -> int:
        """The number of dimensions of input *position*; 0 if it is unknown."""
        return len(self.input(position).shape or ())

    def flag(self, name: str) -> bool:
        """Attribute *name*, a boolean; False if the operation does not have it."""
        return name in self.attributes and self.attributes.flag(name)

    def hint(self, extension: str, code: int) -> bytes | None:
        """The value of an extension's attribute; None if it is not set. An attribute of the run
        overrides one of the compile.

        The value comes from the caller unchecked: a kernel ignores values that are not valid.
        """
        for attribute in reversed(self.hints):
            if (attribute.extension, attribute.code) == (extension, code):
                return attribute.value
        return None

    def constant(self, position: int) -> NDArray | None:
        """The value of a constant input, read-only; None if it is omitted or not constant."""
        operand = self.inputs[position] if position < len(self.inputs) else None
        return self.model.constant(operand) if operand is not None and operand.is_constant else None

    def value(self, position: int, what: str) -> NDArray:
        """The value of input *position*. Unless it is constant, raises `Refused` about *what*."""
        operand = self.input(position)
        if not operand.is_constant:
            raise Refused(f"{what} is not constant")
        return self.model.constant(operand)

    def integers(self, position: int, what: str) -> list[int]:
        """As `value`, for integers; flat."""
        values = self.value(position, what)
        if values.dtype.kind not in "iu":
            raise Refused(f"{what} is {values.dtype}, not whole numbers")
        return [int(v) for v in values.reshape(-1)]

    def refuse_types(
        self, wanted: Collection[DType] = (), positions: Iterable[int] | None = None
    ) -> NoReturn:
        """Raises `Refused` about the first operand whose element type is not among *wanted*.

        Of the inputs only those at *positions* are looked at (None: all), then the outputs. Without
        *wanted* the reason has the element types of all operands.
        """
        read = range(len(self.inputs)) if positions is None else positions
        operands = [(f"input {i}", self.inputs[i]) for i in read]
        operands += [(f"output {i}", operand) for i, operand in enumerate(self.outputs)]
        for label, operand in operands:
            if wanted and operand is not None and operand.dtype not in wanted:
                known = " or ".join(sorted(dtype.value for dtype in wanted))
                raise Refused(f"{label} is {operand.dtype.value}, not {known}")
        given = ", ".join(o.dtype.value for o in self.inputs if o is not None)
        raise Refused(f"{given} to {self.output().dtype.value} is not computed here")


def known_shape(operand: Operand, what: str) -> tuple[int, ...]:
    """The shape of *operand*. Raises `Refused` unless it is known and has elements."""
    shape = static_shape(operand.shape)
    if shape is None:
        raise Refused(f"the shape of {what} is known only when it runs (shapes= makes it known)")
    if 0 in shape:
        raise Refused(f"{what} has no elements")
    return shape


def make_sites(
    model: Model,
    index: int | None = None,
    hints: tuple[ExtensionAttribute, ...] = (),
    judged: dict[Any, Any] | None = None,
) -> list[Site]:
    """The operations of subgraph *index* (None: the entry), in order."""
    around = Surroundings(model, index, judged)
    operands = around.subgraph.operands
    return [
        Site(
            around,
            at,
            operation,
            tuple(operands[i] if operands[i].has_value else None for i in operation.inputs),
            tuple(operands[i] for i in operation.outputs),
            hints,
        )
        for at, operation in enumerate(polled(around.subgraph.operations))
    ]
