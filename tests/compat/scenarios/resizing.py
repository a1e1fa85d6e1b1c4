"""`resize_tensor_input`: strict and not, before and after allocation, and every way to get it
wrong.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.compat.models import Models
from tests.compat.observe import attempt, each, opened, results, scenario


def _run(interpreter: Any, *inputs: Any) -> object:
    interpreter.allocate_tensors()
    for detail, value in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(detail["index"], value)
    interpreter.invoke()
    return results(interpreter)


@each(["static", "dynamic"])
def resized_before_allocation(tflite: Any, models: Models, name: str) -> object:
    interpreter = tflite.Interpreter(model_content=models[name])
    interpreter.resize_tensor_input(0, [3, 4])
    return _run(interpreter, np.arange(12, dtype=np.float32).reshape(3, 4) - 5)


@each(["static", "dynamic"])
def resized_after_allocation(tflite: Any, models: Models, name: str) -> object:
    interpreter = opened(tflite, models, name)
    interpreter.resize_tensor_input(0, [2, 4])
    return _run(interpreter, np.arange(8, dtype=np.float32).reshape(2, 4) - 5)


@scenario
def resized_after_a_run_and_back(tflite: Any, models: Models) -> object:
    interpreter = tflite.Interpreter(model_content=models["dynamic"])
    seen = []
    for n in (1, 3, 1, 2):
        interpreter.resize_tensor_input(0, [n, 4])
        seen.append(_run(interpreter, np.full((n, 4), n, np.float32)))
    return seen


@each(["list", "tuple", "array", "int64 array", "generator", "floats", "string", "none", "scalar"])
def size_given_as(tflite: Any, models: Models, kind: str) -> object:
    size: Any = {
        "list": [2, 4],
        "tuple": (2, 4),
        "array": np.array([2, 4], np.int32),
        "int64 array": np.array([2, 4], np.int64),
        "generator": (n for n in (2, 4)),
        "floats": [2.7, 4.0],
        "string": "24",
        "none": None,
        "scalar": 4,
    }[kind]
    interpreter = opened(tflite, models, "dynamic")
    put = attempt(interpreter.resize_tensor_input, 0, size)
    return [put, interpreter.get_input_details()[0]["shape"]]


@each([[2, 4], [1, 4], [2, 5], [1, 5], [4], [1, 1, 4], [], [0, 4]])
def strict_on_an_unknown_dimension(tflite: Any, models: Models, size: list[int]) -> object:
    interpreter = opened(tflite, models, "dynamic")
    put = attempt(interpreter.resize_tensor_input, 0, size, strict=True)
    return [put, interpreter.get_input_details()[0]["shape"]]


@each([[1, 4], [2, 4], [4], [1, 4, 1]])
def strict_on_a_fixed_shape(tflite: Any, models: Models, size: list[int]) -> object:
    interpreter = opened(tflite, models, "static")
    put = attempt(interpreter.resize_tensor_input, 0, size, strict=True)
    return [put, interpreter.get_input_details()[0]["shape"]]


@scenario
def strict_by_position(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "static")
    return attempt(interpreter.resize_tensor_input, 0, [2, 4], True)


@scenario
def strict_before_allocation(tflite: Any, models: Models) -> object:
    interpreter = tflite.Interpreter(model_content=models["dynamic"])
    interpreter.resize_tensor_input(0, [5, 4], strict=True)
    return _run(interpreter, np.ones((5, 4), np.float32))


@scenario
def strict_compares_with_the_files_shape_after_a_free_resize(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "static")
    interpreter.resize_tensor_input(0, [2, 4])
    return [
        attempt(interpreter.resize_tensor_input, 0, [2, 4], strict=True),
        attempt(interpreter.resize_tensor_input, 0, [1, 4], strict=True),
    ]


@each([[2, 5], [4], [1, 2, 2], [], [1], [0, 4], [1, 0], [3, 1, 4, 1]])
def free_resize(tflite: Any, models: Models, size: list[int]) -> object:
    interpreter = opened(tflite, models, "static")
    put = attempt(interpreter.resize_tensor_input, 0, size)
    allocated = attempt(interpreter.allocate_tensors)
    value = np.full(size, -2, np.float32)
    set_ = attempt(interpreter.set_tensor, 0, value)
    run = attempt(interpreter.invoke)
    return [put, allocated, set_, run, attempt(interpreter.get_tensor, 1)]


@each([[-1, 4], [1, -4], [-1, -1]])
def negative_dimension(tflite: Any, models: Models, size: list[int]) -> object:
    interpreter = opened(tflite, models, "static")
    return attempt(interpreter.resize_tensor_input, 0, size)


@each([[-1, 4], [1, -4]])
def negative_dimension_strictly(tflite: Any, models: Models, size: list[int]) -> object:
    interpreter = opened(tflite, models, "dynamic")
    return attempt(interpreter.resize_tensor_input, 0, size, strict=True)


@each([2**20, 2**31 - 1])
def huge_dimension(tflite: Any, models: Models, size: int) -> object:
    interpreter = opened(tflite, models, "static")
    return attempt(interpreter.resize_tensor_input, 0, [size, size])


@scenario
def dimension_beyond_32_bits(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "static")
    return attempt(interpreter.resize_tensor_input, 0, [2**33, 4])


@scenario
def two_dimensional_size(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "static")
    return attempt(interpreter.resize_tensor_input, 0, [[1, 4]])


@each([-1, 1, 2, 99])
def index_that_is_no_input(tflite: Any, models: Models, index: int) -> object:
    interpreter = opened(tflite, models, "static")
    return attempt(interpreter.resize_tensor_input, index, [2, 4])


@each([-1, 1, 2, 99])
def index_that_is_no_input_strictly(tflite: Any, models: Models, index: int) -> object:
    interpreter = opened(tflite, models, "static")
    return attempt(interpreter.resize_tensor_input, index, [2, 4], strict=True)


@each(["0", None, 0.0])
def index_that_is_no_number(tflite: Any, models: Models, index: Any) -> object:
    interpreter = opened(tflite, models, "static")
    return attempt(interpreter.resize_tensor_input, index, [2, 4])


@scenario
def constant_resized(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "per_channel")
    return attempt(interpreter.resize_tensor_input, 1, [3, 3])


@scenario
def invoke_after_a_resize_without_allocation(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "dynamic")
    interpreter.resize_tensor_input(0, [2, 4])
    return attempt(interpreter.invoke)


@scenario
def same_size_needs_no_allocation(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "static")
    interpreter.set_tensor(0, np.ones((1, 4), np.float32))
    interpreter.resize_tensor_input(0, [1, 4])
    return [attempt(interpreter.invoke), attempt(interpreter.get_tensor, 1)]


@scenario
def values_of_other_inputs_after_a_resize(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "signature")
    a, b = (d["index"] for d in interpreter.get_input_details())
    for index in (a, b):
        interpreter.resize_tensor_input(index, [2, 2])
    return _run(interpreter, np.full((2, 2), 5, np.float32), np.full((2, 2), 3, np.float32))


@scenario
def one_of_two_inputs_resized_broadcasts(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "signature")
    interpreter.resize_tensor_input(0, [3, 2])
    return _run(interpreter, np.full((3, 2), 5, np.float32), np.full((1, 2), 3, np.float32))


@scenario
def inputs_that_do_not_broadcast(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "signature")
    interpreter.resize_tensor_input(0, [3, 2])
    interpreter.resize_tensor_input(1, [2, 2])
    return [
        attempt(interpreter.allocate_tensors),
        attempt(interpreter.invoke),
        attempt(interpreter.set_tensor, 0, np.ones((3, 2), np.float32)),
    ]


@scenario
def right_again_after_a_failed_allocation(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "signature")
    interpreter.resize_tensor_input(0, [3, 2])
    interpreter.resize_tensor_input(1, [2, 2])
    failed = attempt(interpreter.allocate_tensors)
    interpreter.resize_tensor_input(1, [3, 2])
    return [failed, _run(interpreter, *[np.full((3, 2), n, np.float32) for n in (5, 3)])]


@scenario
def width_that_the_weights_do_not_fit(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "fully_connected")
    interpreter.resize_tensor_input(0, [1, 3])
    return attempt(interpreter.allocate_tensors)


@each([1, 2, 5])
def batch_of_a_layer(tflite: Any, models: Models, batch: int) -> object:
    interpreter = opened(tflite, models, "fully_connected")
    interpreter.resize_tensor_input(0, [batch, 2])
    return _run(interpreter, np.arange(2 * batch, dtype=np.float32).reshape(batch, 2))


@scenario
def input_of_unknown_rank(tflite: Any, models: Models) -> object:
    interpreter = tflite.Interpreter(model_content=models["unranked"])
    before = interpreter.get_input_details()
    interpreter.resize_tensor_input(0, [2, 2])
    return [before, _run(interpreter, np.array([[-1, 1], [2, -2]], np.float32))]


@scenario
def resize_to_nothing_and_back(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "dynamic")
    interpreter.resize_tensor_input(0, [0, 4])
    empty = _run(interpreter, np.zeros((0, 4), np.float32))
    interpreter.resize_tensor_input(0, [2, 4])
    return [empty, _run(interpreter, np.ones((2, 4), np.float32))]


@scenario
def string_input_resized(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "strings")
    interpreter.resize_tensor_input(0, [2])
    return _run(interpreter, np.array([b"x", b"yy"], object), np.array([1, 1], np.int32))


@scenario
def resize_returns_nothing(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "dynamic")
    return [interpreter.resize_tensor_input(0, [2, 4]), interpreter.allocate_tensors()]


@scenario
def resize_by_keywords(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "dynamic")
    interpreter.resize_tensor_input(input_index=0, tensor_size=[2, 4], strict=True)
    return interpreter.get_input_details()[0]["shape"]
