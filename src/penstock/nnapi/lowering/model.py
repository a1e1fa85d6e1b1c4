"""`lower`: an NNAPI model into a model of the IR; and IF and WHILE."""

from __future__ import annotations

from collections.abc import Sequence, Set as AbstractSet
from dataclasses import replace
from itertools import pairwise, starmap

from msgspec.structs import replace as replaced

from penstock.errors import IndexOutOfRange, InvalidOperation, ModelError
from penstock.ir import Model, Subgraph
from penstock.nnapi.description import (
    MAXIMUM_FEATURE_LEVEL,
    NnapiLifetime,
    NnapiModel,
    NnapiOperand,
    NnapiOperation,
)
from penstock.nnapi.lowering.graph import NOTHING, ModelLowering, SubgraphLowering
from penstock.nnapi.lowering.operation import OperationLowering
from penstock.nnapi.lowering.registry import lowers, rule_of
from penstock.nnapi.lowering.validation import check_structure

Operands = Sequence[NnapiOperand]


def _interface(op: OperationLowering, name: str) -> tuple[Operands, Operands]:
    """Inputs and outputs of the subgraph that a SUBGRAPH argument names."""
    target = op.graph.whole.referenced(op.operand(name).subgraph)
    inputs, outputs = (
        [target.operands[i] for i in indexes] for indexes in (target.inputs, target.outputs)
    )
    return inputs, outputs


def _subgraph(op: OperationLowering, name: str, passed: int = 0) -> int:
    """The IR index of an argument's subgraph; its last *passed* inputs are outputs, too."""
    return op.graph.whole.subgraph(op.graph, op.operand(name).subgraph, passed)


def _require_alike(op: OperationLowering, what: str, theirs: Operands, ours: Operands) -> None:
    """Checks that operands of a subgraph match in type, quantisation and dimensions."""
    op.require(len(theirs) == len(ours), f"{what} {len(theirs)} operands, not {len(ours)}")
    for place, (a, b) in enumerate(zip(theirs, ours, strict=True)):
        kinds = [(o.type, o.scale, o.zero_point, o.extension_data) for o in (a, b)]
        alike = kinds[0] == kinds[1]
        if alike and a.dimensions is not None and b.dimensions is not None:
            alike = len(a.dimensions) == len(b.dimensions) and all(
                x is None or y is None or x == y
                for x, y in zip(a.dimensions, b.dimensions, strict=True)
            )
        op.require(alike, f"operand {place} that {what} is of another type")


@lowers("IF", "condition:b8 then:model otherwise:model arguments:any* -> results:any*")
def if_else(op: OperationLowering) -> None:
    shape = op.shape("condition")
    op.require(shape in {None, (1,), (None,)}, f"a condition of shape {shape}")
    for name in ("then", "otherwise"):
        taken, given = _interface(op, name)
        _require_alike(op, f"{name} takes", taken, op.arguments("arguments"))
        _require_alike(op, f"{name} gives", given, op.results())
    op.finish(
        "IF",
        [op.tensor("condition"), *op.tensors("arguments")],
        then_subgraph_index=_subgraph(op, "then"),
        else_subgraph_index=_subgraph(op, "otherwise"),
    )


@lowers("WHILE", "condition:model body:model arguments:any* -> results:any*")
def while_loop(op: OperationLowering) -> None:
    """Inputs that the body does not return are passed through; local state stays inside."""
    arguments, outputs = op.arguments("arguments"), op.results()
    taken, given = _interface(op, "body")
    passed = len(taken) - len(given)
    op.require(passed >= 0, f"a body of {len(given)} outputs and {len(taken)} inputs")
    op.require(
        len(outputs) <= len(given), f"{len(outputs)} outputs of a body that gives {len(given)}"
    )
    _require_alike(op, "condition takes", _interface(op, "condition")[0], arguments)
    _require_alike(op, "body takes", taken, arguments)
    _require_alike(op, "body gives", given, arguments[: len(given)])
    _require_alike(op, "body gives", given[: len(outputs)], outputs)
    values = op.tensors("arguments")
    results = op.emit_many(
        "WHILE",
        values,
        [op.value_type(v) for v in values],
        cond_subgraph_index=_subgraph(op, "condition"),
        body_subgraph_index=_subgraph(op, "body", passed),
    )
    operands = op.graph.operands
    for value, result in zip(values, results, strict=True):
        # Values that stay inside the loop get their extension type from nowhere else.
        operands[result] = replaced(operands[result], extension=operands[value].extension)
    for place in range(len(outputs)):
        op.bind(place, results[place])


def lower(
    model: NnapiModel,
    feature_level: int = MAXIMUM_FEATURE_LEVEL,
    omitted: AbstractSet[int] = NOTHING,
) -> Model:
    """*model* in operations of the IR; its inputs and outputs keep their order.

    *feature_level* (1 to 8) limits the model; `codes.EXPERIMENTAL` allows everything. *omitted* are
    positions of main inputs for optional operands that have no value in the run; the result lacks
    these inputs.

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
    left_out = frozenset(model.main.inputs[p] for p in omitted)
    whole = ModelLowering(model, feature_level, _lower_subgraph)
    main = SubgraphLowering(whole, model.main, "main", left_out)
    whole.add(main)
    return whole.finish(), tuple(starmap(range, pairwise((0, *main.ends))))


def _lower_subgraph(graph: SubgraphLowering, passed: int) -> Subgraph:
    """The IR subgraph. After its own outputs follow the last *passed* inputs."""
    source = graph.source
    inputs = [graph.value(i) for i in source.inputs if i not in graph.left_out]
    for at, operation in enumerate(source.operations):
        try:
            _lower_operation(graph, operation)
        except ModelError as error:
            if error.where is not None:
                raise
            raise error.at(f"{graph.where}, operation {at} ({operation.type})") from error
        graph.ends.append(len(graph.operations))
    outputs = [graph.value(i) for i in source.outputs]
    return graph.finish(inputs, [*outputs, *inputs[len(inputs) - passed :]])


def _lower_operation(graph: SubgraphLowering, operation: NnapiOperation) -> None:
    operands, rule = graph.source.operands, rule_of(operation.type)
    inputs = [
        replace(operands[i], lifetime=NnapiLifetime.NO_VALUE)
        if graph.is_omitted(i)
        else operands[i]
        for i in operation.inputs
    ]
    outputs = [operands[i] for i in operation.outputs]
    op = OperationLowering(graph, operation, rule.match(inputs, outputs, graph.whole.feature_level))
    rule.lower(op)
    if not op.complete:
        raise InvalidOperation(f"{operation.type} does not write all its outputs")
