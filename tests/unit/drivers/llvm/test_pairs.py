"""Functions of two 8-bit values by proof, for all pairs, as quantised ADD and MUL compute them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from penstock.compiler import interpreter
from penstock.compiler.arithmetic import evaluate
from penstock.compiler.expression import Expression, Scope, Value, identity
from penstock.compiler.program import Access, Kernel, Position, Program, Tensor, along
from penstock.driverkit.fixed_point import quantize_multiplier
from penstock.drivers.llvm.emit import pairs
from penstock.drivers.llvm.isa import Isa
from penstock.ir import DType, NDArray
from tests.support_generated import Runner, sets_here

I32 = DType.INT32


def scaled(value: Value, scale: float) -> Value:
    mantissa, shift = quantize_multiplier(scale)
    scope = value.scope
    return scope.add("rescale", value, scope.constant(mantissa, I32), scope.constant(shift, I32))


def sum_of(
    dtype: DType, scales: tuple[float, float, float], zeros: tuple[int, int, int]
) -> Expression:
    """TFLite's quantised ADD: both sides scaled in 20 more bits, and their sum."""
    scope = Scope(dtype, dtype)
    twice = 2 * max(scales[0], scales[1])
    total: Value | None = None
    for number in (0, 1):
        wide = (scope.argument(number).cast(I32) - zeros[number]).apply("shift_left", 20)
        part = scaled(wide, scales[number] / twice)
        total = part if total is None else total + part
    assert total is not None
    return bounded(scaled(total, twice / ((1 << 20) * scales[2])), dtype, zeros[2])


def product_of(dtype: DType, scale: float, zeros: tuple[int, int, int]) -> Expression:
    """TFLite's quantised MUL."""
    scope = Scope(dtype, dtype)
    x, y = (scope.argument(i).cast(I32) - zeros[i] for i in (0, 1))
    return bounded(scaled(x * y, scale), dtype, zeros[2])


def bounded(value: Value, dtype: DType, zero: int) -> Expression:
    info = np.iinfo(dtype.numpy)
    result = (value + zero).clamp(int(info.min), int(info.max)).cast(dtype)
    return value.scope.finish(result)


def every(dtype: DType) -> NDArray:
    return np.arange(256, dtype=np.uint8).view(dtype.numpy)


def table_of(expression: Expression, dtype: DType) -> NDArray:
    """The results for all pairs, in whole numbers."""
    values = every(dtype)
    made = evaluate(expression, [values[:, None], values[None, :]], lambda _: np.empty(0))
    return np.asarray(made)


def patched(pair: pairs.Pair, dtype: DType, *, down: bool) -> NDArray:
    values = every(dtype)
    wide = values.astype(np.float64)
    made = pair.computed(wide, wide, down=down)
    for x, y, delta in pair.exceptions:
        made[np.flatnonzero(values == x)[0], np.flatnonzero(values == y)[0]] += delta
    return made


ZEROS = st.integers(-128, 127)
SCALES = st.floats(0.002, 0.5)


@pytest.mark.parametrize("down", [True, False])
@settings(max_examples=25, deadline=None)
@given(scales=st.tuples(SCALES, SCALES, SCALES), zeros=st.tuples(ZEROS, ZEROS, ZEROS))
def test_sums_that_are_found_are_right_for_all_pairs(
    down: bool, scales: tuple[float, float, float], zeros: tuple[int, int, int]
) -> None:
    expression = sum_of(DType.INT8, scales, zeros)
    for pair in pairs.find(expression, down).values():
        np.testing.assert_array_equal(
            patched(pair, DType.INT8, down=down), table_of(expression, DType.INT8)
        )


