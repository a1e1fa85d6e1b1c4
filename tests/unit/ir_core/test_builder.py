from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from penstock.errors import IndexOutOfRange, InputError, InvalidOperand, UnknownOperator
from penstock.ir import DType, Lifetime, ModelBuilder, NDArray, Operand, Quantization, StatePort
from penstock.ir.builder import pack, pack_strings
from penstock.ir.operand import MAX_COPIED_VALUE
from penstock.ir.subgraph import ALIGNMENT, constant_array, unpack_strings
from penstock.ir.types import byte_size
from tests.unit.ir_core.samples import F32

RANGES = {DType.INT2: (-2, 1), DType.INT4: (-8, 7), DType.UINT4: (0, 15)}


WRONG: dict[str, tuple[Callable[[ModelBuilder], object], str]] = {
    "type": (
        lambda b: b.input("float32", (2,), "x"),  # type: ignore[arg-type]  # what users give
        r"^input 'x': an element type is a DType \(DType.FLOAT32\), not 'float32'$",
    ),
    "shape": (
        lambda b: b.input(F32, "ab"),  # type: ignore[arg-type]  # as above
        "^a shape is a tuple of whole numbers and None, not 'ab'$",
    ),
    "rank": (
        lambda b: b.input(F32, 3),  # type: ignore[arg-type]  # as above
        "^a shape is a tuple of whole numbers and None, not 3$",
    ),
    "constant": (
        lambda b: b.constant([1.0], "k"),  # type: ignore[arg-type]  # as above
        "^constant 'k' is made of a NumPy array, not of list$",
    ),
    "masked": (
        lambda b: b.constant(np.ma.masked_array([1.0, 2.0], [True, False]), "k"),
        r"^constant 'k' is a masked array, .* give its filled\(\)",
    ),
    "elements": (
        lambda b: b.constant(np.array([5], object)),
        "^an array of strings holds str and bytes, not int$",
    ),
    "dates": (
        lambda b: b.constant(np.zeros(1, "datetime64[s]")),
        r"^no operand type has the NumPy dtype datetime64\[s\]$",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_builder_refuses_wrong_arguments(what: str) -> None:
    make, words = WRONG[what]
    with pytest.raises(InputError, match=words):
        make(ModelBuilder())


def test_an_output_that_is_no_operand_is_named() -> None:
    for outside in (1, -1):
        b = ModelBuilder()
        b.input(F32, (2,), "x")
        with pytest.raises(
            IndexOutOfRange, match=f"^output {outside} is no operand; their number is 1$"
        ):
            b.build([outside])


def back(data: bytes, dtype: DType, shape: tuple[int, ...]) -> NDArray:
    return constant_array((), Operand(dtype, shape, Lifetime.CONSTANT_COPY, value=data))


@pytest.mark.parametrize("dtype", RANGES)
@given(data=st.data())
def test_packed_types_come_back(dtype: DType, data: st.DataObject) -> None:
    low, high = RANGES[dtype]
    shape = tuple(data.draw(st.lists(st.integers(0, 5), max_size=3)))
    values = data.draw(hnp.arrays(np.int8, shape, elements=st.integers(low, high)))
    packed, kind = pack(values, dtype)
    assert kind is dtype
    assert len(packed) == byte_size(dtype, shape)
    array = back(packed, dtype, shape)
    assert array.dtype == dtype.numpy
    assert array.shape == shape
    assert array.astype(np.int8).tolist() == values.tolist()


def test_int4_is_packed_low_half_first() -> None:
    packed, _ = pack(np.array([1, -2, 3], np.int8), DType.INT4)
    assert packed == bytes([0xE1, 0x03])
    packed, _ = pack(np.array([1, -2, 0, -1, 1], np.int8), DType.INT2)
    assert packed == bytes([0b11_00_10_01, 0b01])


def test_arrays_of_packed_types_need_no_telling() -> None:
    values = np.array([1, -2, 3], ml_dtypes.int4)
    assert pack(values) == pack(values.astype(np.int8), DType.INT4)


@pytest.mark.parametrize("dtype", [d for d in DType if d.bits is not None and d.bits >= 8])
def test_whole_byte_types_come_back(dtype: DType) -> None:
    values = np.arange(6).reshape(2, 3).astype(dtype.numpy)
    packed, kind = pack(values)
    assert kind is dtype
    assert packed == values.tobytes()
    array = back(packed, dtype, (2, 3))
    assert array.dtype == values.dtype
    assert array.tobytes() == values.tobytes()
    assert not array.flags.writeable


def test_values_are_packed_little_endian_and_contiguous() -> None:
    big = np.array([1, 2], ">i4")
    assert pack(big, DType.INT32)[0] == b"\1\0\0\0\2\0\0\0"
    assert pack(np.arange(6, dtype=np.int8).reshape(2, 3).T)[0] == bytes([0, 3, 1, 4, 2, 5])


@given(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3), st.data())
def test_strings_come_back(shape: tuple[int, ...], data: st.DataObject) -> None:
    count = int(np.prod(shape))
    words = data.draw(st.lists(st.binary(max_size=9), min_size=count, max_size=count))
    values = np.empty(count, object)
    values[:] = words
    packed, kind = pack(values.reshape(shape))
    assert kind is DType.STRING
    assert unpack_strings(memoryview(packed), shape).reshape(-1).tolist() == words


def test_text_is_packed_as_utf_8() -> None:
    packed = pack_strings(np.array(["é", "", "abc"]))
    assert packed == np.array([3, 20, 22, 22, 25], "<i4").tobytes() + "éabc".encode()
    assert unpack_strings(memoryview(packed), (3,)).tolist() == ["é".encode(), b"", b"abc"]


@pytest.mark.parametrize(
    ("data", "shape"),
    [
        (b"", (1,)),
        (b"\1\0\0\0", (1,)),
        (np.array([2, 16, 16, 16], "<i4").tobytes(), (1,)),
        (np.array([-1, 8], "<i4").tobytes(), ()),
        (np.array([1, 12, 13], "<i4").tobytes(), (1,)),
        (np.array([1, 12, 4], "<i4").tobytes(), (1,)),
        (np.array([1, -1, 12], "<i4").tobytes(), (1,)),
        (np.array([2**31 - 1, 12, 12], "<i4").tobytes(), (2**31 - 1,)),
    ],
)
def test_strings_that_are_none_are_refused(data: bytes, shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidOperand):
        unpack_strings(memoryview(data), shape)


@given(st.binary(max_size=64), st.integers(0, 8))
def test_unpacking_strings_is_total(data: bytes, count: int) -> None:
    try:
        array = unpack_strings(memoryview(data), (count,))
    except InvalidOperand:
        return
    assert array.shape == (count,)


def test_small_constants_are_copied_and_large_ones_pooled() -> None:
    b = ModelBuilder()
    x = b.input(DType.UINT8, (1,), "x")
    small = b.constant(np.zeros(MAX_COPIED_VALUE, np.uint8))
    large = b.constant(np.ones(MAX_COPIED_VALUE + 1, np.uint8))
    next_one = b.constant(np.full(MAX_COPIED_VALUE + 2, 2, np.uint8))
    size = 3 * MAX_COPIED_VALUE + 4
    given = [x, small, large, next_one]
    model = b.build(b.operation("CONCATENATION", given, [(DType.UINT8, (size,))], {"axis": 0}))
    operands = model.operands
    assert operands[small].lifetime is Lifetime.CONSTANT_COPY
    assert operands[large].lifetime is Lifetime.CONSTANT_POOL
    place = operands[next_one].location
    assert place is not None
    assert place.offset % ALIGNMENT == 0
    assert model.constant(operands[large]).tolist() == [1] * (MAX_COPIED_VALUE + 1)
    assert model.constant(operands[next_one]).tolist() == [2] * (MAX_COPIED_VALUE + 2)


def test_defaults_of_the_row_are_filled_in() -> None:
    b = ModelBuilder()
    x = b.input(F32, (1,), "x")
    b.operation("ADD", [x, x], [(F32, (1,))], {"fused_activation_function": "RELU"})
    model = b.build([1])
    assert dict(model.operations[0].attributes) == {
        "fused_activation_function": "RELU",
        "pot_scale_int16": True,
    }


def test_an_unknown_operation_is_refused_at_once() -> None:
    with pytest.raises(UnknownOperator, match="'NOPE' is not an operation"):
        ModelBuilder().operation("NOPE", [], [])


def test_shapes_may_come_as_any_integers() -> None:
    b = ModelBuilder()
    x = b.input(F32, tuple(np.array([2, 3])), "x")
    # The point.
    (y,) = b.operation("RELU", [x], [(F32, [2, np.int64(3)])])  # type: ignore[list-item]
    model = b.build([y])
    assert [type(d) for o in model.operands for d in o.shape or ()] == [int] * 4
    with pytest.raises(InputError, match="tuple of whole numbers"):
        b.input(F32, (2.5,), "x")  # type: ignore[arg-type]  # the point


def test_omitted_inputs_share_one_operand() -> None:
    b = ModelBuilder()
    assert b.omitted() == b.omitted()
    x, w = b.input(F32, (1, 2), "x"), b.constant(np.ones((2, 2), np.float32))
    (y,) = b.operation("FULLY_CONNECTED", [x, w, None], [(F32, (1, 2))])
    model = b.build([y])
    assert model.operands[model.operations[0].inputs[2]].lifetime is Lifetime.NO_VALUE


def test_outputs_become_outputs_and_states_stand_at_the_end() -> None:
    b = ModelBuilder()
    before = b.operand(Operand(F32, (1,), Lifetime.SUBGRAPH_INPUT, "before"))
    x = b.input(F32, (1,), "x")
    (after,) = b.operation("ADD", [before, x], [(F32, (1,))])
    (y,) = b.operation("RELU", [after], [(F32, (1,))])
    b.state(b.variable("v", F32, (1,), Quantization((1.0,), (0,))), before, after)
    model = b.build([y])
    assert model.entry.inputs == (x, before)
    assert model.entry.outputs == (y, after)
    assert model.entry.states == (StatePort(0, before, after),)
    assert [o.name for o in model.inputs] == ["x"]
    assert len(model.outputs) == 1
    assert model.operands[after].lifetime is Lifetime.SUBGRAPH_OUTPUT


def test_a_variable_may_have_an_initial_value() -> None:
    b = ModelBuilder()
    index = b.variable("v", F32, (3,), initial=np.arange(3, dtype=np.float32))
    x = b.input(F32, (3,), "x")
    b.state(index, None, b.operation("RELU", [x], [(F32, (3,))])[0])
    model = b.build([])
    assert constant_array(model.pools, model.variables[0]).tolist() == [0.0, 1.0, 2.0]
