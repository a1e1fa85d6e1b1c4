"""StableHLO operations that move elements: padding beside LiteRT, the others by the specification's
examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pytest

from penstock.drivers.reference.kernel import Unsupported
from penstock.errors import PenstockError, ShapeMismatch
from penstock.ir import DType, NDArray, Operand, Shape
from tests.support_litert import kernel_of
from tests.unit.drivers.reference.single_models import check, computed, kind_of, single, values

X: Final = np.arange(12, dtype=np.int32).reshape(3, 4)


def run(name: str, *arrays: NDArray, shape: Shape = None, **attributes: Any) -> NDArray:
    operands = [Operand(kind_of(a), a.shape) for a in arrays]
    output = Operand(kind_of(arrays[0]), shape)
    (result,) = kernel_of(f"STABLEHLO_{name}", operands, [output], **attributes)(arrays)
    return result


def scalars(*numbers: int) -> list[NDArray]:
    return [np.array(n, np.int32) for n in numbers]


PADDINGS: Final[list[tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]]]] = [
    ((2, 3), (1, 0), (2, 1), (0, 0)),
    ((2, 3), (0, 0), (0, 0), (1, 2)),
    ((4, 5), (-1, -2), (-1, 0), (0, 0)),
    ((3, 4), (-2, 3), (1, -3), (2, 1)),
    ((2, 1, 3), (-1, 1, 0), (2, -1, -2), (1, 3, 2)),
    ((5,), (-4,), (0,), (3,)),
    ((1, 0), (0, 1), (0, 2), (0, 1)),
]


@pytest.mark.parametrize(("shape", "low", "high", "interior"), PADDINGS)
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT8, DType.BFLOAT16, DType.COMPLEX64])
def test_stablehlo_pad_agrees_with_litert(
    shape: Sequence[int],
    low: Sequence[int],
    high: Sequence[int],
    interior: Sequence[int],
    dtype: DType,
) -> None:
    rng = np.random.default_rng(3)
    x, value = values(rng, dtype, shape), values(rng, dtype, ())
    attributes = {
        "edge_padding_low": tuple(low),
        "edge_padding_high": tuple(high),
        "interior_padding": tuple(interior),
    }
    check(single("STABLEHLO_PAD", [x, value], [(dtype, None)], attributes), [x, value])


def test_stablehlo_pad_may_crop_a_dimension_to_zero() -> None:
    got = run(
        "PAD",
        X,
        np.array(7, np.int32),
        edge_padding_low=(-2, 1),
        edge_padding_high=(-1, 0),
        interior_padding=(0, 0),
    )
    assert got.shape == (0, 5)


def test_stablehlo_pad_refuses_too_large_outputs() -> None:
    huge = {"edge_padding_low": (2**40,), "edge_padding_high": (0,), "interior_padding": (0,)}
    feeds = [X[0], np.array(0, np.int32)]
    with pytest.raises(PenstockError):
        computed(single("STABLEHLO_PAD", feeds, [(DType.INT32, None)], huge), feeds)
    with pytest.raises(ShapeMismatch):
        run("PAD", *feeds, **huge)


def test_stablehlo_reshape_agrees_with_numpy() -> None:
    np.testing.assert_array_equal(run("RESHAPE", X, shape=(2, 6)), X.reshape(2, 6))
    np.testing.assert_array_equal(run("RESHAPE", X, shape=(None, 2)), X.reshape(6, 2))
    assert run("RESHAPE", X[:1, :1], shape=()).shape == ()
    with pytest.raises(Unsupported):
        run("RESHAPE", X, shape=(None, None))


def test_broadcast_in_dim_agrees_with_its_definition() -> None:
    x = np.array([[1, 2, 3]], np.int32)
    got = run("BROADCAST_IN_DIM", x, shape=(2, 3, 2), broadcast_dimensions=(2, 1))
    np.testing.assert_array_equal(got, [[[1, 1], [2, 2], [3, 3]]] * 2)
    got = run("BROADCAST_IN_DIM", x, shape=(2, None), broadcast_dimensions=(0, 1))
    np.testing.assert_array_equal(got, [[1, 2, 3]] * 2)
    got = run("BROADCAST_IN_DIM", np.array(5), shape=(2, 2), broadcast_dimensions=())
    np.testing.assert_array_equal(got, [[5, 5], [5, 5]])


@pytest.mark.parametrize(
    ("shape", "places"), [((None, 3), (1,)), ((2, 3), (1, 1)), ((2, 3), (0, 2)), (None, (0, 1))]
)
def test_broadcast_in_dim_refuses_invalid_arguments(shape: Shape, places: tuple[int, ...]) -> None:
    with pytest.raises(Unsupported):
        run("BROADCAST_IN_DIM", X[: len(places)], shape=shape, broadcast_dimensions=places)


def test_stablehlo_concatenate_slice_and_transpose_agree_with_numpy() -> None:
    got = run("CONCATENATE", X, X[:, :1], dimension=1)
    np.testing.assert_array_equal(got, np.concatenate([X, X[:, :1]], 1))
    got = run("SLICE", X, start_indices=(1, 0), limit_indices=(3, 4), strides=(1, 3))
    np.testing.assert_array_equal(got, [[4, 7], [8, 11]])
    np.testing.assert_array_equal(run("TRANSPOSE", X, permutation=(1, 0)), X.T)
    with pytest.raises(Unsupported):
        run("TRANSPOSE", X, permutation=(0, 0))
    with pytest.raises(ShapeMismatch):
        run("SLICE", X, start_indices=(0, 0), limit_indices=(3, 5), strides=(1, 1))


def test_stablehlo_dynamic_slice_clamps_its_start() -> None:
    got = run("DYNAMIC_SLICE", X, *scalars(-5, 3), slice_sizes=(2, 2))
    np.testing.assert_array_equal(got, [[2, 3], [6, 7]])
    update = np.full((2, 2), -1, np.int32)
    got = run("DYNAMIC_UPDATE_SLICE", X, update, *scalars(9, 1))
    np.testing.assert_array_equal(got, [[0, 1, 2, 3], [4, -1, -1, 7], [8, -1, -1, 11]])
    with pytest.raises(ShapeMismatch):
        run("DYNAMIC_SLICE", X, *scalars(0, 0), slice_sizes=(4, 2))
    with pytest.raises(ShapeMismatch):
        run("DYNAMIC_UPDATE_SLICE", X, update, *scalars(0))


def test_stablehlo_iota_counts_along_a_dimension() -> None:
    output = Operand(DType.FLOAT16, (2, 3))
    (got,) = kernel_of("STABLEHLO_IOTA", [], [output], iota_dimension=1)([])
    assert got.dtype == np.float16
    np.testing.assert_array_equal(got, [[0, 1, 2], [0, 1, 2]])
    for shape, axis in (((2, 3), 2), ((2, 3), -1), ((2, None), 0), ((), 0)):
        with pytest.raises(Unsupported):
            kernel_of("STABLEHLO_IOTA", [], [Operand(DType.INT32, shape)], iota_dimension=axis)
