from __future__ import annotations

import math
import pickle

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock.errors import InvalidQuantization, ShapeOverflow
from penstock.ir import DType, Quantization, types

SIZES = {
    "float32": 32, "float16": 16, "bfloat16": 16, "float64": 64, "float8_e4m3fn": 8,
        "float8_e5m2": 8,
    "int2": 2, "int4": 4, "int8": 8, "int16": 16, "int32": 32, "int64": 64,
    "uint4": 4, "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64,
    "bool": 8, "complex64": 64, "complex128": 128, "string": None, "resource": None,
        "variant": None,
}  # fmt: skip


def test_every_type_has_its_size() -> None:
    assert {d.value: d.bits for d in DType} == SIZES


@pytest.mark.parametrize("dtype", DType)
def test_numpy_types_are_the_ones_of_the_name(dtype: DType) -> None:
    if dtype.bits is None:
        assert dtype.numpy == np.dtype(object)
        return
    assert dtype.numpy.name == dtype.value
    assert dtype.numpy.itemsize == max(1, dtype.bits // 8)
    assert np.zeros(3, dtype).dtype == dtype.numpy


def test_ml_dtypes_fill_what_numpy_lacks() -> None:
    assert DType.BFLOAT16.numpy == ml_dtypes.bfloat16
    assert DType.INT4.numpy == ml_dtypes.int4


@pytest.mark.parametrize("dtype", [d for d in DType if d.bits is not None])
def test_dtype_of_finds_the_way_back(dtype: DType) -> None:
    assert types.dtype_of(dtype.numpy) is dtype


@pytest.mark.parametrize("given", ["O", "S3", "U7"])
def test_dtype_of_takes_text_for_strings(given: str) -> None:
    assert types.dtype_of(np.dtype(given)) is DType.STRING


@pytest.mark.parametrize("given", ["M8[s]", "V4", "f2,i4"])
def test_dtype_of_knows_no_others(given: str) -> None:
    assert types.dtype_of(np.dtype(given)) is None


def test_the_sets_of_types() -> None:
    assert {d for d in DType if d.is_float} == set(types.FLOATS)
    assert {d for d in DType if d.is_integer} == set(types.INTEGERS)
    assert DType.BOOL not in types.FLOATS | types.INTEGERS
    assert {d for d in DType if d.bits is not None and d.bits < 8} == types.PACKED


def test_members_hash_by_identity_and_survive_pickling() -> None:
    for dtype in DType:
        assert pickle.loads(pickle.dumps(dtype)) is dtype  # noqa: TID251  # our own bytes
        assert hash(dtype) == object.__hash__(dtype)


def test_unknown_and_zero_are_different_dimensions() -> None:
    assert types.is_static((0, 3))
    assert not types.is_static((None, 3))
    assert not types.is_static(None)
    assert types.is_static(())
    assert types.static_shape((2, 0)) == (2, 0)
    assert types.static_shape((2, None)) is None
    assert types.element_count((0, 3)) == 0
    with pytest.raises(ShapeOverflow, match="dimension None"):
        types.element_count((None, 3))


@given(st.lists(st.integers(0, 50), max_size=5), st.sampled_from([d for d in DType if d.bits]))
def test_byte_size_is_what_packed_elements_take(shape: list[int], dtype: DType) -> None:
    assert types.byte_size(dtype, shape) == math.ceil(math.prod(shape) * (dtype.bits or 0) / 8)


@pytest.mark.parametrize("dtype", [DType.STRING, DType.RESOURCE, DType.VARIANT])
def test_types_without_a_size_have_none(dtype: DType) -> None:
    assert types.byte_size(dtype, (2, 3)) is None


@pytest.mark.parametrize("shape", [(2**63,), (2**32, 2**32), (-1,), (3, -2)])
def test_counts_beyond_64_bits_and_negative_dimensions_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeOverflow):
        types.element_count(shape)


def test_byte_sizes_beyond_64_bits_are_refused() -> None:
    assert types.element_count((2**62,)) == 2**62
    with pytest.raises(ShapeOverflow, match="64-bit sizes"):
        types.byte_size(DType.FLOAT32, (2**62,))
    assert types.byte_size(DType.INT4, (2**62,)) == 2**61
    assert types.MAX_BYTES == 2**63 - 1


class TestQuantization:
    def test_one_scale_for_the_whole(self) -> None:
        q = Quantization((0.5,), (-3,))
        assert (q.scale, q.zero_point, q.per_channel) == (0.5, -3, False)

    def test_one_scale_a_channel(self) -> None:
        q = Quantization((0.5, 0.25), (0, 1), 1)
        assert (q.scale, q.zero_point, q.per_channel) == (0.5, 0, True)

    @pytest.mark.parametrize(
        ("scales", "zero_points", "dimension"),
        [
            ((), (), None),
            ((1.0,), (), None),
            ((1.0,), (0, 0), None),
            ((1.0, 1.0), (0, 0), None),
            ((-0.5,), (0,), None),
            ((math.nan,), (0,), None),
            ((math.inf,), (0,), None),
            ((1.0, -1.0), (0, 0), 0),
            ((1.0, math.nan), (0, 0), 0),
        ],
    )
    def test_contradictions_are_refused(
        self, scales: tuple[float, ...], zero_points: tuple[int, ...], dimension: int | None
    ) -> None:
        with pytest.raises(InvalidQuantization):
            Quantization(scales, zero_points, dimension)

    def test_quantization_compares_and_hashes_as_a_value(self) -> None:
        q = Quantization((0.5,), (3,))
        assert q == Quantization((0.5,), (3,))
        assert hash(q) == hash(Quantization((0.5,), (3,)))
        assert pickle.loads(pickle.dumps(q)) == q  # noqa: TID251  # our own bytes
