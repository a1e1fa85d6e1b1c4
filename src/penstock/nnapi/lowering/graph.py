"""Builds IR subgraphs operation by operation; infers shapes and folds small constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from msgspec.structs import replace

from penstock.errors import InvalidOperation, ShapeMismatch
from penstock.ir import (
    Attributes,
    AttributeValue,
    ConstantPool,
    DataLocation,
    DType,
    ExtensionType,
    Lifetime,
    Model,
    NDArray,
    Operand,
    Operation,
    Quantization,
    Subgraph,
)
from penstock.ir.builder import pack
from penstock.ir.infer import MAX_FOLDED_BYTES
from penstock.ir.operand import MAX_COPIED_VALUE, OMITTED
from penstock.ir.operations import OPERATIONS
from penstock.ir.subgraph import ALIGNMENT, constant_array
from penstock.ir.types import Shape
from penstock.nnapi.description import NnapiOperand, NnapiSubgraph

ValueType: TypeAlias = "tuple[DType, Quantization | None]"


class ModelAssembly:
    """Subgraphs and constants of a model under construction. The first pools are the source's."""

    def __init__(self, pools: Sequence[ConstantPool]) -> None:
        self._pools, self._own = tuple(pools), bytearray()
        self._subgraphs: list[Subgraph | None] = [None]

    def reserve(self) -> int:
        """Reserves the index of a subgraph."""
        self._subgraphs.append(None)
        return len(self._subgraphs) - 1

    def put(self, index: int, subgraph: Subgraph) -> None:
        """Stores *subgraph* under an index from `reserve`, or 0 for the entry."""
        self._subgraphs[index] = subgraph

    def finished(self, index: int) -> Subgraph:
        """Subgraph *index*. Raises `InvalidOperation` while it is under construction."""
        found = self._subgraphs[index]
        if found is None:
            raise InvalidOperation("a subgraph refers to itself")
        return found

    def constant(
        self, value: NDArray, name: str, quantization: Quantization | None, dtype: DType | None
    ) -> Operand:
        """A constant operand. Large constants go to a separate pool of the model."""
        data, kind = pack(value, dtype)
        return self.settled(
            Operand(kind, value.shape, Lifetime.CONSTANT_COPY, name, quantization, data)
        )

    def settled(self, operand: Operand) -> Operand:
        """*operand*. A large value moves to a separate pool of the model."""
        if operand.value is None or len(operand.value) <= MAX_COPIED_VALUE:
            return operand
        self._own += bytes(-len(self._own) % ALIGNMENT)
        place = DataLocation(len(self._pools), len(self._own), len(operand.value))
        self._own += operand.value
        return replace(operand, lifetime=Lifetime.CONSTANT_POOL, value=None, location=place)

    def array(self, operand: Operand) -> NDArray:
        """The value of a constant operand."""
        if operand.location is not None and operand.location.pool == len(self._pools):
            place = operand.location
            data = bytes(self._own[place.offset : place.offset + place.length])
            return constant_array((), replace(operand, value=data, location=None))
        return constant_array(self._pools, operand)

    def model(self) -> Model:
        """The validated model of all subgraphs."""
        own = (ConstantPool(memoryview(bytes(self._own))),) if self._own else ()
        return Model(tuple(map(self.finished, range(len(self._subgraphs)))), (*self._pools, *own))


@dataclass(slots=True)
class Context:
    """The `ShapeContext` of an operation that a `SubgraphBuilder` appends."""

    graph: SubgraphBuilder
    operation: Operation
    attributes: Attributes
    outputs: Sequence[ValueType]

    @property
    def input_count(self) -> int:
        return len(self.operation.inputs)

    @property
    def output_count(self) -> int:
        return len(self.outputs)

    def has(self, index: int) -> bool:
        inputs = self.operation.inputs
        return index < len(inputs) and self.graph.operands[inputs[index]].has_value

    def shape(self, index: int) -> Shape:
        if not self.has(index):
            return None
        return self.graph.operands[self.operation.inputs[index]].shape

    def dtype(self, index: int) -> DType:
        return self.graph.operands[self.operation.inputs[index]].dtype

    def value(self, index: int) -> NDArray | None:
        return self.graph.value(self.operation.inputs[index]) if self.has(index) else None

    def declared(self, index: int) -> Shape:
        return None

    def output_dtype(self, index: int) -> DType:
        return self.outputs[index][0]

    def subgraph_outputs(self, subgraph: int, inputs: Sequence[Shape]) -> Sequence[Shape]:
        """The shapes that the subgraph was lowered with. Shape inference handles other shapes."""
        target = self.graph.assembly.finished(subgraph)
        return [target.operands[i].shape for i in target.outputs]


