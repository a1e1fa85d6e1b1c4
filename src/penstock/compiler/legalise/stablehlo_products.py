"""StableHLO's general product of matrices, and its reductions over dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.compiler.expression import Expression, Scope
from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.elementwise import F32, I32, I64
from penstock.compiler.legalise.products import Form, Products, emit_product
from penstock.compiler.legalise.quantised import Finish
from penstock.compiler.program import Access, Combine, Position, along
from penstock.driverkit.site import require
from penstock.ir import DType, Subgraph


@legal("STABLEHLO_DOT_GENERAL")
def dot_general(operation: Operation) -> None:
    """Products summed over the contracting dimensions: [batching ..., free left ..., free right
    ...].
    """
    site = operation.site
    left, right, made = site.input(0).dtype, site.input(1).dtype, site.output().dtype
    if not left is right is made or made not in {F32, I32, I64}:
        site.refuse_types({F32, I32, I64})
    shapes = site.shape(0), site.shape(1)
    batching, inner = (
        [site.attributes.integers(f"{side}_{kind}_dimensions") for side in ("lhs", "rhs")]
        for kind in ("batching", "contracting")
    )
    sizes = [shapes[0][axis] for axis in batching[0]]
    free = [
        [axis for axis in range(len(shape)) if axis not in {*batching[at], *inner[at]}]
        for at, shape in enumerate(shapes)
    ]
    loops = (*sizes, *(shapes[at][axis] for at in (0, 1) for axis in free[at]))
    require(loops == site.output_shape() and len(free[1]) > 0, "a product of another shape")
    firsts = len(sizes), len(sizes) + len(free[0])
    left_at, right_at = (
        placed(len(shapes[at]), (batching[at], 0), (free[at], firsts[at]), (inner[at], len(loops)))
        for at in (0, 1)
    )
    reduced = tuple(shapes[0][axis] for axis in inner[0])

    def plain(_part: Products, finish: Finish) -> Expression:
        scope: Scope = finish.scope()
        return scope.finish(scope.argument(0))

    write = along(*range(len(loops)))
    part = Products(loops, reduced, left_at, right_at, write, write[-1])
    form = Form(operation.tensor(0), operation.tensor(1), made, (None, None), plain)
    emit_product(operation, "dot_general", form, part)


def placed(rank: int, *groups: tuple[Sequence[int], int]) -> tuple[Position, ...]:
    """The position along each of *rank* axes: the axes of each group have loops from its number
    on.
    """
    found = [Position()] * rank
    for axes, first in groups:
        for loop, axis in enumerate(axes, first):
            found[axis] = along(loop)[0]
    return tuple(found)


REGIONS: Final[dict[str, Combine]] = {
    "ADD": "sum",
    "STABLEHLO_ADD": "sum",
    "MUL": "product",
    "STABLEHLO_MULTIPLY": "product",
    "MAXIMUM": "maximum",
    "STABLEHLO_MAXIMUM": "maximum",
    "MINIMUM": "minimum",
    "STABLEHLO_MINIMUM": "minimum",
}
"""Regions of one operation, and the reduction that each is."""

LOGICAL: Final[dict[str, Combine]] = {
    **dict.fromkeys(["LOGICAL_OR", "STABLEHLO_OR", "STABLEHLO_MAXIMUM", "STABLEHLO_ADD"], "any"),
    **dict.fromkeys(
        ["LOGICAL_AND", "STABLEHLO_AND", "STABLEHLO_MINIMUM", "STABLEHLO_MULTIPLY"], "all"
    ),
}
"""The same, of booleans."""

SCALARS: Final = {
    "sum": "add",
    "product": "mul",
    "maximum": "maximum",
    "minimum": "minimum",
    "any": "or",
    "all": "and",
}
"""What combines a reduction with its initial value."""

REDUCED: Final = frozenset({F32, I32, I64, DType.INT8, DType.INT16, DType.BOOL})
"""The types that reductions have kernels for."""


@legal("STABLEHLO_REDUCE")
def reduce(operation: Operation) -> None:
    """One operand, reduced along dimensions by a region of one operation, from an initial value.
    Extremes of floats are refused: which of two the region chooses beside NaN depends on the order.
    """
    site = operation.site
    require(len(site.inputs) == 2, "several operands reduced together")
    dtype = site.output().dtype
    require(site.input(0).dtype is site.input(1).dtype is dtype, "types of this reduction")
    graph = site.model.subgraphs[site.attributes.integer("body_subgraph_index")]
    combine = (LOGICAL if dtype is DType.BOOL else REGIONS).get(only_operation(graph), "none")
    require(combine != "none", "a region of other operations")
    if dtype not in REDUCED or (dtype is F32 and combine in {"maximum", "minimum"}):
        site.refuse_types(REDUCED)
    require(site.shape(1) == (), "an initial value of several elements")
    shape, axes = site.shape(), sorted({*site.attributes.integers("dimensions")})
    require(all(0 <= axis < len(shape) for axis in axes), "dimensions that are not there")
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    numbers = {axis: loop for loop, axis in enumerate([*kept, *axes])}
    read = Access(operation.tensor(), along(*(numbers[axis] for axis in range(len(shape)))))
    sums = I32 if dtype in {DType.INT8, DType.INT16} else dtype
    body, finish = Scope(dtype), Scope(sums, dtype)
    total = finish.argument(0).apply(SCALARS[combine], finish.argument(1).cast(sums))
    target = operation.target()
    operation.build.emit(
        "reduce", operation.shape(target), [read], body.finish(body.argument(0).cast(sums)),
        operation.whole(target), reduced=tuple(shape[axis] for axis in axes),
        combine=combine if axes else "none", sums=sums, finish=finish.finish(total.cast(dtype)),
        extras=[Access(operation.tensor(1), ())],
    )  # fmt: skip


def only_operation(graph: Subgraph) -> str:
    """The type of the one operation of *graph*, on both of its inputs; "" if it has others."""
    if len(graph.operations) != 1 or len(graph.inputs) != 2:
        return ""
    (operation,) = graph.operations
    same = operation.outputs == graph.outputs and sorted(operation.inputs) == sorted(graph.inputs)
    plain = operation.attributes.get("fused_activation_function", "NONE") == "NONE"
    return operation.type if same and plain else ""
