"""The details dictionaries, key by key, of every kind of tensor."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.compat.models import BUILDERS, Models
from tests.compat.observe import attempt, each, opened, ready, scenario

UNSUPPORTED = {"flex", "custom"}


@each(sorted(BUILDERS))
def input_and_output_details(tflite: Any, models: Models, name: str) -> object:
    interpreter = tflite.Interpreter(model_content=models[name])
    return [interpreter.get_input_details(), interpreter.get_output_details()]


@each(sorted(BUILDERS.keys() - UNSUPPORTED))
def details_after_allocation(tflite: Any, models: Models, name: str) -> object:
    interpreter = opened(tflite, models, name)
    return [interpreter.get_input_details(), interpreter.get_output_details()]


@each(sorted(BUILDERS))
def every_tensors_details(tflite: Any, models: Models, name: str) -> object:
    return tflite.Interpreter(model_content=models[name]).get_tensor_details()


@each(["branches", "loop", "signatures"])
def every_subgraphs_tensors(tflite: Any, models: Models, name: str) -> object:
    interpreter = tflite.Interpreter(model_content=models[name])
    count = interpreter.num_subgraphs()
    return [count, [interpreter.get_tensor_details(subgraph_index=k) for k in range(count)]]


@each([-1, 1, 3, 100])
def tensors_of_a_subgraph_out_of_range(tflite: Any, models: Models, index: int) -> object:
    return opened(tflite, models, "static").get_tensor_details(subgraph_index=index)


@each(["0", None, 0.0])
def tensors_of_a_subgraph_that_is_no_integer(tflite: Any, models: Models, index: Any) -> object:
    return opened(tflite, models, "static").get_tensor_details(index)


@each(["two", "chain", "branches", "per_channel", "accumulator", "svdf", "custom", "flex"])
def operations(tflite: Any, models: Models, name: str) -> object:
    kind = tflite.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = tflite.Interpreter(model_content=models[name], experimental_op_resolver_type=kind)
    return interpreter._get_ops_details()


@each([-1, 99, 1.7, "0", None])
def one_tensors_details(tflite: Any, models: Models, index: Any) -> object:
    return opened(tflite, models, "static")._get_tensor_details(index, 0)


@scenario
def each_call_gives_new_dictionaries(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "per_channel")
    first = interpreter.get_input_details()
    first[0]["shape"][0] = 99
    first[0]["name"] = "changed"
    second = interpreter.get_input_details()
    return [second, first[0]["shape"] is second[0]["shape"]]


@scenario
def types_inside_the_details(tflite: Any, models: Models) -> object:
    detail = opened(tflite, models, "per_channel").get_tensor_details()[1]
    quantization = detail["quantization_parameters"]
    return [
        *(type(detail[k]) for k in detail),
        *(type(quantization[k]) for k in quantization),
        detail["shape"].dtype.name,
        detail["shape_signature"].dtype.name,
        quantization["scales"].dtype.name,
        quantization["zero_points"].dtype.name,
        [type(v) for v in detail["quantization"]],
        isinstance(detail["dtype"], type),
        detail["dtype"] is np.int8,
    ]


@scenario
def types_inside_the_details_of_an_unquantised_tensor(tflite: Any, models: Models) -> object:
    detail = opened(tflite, models, "scalar").get_input_details()[0]
    quantization = detail["quantization_parameters"]
    return [
        *(type(detail[k]) for k in detail),
        *(type(quantization[k]) for k in quantization),
        detail["quantization"],
        quantization,
        detail["shape"],
        detail["shape_signature"],
        [detail["shape"].flags.writeable, detail["shape"].flags.owndata],
    ]


@scenario
def details_after_a_resize(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "dynamic")
    interpreter.resize_tensor_input(0, [3, 4])
    between = [interpreter.get_input_details(), interpreter.get_output_details()]
    interpreter.allocate_tensors()
    return [between, interpreter.get_input_details(), interpreter.get_output_details()]


@scenario
def details_of_an_output_whose_shape_a_run_decides(tflite: Any, models: Models) -> object:
    interpreter = ready(
        tflite, models, "dynamic_output", np.arange(6, dtype=np.float32), np.array([2, 3], np.int32)
    )
    before = interpreter.get_output_details()
    interpreter.invoke()
    return [before, interpreter.get_output_details()]


@scenario
def details_of_where(tflite: Any, models: Models) -> object:
    interpreter = ready(tflite, models, "where", np.array([True, False, True, True]))
    before = interpreter.get_output_details()
    interpreter.invoke()
    return [before, interpreter.get_output_details()]


@scenario
def details_take_no_argument(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "static")
    return [attempt(interpreter.get_input_details, 0), attempt(interpreter.get_output_details, 0)]


@each(["static", "signatures", "branches", "loop"])
def number_of_subgraphs(tflite: Any, models: Models, name: str) -> object:
    return tflite.Interpreter(model_content=models[name]).num_subgraphs()


@each([0, 1, 2, -1, 99])
def one_operation(tflite: Any, models: Models, index: int) -> object:
    kind = tflite.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = opened(tflite, models, "two", experimental_op_resolver_type=kind)
    return interpreter._get_op_details(index)
