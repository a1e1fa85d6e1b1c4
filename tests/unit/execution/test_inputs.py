from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

import penstock
from penstock.errors import InputError
from penstock.execution.inputs import as_array, dequantize, quantize, to_stored
from penstock.ir import DType, Model, ModelBuilder, NDArray, Operand, Quantization, Shape
from penstock.memory.copies import CopyReceipt
from tests.unit.execution.fakes import f32

STORED = (
    DType.INT8,
    DType.UINT8,
    DType.INT16,
    DType.UINT16,
    DType.INT32,
    DType.INT4,
    DType.UINT4,
    DType.INT2,
)
AWKWARD = f32([np.nan, np.inf, -np.inf, 0.0, -0.0, 3.4e38, -3.4e38, 1e-45, 0.49999997, -0.49999997])
SCALES = (0.5, 1 / 255, 0.0123, 3.7, 1e-6, 2.0**-126)


def zero_points(dtype: DType) -> tuple[int, ...]:
    return {"u": (0, 1, 3), "i": (0, -1, 1)}[dtype.value[0]]


def alone(operation: str, source: Operand, target: Operand) -> Model:
    builder = ModelBuilder()
    x = builder.input(source.dtype, source.shape, "x", source.quantization)
    return builder.build(builder.operation(operation, [x], [target]))


def run_alone(operation: str, values: NDArray, source: Operand, target: Operand) -> NDArray:
    with penstock.compile(alone(operation, source, target), devices=["reference"]) as compiled:
        return compiled(values)[0]


def quantized_by_the_reference(values: NDArray, q: Quantization, dtype: DType) -> NDArray:
    source = Operand(DType.FLOAT32, values.shape)
    return run_alone("QUANTIZE", values, source, Operand(dtype, values.shape, quantization=q))


def dequantized_by_the_reference(values: NDArray, q: Quantization, dtype: DType) -> NDArray:
    source = Operand(dtype, values.shape, quantization=q)
    return run_alone("DEQUANTIZE", values, source, Operand(DType.FLOAT32, values.shape))


def assert_same_bits(actual: NDArray, expected: NDArray) -> None:
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert actual.tobytes() == expected.tobytes()


def limits(dtype: DType) -> tuple[int, int]:
    bits = dtype.bits or 0
    if dtype.value.startswith("u"):
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def every_value(dtype: DType) -> NDArray:
    """All values of types of up to 16 bits; ends, powers of two and their neighbours of wider
    ones.
    """
    least, greatest = limits(dtype)
    if greatest < 2**16:
        return np.arange(least, greatest + 1).astype(dtype.numpy)
    around = [s * 2**p + d for s, p, d in itertools.product((1, -1), range(31), (-1, 0, 1))]
    return np.array([*around, 2**31 - 1, -(2**31)], dtype.numpy)


