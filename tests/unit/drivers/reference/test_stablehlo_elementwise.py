"""StableHLO's functions of elements: those LiteRT runs beside it, the others by the
specification.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest

from penstock.drivers.reference.kernel import Unsupported
from penstock.errors import PenstockError
from penstock.ir import DType, NDArray, Operand
from tests.support_litert import kernel_of
from tests.unit.drivers.reference.single_models import check, kind_of, single, values

WHOLE: Final = [d for d in DType if d.is_integer and (d.bits or 0) >= 8]
JUDGED: Final = [DType.FLOAT32, DType.FLOAT16, DType.FLOAT64, DType.BOOL, *WHOLE]
SHAPE: Final = (3, 5)


def names(dtype: DType) -> str:
    return dtype.value


def run(name: str, *arrays: NDArray, made: DType | None = None, **attributes: Any) -> NDArray:
    """One function by the reference driver's kernel."""
    given = [np.asarray(a) for a in arrays]
    operands = [Operand(kind_of(a), a.shape) for a in given]
    output = Operand(made or kind_of(given[-1]), given[-1].shape)
    (result,) = kernel_of(f"STABLEHLO_{name}", operands, [output], **attributes)(given)
    return result


@pytest.mark.parametrize("name", ["ADD", "MULTIPLY", "MAXIMUM", "MINIMUM"])
@pytest.mark.parametrize("dtype", JUDGED, ids=names)
def test_stablehlo_elementwise_agrees_with_litert_in_every_type(name: str, dtype: DType) -> None:
    rng = np.random.default_rng(7)
    a, b = values(rng, dtype, SHAPE), values(rng, dtype, SHAPE)
    check(single(f"STABLEHLO_{name}", [a, b], [(dtype, SHAPE)]), [a, b])


@pytest.mark.parametrize("name", ["MAXIMUM", "MINIMUM"])
def test_stablehlo_maximum_of_unordered_operands_is_the_first(name: str) -> None:
    a = np.array([np.nan, 1, np.nan, 0.0, -0.0], np.float32)
    b = np.array([1, np.nan, np.nan, -0.0, 0.0], np.float32)
    check(single(f"STABLEHLO_{name}", [a, b], [(DType.FLOAT32, a.shape)]), [a, b])
    np.testing.assert_array_equal(np.signbit(run(name, a, b)), [False, False, False, False, True])


@pytest.mark.parametrize("dtype", [*WHOLE, DType.BOOL], ids=names)
def test_stablehlo_and_agrees_with_litert(dtype: DType) -> None:
    rng = np.random.default_rng(8)
    a, b = values(rng, dtype, SHAPE), values(rng, dtype, SHAPE)
    check(single("STABLEHLO_AND", [a, b], [(dtype, SHAPE)]), [a, b], reference=False)


@pytest.mark.parametrize("dtype", [DType.INT8, DType.INT16, DType.INT32], ids=names)
def test_stablehlo_shift_below_the_width_agrees_with_litert(dtype: DType) -> None:
    rng = np.random.default_rng(9)
    a = values(rng, dtype, SHAPE)
    b = rng.integers(0, dtype.bits or 0, SHAPE).astype(dtype.numpy)
    check(single("STABLEHLO_SHIFT_LEFT", [a, b], [(dtype, SHAPE)]), [a, b], reference=False)


def test_stablehlo_shift_by_the_width_or_more_is_zero() -> None:
    a, b = np.full(5, 3, np.int8), np.array([0, 7, 8, 100, -1], np.int8)
    np.testing.assert_array_equal(run("SHIFT_LEFT", a, b), [3, -128, 0, 0, 0])
    wide = np.array([1, 1, 1], np.uint64), np.array([63, 64, 2**40], np.uint64)
    np.testing.assert_array_equal(run("SHIFT_LEFT", *wide), [2**63, 0, 0])


