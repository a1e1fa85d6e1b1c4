"""Operations that refer to subgraphs, whose operations are written in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from penstock.compiler.expression import Scope
from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.elementwise import MOVED
from penstock.compiler.legalise.writing import write
from penstock.compiler.program import Access, Position
from penstock.driverkit.site import Refused, Site, Surroundings, require
from penstock.errors import ModelError
from penstock.interrupts import polled
from penstock.ir import DType, Model, Operand, Subgraph
from penstock.ir.infer import infer_subgraph

MOST_NESTED: Final = 8


def inlined(operation: Operation, index: int, first: int) -> list[int]:
    """The tensors of the outputs of subgraph *index*, of the inputs from *first* on."""
    site = operation.site
    given = [site.input(position) for position in range(first, len(site.inputs))]
    graph = inferred(site.model, index, given)
    arguments = [operation.tensor(position) for position in range(first, len(site.inputs))]
    return written(operation, index, graph, dict(zip(graph.inputs, arguments, strict=True)))


def inferred(model: Model, index: int, given: Sequence[Operand]) -> Subgraph:
    """Subgraph *index* for inputs of the shapes of the operands *given*. Raises `Refused` if its
    inputs are others.
    """
    try:
        graph = infer_subgraph(model, index, [o.shape for o in given])
    except ModelError as error:
        raise Refused(f"subgraph {index}: {error}") from error
    require(len(given) == len(graph.inputs), "a subgraph of other inputs")
    for argument, wanted in zip(given, graph.inputs, strict=True):
        require(alike(argument, graph.operands[wanted]), "a subgraph of other inputs")
    return graph


def written(
    operation: Operation, index: int, graph: Subgraph, arguments: Mapping[int, int]
) -> list[int]:
    """Writes the operations of *graph*, a form of subgraph *index*, and returns the tensors of its
    outputs. *arguments* has the tensors of its inputs. Constants are not computed.
    """
    site, build = operation.site, operation.build
    around = Surroundings(site.model, index)
    around.subgraph = graph
    with build.inside(graph, arguments) as depth:
        require(depth <= MOST_NESTED, f"subgraphs more than {MOST_NESTED} deep")
        for inner in polled(graph.operations):
            outputs = tuple(graph.operands[i] for i in inner.outputs)
            if all(o.is_constant for o in outputs):
                continue
            inputs = tuple(
                graph.operands[i] if graph.operands[i].has_value else None for i in inner.inputs
            )
            write(build, Site(around, site.index, inner, inputs, outputs, site.hints))
        return [build.operand(i) for i in graph.outputs]


def alike(one: Operand, other: Operand) -> bool:
    return one.dtype is other.dtype and one.quantization == other.quantization


@legal("CALL", "STABLEHLO_COMPOSITE")
def call(operation: Operation) -> None:
    """The subgraph that is called, or into which a composite is decomposed."""
    site = operation.site
    composite = site.operation.type == "STABLEHLO_COMPOSITE"
    name = "decomposition_subgraph_index" if composite else "subgraph"
    return_(operation, inlined(operation, site.attributes.integer(name), 0))


def return_(operation: Operation, made: Sequence[int]) -> None:
    """Makes the outputs the tensors *made*."""
    for position, tensor in enumerate(made):
        target = operation.target(position)
        require(operation.shape(target) == operation.shape(tensor), "a result of another shape")
        operation.rename(tensor, target)


@legal("IF")
def if_else(operation: Operation) -> None:
    """The subgraph that a constant condition selects. Of another condition both are computed, and
    the results of one are taken.
    """
    site, build = operation.site, operation.build
    branches = [site.attributes.integer(f"{name}_subgraph_index") for name in ("then", "else")]
    require(site.input().dtype is DType.BOOL, "a condition of another type than bool")
    if site.input().is_constant:
        chosen = 0 if site.value(0, "its condition").reshape(-1)[:1].all() else 1
        return_(operation, inlined(operation, branches[chosen], 1))
        return
    _, _, before = build.mark()
    results = [inlined(operation, index, 1) for index in branches]
    require(build.mark()[2] == before, "a branch whose inputs may have no result")
    condition = operation.tensor()
    first = Access(condition, (Position(),) * len(operation.shape(condition)))
    for position, (yes, no) in enumerate(zip(*results, strict=True)):
        target, dtype = operation.target(position), site.output(position).dtype
        shapes = {operation.shape(t) for t in (yes, no, target)}
        types = {build.tensors[t].dtype for t in (yes, no)}
        require(len(shapes) == 1 and types == {dtype} <= MOVED, "branches of different results")
        scope = Scope(DType.BOOL, dtype, dtype)
        chosen_value = scope.select(*(scope.argument(i) for i in range(3)))
        reads = [first, operation.whole(yes), operation.whole(no)]
        build.emit(
            "if", operation.shape(target), reads, scope.finish(chosen_value),
            operation.whole(target),
        )  # fmt: skip
