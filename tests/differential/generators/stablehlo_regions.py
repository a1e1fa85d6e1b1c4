"""StableHLO's operations with dimension numbers, regions and branches that LiteRT registers, and
REDUCE_WINDOW.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.ir import DType
from penstock.ir.types import PACKED
from tests.differential.draw import Draw, Value
from tests.differential.registry import SWEPT, cases

UNPACKED: Final = tuple(d for d in SWEPT if d not in PACKED | {DType.STRING})
INDICES: Final = (DType.INT32, DType.INT64)
COMBINING: Final = ("ADD", "MULTIPLY", "MAXIMUM", "MINIMUM")
FUNCTIONS: Final = ("ADD", "MUL", "MINIMUM", "MAXIMUM", "ALL", "ANY")


def combining(draw: Draw, kind: str, dtype: DType) -> int:
    """The index of a region of one operation on two scalars; of none, it gives the second."""
    region = draw.builder.subgraph("region")
    pair = [region.input(dtype, ()), region.input(dtype, ())]
    results = region.operation(kind, pair, [(dtype, ())]) if kind else pair[1:]
    return draw.builder.add_subgraph(region.finish(results))


def _split(draw: Draw, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Dimensions of an operand that index vectors move, and those that slices leave out."""
    order = draw.rng.permutation(rank)
    moved = tuple(int(axis) for axis in order[: draw.integer(1, rank)])
    dropped = tuple(sorted(int(a) for a in draw.rng.permutation(rank)[: draw.integer(0, rank)]))
    return moved, dropped


def _slices(
    draw: Draw, shape: Sequence[int], dtype: DType
) -> tuple[Value, tuple[int, ...], tuple[int, ...], dict[str, tuple[int, ...]], int]:
    """Indices, slice sizes, the shape of what is taken or brought, dimension numbers, and where
    index vectors stand.
    """
    moved, dropped = _split(draw, len(shape))
    sizes = tuple(1 if at in dropped else draw.integer(1, max(d, 1)) for at, d in enumerate(shape))
    batch = tuple(draw.integer(1, 4) for _ in range(draw.integer(1, 2)))
    axis = draw.integer(0, len(batch))
    beyond = 1 if draw.chance(0.3) else 0
    indices = draw.value(
        dtype,
        (*batch[:axis], len(moved), *batch[axis:]),
        low=-beyond,
        high=max(0, *shape) - 1 + beyond,
    )
    rank = len(batch) + len(shape) - len(dropped)
    places = sorted(draw.rng.permutation(rank)[: len(shape) - len(dropped)].tolist())
    kept, rest = iter([s for at, s in enumerate(sizes) if at not in dropped]), iter(batch)
    whole = tuple(next(kept) if at in places else next(rest) for at in range(rank))
    numbers = {"places": tuple(places), "dropped": dropped, "moved": moved}
    return indices, sizes, whole, numbers, axis


@cases("STABLEHLO_GATHER", choices=(UNPACKED, INDICES))
def gather(draw: Draw, kind: str) -> None:
    shape = draw.shape(1, 4)
    if 0 in shape:
        raise ValueError("LiteRT gathers from behind an operand without elements")
    indices, sizes, whole, numbers, axis = _slices(draw, shape, draw.type(1))
    draw.operation(
        kind,
        [draw.value(draw.type(0), shape), indices],
        [draw.output(draw.type(0), shape=whole)],
        offset_dims=numbers["places"],
        collapsed_slice_dims=numbers["dropped"],
        start_index_map=numbers["moved"],
        index_vector_dim=axis,
        slice_sizes=sizes,
    )


@cases("STABLEHLO_SCATTER", choices=(UNPACKED, INDICES))
def scatter(draw: Draw, kind: str) -> None:
    dtype, shape = draw.type(0), draw.shape(1, 4)
    indices, _, whole, numbers, axis = _slices(draw, shape, draw.type(1))
    body = draw.pick(("", *(f"STABLEHLO_{name}" for name in COMBINING)))
    draw.operation(
        kind,
        [draw.value(dtype, shape), indices, draw.value(dtype, whole)],
        [draw.output(dtype, shape=shape)],
        update_window_dims=numbers["places"],
        inserted_window_dims=numbers["dropped"],
        scatter_dims_to_operand_dims=numbers["moved"],
        index_vector_dim=axis,
        update_computation_subgraph_index=combining(draw, body, dtype),
    )


