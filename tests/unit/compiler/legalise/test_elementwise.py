"""Operations at one position: their programs give what the reference device gives, in every type
they have kernels for, with usual and with extreme scales and zero points.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import pytest

from penstock.compiler import interpreter
from penstock.compiler.legalise import judge, legalise
from penstock.driverkit.site import Refused, make_sites
from penstock.errors import GeneralFailure
from penstock.ir import DType, NDArray, Quantization
from penstock.ir.operation import AttributeValue
from tests.unit.compiler.legalise.legal_models import Given, check, feeds, layer, values

F32, F16, BOOL = DType.FLOAT32, DType.FLOAT16, DType.BOOL
I8, U8, I16, I32, I64 = DType.INT8, DType.UINT8, DType.INT16, DType.INT32, DType.INT64
STORED: Final = (I8, U8, I16)

NONE: Final[dict[str, AttributeValue]] = {"fused_activation_function": "NONE"}
SHAPES: Final = (((3, 5, 7), (3, 5, 7)), ((2, 1, 9), (4, 1)), ((1,), (2, 3)), ((), (5,)))


def zero_of(rng: np.random.Generator, dtype: DType) -> int:
    """A zero point: 0 for int16, else any, often at an end of the range."""
    if dtype is I16:
        return 0
    low, high = (0, 255) if dtype is U8 else (-128, 127)
    return int(rng.choice([low, high, int(rng.integers(low, high + 1))]))


def quantised(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Given:
    scale = float(np.float32(math.exp(rng.uniform(math.log(1e-4), math.log(2.0)))))
    return Given(values(rng, dtype, shape), (scale,), zero_of(rng, dtype), fed=True)


def result_of(rng: np.random.Generator, dtype: DType, given: Given) -> Quantization:
    """A result whose scale is about that of *given*."""
    scale = float(np.float32(given.scales[0] * math.exp(rng.uniform(-2, 2))))
    return Quantization((scale,), (zero_of(rng, dtype),))


def plain(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Given:
    if dtype is BOOL:
        return Given(rng.random(shape) < 0.5, fed=True)
    array = values(rng, dtype, shape)
    if dtype.is_float and array.size > 4:
        array.reshape(-1)[:4] = [math.nan, math.inf, -math.inf, -0.0]
    return Given(np.asarray(array), fed=True)


PLAIN_PAIRS: Final = {
    "ADD": (F32, F16, I16, I32, I64), "SUB": (F32, F16, I16, I32, I64),
    "MUL": (F32, F16, I16, I32, I64, DType.UINT32), "DIV": (F32, F16),
    "MAXIMUM": (F32, F16, I8, U8, I16, I32, I64), "MINIMUM": (F32, F16, I8, U8, I16, I32, I64),
    "SQUARED_DIFFERENCE": (F32, I32), "POW": (F32,), "FLOOR_MOD": (F32,),
    "BITWISE_XOR": (BOOL, I8, U8, I16, DType.UINT16, I32, DType.UINT32),
    "RIGHT_SHIFT": (I8, U8, I16, I32, DType.UINT32),
}  # fmt: skip


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("kind", "dtype"), [(kind, dtype) for kind, dtypes in PLAIN_PAIRS.items() for dtype in dtypes]
)
def test_arithmetic_of_plain_numbers(
    kind: str, dtype: DType, shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    rng = np.random.default_rng(len(kind))
    inputs = [plain(rng, dtype, shape) for shape in shapes]
    attributes = NONE if kind in {"ADD", "SUB", "MUL", "DIV"} else {}
    check(layer(kind, inputs, (dtype, None), attributes), feeds(inputs))


@pytest.mark.parametrize("activation", ["NONE", "RELU", "RELU6", "RELU_N1_TO_1"])
@pytest.mark.parametrize("kind", ["ADD", "SUB", "MUL", "DIV"])
@pytest.mark.parametrize("dtype", [*STORED, F32], ids=lambda d: d.value)
def test_arithmetic_with_activations(kind: str, dtype: DType, activation: str) -> None:
    rng = np.random.default_rng(len(kind) + len(activation))
    for shapes in SHAPES:
        made = None
        if dtype is F32:
            inputs = [plain(rng, dtype, shape) for shape in shapes]
        else:
            inputs = [quantised(rng, dtype, shape) for shape in shapes]
            made = result_of(rng, dtype, inputs[0])
            if kind == "DIV":
                zero = inputs[1].zero_point
                inputs[1].array[inputs[1].array == zero] = zero + (1 if zero < 100 else -1)
        attributes = {"fused_activation_function": activation}
        check(layer(kind, inputs, (dtype, made), attributes), feeds(inputs))


@pytest.mark.parametrize("dtype", [F32, F16, I8, U8, I16, I32, I64], ids=lambda d: d.value)
@pytest.mark.parametrize("kind", ["LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL", "EQUAL"])
def test_comparisons(kind: str, dtype: DType) -> None:
    rng = np.random.default_rng(7)
    for shapes in SHAPES:
        make = quantised if dtype in {I8, U8} else plain
        inputs = [make(rng, dtype, shape) for shape in shapes]
        check(layer(kind, inputs, (BOOL, None), {}), feeds(inputs))


@pytest.mark.parametrize("dtype", [F32, F16, I8, I64, DType.FLOAT64, DType.UINT32, BOOL],
                         ids=lambda d: d.value)  # fmt: skip
def test_select_takes_values_of_every_type(dtype: DType) -> None:
    rng = np.random.default_rng(3)
    for kind, shapes in (
        ("SELECT_V2", ((3, 1), (2, 3, 4), (4,))),
        ("SELECT", ((2,), (2, 3), (2, 3))),
        ("SELECT", ((2, 3), (2, 3), (2, 3))),
    ):
        inputs = [plain(rng, d, s) for d, s in zip((BOOL, dtype, dtype), shapes, strict=True)]
        check(layer(kind, inputs, (dtype, None), {}), feeds(inputs))


REAL: Final = {
    "LOGISTIC": (F32, F16, I8, U8, I16), "TANH": (F32, F16, I8, U8, I16), "ELU": (F32, I8),
    "GELU": (F32, F16, I8, U8, I16), "RELU": (F32, I8, U8, I16), "RELU6": (F32, I8, U8, I16),
    "RELU_N1_TO_1": (F32, I8, U8, I16), "RELU_0_TO_1": (F32, I8),
    "LEAKY_RELU": (F32, I8, U8, I16), "HARD_SWISH": (F32, F16, I8, U8), "EXP": (F32, I8, I16),
    "LOG": (F32, I8, I16), "SQRT": (F32,), "RSQRT": (F32,), "ABS": (F32, I8, I16, I32),
    "NEG": (F32, I8, I16, I32, I64), "SIGN": (F32, I32), "SQUARE": (F32,), "SIN": (F32, F16),
    "COS": (F32, F16), "FLOOR": (F32, F16), "CEIL": (F32,), "ROUND": (F32, F16),
}  # fmt: skip
ATTRIBUTES: Final[dict[str, dict[str, AttributeValue]]] = {
    "LEAKY_RELU": {"alpha": 0.3}, "GELU": {"approximate": False}
}  # fmt: skip
FIXED: Final = {
    ("LOGISTIC", I8): Quantization((2.0**-8,), (-128,)),
    ("LOGISTIC", U8): Quantization((2.0**-8,), (0,)),
    ("LOGISTIC", I16): Quantization((2.0**-15,), (0,)),
    ("TANH", I8): Quantization((2.0**-7,), (0,)),
    ("TANH", U8): Quantization((2.0**-7,), (128,)),
    ("TANH", I16): Quantization((2.0**-15,), (0,)),
}
"""The quantisation of results that is not free."""


@pytest.mark.parametrize(
    ("kind", "dtype"), [(kind, dtype) for kind, dtypes in REAL.items() for dtype in dtypes]
)
def test_functions_of_one_operand(kind: str, dtype: DType) -> None:
    rng = np.random.default_rng(len(kind))
    for round_ in range(4):
        if dtype in STORED:
            given = quantised(rng, dtype, (257,))
            if round_ == 3 and kind != "NEG":
                given = Given(given.array, (2.0**-3 if dtype is not I16 else 2.0**-12,),
                              given.zero_point, fed=True)  # fmt: skip
            made = FIXED.get((kind, dtype), result_of(rng, dtype, given))
            if kind == "NEG":
                made = given.quantization or made
            if kind == "HARD_SWISH":
                zero = made.zero_point
                made = Quantization((max(made.scale, given.scales[0] / 100),), (zero,))
        else:
            given, made = plain(rng, dtype, (257,)), None
        model = layer(kind, [given], (dtype, made), ATTRIBUTES.get(kind, {}))
        check(model, feeds([given]))


def test_gelu_by_tanh() -> None:
    rng = np.random.default_rng(0)
    for dtype in (F32, F16, I8):
        given = quantised(rng, dtype, (99,)) if dtype is I8 else plain(rng, dtype, (99,))
        made = result_of(rng, dtype, given) if dtype is I8 else None
        check(layer("GELU", [given], (dtype, made), {"approximate": True}), feeds([given]))


@pytest.mark.parametrize("dtype", [F32, *STORED], ids=lambda d: d.value)
def test_prelu(dtype: DType) -> None:
    rng = np.random.default_rng(1)
    slopes = I8 if dtype is I16 else dtype
    if dtype is F32:
        inputs, made = [plain(rng, F32, (2, 3, 5)), plain(rng, F32, (5,))], None
    else:
        inputs = [quantised(rng, dtype, (2, 3, 5)), quantised(rng, slopes, (5,))]
        made = result_of(rng, dtype, inputs[0])
    check(layer("PRELU", inputs, (dtype, made), {}), feeds(inputs))


CAST: Final = (F32, F16, DType.FLOAT64, I8, U8, I16, DType.UINT16, I32, DType.UINT32, I64, BOOL)


@pytest.mark.parametrize("dtype", CAST, ids=lambda d: d.value)
def test_cast_converts_between_all_types(dtype: DType) -> None:
    rng = np.random.default_rng(5)
    for made in CAST:
        given = plain(rng, dtype, (61,))
        if dtype.is_float:
            array = given.array * np.asarray(1e4, dtype.numpy)
            array[5:9] = [127.9, -128.7, 255.5, -0.5]
            given = Given(array, fed=True)
        check(layer("CAST", [given], (made, None), {}), feeds([given]))


@pytest.mark.parametrize("dtype", [I8, U8, I16, DType.UINT16, I32], ids=lambda d: d.value)
@pytest.mark.parametrize("channels", [False, True])
def test_quantize_and_dequantize(dtype: DType, channels: bool) -> None:
    rng = np.random.default_rng(2)
    zero = 3 if dtype in {I8, U8, DType.UINT16} else 0
    scales = (0.02, 1e-3, 0.5, 3e-4, 2.0) if channels else (0.013,)
    quantization = Quantization(scales, (zero,) * len(scales), 1 if channels else None)
    for given_type in (F32, F16):
        array = (rng.standard_normal((7, 5)) * 3).astype(given_type.numpy)
        array[0] = [np.nan, np.inf, -np.inf, 0.0, -0.0]
        given = Given(array, fed=True)
        check(layer("QUANTIZE", [given], (dtype, quantization), {}), [array])
    stored = Given(values(rng, dtype, (7, 5)), scales, zero, 1 if channels else None, fed=True)
    check(layer("DEQUANTIZE", [stored], (F32, None), {}), feeds([stored]))


@pytest.mark.parametrize("made", [I8, U8, I16, I32], ids=lambda d: d.value)
@pytest.mark.parametrize("dtype", [I8, U8, I16, I32], ids=lambda d: d.value)
def test_requantize(dtype: DType, made: DType) -> None:
    rng = np.random.default_rng(4)
    for _ in range(4):
        zero = 0 if dtype in {I16, I32} else zero_of(rng, dtype)
        given = Given(values(rng, dtype, (200,)), (0.01,), zero, fed=True)
        after = Quantization((float(rng.choice([0.01, 0.003, 0.5])),),
                             (0 if made in {I16, I32} else zero_of(rng, made),))  # fmt: skip
        check(layer("QUANTIZE", [given], (made, after), {}), feeds([given]))


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("DIV", I32), ("FLOOR_DIV", I8), ("FLOOR_DIV", I16), ("FLOOR_DIV", I32), ("FLOOR_DIV", F32),
     ("FLOOR_MOD", I8), ("FLOOR_MOD", I16), ("FLOOR_MOD", I32), ("FLOOR_MOD", I64)],
)  # fmt: skip
def test_a_divisor_of_zero_fails_the_run(kind: str, dtype: DType) -> None:
    rng = np.random.default_rng(6)
    inputs = [plain(rng, dtype, (4, 9)), plain(rng, dtype, (9,))]
    divisor = inputs[1].array
    divisor[divisor == 0] = 1
    if not dtype.is_float:
        limits = np.iinfo(dtype.numpy)
        inputs[0].array[0] = limits.min
        divisor[:3] = [-1, limits.min, limits.max]
    model = layer(kind, inputs, (dtype, None), NONE if kind == "DIV" else {})
    check(model, feeds(inputs))
    zeros: NDArray = divisor.copy()
    zeros[4] = 0
    with pytest.raises(GeneralFailure, match="division by zero"):
        interpreter.run(legalise(model), [inputs[0].array, zeros])


def test_a_constant_divisor_of_zero_is_refused() -> None:
    given = Given(np.arange(5, dtype=np.int32), fed=True)
    divisor = Given(np.array([1, 0, 2, 3, 4], np.int32))
    (site,) = make_sites(layer("FLOOR_MOD", [given, divisor], (I32, None), {}))
    with pytest.raises(Refused, match="division by zero"):
        judge(site)


def test_bytes_of_float16_values_are_never_seen_as_another_width() -> None:
    given = Given(np.array([[1.5, -0.25]], np.float16))
    (site,) = make_sites(layer("BITCAST", [given], (I32, None), {}))
    with pytest.raises(Refused, match="another width"):
        judge(site)
    check(layer("BITCAST", [given], (I16, None), {}), [])


@pytest.mark.parametrize("kind", ["SQRT", "RSQRT"])
@pytest.mark.parametrize("dtype", [I8, I16], ids=lambda d: d.value)
def test_quantised_roots_of_negative_values_fail_the_run(kind: str, dtype: DType) -> None:
    rng = np.random.default_rng(8)
    zero = -100 if dtype is I8 else 0
    array = np.maximum(values(rng, dtype, (300,)), zero).astype(dtype.numpy)
    given = Given(array, (0.02 if dtype is I8 else 1e-4,), zero, fed=True)
    made = Quantization((0.03,), (-20 if dtype is I8 else 0,))
    model = layer(kind, [given], (dtype, made), {})
    check(model, [array])
    array = array.copy()
    array[7] = zero - 1
    with pytest.raises(GeneralFailure, match="negative"):
        interpreter.run(legalise(model), [array])