@pytest.mark.parametrize("down", [True, False])
@settings(max_examples=25, deadline=None)
@given(scale=st.floats(2.0**-12, 0.9), zeros=st.tuples(ZEROS, ZEROS, ZEROS))
def test_products_that_are_found_are_right_for_all_pairs(
    down: bool, scale: float, zeros: tuple[int, int, int]
) -> None:
    expression = product_of(DType.INT8, scale, zeros)
    for pair in pairs.find(expression, down).values():
        np.testing.assert_array_equal(
            patched(pair, DType.INT8, down=down), table_of(expression, DType.INT8)
        )


@pytest.mark.parametrize("down", [True, False])
def test_most_sums_and_products_are_found(down: bool) -> None:
    rng = np.random.default_rng(1)
    found = 0
    for _ in range(20):
        p, q, r = (int(z) for z in rng.integers(-128, 128, 3))
        first, second, third = (float(s) for s in rng.uniform(0.01, 0.2, 3))
        scales, zeros = (first, second, third), (p, q, r)
        found += bool(pairs.find(sum_of(DType.INT8, scales, zeros), down))
        found += bool(pairs.find(product_of(DType.INT8, scales[0], zeros), down))
    assert found >= 36


def test_other_functions_are_not_found() -> None:
    scope = Scope(DType.INT8, DType.INT8)
    x, y = (scope.argument(i).cast(I32) for i in (0, 1))
    square = bounded(scaled(x * x + y * y, 0.01), DType.INT8, 3)
    assert not pairs.find(square, True)


@pytest.mark.parametrize("isa", sets_here(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8])
@pytest.mark.parametrize("operation", ["sum", "product"])
@pytest.mark.parametrize("columns", [256, 23])
def test_generated_code_is_right_for_all_pairs(
    isa: Isa, dtype: DType, operation: str, columns: int
) -> None:
    """Of whole vectors, and of the ends of rows that are none: 23 is 16, 4, and 3 single ones."""
    zeros = (3, 100, 7) if dtype is DType.UINT8 else (3, -100, 7)
    if operation == "sum":
        expression = sum_of(dtype, (0.0310937, 0.0478713, 0.0512391), zeros)
    else:
        expression = product_of(dtype, 0.0123457, zeros)
    assert pairs.find(expression, isa.rounds_down)
    row, column = Position(0, ((0, 1),)), Position(0, ((1, 1),))
    kernel = Kernel(
        operation, (256, columns), (Access(0, (row,)), Access(1, (column,))), expression,
        identity(dtype), Access(2, along(0, 1)), sums=dtype,
    )  # fmt: skip
    tensors = tuple(Tensor(dtype, shape) for shape in ((256,), (columns,), (256, columns)))
    program = Program(tensors, {}, (kernel,), (0, 1), (2,), {})
    runner, table = Runner(program, isa), table_of(expression, dtype)
    for first in range(0, 256, columns):
        second = np.roll(every(dtype), -first)[:columns]
        inputs, wanted = [every(dtype), second], np.roll(table, -first, axis=1)[:, :columns]
        np.testing.assert_array_equal(runner(inputs)[0], wanted)
        np.testing.assert_array_equal(interpreter.run(program, inputs)[0], wanted)
    runner.close()


@pytest.mark.parametrize("down", [True, False])
@pytest.mark.parametrize("given_", [DType.UINT8, DType.INT8], ids=lambda d: d.value)
def test_bytes_that_are_stored_with_the_other_sign_are_read_as_they_are(
    given_: DType, down: bool
) -> None:
    made = DType.INT8 if given_ is DType.UINT8 else DType.UINT8
    scope, sign = Scope(given_, given_), 128 if given_ is DType.UINT8 else -128
    values = [scope.argument(i).apply("xor", sign).cast(made) for i in (0, 1)]
    inner = sum_of(made, (0.021, 0.0533, 0.0617), (3, 7, 11))
    expression = scope.finish(scope.inline(inner, *values))
    (pair,) = pairs.find(expression, down).values()
    assert (pair.x, pair.y) == (0, 1)
    np.testing.assert_array_equal(patched(pair, given_, down=down), table_of(expression, given_))
