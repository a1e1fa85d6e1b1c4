"""StableHLO's gather and scatter beside LiteRT and beside their definitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pytest

from penstock.errors import PenstockError
from penstock.ir import DType, NDArray, SubgraphBuilder
from tests.unit.drivers.reference.single_models import (
    check,
    combining,
    computed,
    kind_of,
    replacing,
    single,
    values,
)

X: Final = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def gather(x: NDArray, indices: NDArray, shape: Sequence[int], **attributes: Any) -> Any:
    return single("STABLEHLO_GATHER", [x, indices], [(kind_of(x), tuple(shape))], attributes)


GATHERS: Final[list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]]] = [
    (
        (5,),
        (5, 2, 4),
        {"offset_dims": (1, 2), "collapsed_slice_dims": (1,), "start_index_map": (1,),
         "index_vector_dim": 1, "slice_sizes": (2, 1, 4)},
    ),
    (
        (5, 2),
        (2, 5, 3),
        {"offset_dims": (0, 2), "collapsed_slice_dims": (2,), "start_index_map": (2, 0),
         "index_vector_dim": 1, "slice_sizes": (2, 3, 1)},
    ),
    (
        (3, 2, 4),
        (2, 4),
        {"offset_dims": (), "collapsed_slice_dims": (0, 1, 2), "start_index_map": (0, 1, 2),
         "index_vector_dim": 0, "slice_sizes": (1, 1, 1)},
    ),
]  # fmt: skip


def test_stablehlo_gather_agrees_with_litert() -> None:
    rng = np.random.default_rng(1)
    for (shape, result, attributes), dtype in zip(GATHERS[1:], (np.int32, np.int64), strict=True):
        indices = rng.integers(-1, 5, shape).astype(dtype)
        check(gather(X, indices, result, **attributes), [X, indices])


def test_stablehlo_gather_equals_its_definition() -> None:
    rng = np.random.default_rng(2)
    for shape, result, attributes in GATHERS:
        for dtype in (np.int32, np.uint8, np.uint64):
            indices = rng.integers(0, 6, shape).astype(dtype)
            (got,) = computed(gather(X, indices, result, **attributes), [X, indices])
            np.testing.assert_array_equal(got, gathered(X, indices, result, **attributes))


def gathered(
    x: NDArray,
    indices: NDArray,
    shape: Sequence[int],
    offset_dims: Sequence[int],
    collapsed_slice_dims: Sequence[int],
    start_index_map: Sequence[int],
    index_vector_dim: int,
    slice_sizes: Sequence[int],
) -> NDArray:
    """Gather as the specification writes it, one result at a time."""
    result = np.empty(shape, x.dtype)
    for place in np.ndindex(*shape):
        batch = [p for at, p in enumerate(place) if at not in offset_dims]
        vector = [slice(None)] if index_vector_dim < indices.ndim else []
        batch[index_vector_dim:index_vector_dim] = vector
        start = np.zeros(x.ndim, int)
        for number, axis in zip(np.atleast_1d(indices[tuple(batch)]), start_index_map, strict=True):
            start[axis] = min(int(number), x.shape[axis] - slice_sizes[axis])
        offsets = iter([place[at] for at in offset_dims])
        for axis in range(x.ndim):
            start[axis] += 0 if axis in collapsed_slice_dims else next(offsets)
        result[place] = x[tuple(start)]
    return result


KINDS: Final = ("STABLEHLO_ADD", "STABLEHLO_MULTIPLY", "STABLEHLO_MAXIMUM", "STABLEHLO_MINIMUM")
ROWS: Final[dict[str, Any]] = {
    "update_window_dims": (1,),
    "inserted_window_dims": (0,),
    "scatter_dims_to_operand_dims": (0,),
    "index_vector_dim": 1,
}
OVERLAPPING: Final[dict[str, Any]] = {
    "update_window_dims": (0, 2),
    "inserted_window_dims": (),
    "scatter_dims_to_operand_dims": (1, 0),
    "index_vector_dim": 1,
}


def scatter(x: NDArray, indices: NDArray, updates: NDArray, body: Any, **attributes: Any) -> Any:
    return single(
        "STABLEHLO_SCATTER",
        [x, indices, updates],
        [(kind_of(x), x.shape)],
        attributes,
        update_computation_subgraph_index=body,
    )


@pytest.mark.parametrize("kind", ["replace", *KINDS])
@pytest.mark.parametrize(
    "dtype", [DType.FLOAT32, DType.FLOAT16, DType.INT8, DType.UINT64, DType.BOOL]
)
def test_stablehlo_scatter_agrees_with_litert(kind: str, dtype: DType) -> None:
    """Indices meet more than once, slices overlap, and some leave the operand."""
    rng = np.random.default_rng(4)
    body = replacing(dtype) if kind == "replace" else combining(kind, dtype, swapped=True)
    x = values(rng, dtype, (4, 3))
    for shape, window, attributes in (((5, 1), (5, 3), ROWS), ((5, 2), (2, 5, 2), OVERLAPPING)):
        indices = rng.integers(-1, 5, shape).astype(np.int32)
        updates = values(rng, dtype, window)
        check(scatter(x, indices, updates, body, **attributes), [x, indices, updates])


def test_stablehlo_scatter_drops_updates_outside_the_operand() -> None:
    x = np.zeros((2, 3), np.int32)
    updates = np.arange(1, 11, dtype=np.int32).reshape(2, 5)
    for number in (-3, -1, 0, 2):
        indices = np.array([[number], [1]], np.int32)
        attributes = {**ROWS, "scatter_dims_to_operand_dims": (1,)}
        model = scatter(x, indices, updates, combining("STABLEHLO_ADD", DType.INT32), **attributes)
        check(model, [x, indices, updates])
    empty, rows = np.zeros((0, 3), np.int32), updates[:, :3].copy()
    indices = np.array([[0], [1]], np.int32)
    model = scatter(empty, indices, rows, replacing(DType.INT32), **ROWS)
    (got,) = computed(model, [empty, indices, rows])
    assert got.shape == (0, 3)


def test_stablehlo_scatter_applies_updates_in_order() -> None:
    """Slices that overlap, where their dimension stands between those of the indices."""
    attributes: dict[str, Any] = {
        "update_window_dims": (1,),
        "inserted_window_dims": (),
        "scatter_dims_to_operand_dims": (0,),
        "index_vector_dim": 0,
    }
    x, updates = np.zeros(4, np.int32), np.arange(1, 13, dtype=np.int32).reshape(3, 2, 2)
    for numbers in ([[1, 1], [0, 1], [0, 1]], [[2, 1], [1, 2], [0, 0]]):
        indices = np.array([numbers], np.int32)
        model = scatter(x, indices, updates, replacing(DType.INT32), **attributes)
        check(model, [x, indices, updates])


def test_stablehlo_scatter_supports_a_region_of_several_operations() -> None:
    def body(region: SubgraphBuilder) -> Sequence[int]:
        a, b = (region.input(DType.INT32, ()) for _ in range(2))
        (twice,) = region.operation("STABLEHLO_ADD", [a, a], [(DType.INT32, ())])
        return region.operation("STABLEHLO_SUBTRACT", [twice, b], [(DType.INT32, ())])

    x = np.array([[10], [20]], np.int32)
    indices = np.array([[0], [0], [1], [0]], np.int32)
    updates = np.array([[1], [2], [3], [4]], np.int32)
    (got,) = computed(scatter(x, indices, updates, body, **ROWS), [x, indices, updates])
    np.testing.assert_array_equal(got, [[((10 * 2 - 1) * 2 - 2) * 2 - 4], [37]])


def test_stablehlo_scatter_of_no_updates_returns_the_operand() -> None:
    x, updates = np.ones((4, 3), np.float32), np.zeros((0, 3), np.float32)
    indices = np.zeros((0, 1), np.int32)
    for body in (replacing(DType.FLOAT32), combining("STABLEHLO_MAXIMUM", DType.FLOAT32)):
        (got,) = computed(scatter(x, indices, updates, body, **ROWS), [x, indices, updates])
        np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize(
    "wrong",
    [
        {"slice_sizes": (2, 1)},
        {"slice_sizes": (2, 1, 5)},
        {"slice_sizes": (2, -1, 4)},
        {"slice_sizes": (2, 2, 4)},
        {"start_index_map": (3,)},
        {"start_index_map": (0, 1)},
        {"collapsed_slice_dims": (3,)},
        {"collapsed_slice_dims": (1, 1)},
        {"offset_dims": (1, 1)},
        {"offset_dims": (2, 1)},
        {"offset_dims": (1,)},
        {"index_vector_dim": 2},
        {"index_vector_dim": -1},
    ],
    ids=str,
)
def test_stablehlo_gather_refuses_contradictory_arguments(wrong: dict[str, Any]) -> None:
    shape, result, attributes = GATHERS[0]
    indices = np.zeros(shape, np.int32)
    with pytest.raises(PenstockError):
        computed(gather(X, indices, result, **{**attributes, **wrong}), [X, indices])


@pytest.mark.parametrize(
    "wrong",
    [
        {"update_window_dims": (0,)},
        {"update_window_dims": (2,)},
        {"update_window_dims": (0, 1)},
        {"inserted_window_dims": (2,)},
        {"inserted_window_dims": ()},
        {"scatter_dims_to_operand_dims": (0, 1)},
        {"scatter_dims_to_operand_dims": (2,)},
        {"index_vector_dim": 3},
    ],
    ids=str,
)
def test_stablehlo_scatter_refuses_contradictory_arguments(wrong: dict[str, Any]) -> None:
    x, indices, updates = (
        np.ones((4, 3), np.int32),
        np.zeros((5, 1), np.int32),
        np.ones((5, 3), np.int32),
    )
    body = replacing(DType.INT32)
    with pytest.raises(PenstockError):
        computed(scatter(x, indices, updates, body, **{**ROWS, **wrong}), [x, indices, updates])
