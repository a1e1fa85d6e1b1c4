"""Regions of StableHLO operations: subgraphs of scalars, run on many elements at once where that is
the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from penstock.drivers.reference.ops.kernel import Kernel, Site, require
from penstock.drivers.reference.ops.stablehlo.elementwise import FUNCTIONS, larger, smaller
from penstock.interrupts import watched
from penstock.ir import NDArray, Subgraph

Combine: TypeAlias = Callable[[NDArray, NDArray], Any]

Apply: TypeAlias = "Callable[..., list[NDArray]]"
"""A region's results for each element of its arguments, which have one shape."""

COMBINERS: Final[dict[str, Combine]] = {
    "ADD": np.add,
    "MUL": np.multiply,
    "MAXIMUM": larger,
    "MINIMUM": smaller,
    "LOGICAL_AND": np.logical_and,
    "LOGICAL_OR": np.logical_or,
    "STABLEHLO_ADD": np.add,
    "STABLEHLO_MULTIPLY": np.multiply,
    "STABLEHLO_MAXIMUM": larger,
    "STABLEHLO_MINIMUM": smaller,
    "STABLEHLO_AND": np.bitwise_and,
    "STABLEHLO_OR": np.bitwise_or,
}
"""Operations that a region may be made of alone: what they do to stored elements."""

OF_ELEMENTS: Final = (
    "ADD SUB MUL DIV MAXIMUM MINIMUM POW FLOOR_DIV FLOOR_MOD SQUARED_DIFFERENCE "
    "EQUAL NOT_EQUAL LESS LESS_EQUAL GREATER GREATER_EQUAL LOGICAL_AND LOGICAL_OR LOGICAL_NOT "
    "ABS NEG EXP LOG SQRT RSQRT SQUARE SIN COS FLOOR CEIL TANH LOGISTIC CAST "
    "STABLEHLO_COMPARE STABLEHLO_CONVERT STABLEHLO_CLAMP STABLEHLO_SELECT"
)
BY_ELEMENT: Final = frozenset(FUNCTIONS) | frozenset(OF_ELEMENTS.split())
"""Operations whose kernels take scalars and arrays alike, element by element."""


def is_scalar_region(graph: Subgraph) -> bool:
    """Whether *graph* computes scalars of scalars by operations of `BY_ELEMENT` only."""
    return all(o.type in BY_ELEMENT for o in graph.operations) and all(
        o.shape == () for o in graph.operands if o.has_value
    )


def combiner(graph: Subgraph) -> Combine | None:
    """The one function of two elements that *graph* is, in either order of operands; None where it
    is more.
    """
    if len(graph.operations) != 1 or len(graph.inputs) != 2:
        return None
    (operation,) = graph.operations
    if operation.outputs != graph.outputs or sorted(operation.inputs) != sorted(graph.inputs):
        return None
    if operation.attributes.get("fused_activation_function", "NONE") != "NONE":
        return None
    return COMBINERS.get(operation.type)


def region(site: Site, attribute: str, arguments: int) -> Apply:
    """The subgraph that *attribute* of *site* names, applied element by element.

    `Unsupported` where it takes another number of arguments, or where one of its operations is.
    """
    index = site.attributes.integer(attribute)
    graph = site.graphs(index)
    require(
        len(graph.inputs) == arguments,
        f"{site.operation.type} with a region of {len(graph.inputs)} arguments, not {arguments}",
    )
    combine = combiner(graph)
    if combine is not None:
        return partial(_combined, combine)
    run = site.subgraphs(index)
    if is_scalar_region(graph):
        return partial(_at_once, run)
    return partial(_one_by_one, run, [graph.operands[i].dtype.numpy for i in graph.outputs])


def _combined(combine: Combine, a: NDArray, b: NDArray) -> list[NDArray]:
    return [np.asarray(combine(a, b)).astype(a.dtype, copy=False)]


def _at_once(run: Kernel, *arrays: NDArray) -> list[NDArray]:
    return [np.broadcast_to(np.asarray(r), arrays[0].shape) for r in run(arrays)]


def _one_by_one(run: Kernel, dtypes: list[np.dtype[Any]], *arrays: NDArray) -> list[NDArray]:
    made = [np.empty(arrays[0].shape, dtype) for dtype in dtypes]
    for place in watched(np.ndindex(arrays[0].shape)):
        results = run([np.asarray(a[place]) for a in arrays])
        for whole, result in zip(made, results, strict=True):
            whole[place] = np.asarray(result).reshape(())
    return made