class TestQuantize:
    @pytest.mark.parametrize("scale", SCALES)
    @pytest.mark.parametrize("dtype", STORED)
    def test_is_the_operation_of_that_name(self, dtype: DType, scale: float) -> None:
        random = np.random.default_rng(7)
        # Every tie and its neighbours among the stored values, then beyond them.
        ties = (every_value(dtype).astype(np.float64)[::7] + 0.5) * scale
        ties = np.concatenate([f32(ties), f32((np.arange(-300, 300) + 0.5) * scale)])
        around = [np.nextafter(ties, f32(way)) for way in (-np.inf, np.inf)]
        spread = random.normal(scale=200 * scale, size=2000)
        values = np.concatenate([ties, *around, f32(spread), AWKWARD])
        for zero_point in zero_points(dtype):
            q = Quantization((float(np.float32(scale)),), (zero_point,))
            assert_same_bits(
                quantize(values, q, dtype), quantized_by_the_reference(values, q, dtype)
            )

    @given(
        values=hnp.arrays(np.float32, 16, elements=st.floats(width=32)),
        scale=st.floats(2.0**-100, 2.0**100, width=32),
        zero_point=st.integers(-128, 127),
    )
    @settings(max_examples=40, deadline=None)
    def test_is_that_for_any_values(self, values: NDArray, scale: float, zero_point: int) -> None:
        q = Quantization((scale,), (zero_point,))
        assert_same_bits(
            quantize(values, q, DType.INT8), quantized_by_the_reference(values, q, DType.INT8)
        )

    @pytest.mark.parametrize("dimension", [0, 1, 2])
    @pytest.mark.parametrize("dtype", [DType.INT8, DType.INT16, DType.INT4])
    def test_one_scale_a_channel(self, dtype: DType, dimension: int) -> None:
        values = f32(np.random.default_rng(3).normal(scale=4, size=(3, 3, 3)))
        q = Quantization(
            tuple(float(np.float32(s)) for s in (0.1, 0.03, 0.7)), (0, 0, 0), dimension
        )
        assert_same_bits(quantize(values, q, dtype), quantized_by_the_reference(values, q, dtype))

    def test_divides_in_float32(self) -> None:
        # Some of these are ties in float32 alone: the scale's own rounding shows in float64.
        scale = float(np.float32(0.1))
        values = f32(np.arange(1, 256, 2) / 2 * 0.1)
        wide = np.floor(values.astype(np.float64) / scale + 0.5).astype(np.uint8)
        stored = quantize(values, Quantization((scale,), (0,)), DType.UINT8)
        assert np.any(stored != wide)
        np.testing.assert_array_equal(
            stored, np.floor((values / np.float32(scale)).astype(np.float64) + 0.5)
        )

    @pytest.mark.parametrize("dtype", STORED)
    def test_nan_and_infinity_are_quantised_to_limits(self, dtype: DType) -> None:
        values = f32([np.nan, np.inf, -np.inf])
        stored = quantize(values, Quantization((0.5,), (1,)), dtype)
        assert [int(v) for v in stored] == [1, *reversed(limits(dtype))]

    @pytest.mark.parametrize("dtype", [DType.INT64, DType.UINT32, DType.UINT64])
    def test_wide_types_saturate(self, dtype: DType) -> None:
        least, greatest = limits(dtype)
        stored = quantize(f32([3e38, -3e38, 2]), Quantization((0.5,), (0,)), dtype)
        # A float64 comes no closer to the greatest 64-bit integers.
        assert greatest - 2048 < int(stored[0]) <= greatest
        assert [int(v) for v in stored[1:]] == [least, 4]

    @pytest.mark.parametrize("kind", [np.float64, np.float16, ml_dtypes.bfloat16])
    def test_takes_every_float_type(self, kind: Any) -> None:
        values = np.array([-1.5, 0.25, 3, np.nan, np.inf]).astype(kind)
        stored = quantize(values, Quantization((0.5,), (2,)), DType.INT8)
        assert stored.tolist() == [-1, 3, 8, 2, 127]

    def test_a_double_beyond_float32_saturates(self) -> None:
        stored = quantize(np.array([1e300, -1e300]), Quantization((0.5,), (2,)), DType.INT8)
        assert stored.tolist() == [127, -128]

    def test_a_scalar_stays_an_array_of_no_dimensions(self) -> None:
        stored = quantize(f32(1.25), Quantization((0.5,), (2,)), DType.UINT8)
        assert isinstance(stored, np.ndarray)
        assert (stored.shape, int(stored)) == ((), 5)


