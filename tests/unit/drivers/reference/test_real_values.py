"""Arrays worked on in parts, and half precision."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.drivers.reference.kernel import Site, build
from penstock.drivers.reference.numerics.one_operand import BLOCK, by_parts, by_rows, parts
from penstock.ir import DType, NDArray, Operand, Operation
from penstock.ir.operations import OPERATIONS

SHAPES = (
    (),
    (0,),
    (3, 0, 2),
    (7,),
    (BLOCK,),
    (2 * BLOCK + 3,),
    (3, BLOCK + 1),
    (2, 3, 5, BLOCK // 8),
    (1, 300, 1, 250),
)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_parts_cover_each_element_once(shape: tuple[int, ...]) -> None:
    count = np.zeros(shape, np.int32)
    for part in parts(shape):
        count[part] += 1
        assert count[part].size <= BLOCK
    assert (count == 1).all()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((3, BLOCK), (3, BLOCK)),
        ((1, 300, 1, 250), (250,)),
        ((300, 1), (1, 250)),
        ((2 * BLOCK,), ()),
        ((BLOCK, 2), (BLOCK, 1)),
        ((0, 2 * BLOCK), (1, 2 * BLOCK)),
    ],
    ids=str,
)
def test_by_parts_equals_computing_the_whole(
    first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-9, 9, shape).astype(np.int16) for shape in (first, second))

    def compute(x: NDArray, y: NDArray) -> NDArray:
        return (x * 3 - y).astype(np.int32)

    for left, right in ((a, b), (b, a), (a[..., ::-1] if a.ndim else a, b)):
        found = by_parts(compute, left, right)
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, compute(left, right))


@pytest.mark.parametrize("shape", [(), (5,), (2 * BLOCK,), (700, 99), (3, 0), (2, 1, BLOCK + 1)])
def test_by_rows_keeps_rows_whole(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).integers(-9, 9, shape)

    def compute(rows: NDArray) -> NDArray:
        return rows - rows.sum(axis=-1, keepdims=True) if rows.ndim else rows

    np.testing.assert_array_equal(by_rows(compute, x), compute(x))


HALF = Operand(DType.FLOAT16, (2, 4))


def site(kind: str, *inputs: Operand, constant: NDArray | None = None) -> Site:
    operation = Operation(
        kind,
        tuple(range(len(inputs))),
        (len(inputs),),
        OPERATIONS[kind].complete({"beta": 1.0} if kind == "SOFTMAX" else {}),
    )
    return Site(operation, inputs, (HALF,), lambda at: constant if at == 1 else None)


def test_float16_operations_are_computed_in_float32_and_rounded_once() -> None:
    x = np.array([[1, 2, 3, 4], [-1, 0, 0.5, 8]], np.float16)
    (got,) = build(site("SOFTMAX", HALF))([x])
    wide = np.exp(x.astype(np.float64))
    assert got.dtype == np.float16
    np.testing.assert_array_equal(got, (wide / wide.sum(-1, keepdims=True)).astype(np.float16))


def test_float16_constants_are_widened() -> None:
    alpha = np.full((4,), 0.25, np.float16)
    slopes = Operand(DType.FLOAT16, (4,))
    (got,) = build(site("PRELU", HALF, slopes, constant=alpha))(
        [np.full((2, 4), -2, np.float16), alpha]
    )
    assert got.dtype == np.float16
    assert got.tolist() == [[-0.5] * 4] * 2
