"""Functions of float64 as searches in tables."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.compiler.arithmetic import evaluate
from penstock.compiler.expression import Expression, Scope
from penstock.drivers.webgpu.emit.steps import without_f64
from penstock.ir import DType, NDArray

F32, F64, I32 = DType.FLOAT32, DType.FLOAT64, DType.INT32


def scaled(factor: float, zero_point: float, target: DType) -> Expression:
    """As TFLite scales the sums of a fully connected layer."""
    limits = np.iinfo(target.numpy)
    scope = Scope(I32)
    real = (scope.argument(0).cast(F64) * factor).apply("round_away") + zero_point
    return scope.finish(real.clamp(float(limits.min), float(limits.max)).cast(target))


@pytest.mark.parametrize("target", [DType.INT8, DType.UINT8, DType.INT16])
@pytest.mark.parametrize("factor", [0.0036348872642600004, 1e-9, 0.5, 37.25, 0.0])
def test_scaling_by_a_table_is_that_of_float64(target: DType, factor: float) -> None:
    expression = scaled(factor, 5.0, target)
    tables: list[NDArray] = []

    def table(array: NDArray) -> int:
        tables.append(array)
        return len(tables) - 1

    made = without_f64(expression, table)
    assert all(step.dtype is not F64 for step in made.steps)
    rng = np.random.default_rng(1)
    near = (tables[0][:, None].astype(np.int64) + np.arange(-2, 3)).ravel()
    sums = np.concatenate([near, rng.integers(-(2**31), 2**31, 20_000), [-(2**31), 2**31 - 1, 0]])
    sums = np.clip(sums, -(2**31), 2**31 - 1).astype(np.int32)
    want = evaluate(expression, [sums], tables.__getitem__)
    got = np.broadcast_to(evaluate(made, [sums], tables.__getitem__), want.shape)
    assert np.array_equal(got, want)


def test_float64_between_floats_becomes_float32() -> None:
    scope = Scope(F32)
    expression = scope.finish(scope.argument(0).cast(F64).apply("expm1").cast(F32))
    made = without_f64(expression, lambda _: 0)
    assert [step.dtype for step in made.steps] == [F32, F32, F32]


def test_float64_from_integers_without_a_single_rising_function_stays() -> None:
    scope = Scope(I32, I32)
    product = scope.argument(0).cast(F64) * scope.argument(1).cast(F64)
    expression = scope.finish(product.cast(DType.INT8))
    assert without_f64(expression, lambda _: 0) == expression