class TestDequantize:
    @pytest.mark.parametrize("scale", SCALES)
    @pytest.mark.parametrize("dtype", STORED)
    def test_is_the_operation_of_that_name(self, dtype: DType, scale: float) -> None:
        values = every_value(dtype)
        for zero_point in zero_points(dtype):
            q = Quantization((float(np.float32(scale)),), (zero_point,))
            assert_same_bits(dequantize(values, q), dequantized_by_the_reference(values, q, dtype))

    @pytest.mark.parametrize("dimension", [0, 1, 2])
    @pytest.mark.parametrize("dtype", [DType.INT8, DType.INT16, DType.INT4])
    def test_one_scale_a_channel(self, dtype: DType, dimension: int) -> None:
        least, greatest = limits(dtype)
        random = np.random.default_rng(3)
        values = random.integers(least, greatest + 1, (3, 3, 3)).astype(dtype.numpy)
        q = Quantization(
            tuple(float(np.float32(s)) for s in (0.1, 0.03, 0.7)), (0, 0, 0), dimension
        )
        assert_same_bits(dequantize(values, q), dequantized_by_the_reference(values, q, dtype))

    def test_a_scalar_stays_an_array_of_no_dimensions(self) -> None:
        real = dequantize(np.array(5, np.uint8), Quantization((0.5,), (2,)))
        assert isinstance(real, np.ndarray)
        assert real.dtype == np.float32
        assert (real.shape, float(real)) == ((), 1.5)


class OnlyDLPack:
    """An array of another library, which gives nothing but DLPack."""

    def __init__(self, array: NDArray) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class OnlyArray:
    def __init__(self, array: NDArray) -> None:
        self._array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray:
        return self._array


def pixels(shape: Shape = (2,), q: Quantization | None = None) -> Operand:
    return Operand(DType.UINT8, shape, name="pixels", quantization=q or Quantization((0.5,), (10,)))


class TestRealValues:
    @pytest.mark.parametrize("wrap", [np.asarray, OnlyDLPack, OnlyArray, memoryview])
    def test_real_values_come_in_any_kind_of_array(self, wrap: Any) -> None:
        copies: list[CopyReceipt] = []
        stored = to_stored(wrap(f32([0.5, -1])), pixels(), 3, copies)
        assert stored.dtype == np.uint8
        assert stored.tolist() == [11, 8]
        assert [(c.nbytes, "input 3 (pixels)" in c.reason) for c in copies] == [(8, True)]

    @pytest.mark.parametrize("kind", [np.float64, np.float16, ml_dtypes.bfloat16])
    def test_come_in_every_float_type(self, kind: Any) -> None:
        assert to_stored(np.array([0.5, -1], kind), pixels(), 0, []).tolist() == [11, 8]

    @pytest.mark.parametrize(
        "wrong",
        [[0.5, -1.0], (0.5, -1.0), "real", None, 3.0, np.array([1, 2]), np.array([1 + 2j, 0])],
    )
    def test_are_not_made_of_anything_else(self, wrong: Any) -> None:
        with pytest.raises(InputError, match=r"input 2 \(pixels\)"):
            to_stored(wrong, pixels(), 2, [])

    @pytest.mark.parametrize("take", [as_array, to_stored])
    def test_masks_are_not_passed_over(self, take: Any) -> None:
        kind: Any = np.float32 if take is to_stored else np.uint8
        values = np.zeros(2, kind)
        masked = np.ma.masked_array(values, mask=True)
        with pytest.raises(
            InputError, match=r"input 2 \(pixels\) is a masked array, .* filled\(\)"
        ):
            take(masked, pixels(), 2, [])
        whole = np.ma.masked_array(values, mask=False)
        assert np.shape(take(whole, pixels(), 2, [])) == values.shape

    def test_lists_are_refused_as_without_quantisation(self) -> None:
        with pytest.raises(InputError, match=r"needs an array.*not list"):
            to_stored([0.5, -1.0], pixels(), 0, [])
        with pytest.raises(InputError, match=r"needs an array.*not list"):
            as_array([1, 2], pixels(), 0, [])

    def test_real_values_of_another_shape_are_refused(self) -> None:
        per_channel = pixels((2, 3), Quantization((0.5, 0.25, 1), (0, 0, 0), 1))
        for shape in ((2, 4), (3,), (), (2, 3, 1)):
            with pytest.raises(InputError, match="has shape"):
                to_stored(np.zeros(shape, np.float32), per_channel, 0, [])

    @pytest.mark.parametrize("shape", [None, (None, None)])
    def test_real_values_of_unknown_shape_need_one_index_a_scale(self, shape: Shape) -> None:
        operand = pixels(shape, Quantization((0.5, 0.25, 1), (0, 0, 0), 1))
        assert to_stored(np.ones((1, 3), np.float32), operand, 0, []).tolist() == [[2, 4, 1]]
        with pytest.raises(InputError, match="3 scales along dimension 1"):
            to_stored(np.ones((1, 4), np.float32), operand, 0, [])
        with pytest.raises(InputError):
            to_stored(np.ones(3, np.float32), operand, 0, [])

    def test_are_left_alone_for_inputs_that_are_not_quantised(self) -> None:
        value = object()
        assert to_stored(value, Operand(DType.FLOAT32, (2,)), 0, []) is value
        assert to_stored(value, Operand(DType.INT32, (2,)), 0, []) is value

    @pytest.mark.parametrize("wrap", [np.asarray, OnlyDLPack, OnlyArray])
    def test_run_through_a_compiled_model(self, wrap: Any) -> None:
        source = pixels((2,))
        model = alone("DEQUANTIZE", source, Operand(DType.FLOAT32, (2,)))
        with penstock.compile(model, devices=["reference"]) as compiled:
            result = compiled.run([wrap(f32([0.5, -1.1]))], dequantize=True)
        assert result[0].tolist() == [0.5, -1.0]