UNARY: Final[dict[str, Callable[[float], float]]] = {
    "ABS": abs,
    "NEGATE": lambda x: -x,
    "CBRT": math.cbrt,
    "COSINE": math.cos,
    "EXPONENTIAL": math.exp,
    "FLOOR": math.floor,
    "LOG": math.log,
    "LOGISTIC": lambda x: 1 / (1 + math.exp(-x)),
    "RSQRT": lambda x: 1 / math.sqrt(x),
    "TANH": math.tanh,
}


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize(
    ("dtype", "step"),
    [
        (DType.FLOAT32, 2.0**-22),
        (DType.FLOAT64, 2.0**-50),
        (DType.FLOAT16, 2.0**-10),
        (DType.BFLOAT16, 2.0**-7),
        (DType.FLOAT8_E4M3FN, 2.0**-3),
    ],
)
def test_stablehlo_functions_of_floats_agree_with_numpy(
    name: str, dtype: DType, step: float
) -> None:
    x = np.array([0.25, 0.75, 1.5, 3.0], dtype.numpy)
    got = run(name, x)
    assert got.dtype == dtype.numpy
    wanted = [UNARY[name](float(v)) for v in x]
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=step)


def test_stablehlo_functions_of_integers_wrap() -> None:
    np.testing.assert_array_equal(run("ABS", np.array([-3, 4, -128], np.int8)), [3, 4, -128])
    np.testing.assert_array_equal(run("NEGATE", np.array([1, 0], np.uint8)), [255, 0])
    with pytest.raises(Unsupported):
        run("TANH", np.array([1], np.int32))
    with pytest.raises(Unsupported):
        run("FLOOR", np.array([1], np.int32))


def test_stablehlo_functions_of_complex_numbers_agree_with_numpy() -> None:
    z = np.array([1 + 2j, -2 + 0.5j], np.complex128)
    np.testing.assert_allclose(run("EXPONENTIAL", z), np.exp(z))
    np.testing.assert_allclose(run("CBRT", z) ** 3, z)
    np.testing.assert_allclose(run("RSQRT", z) ** -2, z)
    np.testing.assert_allclose(run("LOGISTIC", z), 1 / (1 + np.exp(-z)))
    np.testing.assert_allclose(run("DIVIDE", z, z), [1, 1])
    a, b = np.array([1 + 2j, 1 - 5j]), np.array([1 + 1j, 2 - 9j])
    np.testing.assert_array_equal(run("MAXIMUM", a, b), [1 + 2j, 2 - 9j])


def test_division_truncates_and_leaves_the_sign_of_the_dividend() -> None:
    a, b = np.array([7, -7, 7, -7, -128, 6], np.int8), np.array([2, 2, -2, -2, -1, 3], np.int8)
    np.testing.assert_array_equal(run("DIVIDE", a, b), [3, -3, -3, 3, -128, 2])
    np.testing.assert_array_equal(run("REMAINDER", a, b), [1, -1, 1, -1, 0, 0])
    a, b = np.array([200, 7], np.uint8), np.array([9, 250], np.uint8)
    np.testing.assert_array_equal(run("DIVIDE", a, b), [22, 0])
    np.testing.assert_array_equal(run("REMAINDER", a, b), [2, 7])
    np.testing.assert_allclose(run("REMAINDER", np.array([-7.5]), np.array([2.0])), [-1.5])
    for name in ("DIVIDE", "REMAINDER"):
        with pytest.raises(ZeroDivisionError):
            run(name, np.array([1], np.int32), np.array([0], np.int32))


def test_stablehlo_power_agrees_with_its_definition() -> None:
    a, b = np.array([3, 2, -1, 2, -1], np.int8), np.array([3, 9, -3, -1, -4], np.int8)
    np.testing.assert_array_equal(run("POWER", a, b), [27, 0, -1, 0, 1])
    np.testing.assert_array_equal(
        run("POWER", np.array([4.0, 2.0], np.float32), np.array([0.5, -1], np.float32)), [2, 0.5]
    )
    with pytest.raises(ZeroDivisionError):
        run("POWER", np.array([0], np.int32), np.array([-1], np.int32))


