"""Making an interpreter: where the model comes from, threads, resolvers, flags."""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np

from tests.compat.models import DAMAGED, Models
from tests.compat.observe import attempt, each, opened, ready, results, scenario

X = np.array([[-1, 0, 2, 3]], np.float32)


def _answers(interpreter: Any) -> object:
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, X)
    interpreter.invoke()
    return results(interpreter)


@scenario
def model_from_a_path_string(tflite: Any, models: Models) -> object:
    return _answers(tflite.Interpreter(model_path=str(models.file("static"))))


@scenario
def model_from_a_path_object(tflite: Any, models: Models) -> object:
    return _answers(tflite.Interpreter(model_path=models.file("static")))


@scenario
def model_from_a_bytes_path(tflite: Any, models: Models) -> object:
    return _answers(tflite.Interpreter(model_path=os.fsencode(models.file("static"))))


@scenario
def model_path_by_position(tflite: Any, models: Models) -> object:
    return _answers(tflite.Interpreter(str(models.file("static"))))


@scenario
def model_content_by_position(tflite: Any, models: Models) -> object:
    return _answers(tflite.Interpreter(None, models["static"]))


@scenario
def model_path_that_is_a_number(tflite: Any, models: Models) -> object:
    return tflite.Interpreter(model_path=5)


@scenario
def model_path_that_is_an_open_file(tflite: Any, models: Models) -> object:
    with models.file("static").open("rb") as file:
        return tflite.Interpreter(model_path=file)


@scenario
def model_content_in_a_bytearray(tflite: Any, models: Models) -> object:
    return tflite.Interpreter(model_content=bytearray(models["static"]))


@scenario
def model_content_in_a_memoryview(tflite: Any, models: Models) -> object:
    return tflite.Interpreter(model_content=memoryview(models["static"]))


@scenario
def model_content_in_a_string(tflite: Any, models: Models) -> object:
    return tflite.Interpreter(model_content="not bytes")


@scenario
def model_content_in_an_array(tflite: Any, models: Models) -> object:
    return tflite.Interpreter(model_content=np.frombuffer(models["static"], np.uint8))


@scenario
def model_content_in_a_stream(tflite: Any, models: Models) -> object:
    return tflite.Interpreter(model_content=io.BytesIO(models["static"]))


@scenario
def both_path_and_content(tflite: Any, models: Models) -> object:
    return tflite.Interpreter(str(models.file("static")), models["static"])


@scenario
def neither_path_nor_content(tflite: Any, models: Models) -> object:
    return tflite.Interpreter()


@scenario
def empty_path(tflite: Any, models: Models) -> object:
    return tflite.Interpreter(model_path="")


@scenario
def empty_content(tflite: Any, models: Models) -> object:
    return tflite.Interpreter(model_content=b"")


@scenario
def empty_content_beside_a_path(tflite: Any, models: Models) -> object:
    return _answers(tflite.Interpreter(str(models.file("static")), b""))


@scenario
def missing_file(tflite: Any, models: Models) -> object:
    return tflite.Interpreter(model_path=str(models.directory / "none.tflite"))


@scenario
def directory_for_a_file(tflite: Any, models: Models) -> object:
    return tflite.Interpreter(model_path=str(models.directory))


@scenario
def empty_file(tflite: Any, models: Models) -> object:
    return tflite.Interpreter(model_path=str(models.write("empty", b"")))


@scenario
def short_file(tflite: Any, models: Models) -> object:
    return tflite.Interpreter(model_path=str(models.write("short", b"TFL3")))


@scenario
def junk_file(tflite: Any, models: Models) -> object:
    return tflite.Interpreter(model_path=str(models.write("junk", bytes(range(256)))))


@scenario
def junk_content(tflite: Any, models: Models) -> object:
    return tflite.Interpreter(model_content=bytes(range(256)))


@scenario
def content_of_one_byte(tflite: Any, models: Models) -> object:
    return tflite.Interpreter(model_content=b"x")


@scenario
def junk_with_the_identifier(tflite: Any, models: Models) -> object:
    return tflite.Interpreter(model_content=b"\x08\0\0\0TFL3" + bytes(56))


@each(sorted(DAMAGED))
def damaged_content(tflite: Any, models: Models, name: str) -> object:
    return _as_far_as_it_goes(tflite, model_content=models[name])


@each(["identifier", "too_new", "version_2"])
def damaged_file(tflite: Any, models: Models, name: str) -> object:
    return _as_far_as_it_goes(tflite, model_path=str(models.file(name)))


def _as_far_as_it_goes(tflite: Any, **model: Any) -> object:
    made: Any = attempt(tflite.Interpreter, **model)
    if not hasattr(made, "allocate_tensors"):
        return made
    return [attempt(made.get_input_details), attempt(made.allocate_tensors)]


@each([0.1, 0.5, 0.9])
def truncated_file(tflite: Any, models: Models, share: float) -> object:
    content = models["static"]
    path = models.write("cut.tflite", content[: int(share * len(content))])
    return tflite.Interpreter(model_path=str(path))


@each([0.1, 0.5, 0.9])
def truncated_content(tflite: Any, models: Models, share: float) -> object:
    content = models["static"]
    return tflite.Interpreter(model_content=content[: int(share * len(content))])


@each([1, 2, 4, 1000, True])
def threads(tflite: Any, models: Models, count: int) -> object:
    return _answers(tflite.Interpreter(model_content=models["static"], num_threads=count))


@each([0, -1, -2, False])
def too_few_threads(tflite: Any, models: Models, count: int) -> object:
    return tflite.Interpreter(model_content=models["static"], num_threads=count)