@cases("STABLEHLO_REDUCE_WINDOW", choices=(UNPACKED,))
def region_windows(draw: Draw, kind: str) -> None:
    dtype, shape = draw.type(0), tuple(d + 2 for d in draw.shape(1, 4))
    names = tuple(f"STABLEHLO_{name}" for name in COMBINING)
    if dtype is DType.BOOL:
        names = ("LOGICAL_AND", "LOGICAL_OR", "STABLEHLO_AND")
    draw.operation(
        kind,
        [draw.value(dtype, shape), draw.value(dtype, ())],
        [draw.output(dtype)],
        window_dimensions=tuple(draw.integer(1, 3) for _ in shape),
        window_strides=tuple(draw.integer(1, 3) for _ in shape),
        base_dilations=tuple(draw.integer(1, 2) for _ in shape),
        window_dilations=tuple(draw.integer(1, 2) for _ in shape),
        padding=tuple(draw.integer(-1, 3) for _ in range(2 * len(shape))),
        body_subgraph_index=combining(draw, draw.pick(names), dtype),
    )


@cases("REDUCE_WINDOW", choices=(UNPACKED, (DType.INT64,)))
def windows(draw: Draw, kind: str) -> None:
    dtype, shape = draw.type(0), draw.shape(1, 4)
    functions = FUNCTIONS[4:] if dtype is DType.BOOL else FUNCTIONS[:4]
    geometry = (
        np.array([draw.integer(1, most) for _ in shape], draw.type(1).numpy) for most in (3, 3, 2)
    )
    inputs = [draw.value(dtype, shape), draw.value(dtype, ())]
    draw.operation(
        kind,
        [*inputs, *(draw.constant(g) for g in geometry)],
        [draw.output(dtype)],
        reduce_function=draw.pick(functions),
    )


@cases("STABLEHLO_RNG_BIT_GENERATOR", choices=(UNPACKED, UNPACKED))
def random_bits(draw: Draw, kind: str) -> None:
    algorithm = draw.pick(("DEFAULT", "PHILOX", "THREEFRY"))
    length = 2 if algorithm == "THREEFRY" else draw.integer(2, 3)
    state = draw.value(draw.type(0), (length,))
    shape = draw.shape()
    draw.operation(
        kind,
        [state],
        [draw.output(draw.type(0), shape=(length,)), draw.output(draw.type(1), shape=shape)],
        algorithm=algorithm,
    )


def _branch(draw: Draw, dtype: DType, shape: tuple[int, ...]) -> int:
    """A subgraph of one argument: it, combined with itself once or twice."""
    region = draw.builder.subgraph("branch")
    x = y = region.input(dtype, shape)
    for _ in range(draw.integer(1, 2)):
        name = f"STABLEHLO_{draw.pick(COMBINING)}"
        (y,) = region.operation(name, [y, x], [(dtype, shape)])
    return draw.builder.add_subgraph(region.finish([y]))


@cases("STABLEHLO_CASE", choices=(UNPACKED,))
def branches(draw: Draw, kind: str) -> None:
    dtype, shape = draw.type(0), draw.shape()
    index = draw.value(DType.INT32, (), low=-2, high=4)
    x = draw.value(dtype, shape, constant=False)
    targets = tuple(_branch(draw, dtype, shape) for _ in range(draw.integer(1, 3)))
    made = draw.output(dtype, shape=shape)
    draw.operation(kind, [index, x], [made], branch_subgraph_indices=targets)


@cases("STABLEHLO_COMPOSITE", choices=(UNPACKED,))
def composite(draw: Draw, kind: str) -> None:
    dtype, shape = draw.type(0), draw.shape()
    target = _branch(draw, dtype, shape)
    draw.operation(
        kind,
        [draw.value(dtype, shape, constant=False)],
        [draw.output(dtype, shape=shape)],
        name="test.branch",
        decomposition_subgraph_index=target,
    )