class SubgraphBuilder:
    """An IR subgraph under construction: operands, operations, and known values."""

    def __init__(self, assembly: ModelAssembly) -> None:
        self.assembly = assembly
        self.operands: list[Operand] = []
        self.operations: list[Operation] = []
        self._values: dict[int, NDArray] = {}
        self._omitted: int | None = None

    def add(self, operand: Operand) -> int:
        """Appends *operand* unchanged."""
        self.operands.append(operand)
        return len(self.operands) - 1

    def constant(
        self,
        value: NDArray,
        quantization: Quantization | None = None,
        dtype: DType | None = None,
        name: str = "",
    ) -> int:
        """Appends a constant."""
        return self.add(self.assembly.constant(value, name, quantization, dtype))

    def omitted(self) -> int:
        """The operand that represents an omitted input."""
        if self._omitted is None:
            self._omitted = self.add(OMITTED)
        return self._omitted

    def value(self, index: int) -> NDArray | None:
        """The value of an operand if it is known before the run."""
        operand = self.operands[index]
        return self.assembly.array(operand) if operand.is_constant else self._values.get(index)

    def emit(
        self,
        kind: str,
        inputs: Sequence[int],
        outputs: Sequence[ValueType],
        attributes: Mapping[str, AttributeValue],
    ) -> list[int]:
        """Appends an operation; its outputs are new temporaries with inferred shapes."""
        row = OPERATIONS[kind]
        operation = Operation(kind, tuple(inputs), (), row.complete(attributes))
        context = Context(self, operation, operation.attributes, outputs)
        shapes = row.infer(context)
        indexes = [
            self.add(Operand(dtype, shape, quantization=quantization))
            for (dtype, quantization), shape in zip(outputs, shapes, strict=True)
        ]
        if row.fold is not None and (values := row.fold(context)) is not None:
            for index, value in zip(indexes, values, strict=True):
                if value.nbytes <= MAX_FOLDED_BYTES and self.operands[index].dtype == value.dtype:
                    self._values[index] = value
                    self.operands[index] = replace(self.operands[index], shape=value.shape)
        self.operations.append(replace(operation, outputs=tuple(indexes)))
        return indexes

    def folded(self, index: int) -> int:
        """The operand as a constant if its value is known; its operation is then dropped."""
        value = self._values.get(index)
        if value is None or not self.operations or self.operations[-1].outputs != (index,):
            return index
        self.operations.pop()
        quantization = self.operands[index].quantization
        self.operands[index] = self.assembly.constant(np.array(value), "", quantization, None)
        return index

    def refine(self, index: int, declared: Shape, name: str) -> None:
        """Merges inferred and declared shape. Raises `ShapeMismatch` if they contradict."""
        operand = self.operands[index]
        shape = joined(operand.shape, declared)
        if shape != operand.shape or not operand.name:
            self.operands[index] = replace(operand, shape=shape, name=operand.name or name)

    def annotate(self, index: int, extension: ExtensionType | None) -> None:
        """Sets the operand's extension type, or none."""
        if self.operands[index].extension != extension:
            self.operands[index] = replace(self.operands[index], extension=extension)

    def finish(self, inputs: Sequence[int], outputs: Sequence[int], name: str = "") -> Subgraph:
        """The subgraph; temporaries among *outputs* become subgraph outputs."""
        for index in outputs:
            if self.operands[index].lifetime is Lifetime.TEMPORARY_VARIABLE:
                self.operands[index] = replace(
                    self.operands[index], lifetime=Lifetime.SUBGRAPH_OUTPUT
                )
        return Subgraph(
            tuple(self.operands), tuple(self.operations), tuple(inputs), tuple(outputs), name=name
        )


class Scope(Protocol):
    """The subgraph that an operation is part of (`lowering.model.SubgraphLowering`)."""

    graph: SubgraphBuilder
    feature_level: int
    pools: tuple[ConstantPool, ...]

    def operand(self, index: int) -> NnapiOperand:
        """NNAPI operand *index*."""
        ...

    def is_omitted(self, index: int) -> bool:
        """Whether NNAPI operand *index* has no value."""
        ...

    def value(self, index: int) -> int:
        """The IR operand of NNAPI operand *index*."""
        ...

    def bind(self, index: int, result: int) -> None:
        """Makes IR operand *result* NNAPI operand *index*."""
        ...

    def referenced(self, index: int | None) -> NnapiSubgraph:
        """A referenced NNAPI subgraph."""
        ...

    def subgraph(self, index: int | None, passed: int) -> int:
        """The IR index of a referenced subgraph; its last *passed* inputs are outputs too."""
        ...


def joined(inferred: Shape, declared: Shape) -> Shape:
    """The merged shape. Raises `ShapeMismatch` if the shapes contradict each other."""
    if inferred is None or declared is None:
        return declared if inferred is None else inferred
    if len(inferred) != len(declared):
        raise ShapeMismatch(
            f"an output is declared as {show(declared)}, its shape is {show(inferred)}"
        )
    known = tuple(d if i is None else i for i, d in zip(inferred, declared, strict=True))
    if any(d not in {None, k} for d, k in zip(declared, known, strict=True)):
        raise ShapeMismatch(
            f"an output is declared as {show(declared)}, its shape is {show(inferred)}"
        )
    return known


def show(shape: Shape) -> str:
    """A shape as text for messages."""
    if shape is None:
        return "unknown rank"
    return "[" + ", ".join("?" if d is None else str(d) for d in shape) + "]"
