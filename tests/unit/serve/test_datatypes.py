"""Tensors in the protocol's binary and JSON forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock.ir import DType
from penstock.serve.datatypes import (
    DATATYPES,
    NAMES,
    dtype_named,
    from_bytes,
    from_list,
    shape_of,
    to_bytes,
    to_list,
)
from penstock.serve.errors import InvalidRequest
from penstock.serve.settings import Limits

NUMERIC = [dtype for dtype in DATATYPES.values() if dtype is not DType.STRING]


@pytest.mark.parametrize("dtype", NUMERIC, ids=lambda dtype: dtype.value)
def test_numbers_survive_both_forms(dtype: DType) -> None:
    array = np.array([[0, 1], [1, 0]]).astype(dtype.numpy)
    raw = to_bytes(array)
    assert len(raw) == array.nbytes
    np.testing.assert_array_equal(from_bytes(raw, dtype, (2, 2), "x"), array)
    read = from_list(to_list(array), dtype, (2, 2), "x")
    assert read.dtype == array.dtype
    np.testing.assert_array_equal(read, array)


def test_strings_survive_both_forms() -> None:
    array = np.array([b"", "gr\u00fc\u00df".encode(), b"c"], object).reshape(3, 1)
    read = from_bytes(to_bytes(array), DType.STRING, (3, 1), "x")
    assert read.tolist() == array.tolist()
    assert from_list(to_list(array), DType.STRING, (3, 1), "x").tolist() == array.tolist()


def test_binary_form_has_little_endian_lengths_before_strings() -> None:
    array = np.array([b"ab", b""], object)
    assert to_bytes(array) == b"\x02\0\0\0ab\0\0\0\0"


def test_unaligned_bytes_are_copied_and_aligned_ones_are_not() -> None:
    whole = memoryview(bytes(17))
    base = np.frombuffer(whole, np.uint8)
    shift = (-base.ctypes.data) % 8
    aligned = from_bytes(whole[shift : shift + 8], DType.FLOAT64, (1,), "x")
    assert np.shares_memory(aligned, base)
    other = from_bytes(whole[shift + 1 : shift + 9], DType.FLOAT64, (1,), "x")
    assert other.flags.aligned
    assert not np.shares_memory(other, base)


@pytest.mark.parametrize(
    ("data", "dtype", "shape"),
    [
        (b"\0" * 7, DType.FLOAT32, (2,)),
        (b"\0" * 9, DType.FLOAT32, (2,)),
        (b"\2", DType.BOOL, (1,)),
        (b"\1\0\0", DType.STRING, (1,)),
        (b"\2\0\0\0a", DType.STRING, (1,)),
        (b"\xff\xff\xff\xffa", DType.STRING, (1,)),
        (b"\0\0\0\0b", DType.STRING, (1,)),
        (b"", DType.STRING, (1 << 30, 1 << 30)),
        (b"", DType.FLOAT64, (1 << 30, 1 << 30)),
    ],
)
def test_bytes_that_do_not_fit_are_refused(
    data: bytes, dtype: DType, shape: tuple[int, ...]
) -> None:
    with pytest.raises(InvalidRequest, match="x: "):
        from_bytes(data, dtype, shape, "x")


@pytest.mark.parametrize(
    ("data", "dtype", "shape"),
    [
        (None, DType.FLOAT32, (1,)),
        ("1", DType.FLOAT32, (1,)),
        ([1, [2]], DType.FLOAT32, (2,)),
        (["1"], DType.FLOAT32, (1,)),
        ([1.5], DType.INT32, (1,)),
        ([128], DType.INT8, (1,)),
        ([-1], DType.UINT8, (1,)),
        ([1 << 70], DType.INT64, (1,)),
        ([1], DType.BOOL, (1,)),
        ([True], DType.INT8, (1,)),
        ([1, 2], DType.FLOAT32, (1 << 30, 1 << 30)),
        ([1], DType.STRING, (1,)),
        (["a"], DType.STRING, (2,)),
        (["\ud800"], DType.STRING, (1,)),
        ([None], DType.FLOAT32, (1,)),
    ],
)
def test_lists_that_do_not_fit_are_refused(data: Any, dtype: DType, shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest, match="x: "):
        from_list(data, dtype, shape, "x")


def test_nested_lists_equal_flat_ones() -> None:
    assert from_list([[1, 2], [3, 4]], DType.INT8, (2, 2), "x").tolist() == [[1, 2], [3, 4]]
    assert from_list([1, 2, 3, 4], DType.INT8, (2, 2), "x").tolist() == [[1, 2], [3, 4]]
    assert from_list([["a"], [["b"]]], DType.STRING, (2,), "x").tolist() == [b"a", b"b"]


def test_bytes_that_are_no_text_have_no_json_form() -> None:
    with pytest.raises(InvalidRequest, match="binary"):
        to_list(np.array([b"\xff"], object))


@pytest.mark.parametrize("shape", [None, "12", [1.5], [-1], [True], [1 << 31], [1] * 33])
def test_shape_that_is_none_is_refused(shape: Any) -> None:
    with pytest.raises(InvalidRequest):
        shape_of(shape, Limits(), "x")


@pytest.mark.parametrize("datatype", ["INT4", "", None, 5, "fp32"])
def test_unknown_datatype_is_refused(datatype: Any) -> None:
    with pytest.raises(InvalidRequest):
        dtype_named(datatype, "x")


@given(
    st.binary(max_size=64),
    st.sampled_from(list(DATATYPES.values())),
    st.lists(st.integers(0, 5), max_size=3),
)
def test_any_bytes_make_an_array_of_the_shape_or_a_named_error(
    data: bytes, dtype: DType, sizes: list[int]
) -> None:
    shape = tuple(sizes)
    try:
        made = from_bytes(data, dtype, shape, "x")
    except InvalidRequest:
        return
    assert made.shape == shape
    assert to_bytes(made) == data


def test_every_datatype_has_one_element_type() -> None:
    assert len(NAMES) == len(DATATYPES)
