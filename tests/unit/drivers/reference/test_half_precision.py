"""float16 where a kernel has none of its own."""

from __future__ import annotations

import numpy as np

from penstock.drivers.reference.kernel import Site, build
from penstock.ir import DType, NDArray, Operand, Operation
from penstock.ir.operations import OPERATIONS

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