@each(["2", 2.0, [1]])
def threads_that_are_no_integer(tflite: Any, models: Models, count: Any) -> object:
    return tflite.Interpreter(model_content=models["static"], num_threads=count)


@scenario
def threads_in_a_numpy_integer(tflite: Any, models: Models) -> object:
    return tflite.Interpreter(model_content=models["static"], num_threads=np.int64(2))


@scenario
def threads_are_checked_before_the_model(tflite: Any, models: Models) -> object:
    return tflite.Interpreter(num_threads=0)


@scenario
def resolver_is_checked_before_threads(tflite: Any, models: Models) -> object:
    return tflite.Interpreter(num_threads=0, experimental_op_resolver_type="fast")


@scenario
def resolver_names_and_values(tflite: Any, models: Models) -> object:
    return [[r.name, r.value] for r in tflite.OpResolverType]


@each(["AUTO", "BUILTIN", "BUILTIN_REF", "BUILTIN_WITHOUT_DEFAULT_DELEGATES"])
def resolver(tflite: Any, models: Models, name: str) -> object:
    kind = tflite.OpResolverType[name]
    return _answers(
        tflite.Interpreter(model_content=models["static"], experimental_op_resolver_type=kind)
    )


@each([None, 1, 7, "AUTO", 2.5])
def resolver_of_another_type(tflite: Any, models: Models, kind: Any) -> object:
    return tflite.Interpreter(model_content=models["static"], experimental_op_resolver_type=kind)


@scenario
def resolver_that_does_not_hash(tflite: Any, models: Models) -> object:
    return tflite.Interpreter(model_content=models["static"], experimental_op_resolver_type=[])


@each(
    [
        "experimental_disable_delegate_clustering",
        "experimental_default_delegate_latest_features",
        "experimental_compress_quantization_zero_points",
        "experimental_disable_delegate_node_fusion",
        "experimental_force_delegate_node_profiling",
    ]
)
def flag(tflite: Any, models: Models, name: str) -> object:
    interpreter = tflite.Interpreter(model_content=models["static"], **{name: True})
    return [_answers(interpreter), interpreter.experimental_compress_quantization_zero_points]


@each(["yes", None, 3, "object"])
def flag_that_is_no_boolean(tflite: Any, models: Models, value: Any) -> object:
    given = object() if value == "object" else value
    return _answers(
        tflite.Interpreter(
            model_content=models["static"], experimental_disable_delegate_clustering=given
        )
    )


@each(["AUTO", "BUILTIN", "BUILTIN_REF", "BUILTIN_WITHOUT_DEFAULT_DELEGATES"])
def preserving_warns_where_it_changes_kernels(tflite: Any, models: Models, name: str) -> object:
    interpreter = opened(
        tflite,
        models,
        "static",
        experimental_preserve_all_tensors=True,
        experimental_op_resolver_type=tflite.OpResolverType[name],
    )
    return interpreter.get_input_details()


@scenario
def compressing_is_read_only(tflite: Any, models: Models) -> object:
    interpreter = opened(tflite, models, "static")
    return [
        interpreter.experimental_compress_quantization_zero_points,
        attempt(setattr, interpreter, "experimental_compress_quantization_zero_points", True),
    ]


@scenario
def unknown_keyword(tflite: Any, models: Models) -> object:
    return tflite.Interpreter(model_content=models["static"], threads=2)


@each(["flex", "custom"])
def unknown_operator(tflite: Any, models: Models, name: str) -> object:
    made: Any = attempt(tflite.Interpreter, model_content=models[name])
    if not hasattr(made, "allocate_tensors"):
        return made
    return ["made", attempt(made.allocate_tensors)]


@each(["flex", "custom"])
def unknown_operator_details_before_allocation(tflite: Any, models: Models, name: str) -> object:
    interpreter = tflite.Interpreter(model_content=models[name])
    return [
        interpreter.get_input_details(),
        interpreter.get_output_details(),
        interpreter._get_ops_details(),
    ]


@each(["flex", "custom"])
def unknown_operator_invoked_without_allocation(tflite: Any, models: Models, name: str) -> object:
    interpreter = tflite.Interpreter(model_content=models[name])
    return [
        attempt(interpreter.allocate_tensors),
        attempt(interpreter.invoke),
        attempt(interpreter.allocate_tensors),
    ]


@scenario
def custom_ops_class_without_any(tflite: Any, models: Models) -> object:
    return _answers(tflite.InterpreterWithCustomOps(model_content=models["static"]))


@scenario
def custom_ops_class_with_an_unknown_name(tflite: Any, models: Models) -> object:
    return tflite.InterpreterWithCustomOps(
        custom_op_registerers=["NoSuchRegisterer"], model_content=models["static"]
    )


@scenario
def custom_ops_class_with_a_function(tflite: Any, models: Models) -> object:
    seen: list[str] = []
    interpreter = tflite.InterpreterWithCustomOps(
        custom_op_registerers=[lambda pointer: seen.append(type(pointer).__name__)],
        model_content=models["static"],
    )
    return [_answers(interpreter), seen]


@scenario
def a_model_with_two_inputs_and_outputs(tflite: Any, models: Models) -> object:
    a, b = np.array([1, 2], np.float32), np.array([3, 4], np.float32)
    interpreter = ready(tflite, models, "two", a, b)
    interpreter.invoke()
    return results(interpreter)


@scenario
def the_file_may_go_once_it_is_opened(tflite: Any, models: Models) -> object:
    path = models.file("static")
    interpreter = tflite.Interpreter(model_path=str(path))
    path.unlink()
    return _answers(interpreter)