def test_stablehlo_subtract_and_or_agree_with_numpy() -> None:
    np.testing.assert_array_equal(
        run("SUBTRACT", np.array([0, 5], np.uint8), np.array([1, 3], np.uint8)), [255, 2]
    )
    np.testing.assert_array_equal(run("OR", np.array([12]), np.array([10])), [14])
    with pytest.raises(Unsupported):
        run("SUBTRACT", np.array([True]), np.array([True]))


def test_stablehlo_compare_agrees_with_numpy() -> None:
    a = np.array([1, 2, np.nan, -0.0], np.float32)
    b = np.array([2, 2, np.nan, 0.0], np.float32)
    directions = {
        "EQ": [False, True, False, True],
        "NE": [True, False, True, False],
        "GE": [False, True, False, True],
        "GT": [False, False, False, False],
        "LE": [True, True, False, True],
        "LT": [True, False, False, False],
    }
    for name, wanted in directions.items():
        direction = f"STABLEHLO_COMPARISON_DIRECTION_{name}"
        got = run("COMPARE", a, b, made=DType.BOOL, comparison_direction=direction)
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_the_total_order_of_floats(dtype: Any) -> None:
    bits = {"comparison_direction": "STABLEHLO_COMPARISON_DIRECTION_LT"}
    order = np.array([-np.nan, -np.inf, -1, -0.0, 0.0, 1, np.inf, np.nan], dtype)
    order[0] = np.copysign(order[0], -1)
    order[-1] = np.copysign(order[-1], 1)
    got = run(
        "COMPARE",
        order[:-1],
        order[1:],
        made=DType.BOOL,
        compare_type="STABLEHLO_COMPARISON_TYPE_FLOAT_TOTAL_ORDER",
        **bits,
    )
    assert got.all()


def test_complex_numbers_have_no_order() -> None:
    z = np.array([1j, 2])
    equal = {"comparison_direction": "STABLEHLO_COMPARISON_DIRECTION_EQ"}
    np.testing.assert_array_equal(run("COMPARE", z, z[::-1], made=DType.BOOL, **equal), [0, 0])
    with pytest.raises(Unsupported, match="LT of complex"):
        run(
            "COMPARE",
            z,
            z,
            made=DType.BOOL,
            comparison_direction="STABLEHLO_COMPARISON_DIRECTION_LT",
        )


def test_stablehlo_convert_clamp_and_select_agree_with_numpy() -> None:
    x = np.array([-1.7, 0.0, 300.0], np.float32)
    np.testing.assert_array_equal(run("CONVERT", x, made=DType.INT32), [-1, 0, 300])
    np.testing.assert_array_equal(run("CONVERT", x, made=DType.BOOL), [True, False, True])
    low, high = np.array(-1.0, np.float32), np.array([5, 5, 5], np.float32)
    operands = [Operand(DType.FLOAT32, a.shape) for a in (low, x, high)]
    (got,) = kernel_of("STABLEHLO_CLAMP", operands, [operands[1]])([low, x, high])
    np.testing.assert_array_equal(got, np.array([-1, 0, 5], np.float32))
    np.testing.assert_array_equal(run("SELECT", np.array(True), x, -x), x)
    chosen = run("SELECT", np.array([True, False, False]), x, -x)
    np.testing.assert_array_equal(chosen, np.array([-1.7, 0.0, -300.0], np.float32))


def test_stablehlo_elementwise_refuses_operands_of_two_shapes() -> None:
    with pytest.raises(PenstockError, match="shapes"):
        run("ADD", np.ones((2, 3)), np.ones(3))


def test_stablehlo_elementwise_supports_empty_arrays() -> None:
    empty = np.zeros((0, 3), np.int32)
    for name in ("ADD", "DIVIDE", "MAXIMUM", "POWER", "SHIFT_LEFT"):
        assert run(name, empty, empty).shape == (0, 3)
