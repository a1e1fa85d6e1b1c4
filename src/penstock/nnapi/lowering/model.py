"""`lower`: an NNAPI model into a model of the IR; and IF and WHILE."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import pairwise, starmap
from typing import Final

from penstock.errors import IndexOutOfRange, InvalidOperation, LimitExceeded, ModelError
from penstock.ir import ConstantPool, Model, Subgraph
from penstock.ir.validate import MAX_DEPTH
from penstock.nnapi.description import (
    MAXIMUM_FEATURE_LEVEL,
    NnapiLifetime,
    NnapiModel,
    NnapiOperand,
    NnapiOperation,
    NnapiSubgraph,
    ir_shape,
)
from penstock.nnapi.lowering.graph import ModelAssembly, SubgraphBuilder
from penstock.nnapi.lowering.operation import OperationLowering
from penstock.nnapi.lowering.registry import lowers, rule_of
from penstock.nnapi.lowering.validation import check_structure, ir_extension, ir_operand


@lowers(
    "IF", level=4, form="condition:b8 then:model otherwise:model arguments:any* -> results:any*"
)
def if_else(op: OperationLowering) -> None:
    shape = op.shape(op.tensor("condition"))
    op.require(shape in {None, (1,), (None,)}, f"a condition of shape {shape}")
    for name in ("then", "otherwise"):
        op.require_takes(name, op.arguments("arguments"))
        op.require_gives(name, op.results())
        op.require(
            len(op.interface(name)[1]) == len(op.results()),
            f"{name} gives {len(op.interface(name)[1])} operands, not {len(op.results())}",
        )
    op.finish(
        "IF",
        [op.tensor("condition"), *op.tensors("arguments")],
        then_subgraph_index=op.subgraph("then"),
        else_subgraph_index=op.subgraph("otherwise"),
    )


@lowers("WHILE", level=4, form="condition:model body:model arguments:any* -> results:any*")
def while_loop(op: OperationLowering) -> None:
    """Inputs that the body does not return are passed through; local state stays inside."""
    arguments, outputs = op.arguments("arguments"), op.results()
    taken, given = op.interface("body")
    passed = len(taken) - len(given)
    op.require(passed >= 0, f"a body of {len(given)} outputs and {len(taken)} inputs")
    op.require(
        len(outputs) <= len(given), f"{len(outputs)} outputs of a body that gives {len(given)}"
    )
    op.require_takes("condition", arguments)
    op.require_takes("body", arguments)
    op.require_gives("body", arguments[: len(given)])
    op.require_gives("body", outputs)
    values = op.tensors("arguments")
    results = op.emit_many(
        "WHILE",
        values,
        [op.value_type(v) for v in values],
        cond_subgraph_index=op.subgraph("condition"),
        body_subgraph_index=op.subgraph("body", passed),
    )
    for value, result in zip(values, results, strict=True):
        # Values that stay inside the loop get their extension type from nowhere else.
        op.graph.annotate(result, op.ir(value).extension)
    for place in range(len(outputs)):
        op.bind(place, results[place])


NOTHING: Final[frozenset[int]] = frozenset()


def lower(
    model: NnapiModel,
    feature_level: int = MAXIMUM_FEATURE_LEVEL,
    omitted: AbstractSet[int] = NOTHING,
) -> Model:
    """*model* in operations of the IR; its inputs and outputs keep their order.

    *feature_level* (1 to 8) limits the model; `description.EXPERIMENTAL` allows everything.
    *omitted* are positions of main inputs for optional operands that have no value in the run; the
    result lacks these inputs.

    Raises a `ModelError` for the first rule of NNAPI that *model* breaks, with the place and
    NNAPI's numbers. Structure and operands are checked first (NNAPI sections 8.1 and 8.4), then
    each operation's rules. Raises `NotLowerable` for a valid model that the IR cannot express.
    """
    return lower_traced(model, feature_level, omitted)[0]


def lower_traced(
    model: NnapiModel,
    feature_level: int = MAXIMUM_FEATURE_LEVEL,
    omitted: AbstractSet[int] = NOTHING,
) -> tuple[Model, tuple[range, ...]]:
    """As `lower`; also returns the IR operations of each operation of the main subgraph."""
    check_structure(model, feature_level)
    for position in omitted:
        if not 0 <= position < len(model.main.inputs):
            raise IndexOutOfRange(f"omitted input {position} of {len(model.main.inputs)}")
    assembly = ModelAssembly(model.pools)
    whole = ModelLowering(model, assembly, feature_level)
    left_out = frozenset(model.main.inputs[p] for p in omitted)
    main = SubgraphLowering(whole, model.main, "main", left_out)
    assembly.put(0, main.run(0))
    return assembly.model(), tuple(starmap(range, pairwise((0, *main.ends))))


class ModelLowering:
    """Shared state of the subgraphs of one model during lowering."""

    def __init__(self, model: NnapiModel, assembly: ModelAssembly, feature_level: int) -> None:
        self.model, self.assembly, self.feature_level = model, assembly, feature_level
        self._lowered: dict[tuple[int, int], int] = {}
        self._depth = 0

    def subgraph(self, index: int, passed: int) -> int:
        """The IR index of referenced subgraph *index*, lowered once for each *passed*."""
        key = index, passed
        if key not in self._lowered:
            if self._depth == MAX_DEPTH:
                raise LimitExceeded(f"subgraphs refer to each other more than {MAX_DEPTH} deep")
            self._lowered[key] = place = self.assembly.reserve()
            source = self.model.referenced[index]
            lowering = SubgraphLowering(self, source, f"subgraph {index}", NOTHING)
            self._depth += 1
            self.assembly.put(place, lowering.run(passed))
            self._depth -= 1
        self.assembly.finished(self._lowered[key])
        return self._lowered[key]


class SubgraphLowering:
    """One NNAPI subgraph during lowering: `graph`, and the IR operand of each NNAPI operand."""

    def __init__(
        self, whole: ModelLowering, source: NnapiSubgraph, where: str, omitted: AbstractSet[int]
    ) -> None:
        self._whole, self._source, self._where, self._omitted = whole, source, where, omitted
        self.graph = SubgraphBuilder(whole.assembly)
        self.feature_level = whole.feature_level
        self.pools: tuple[ConstantPool, ...] = whole.model.pools
        self.ends: list[int] = []
        self._values: dict[int, int] = {}

    def run(self, passed: int) -> Subgraph:
        """The IR subgraph. After its own outputs follow the last *passed* inputs."""
        given = [i for i in self._source.inputs if i not in self._omitted]
        inputs = [self.value(i) for i in given]
        for at, operation in enumerate(self._source.operations):
            try:
                self._lower(operation)
            except ModelError as error:
                if error.where is not None:
                    raise
                place = f"{self._where}, operation {at} ({operation.type})"
                raise error.at(place) from error
            self.ends.append(len(self.graph.operations))
        outputs = [self.value(i) for i in self._source.outputs]
        through = inputs[len(inputs) - passed :]
        return self.graph.finish(inputs, [*outputs, *through], self._source.name)

    def _lower(self, operation: NnapiOperation) -> None:
        rule = rule_of(operation.type)
        operands = self._source.operands
        inputs = [
            replace(operands[i], lifetime=NnapiLifetime.NO_VALUE)
            if self.is_omitted(i)
            else operands[i]
            for i in operation.inputs
        ]
        match = rule.match(inputs, [operands[i] for i in operation.outputs], self.feature_level)
        op = OperationLowering(self, operation, match)
        rule.lower(op)
        if not op.complete:
            raise InvalidOperation(f"{operation.type} does not write all its outputs")

    def operand(self, index: int) -> NnapiOperand:
        """NNAPI operand *index*."""
        return self._source.operands[index]

    def is_omitted(self, index: int) -> bool:
        """Whether NNAPI operand *index* has no value."""
        return (
            index in self._omitted
            or self._source.operands[index].lifetime is NnapiLifetime.NO_VALUE
        )

    def value(self, index: int) -> int:
        """The IR operand of NNAPI operand *index*; inputs and constants are created on demand."""
        if index not in self._values:
            operand = self.graph.assembly.settled(ir_operand(self._source.operands[index]))
            self._values[index] = self.graph.add(operand)
        return self._values[index]

    def bind(self, index: int, result: int) -> None:
        """Makes IR operand *result* NNAPI operand *index*, with the type and shape of both."""
        source = self._source.operands[index]
        made = self.graph.operands[result].dtype
        if made is not source.type.dtype:
            raise InvalidOperation(f"an output of type {source.type.name} is {made.value}")
        self.graph.refine(result, ir_shape(source.type, source.dimensions), source.name)
        self.graph.annotate(result, ir_extension(source))
        self._values[index] = result

    def referenced(self, index: int | None) -> NnapiSubgraph:
        """A referenced NNAPI subgraph."""
        if index is None:
            raise InvalidOperation("a SUBGRAPH operand names no subgraph")
        return self._whole.model.referenced[index]

    def subgraph(self, index: int | None, passed: int) -> int:
        """The IR index of a referenced subgraph."""
        if index is None:
            raise InvalidOperation("a SUBGRAPH operand names no subgraph")
        return self._whole.subgraph(index, passed)
