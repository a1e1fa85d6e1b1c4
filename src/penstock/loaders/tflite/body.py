"""Subgraphs of a file to subgraphs of the IR: each operator becomes one operation.

- A DENSIFY of a constant becomes that constant, which was made dense when it was read.
- A tensor that an entry subgraph lists several times among its inputs becomes one input.
- Operands without elements get their empty value.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import DuplicateWriter, InvalidOperand, ModelError
from penstock.ir.operand import OMITTED, Lifetime, Operand, Origin
from penstock.ir.operation import Attributes, Operation
from penstock.ir.subgraph import StatePort, Subgraph, Variable
from penstock.ir.types import DType, is_static
from penstock.loaders.tflite.operators import RawOperator, RawSubgraph


class Lowered(Struct):
    """Lowered subgraphs, their variables, and for each the operands that replaced tensors."""

    subgraphs: list[Subgraph]
    variables: list[Variable]
    renamed: list[dict[int, int]]


class Body:
    """Lowers one subgraph without state. *renamed* has the operand that replaced a tensor."""

    def __init__(self, raw: RawSubgraph) -> None:
        self.raw = raw
        self.operands: list[Operand] = list(raw.operands)
        self.operations: list[Operation] = []
        self.renamed: dict[int, int] = {}
        self.written: set[int] = set()
        self.omitted: int | None = None

    def lower(self) -> Subgraph:
        self.lower_operators()
        inputs = list(dict.fromkeys(self.raw.inputs))
        return self.finish(inputs, [self.read(tensor) for tensor in self.raw.outputs], [])

    def lower_operators(self) -> None:
        for operator in self.raw.operators:
            try:
                self.operator(operator)
            except ModelError as error:
                raise error.at(operator.place) from None

    def finish(self, inputs: list[int], outputs: list[int], states: list[StatePort]) -> Subgraph:
        """The lowered subgraph with these inputs and outputs."""
        self.lifetimes(inputs, outputs)
        operands, operations = tuple(self.operands), tuple(self.operations)
        return Subgraph(
            operands, operations, tuple(inputs), tuple(outputs), tuple(states), self.raw.name
        )

    def operator(self, operator: RawOperator) -> None:
        if operator.type == "DENSIFY" and len(operator.inputs) == 1 == len(operator.outputs):
            (tensor,) = operator.inputs
            if tensor >= 0 and self.operands[tensor].is_constant:
                self.renamed[operator.outputs[0]] = tensor
                return
        self.ordinary(operator)

    def ordinary(self, operator: RawOperator) -> None:
        inputs = [self.read(i) for i in operator.inputs]
        outputs = [self.write(o) for o in operator.outputs]
        self.emit(operator.type, inputs, outputs, operator)

    def emit(self, kind: str, inputs: list[int], outputs: list[int], operator: RawOperator) -> None:
        self.append(kind, inputs, outputs, Attributes(operator.attributes), operator.origin)

    def append(
        self,
        kind: str,
        inputs: Iterable[int],
        outputs: Iterable[int],
        attributes: Attributes,
        origin: Origin,
    ) -> None:
        operation = Operation(kind, tuple(inputs), tuple(outputs), attributes, origin)
        self.operations.append(operation)
        self.written.update(operation.outputs)

    def read(self, tensor: int) -> int:
        """The current operand of tensor *tensor*."""
        if tensor < 0:
            if self.omitted is None:
                self.omitted = self.add(OMITTED)
            return self.omitted
        return self.renamed.get(tensor, tensor)

    def write(self, tensor: int) -> int:
        """The operand that an operation writes for tensor *tensor*."""
        if tensor in self.renamed:
            raise duplicate_writer(tensor)
        return tensor

    def add(self, operand: Operand) -> int:
        self.operands.append(operand)
        return len(self.operands) - 1

    def lifetimes(self, inputs: list[int], outputs: list[int]) -> None:
        """Marks inputs and outputs, and gives operands without elements their empty value."""
        operands = self.operands
        for index in inputs:
            operand = operands[index]
            if operand.dtype is DType.RESOURCE:
                raise InvalidOperand(
                    f"input operand {index} ({operand.name}) is a resource of unknown origin"
                )
            # The caller declares the shapes of inputs before kernels are chosen.
            operands[index] = replace(
                operand,
                lifetime=Lifetime.SUBGRAPH_INPUT,
                value=None,
                location=None,
                shape_declared=True,
            )
        known = self.written.union(inputs)
        read = (index for operation in self.operations for index in operation.inputs)
        for index in (*read, *outputs):
            operand = operands[index]
            if index not in known and _is_empty(operand):
                operands[index] = replace(operand, lifetime=Lifetime.CONSTANT_COPY, value=b"")
        for index in outputs:
            if operands[index].lifetime is Lifetime.TEMPORARY_VARIABLE:
                operands[index] = replace(operands[index], lifetime=Lifetime.SUBGRAPH_OUTPUT)


def duplicate_writer(tensor: int) -> DuplicateWriter:
    return DuplicateWriter(f"writes tensor {tensor}, which has another writer")


def _is_empty(operand: Operand) -> bool:
    """Whether a temporary has no elements, so that no operation has to write it."""
    return (
        operand.lifetime is Lifetime.TEMPORARY_VARIABLE
        and operand.shape is not None
        and 0 in operand.shape
        and is_static(operand.shape)
        and operand.dtype.bits is not None
    )
