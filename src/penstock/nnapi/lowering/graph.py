"""Builds IR subgraphs operation by operation; infers shapes and folds small constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set as AbstractSet
from typing import Final, TypeAlias

import numpy as np
from msgspec.structs import replace

from penstock import ir
from penstock.errors import InvalidOperation, LimitExceeded, ShapeMismatch
from penstock.ir import DType, NDArray, Operand, Quantization, Subgraph
from penstock.ir.builder import pack
from penstock.ir.infer import MAX_FOLDED_BYTES, InferenceContext
from penstock.ir.model import show_shape
from penstock.ir.operand import MAX_COPIED_VALUE, OMITTED
from penstock.ir.operations import OPERATIONS
from penstock.ir.subgraph import ALIGNMENT, constant_array
from penstock.ir.types import Shape
from penstock.ir.validate import MAX_DEPTH
from penstock.nnapi.description import (
    NnapiLifetime,
    NnapiModel,
    NnapiSubgraph,
    ir_shape,
)
from penstock.nnapi.lowering.validation import ir_extension, ir_operand

ValueType: TypeAlias = "tuple[DType, Quantization | None]"

NOTHING: Final[frozenset[int]] = frozenset()


class ModelLowering:
    """A model during lowering: its IR subgraphs and constants. The first pools are the source's.

    *lower* makes an IR subgraph, whose last outputs are that number of its last inputs.
    """

    def __init__(
        self,
        model: NnapiModel,
        feature_level: int,
        lower: Callable[[SubgraphLowering, int], Subgraph],
    ) -> None:
        self.model, self.feature_level, self._lower = model, feature_level, lower
        self._own = bytearray()
        self._subgraphs: list[Subgraph | None] = []
        self._lowered: dict[tuple[int | None, int], int] = {}

    def add(self, graph: SubgraphLowering, passed: int = 0) -> int:
        """Lowers *graph*, and returns its index in the IR. The first one is the entry."""
        index = len(self._subgraphs)
        self._subgraphs.append(None)
        self._subgraphs[index] = self._lower(graph, passed)
        return index

    def finished(self, index: int) -> Subgraph:
        """Subgraph *index* of the IR. Raises `InvalidOperation` while it is under construction."""
        found = self._subgraphs[index]
        if found is None:
            raise InvalidOperation("a subgraph refers to itself")
        return found

    def referenced(self, index: int | None) -> NnapiSubgraph:
        """A referenced NNAPI subgraph."""
        if index is None:
            raise InvalidOperation("a SUBGRAPH operand names no subgraph")
        return self.model.referenced[index]

    def subgraph(self, graph: SubgraphLowering, index: int | None, passed: int) -> int:
        """The IR index of subgraph *index*, to which *graph* refers; lowered once a *passed*."""
        source = self.referenced(index)
        key = index, passed
        if key not in self._lowered:
            if graph.depth == MAX_DEPTH:
                raise LimitExceeded(f"subgraphs refer to each other more than {MAX_DEPTH} deep")
            self._lowered[key] = len(self._subgraphs)
            self.add(
                SubgraphLowering(self, source, f"subgraph {index}", depth=graph.depth + 1), passed
            )
        self.finished(self._lowered[key])
        return self._lowered[key]

    def settled(self, operand: Operand) -> Operand:
        """*operand*. A large value moves to a separate pool of the model."""
        if operand.value is None or len(operand.value) <= MAX_COPIED_VALUE:
            return operand
        self._own += bytes(-len(self._own) % ALIGNMENT)
        place = ir.DataLocation(len(self.model.pools), len(self._own), len(operand.value))
        self._own += operand.value
        return replace(operand, lifetime=ir.Lifetime.CONSTANT_POOL, value=None, location=place)

    def array(self, operand: Operand) -> NDArray:
        """The value of a constant operand."""
        place = operand.location
        if place is not None and place.pool == len(self.model.pools):
            data = bytes(self._own[place.offset : place.offset + place.length])
            operand = replace(operand, value=data, location=None)
        return constant_array(self.model.pools, operand)

    def finish(self) -> ir.Model:
        """The validated model of all subgraphs."""
        own = (ir.ConstantPool(memoryview(bytes(self._own))),) if self._own else ()
        subgraphs = tuple(map(self.finished, range(len(self._subgraphs))))
        return ir.Model(subgraphs, (*self.model.pools, *own))


class SubgraphLowering:
    """An NNAPI subgraph during lowering: IR operands, operations and known values.

    *omitted* are NNAPI operands without a value in addition to those that say so. `ends` are the
    numbers of IR operations after each NNAPI operation.
    """

    def __init__(
        self,
        whole: ModelLowering,
        source: NnapiSubgraph,
        where: str,
        omitted: AbstractSet[int] = NOTHING,
        depth: int = 0,
    ) -> None:
        self.whole, self.source, self.where, self.depth = whole, source, where, depth
        self.operands: list[Operand] = []
        self.operations: list[ir.Operation] = []
        self.left_out = omitted
        self.ends: list[int] = []
        self._bound: dict[int, int] = {}
        self._values: dict[int, NDArray] = {}
        self._omission: int | None = None

    def is_omitted(self, index: int) -> bool:
        """Whether NNAPI operand *index* has no value."""
        lifetime = self.source.operands[index].lifetime
        return index in self.left_out or lifetime is NnapiLifetime.NO_VALUE

    def value(self, index: int) -> int:
        """The IR operand of NNAPI operand *index*; inputs and constants are created on demand."""
        if index not in self._bound:
            self._bound[index] = self.add(
                self.whole.settled(ir_operand(self.source.operands[index]))
            )
        return self._bound[index]

    def bind(self, index: int, result: int) -> None:
        """Makes IR operand *result* NNAPI operand *index*, with the type and shape of both.

        Raises `ShapeMismatch` if the shapes contradict each other.
        """
        source, made = self.source.operands[index], self.operands[result]
        if made.dtype is not source.type.dtype:
            raise InvalidOperation(f"an output of type {source.type.name} is {made.dtype.value}")
        self.operands[result] = replace(
            made,
            shape=joined(made.shape, ir_shape(source.type, source.dimensions)),
            name=made.name or source.name,
            extension=ir_extension(source),
        )
        self._bound[index] = result

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
        """Appends a constant. Large constants go to a separate pool of the model."""
        return self.add(self._constant(value, quantization, dtype, name))

    def _constant(
        self,
        value: NDArray,
        quantization: Quantization | None,
        dtype: DType | None = None,
        name: str = "",
    ) -> Operand:
        data, kind = pack(value, dtype)
        copied = ir.Lifetime.CONSTANT_COPY
        return self.whole.settled(Operand(kind, value.shape, copied, name, quantization, data))

    def omitted(self) -> int:
        """The operand that represents an omitted input."""
        if self._omission is None:
            self._omission = self.add(OMITTED)
        return self._omission

    def operand(self, index: int) -> Operand:
        """IR operand *index*."""
        return self.operands[index]

    def shape(self, index: int) -> Shape:
        """The shape of an IR operand."""
        return self.operands[index].shape

    def known_value(self, index: int) -> NDArray | None:
        """The value of an IR operand if it is known before the run."""
        operand = self.operands[index]
        return self.whole.array(operand) if operand.is_constant else self._values.get(index)

    def subgraph_outputs(self, subgraph: int, inputs: Sequence[Shape]) -> Sequence[Shape]:
        """The shapes that the subgraph was lowered with. Shape inference handles other shapes."""
        target = self.whole.finished(subgraph)
        return [target.operands[i].shape for i in target.outputs]

    def emit(
        self,
        kind: str,
        inputs: Sequence[int],
        outputs: Sequence[ValueType],
        attributes: Mapping[str, ir.AttributeValue],
    ) -> list[int]:
        """Appends an operation; its outputs are new temporaries with inferred shapes."""
        row = OPERATIONS[kind]
        indexes = [self.add(Operand(d, None, quantization=q)) for d, q in outputs]
        operation = ir.Operation(kind, tuple(inputs), tuple(indexes), row.complete(attributes))
        context = InferenceContext(self, operation)
        for index, shape in zip(indexes, row.infer(context), strict=True):
            self.operands[index] = replace(self.operands[index], shape=shape)
        if row.fold is not None and (values := row.fold(context)) is not None:
            for index, value in zip(indexes, values, strict=True):
                if value.nbytes <= MAX_FOLDED_BYTES and self.operands[index].dtype == value.dtype:
                    self._values[index] = value
                    self.operands[index] = replace(self.operands[index], shape=value.shape)
        self.operations.append(operation)
        return indexes

    def folded(self, index: int) -> int:
        """The operand as a constant if its value is known; its operation is then dropped."""
        value = self._values.get(index)
        if value is not None and self.operations and self.operations[-1].outputs == (index,):
            self.operations.pop()
            self.operands[index] = self._constant(
                np.array(value), self.operands[index].quantization
            )
        return index

    def finish(self, inputs: Sequence[int], outputs: Sequence[int]) -> Subgraph:
        """The subgraph; temporaries among *outputs* become subgraph outputs."""
        for index in outputs:
            operand = self.operands[index]
            if operand.lifetime is ir.Lifetime.TEMPORARY_VARIABLE:
                self.operands[index] = replace(operand, lifetime=ir.Lifetime.SUBGRAPH_OUTPUT)
        operands, operations = tuple(self.operands), tuple(self.operations)
        return Subgraph(operands, operations, tuple(inputs), tuple(outputs), name=self.source.name)


def joined(inferred: Shape, declared: Shape) -> Shape:
    """The merged shape. Raises `ShapeMismatch` if the shapes contradict each other."""
    if inferred is None or declared is None:
        return declared if inferred is None else inferred
    if len(inferred) == len(declared):
        known = tuple(d if i is None else i for i, d in zip(inferred, declared, strict=True))
        if all(d in {None, k} for d, k in zip(declared, known, strict=True)):
            return known
    said, found = show_shape(declared), show_shape(inferred)
    raise ShapeMismatch(f"an output is declared as {said}, its shape is {found}")
