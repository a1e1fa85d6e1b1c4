from typing import Any

import numpy as np
import pytest

from penstock.ir import DType, NDArray, Operand
from tests.support_litert import (
    Given,
    Recorded,
    Wanted,
    any_quantization,
    assert_agrees,
    q,
    refusal,
    run_alone,
    uniform,
)

SHAPES = [
    ((3, 4, 5), (3, 4, 5)),
    ((3, 4, 5), (5,)),
    ((4, 1), (3, 4, 5)),
    ((1,), (7,)),
    ((2, 3, 1, 4), (1, 1, 6, 1)),
]
ACTIVATIONS = ("NONE", "RELU", "RELU6", "RELU_N1_TO_1")
QUANTIZED = (DType.INT8, DType.UINT8, DType.INT16)


@pytest.mark.parametrize("kind", ["ADD", "SUB", "MUL"])
@pytest.mark.parametrize("dtype", QUANTIZED)
@pytest.mark.parametrize("seed", range(20))
def test_quantised_add_sub_and_mul_agree_with_litert(kind: str, dtype: DType, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shapes = SHAPES[seed % len(SHAPES)]
    a, b = (any_quantization(rng, dtype) for _ in range(2))
    size = a.scale * b.scale if kind == "MUL" else max(a.scale, b.scale)
    # Narrower than the operands only where TFLite can express the multiplier.
    made = any_quantization(rng, dtype, size * (0.3 if kind == "ADD" else 0.02), size * 20)
    more: dict[str, Any] = {} if kind == "MUL" else {"pot_scale_int16": seed % 2 == 0}
    recorded = run_alone(
        kind,
        [
            Given(uniform(rng, dtype, shapes[0]), a),
            Given(uniform(rng, dtype, shapes[1]), b, constant=seed % 2 == 0),
        ],
        [Wanted(dtype, made)],
        fused_activation_function=ACTIVATIONS[seed % 4],
        **more,
    )
    assert_agrees(recorded)


@pytest.mark.parametrize("kind", ["ADD", "SUB"])
@pytest.mark.parametrize("powers", [(-9, -9), (-9, -12), (-13, -9)])
def test_int16_sums_at_power_of_two_scales_shift_one_operand(
    kind: str, powers: tuple[int, int]
) -> None:
    rng = np.random.default_rng(0)
    x, y = (Given(uniform(rng, DType.INT16, (200,)), q(2.0**power)) for power in powers)
    assert_agrees(run_alone(kind, [x, y], [Wanted(DType.INT16, q(2.0**-9))], pot_scale_int16=True))


def _quotient(seed: int, dtype: DType) -> Recorded:
    rng = np.random.default_rng(seed)
    a, b = (any_quantization(rng, dtype) for _ in range(2))
    made = any_quantization(rng, dtype, a.scale / b.scale * 0.01, a.scale / b.scale)
    divisor = uniform(rng, dtype, (3, 4, 5))
    other = b.zero_point + 1 if b.zero_point < np.iinfo(dtype.numpy).max else b.zero_point - 1
    divisor[divisor == b.zero_point] = other
    dividend = Given(uniform(rng, dtype, (3, 4, 5) if seed % 2 else (5,)), a)
    return run_alone("DIV", [dividend, Given(divisor, b)], [Wanted(dtype, made)])


@pytest.mark.parametrize("dtype", QUANTIZED)
@pytest.mark.parametrize("seed", range(20))
def test_quantised_div_agrees_with_litert(dtype: DType, seed: int) -> None:
    """Bit for bit where the reference kernel is defined: quotients under half a step, which it may
    have to shift by more than 31 bits, are 0 here.
    """
    recorded = _quotient(seed, dtype)
    (got,), (wanted,) = recorded.run(), recorded.wanted
    real = _real(recorded)
    compared = np.abs(real) > 0.51
    assert compared.any()
    np.testing.assert_array_equal(got[compared], wanted[compared])
    lost = np.abs(real) < 0.49
    made = recorded.outputs[0].quantization
    assert made is not None
    np.testing.assert_array_equal(got[lost], made.zero_point)


def _real(recorded: Recorded) -> NDArray:
    """The quotient in steps of the output."""
    values = []
    for operand, array in zip(recorded.inputs, recorded.given, strict=True):
        assert operand is not None
        assert operand.quantization is not None
        assert array is not None
        quantization = operand.quantization
        values.append(quantization.scale * (array.astype(np.float64) - quantization.zero_point))
    made = recorded.outputs[0].quantization
    assert made is not None
    quotient: NDArray = values[0] / values[1] / made.scale
    return quotient


@pytest.mark.parametrize("kind", ["ADD", "SUB", "MUL", "DIV"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shapes", SHAPES)
def test_float_arithmetic_agrees_with_litert(
    kind: str, activation: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    rng = np.random.default_rng(7)
    a, b = (rng.normal(0, 4, shape).astype(np.float32) for shape in shapes)
    recorded = run_alone(
        kind, [Given(a), Given(b)], [Wanted(DType.FLOAT32)], fused_activation_function=activation
    )
    np.testing.assert_array_equal(recorded.run()[0], recorded.wanted[0])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("kind", ["ADD", "SUB", "MUL", "DIV"])
def test_integer_arithmetic_agrees_with_litert(kind: str, activation: str) -> None:
    rng = np.random.default_rng(8)
    for dtype in (DType.INT32, DType.INT64) if kind != "DIV" else (DType.INT32,):
        a, b = (rng.integers(-30, 30, (4, 5)).astype(dtype.numpy) for _ in range(2))
        b[b == 0] = 7
        assert_agrees(
            run_alone(
                kind, [Given(a), Given(b)], [Wanted(dtype)], fused_activation_function=activation
            )
        )


def test_integer_and_quantised_div_by_zero_fail() -> None:
    ones, zeros = np.ones(3, np.float32), np.zeros(3, np.float32)
    assert_agrees(run_alone("DIV", [Given(ones), Given(zeros)], [Wanted(DType.FLOAT32)]))
    whole = run_alone(
        "DIV", [Given(np.ones(3, np.int32)), Given(np.ones(3, np.int32))], [Wanted(DType.INT32)]
    )
    with pytest.raises(ZeroDivisionError):
        whole.kernel([np.ones(3, np.int32), np.zeros(3, np.int32)])


def test_complex_mul_agrees_with_litert() -> None:
    rng = np.random.default_rng(9)
    a, b = ((rng.normal(0, 1, 6) + 1j * rng.normal(0, 1, 6)).astype(np.complex64) for _ in "ab")
    assert_agrees(run_alone("MUL", [Given(a), Given(b)], [Wanted(DType.COMPLEX64)]))


def test_arithmetic_refusals_name_the_reason() -> None:
    x, y = Operand(DType.INT8, (4,), quantization=q(0.1)), Operand(DType.INT16, (4,))
    assert refusal("ADD", [x, y], [x]) == "ADD of (int8, int16) -> (int8)"
    assert "SWISH" in refusal("MUL", [x, x], [x], fused_activation_function="SWISH")
    skew = Operand(DType.INT16, (4,), quantization=q(0.1, 3))
    assert "zero point" in refusal("MUL", [skew, skew], [skew])


@pytest.mark.parametrize("activation", ["TANH", "SIGN_BIT"])
def test_add_ignores_activations_that_are_not_clamps(activation: str) -> None:
    x = np.array([-8, 1, 2], np.float32)
    recorded = run_alone(
        "ADD", [Given(x), Given(x)], [Wanted(DType.FLOAT32)], fused_activation_function=activation
    )
    assert_agrees(recorded)
    np.testing.assert_array_equal(recorded.run()[0], 2 * x)


def test_quantised_arithmetic_rescales_scalars() -> None:
    a, b = np.array(7, np.int8), np.array(-3, np.int8)
    given = [Given(a, q(0.5)), Given(b, q(0.25))]
    assert_agrees(run_alone("ADD", given, [Wanted(DType.INT8, q(0.1))]))


def test_a_scalar_is_requantised_to_a_scalar() -> None:
    given = Given(np.array(200, np.uint8), q(0.5, 3))
    recorded = run_alone("QUANTIZE", [given], [Wanted(DType.INT8, q(0.25, -7))])
    assert_agrees(recorded)
    assert recorded.run()[0].shape == ()
