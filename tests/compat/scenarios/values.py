"""`set_tensor` and `get_tensor`: types, shapes, indexes, and what is copied."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.compat.models import NUMBERS, Models
from tests.compat.observe import attempt, each, opened, ready, results, scenario

DTYPES = {
    "FLOAT32": "float32",
    "FLOAT16": "float16",
    "FLOAT64": "float64",
    "COMPLEX64": "complex64",
    "COMPLEX128": "complex128",
    "BOOL": "bool",
    "STRING": "object",
    "INT4": "int8",
    "UINT4": "uint8",
    **{f"{u}INT{n}": f"{u.lower()}int{n}" for n in (8, 16, 32, 64) for u in ("", "U")},
}
KNOWN = sorted(set(NUMBERS) & DTYPES.keys())


def _sample(dtype: str) -> Any:
    if dtype == "STRING":
        return np.array([[b"a", b"", b"ccc"], [b"d\0d", b"\xff", "é".encode()]], object)
    return np.array([[0, 1, 2], [3, 4, 5]]).astype(DTYPES[dtype])


def _zeroed(tflite: Any, models: Models, name: str) -> Any:
    """An interpreter whose first tensor holds zeros: what nobody wrote is not to be compared."""
    interpreter = opened(tflite, models, name)
    detail = interpreter.get_input_details()[0]
    interpreter.set_tensor(0, np.zeros(detail["shape"], detail["dtype"]))
    return interpreter


def _round_trip(tflite: Any, models: Models, name: str, value: Any) -> object:
    interpreter = opened(tflite, models, name)
    interpreter.set_tensor(0, value)
    stored = interpreter.get_tensor(0)
    interpreter.invoke()
    return [stored, results(interpreter)]


@each(KNOWN)
def element_type(tflite: Any, models: Models, dtype: str) -> object:
    return _round_trip(tflite, models, f"pass_{dtype.lower()}", _sample(dtype))


@each(
    f"{a}-{b}"
    for a in KNOWN
    for b in ("FLOAT32", "INT32", "UINT8", "BOOL")
    if a not in {b, "STRING"}
)
def value_of_another_type(tflite: Any, models: Models, pair: str) -> object:
    wanted, given = pair.split("-")
    interpreter = _zeroed(tflite, models, f"pass_{wanted.lower()}")
    return [attempt(interpreter.set_tensor, 0, _sample(given)), interpreter.get_tensor(0)]


@each(["float32", "int32", "bool"])
def numbers_for_strings(tflite: Any, models: Models, dtype: str) -> object:
    interpreter = opened(tflite, models, "pass_string")
    return attempt(interpreter.set_tensor, 0, np.ones((2, 3), dtype))


@each(["float16", "float64", "int64", "uint16", "complex64", "datetime64[s]", "U4", "S4", "i1,f4"])
def value_of_a_type_that_is_no_float32(tflite: Any, models: Models, dtype: str) -> object:
    interpreter = opened(tflite, models, "pass_float32")
    return attempt(interpreter.set_tensor, 0, np.zeros((2, 3), dtype))


@each(["list", "tuple", "nested", "string", "none", "object", "bytes"])
def value_that_is_no_array(tflite: Any, models: Models, kind: str) -> object:
    value = {
        "list": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]],
        "tuple": ((1.0, 2.0, 3.0), (4.0, 5.0, 6.0)),
        "nested": [[np.float32(1)] * 3] * 2,
        "string": "x",
        "none": None,
        "object": object(),
        "bytes": bytes(24),
    }[kind]
    interpreter = _zeroed(tflite, models, "pass_float32")
    return [attempt(interpreter.set_tensor, 0, value), interpreter.get_tensor(0)]


@each(["int32", "int64", "bool"])
def list_for_an_integer_tensor(tflite: Any, models: Models, dtype: str) -> object:
    interpreter = _zeroed(tflite, models, f"pass_{dtype}")
    return [attempt(interpreter.set_tensor, 0, [[1, 0, 1], [0, 1, 1]]), interpreter.get_tensor(0)]


@scenario
def ragged_list(tflite: Any, models: Models) -> object:
    return opened(tflite, models, "pass_float32").set_tensor(0, [[1.0], [2.0, 3.0]])


@each([3.5, 2, True])
def python_number_for_a_scalar(tflite: Any, models: Models, value: Any) -> object:
    interpreter = _zeroed(tflite, models, "scalar")
    return [attempt(interpreter.set_tensor, 0, value), interpreter.get_tensor(0)]


@each(["float32", "float64", "int32"])
def numpy_scalar_for_a_scalar(tflite: Any, models: Models, dtype: str) -> object:
    interpreter = _zeroed(tflite, models, "scalar")
    value = np.dtype(dtype).type(3)
    return [attempt(interpreter.set_tensor, 0, value), interpreter.get_tensor(0)]


@scenario
def scalar_model(tflite: Any, models: Models) -> object:
    interpreter = ready(tflite, models, "scalar", np.array(4, np.float32))
    interpreter.invoke()
    return results(interpreter)


@each([(1,), (1, 1), (0,)])
def shape_for_a_scalar(tflite: Any, models: Models, shape: tuple[int, ...]) -> object:
    interpreter = opened(tflite, models, "scalar")
    return attempt(interpreter.set_tensor, 0, np.full(shape, 2, np.float32))


@each([(2, 4), (3, 3), (3, 2), (6,), (1, 2, 3), (2, 3, 1), (), (0, 3), (2, 0), (2,)])
def value_of_another_shape(tflite: Any, models: Models, shape: tuple[int, ...]) -> object:
    interpreter = opened(tflite, models, "pass_float32")
    return attempt(interpreter.set_tensor, 0, np.ones(shape, np.float32))


@each([-1, -2, 2, 3, 99, 2**31, 2**40, -(2**40)])
def index_out_of_range(tflite: Any, models: Models, index: int) -> object:
    interpreter = opened(tflite, models, "static")
    return [
        attempt(interpreter.set_tensor, index, np.ones((1, 4), np.float32)),
        attempt(interpreter.get_tensor, index),
    ]


@each(["0", None, 0.0, 1.5, True])
def index_that_is_no_integer(tflite: Any, models: Models, index: Any) -> object:
    interpreter = opened(tflite, models, "static")
    return [
        attempt(interpreter.set_tensor, index, np.ones((1, 4), np.float32)),
        attempt(interpreter.get_tensor, index),
    ]


@each(["int32", "int64", "uint8"])
def index_in_a_numpy_integer(tflite: Any, models: Models, dtype: str) -> object:
    interpreter = opened(tflite, models, "static")
    index = np.dtype(dtype).type(0)
    return [
        attempt(interpreter.set_tensor, index, np.ones((1, 4), np.float32)),
        attempt(interpreter.get_tensor, index),
    ]


@scenario
def set_before_allocation(tflite: Any, models: Models) -> object:
    interpreter = tflite.Interpreter(model_content=models["static"])
    return attempt(interpreter.set_tensor, 0, np.ones((1, 4), np.float32))


@scenario
def set_before_allocation_by_another_shape(tflite: Any, models: Models) -> object:
    interpreter = tflite.Interpreter(model_content=models["static"])
    return attempt(interpreter.set_tensor, 0, np.ones((2, 4), np.float32))


@scenario
def set_before_allocation_by_another_type(tflite: Any, models: Models) -> object:
    interpreter = tflite.Interpreter(model_content=models["static"])
    return attempt(interpreter.set_tensor, 0, np.ones((1, 4), np.int32))


@scenario
def strings_set_before_allocation(tflite: Any, models: Models) -> object:
    interpreter = tflite.Interpreter(model_content=models["pass_string"])
    return [
        attempt(interpreter.set_tensor, 0, _sample("STRING")),
        attempt(interpreter.get_tensor, 0),
    ]


@scenario
def get_before_allocation(tflite: Any, models: Models) -> object:
    interpreter = tflite.Interpreter(model_content=models["static"])
    return [attempt(interpreter.get_tensor, 0), attempt(interpreter.get_tensor, 1)]


@scenario
def constant_before_allocation(tflite: Any, models: Models) -> object:
    return tflite.Interpreter(model_content=models["per_channel"]).get_tensor(1)


@scenario
def set_between_resize_and_allocation(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "dynamic")
    interpreter.resize_tensor_input(0, [2, 4])
    return [
        attempt(interpreter.set_tensor, 0, np.ones((2, 4), np.float32)),
        attempt(interpreter.get_tensor, 0),
    ]


@each(
    [
        ("int4_weights", 0),
        ("float16_weights", 0),
        ("per_channel", 1),
        ("sparse", 0),
        ("constant_output", 2),
        ("pass_int8", 1),
    ]
)
def constant(tflite: Any, models: Models, place: tuple[str, int]) -> object:
    name, index = place
    return opened(tflite, models, name).get_tensor(index)


@scenario
def constant_written(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "float16_weights")
    return [attempt(interpreter.set_tensor, 0, np.zeros(3, np.float16)), interpreter.get_tensor(0)]


@scenario
def output_written(tflite: Any, models: Models) -> object:
    interpreter = ready(tflite, models, "static", np.ones((1, 4), np.float32))
    put = attempt(interpreter.set_tensor, 1, np.full((1, 4), 9, np.float32))
    before = interpreter.get_tensor(1)
    interpreter.invoke()
    return [put, before, interpreter.get_tensor(1)]


@scenario
def input_keeps_its_value_through_runs(tflite: Any, models: Models) -> object:
    interpreter = ready(tflite, models, "static", np.array([[-1, 2, -3, 4]], np.float32))
    interpreter.invoke()
    interpreter.invoke()
    return [interpreter.get_tensor(0), interpreter.get_tensor(1)]


@scenario
def inputs_never_set(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "static")
    interpreter.invoke()
    return [results(interpreter)[0].shape, interpreter.get_tensor(0).shape]


@scenario
def given_array_is_copied(tflite: Any, models: Models) -> object:
    value = np.ones((1, 4), np.float32)
    interpreter = ready(tflite, models, "static", value)
    value[:] = 9
    interpreter.invoke()
    return results(interpreter)


@scenario
def returned_array_is_ones_own(tflite: Any, models: Models) -> object:
    interpreter = ready(tflite, models, "static", np.ones((1, 4), np.float32))
    interpreter.invoke()
    first = interpreter.get_tensor(1)
    first[:] = 7
    second = interpreter.get_tensor(1)
    return [second, first.flags.writeable, first.flags.owndata, first.flags.c_contiguous]


@scenario
def returned_array_survives_the_next_run(tflite: Any, models: Models) -> object:
    interpreter = ready(tflite, models, "static", np.ones((1, 4), np.float32))
    interpreter.invoke()
    first = interpreter.get_tensor(1)
    interpreter.set_tensor(0, np.full((1, 4), 5, np.float32))
    interpreter.invoke()
    return [first, interpreter.get_tensor(1)]


@scenario
def array_of_strided_rows(tflite: Any, models: Models) -> object:
    value = np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::2]
    return _round_trip(tflite, models, "pass_float32", value)


@scenario
def array_in_column_order(tflite: Any, models: Models) -> object:
    value = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    return _round_trip(tflite, models, "pass_float32", value)


@scenario
def array_reversed(tflite: Any, models: Models) -> object:
    value = np.arange(6, dtype=np.float32).reshape(2, 3)[::-1, ::-1]
    return _round_trip(tflite, models, "pass_float32", value)


@scenario
def array_broadcast(tflite: Any, models: Models) -> object:
    value = np.broadcast_to(np.float32(3), (2, 3))
    return _round_trip(tflite, models, "pass_float32", value)


@scenario
def array_of_the_other_byte_order(tflite: Any, models: Models) -> object:
    value = np.arange(6, dtype=">f4").reshape(2, 3)
    interpreter = _zeroed(tflite, models, "pass_float32")
    return [attempt(interpreter.set_tensor, 0, value), interpreter.get_tensor(0)]


@scenario
def array_that_may_not_be_written(tflite: Any, models: Models) -> object:
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    value.flags.writeable = False
    return _round_trip(tflite, models, "pass_float32", value)


@scenario
def array_of_a_subclass(tflite: Any, models: Models) -> object:
    value = np.ma.masked_array(np.arange(6, dtype=np.float32).reshape(2, 3), False)
    return _round_trip(tflite, models, "pass_float32", value)


@scenario
def array_by_its_interface(tflite: Any, models: Models) -> object:
    class Holder:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return np.arange(6, dtype=np.float32).reshape(2, 3)

    return _round_trip(tflite, models, "pass_float32", Holder())


@scenario
def memoryview_for_an_array(tflite: Any, models: Models) -> object:
    array: Any = np.arange(6, dtype=np.float32).reshape(2, 3)
    value = memoryview(array)
    return _round_trip(tflite, models, "pass_float32", value)


@scenario
def special_floats(tflite: Any, models: Models) -> object:
    value = np.array([[np.nan, np.inf, -np.inf], [-0.0, 1e-45, 3.4e38]], np.float32)
    return _round_trip(tflite, models, "pass_float32", value)


@each(["S3", "U3", "object-str", "object-bytes", "object-mixed", "object-int", "object-none"])
def strings_given_as(tflite: Any, models: Models, kind: str) -> object:
    value = {
        "S3": np.array([[b"a", b"bb", b"ccc"], [b"", b"e", b"f"]]),
        "U3": np.array([["a", "bé", "ccc"], ["", "e", "f"]]),
        "object-str": np.array([["a", "é", "ccc"], ["", "e", "f"]], object),
        "object-bytes": np.array([[b"a", b"\xff", b"ccc"], [b"", b"e", b"f"]], object),
        "object-mixed": np.array([["a", b"b", "c"], [b"d", "e", b"f"]], object),
        "object-int": np.array([[1, 2, 3], [4, 5, 6]], object),
        "object-none": np.array([[None, b"b", b"c"], [b"d", b"e", b"f"]], object),
    }[kind]
    interpreter = opened(tflite, models, "pass_string")
    put = attempt(interpreter.set_tensor, 0, value)
    return [put, attempt(interpreter.get_tensor, 0)]


@scenario
def strings_of_another_shape(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "pass_string")
    return attempt(interpreter.set_tensor, 0, np.array([b"a", b"b"], object))


@scenario
def list_of_strings(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "pass_string")
    put = attempt(interpreter.set_tensor, 0, [["a", "b", "c"], ["d", "e", "f"]])
    return [put, attempt(interpreter.get_tensor, 0)]


@scenario
def strings_picked(tflite: Any, models: Models) -> object:
    words = np.array([b"one", b"two", b"three"], object)
    interpreter = ready(tflite, models, "strings", words, np.array([2, 0], np.int32))
    interpreter.invoke()
    output = results(interpreter)[0]
    return [output, output.dtype.kind, [type(v) for v in output]]


@scenario
def strings_never_set(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "pass_string")
    return attempt(interpreter.get_tensor, 0)


@scenario
def hash_table_strings(tflite: Any, models: Models) -> object:
    interpreter = ready(tflite, models, "hash_table", np.array([7, 9], np.int64))
    interpreter.invoke()
    return results(interpreter)


@each([-9, -8, 7, 8])
def int4_limits(tflite: Any, models: Models, value: int) -> object:
    interpreter = _zeroed(tflite, models, "pass_int4")
    put = attempt(interpreter.set_tensor, 0, np.full((2, 3), value, np.int8))
    return [put, interpreter.get_tensor(0)]


@each([0, 15, 16, 255])
def uint4_limits(tflite: Any, models: Models, value: int) -> object:
    interpreter = _zeroed(tflite, models, "pass_uint4")
    put = attempt(interpreter.set_tensor, 0, np.full((2, 3), value, np.uint8))
    return [put, interpreter.get_tensor(0)]


@each(["pass_int4", "pass_uint4"])
def four_bits_in_another_type(tflite: Any, models: Models, name: str) -> object:
    interpreter = opened(tflite, models, name)
    return [
        attempt(interpreter.set_tensor, 0, np.ones((2, 3), t)) for t in ("int8", "uint8", "int32")
    ]


@each(["INT8", "UINT8", "INT16", "INT32"])
def quantised_values_stay_integers(tflite: Any, models: Models, dtype: str) -> object:
    return _round_trip(
        tflite,
        models,
        f"quantized_{dtype.lower()}",
        np.array([[0, 1, 2], [3, 4, 5]]).astype(dtype.lower()),
    )


@scenario
def real_values_for_a_quantised_input(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "quantized_uint8")
    return attempt(interpreter.set_tensor, 0, np.ones((2, 3), np.float32))


@scenario
def zero_size_model(tflite: Any, models: Models) -> object:
    interpreter = ready(tflite, models, "empty_tensor", np.zeros((0, 4), np.float32))
    interpreter.invoke()
    return results(interpreter)


@scenario
def zero_size_model_given_something(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "empty_tensor")
    return attempt(interpreter.set_tensor, 0, np.zeros((1, 4), np.float32))


@scenario
def tensor_of_another_subgraph(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "signatures")
    return [
        attempt(interpreter.get_tensor, 0, 1),
        attempt(interpreter.get_tensor, 0, subgraph_index=1),
        attempt(interpreter.get_tensor, 0, 2),
        attempt(interpreter.get_tensor, 0, -1),
    ]


@scenario
def set_takes_two_arguments(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "static")
    return [attempt(interpreter.set_tensor, 0), attempt(interpreter.get_tensor)]


@scenario
def keywords_by_their_names(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "static")
    interpreter.set_tensor(tensor_index=0, value=np.ones((1, 4), np.float32))
    interpreter.invoke()
    return interpreter.get_tensor(tensor_index=1)


@scenario
def set_returns_nothing(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "static")
    return [interpreter.set_tensor(0, np.ones((1, 4), np.float32)), interpreter.invoke()]


@scenario
def input_that_is_an_output(tflite: Any, models: Models) -> object:
    interpreter = ready(tflite, models, "input_is_output", np.array([-1, 1], np.float32))
    interpreter.invoke()
    return results(interpreter)


@scenario
def constant_that_is_an_output(tflite: Any, models: Models) -> object:
    interpreter = ready(tflite, models, "constant_output", np.array([-1, 1], np.float32))
    interpreter.invoke()
    return results(interpreter)


@scenario
def model_without_inputs(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "no_input")
    interpreter.invoke()
    return [interpreter.get_input_details(), results(interpreter)]