def text(shape: Shape = (2,)) -> Operand:
    return Operand(DType.STRING, shape, name="text")


class TestStrings:
    @pytest.mark.parametrize(
        "array",
        [
            np.array(["é", "b"]),
            np.array(["é", "b"], object),
            np.array(["é".encode(), b"b"]),
            np.array([np.str_("é"), np.bytes_(b"b")], object),
        ],
    )
    def test_become_bytes(self, array: NDArray) -> None:
        taken = as_array(array, text(), 0, [])
        assert taken.dtype == object
        assert taken.tolist() == ["é".encode(), b"b"]
        assert [type(item) for item in taken] == [bytes, bytes]

    def test_keep_bytes_that_are_no_text_and_zero_bytes(self) -> None:
        given = np.array([b"\xff\x00", b""], object)
        assert as_array(given, text(), 0, []) is given

    def test_keep_their_shape(self) -> None:
        given = np.array([["a", "b", "c"], ["d", "e", "f"]], object)
        taken = as_array(given.T, text((3, 2)), 0, [])
        assert taken.tolist() == [[b"a", b"d"], [b"b", b"e"], [b"c", b"f"]]
        assert as_array(np.array("one"), text(()), 0, [])[()] == b"one"
        assert as_array(np.empty((0,), object), text((0,)), 0, []).shape == (0,)

    @pytest.mark.parametrize(
        ("wrong", "given"),
        [
            (5, "int"),
            (None, "NoneType"),
            (1.5, "float"),
            (["a"], "list"),
            (bytearray(b"a"), "bytearray"),
            ("\ud800", r"\\ud800"),
        ],
    )
    def test_anything_else_is_named_with_its_place(self, wrong: Any, given: str) -> None:
        array = np.full((2, 2), b"fine", object)
        array[1, 0] = wrong
        with pytest.raises(InputError, match=rf"input 1 \(text\).*\[1, 0\].*{given}"):
            as_array(array, text((2, 2)), 1, [])

    def test_a_lone_surrogate_in_an_array_of_text(self) -> None:
        with pytest.raises(InputError, match=r"\[1\].*UTF-8"):
            as_array(np.array(["a", "\udc00"]), text(), 0, [])

    def test_numbers_are_no_strings(self) -> None:
        with pytest.raises(InputError, match="is string, an array of int64 was given"):
            as_array(np.array([5, 6]), text(), 0, [])

    def test_objects_are_no_numbers(self) -> None:
        with pytest.raises(InputError, match="is uint8, an array of object was given"):
            as_array(np.array([5, 6], object), pixels(), 0, [])
