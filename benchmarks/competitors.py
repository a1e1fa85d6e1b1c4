"""The engines used directly from Python, which race against Penstock, and what keeps each within a class."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from penstock.testing.operations import OperationCase

Array: TypeAlias = Any
Call: TypeAlias = Callable[[Sequence[Array]], Sequence[Array]]
"""Outputs of inputs, both in the network's order."""


def competitors(
    path: Path, threads: int, accuracy: str, inputs: Sequence[Array]
) -> tuple[dict[str, Call], dict[str, str]]:
    """Each engine that can run the network within the class, as it runs by default or, where that lies beyond the class,
    in the first of its other ways that does not; and why a way was passed over.
    """
    subjects: dict[str, Call] = {}
    refused: dict[str, str] = {}
    for name, ways in COMPETITORS.items():
        for way, make in ways.items():
            subject = f"{name} ({way})" if way else name
            try:
                made = make(path, threads, inputs)
                if made is None:
                    break
                if accuracy == "faithful" and name != DEFAULT[path.suffix]:
                    hold_to_bound(path, make, threads)
                    hold_operations(path, make, threads)
            except Exception as error:  # noqa: BLE001  # an engine that cannot run a network does not compete
                refused[subject] = f"{type(error).__name__}: {str(error)[:200]}"
                continue
            subjects[subject] = made
            break
    return subjects, refused


def hold_to_bound(path: Path, make: Make, threads: int) -> None:
    """Raises `AssertionError` where an engine's recorded cases lie farther off than `faithful` allows."""
    from tests.golden.engine_rules import judge
    from tests.golden.recorded import cases_of_file

    for inputs, judged in cases_of_file(path):
        call = make(path, threads, inputs)
        if call is not None:
            judge([*call(inputs)], judged, "faithful")


def hold_recorded(path: Path, inputs: Sequence[Array], anew: Call) -> None:
    """The same of Penstock's plan, compiled for the shapes of *inputs*, on the recorded cases that have these. *anew* runs
    it from its first state.
    """
    from tests.golden.engine_rules import judge
    from tests.golden.recorded import cases_of_file

    shapes = [array.shape for array in inputs]
    for given, judged in cases_of_file(path):
        if [array.shape for array in given] == shapes:
            judge([*anew(given)], judged, "faithful")


def hold_operations(path: Path, make: Make, threads: int) -> None:
    """Raises `AssertionError` where an engine computes an operation of the network, alone and on what it really gets,
    farther off than `faithful` allows of one: the class is that of every operation, not of whole outputs alone.
    Operations that the engine cannot run by themselves are not judged.
    """
    import penstock
    from penstock.ir import infer_shapes
    from penstock.testing.operations import cases_of, distance
    from tests.golden.recorded import cases_of_file

    inputs = next((given for given, _ in cases_of_file(path)), None)
    if inputs is None:
        return
    model = penstock.load(path)
    if path.suffix == ".tflite":
        # As LiteRT resizes an input beyond what the file declares.
        model = infer_shapes(model, {k: array.shape for k, array in enumerate(inputs)})
    for case in cases_of(model, inputs):
        got = alone(case, make, threads)
        if got is None:
            continue
        found = distance(case, got, "faithful")
        place = f"operation {case.index} ({case.type}, {case.name!r})"
        if found.departs:
            raise AssertionError(f"{place}: {found.show()}")


def alone(case: OperationCase, make: Make, threads: int) -> list[Array] | None:
    """What an engine makes of one operation, None where it cannot run it by itself."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "operation.tflite")
        try:
            file.write_bytes(case.tflite())
            given = case.tflite_inputs
            call = make(file, threads, given)
            if call is None:
                return None
            got = [*call(given)]
        except Exception:  # noqa: BLE001  # whatever an engine raises of a file that it cannot read
            return None
    return got if [a.shape for a in got] == [a.shape for a in case.expected] else None


def litert(path: Path, threads: int, inputs: Sequence[Array]) -> Call | None:
    """LiteRT's interpreter as it runs by default."""
    if path.suffix != ".tflite":
        return None
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path), num_threads=threads)
    places = interpreter.get_input_details()
    for place, array in zip(places, inputs, strict=True):
        if tuple(place["shape"]) != array.shape:
            interpreter.resize_tensor_input(place["index"], array.shape)
    interpreter.allocate_tensors()
    outputs = [place["index"] for place in interpreter.get_output_details()]
    indexes = [place["index"] for place in places]

    def run(given: Sequence[Array]) -> list[Array]:
        for index, array in zip(indexes, given, strict=True):
            interpreter.set_tensor(index, array)
        interpreter.invoke()
        return [interpreter.get_tensor(index) for index in outputs]

    return run


def onnxruntime(path: Path, threads: int, _: Sequence[Array]) -> Call | None:
    """ONNX Runtime's session on its CPU provider."""
    if path.suffix != ".onnx":
        return None
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime as ort  # type: ignore[import-untyped]  # it is published without types

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    names = [place.name for place in session.get_inputs()]
    return lambda given: session.run(None, dict(zip(names, given, strict=True)))


def openvino(path: Path, threads: int, inputs: Sequence[Array], mode: str = "PERFORMANCE") -> Call:
    """OpenVINO's compiled model, in the order of its own inputs. *mode* is its hint of how to execute: by default it
    takes bfloat16 for float32 where the processor has it, under `ACCURACY` it keeps to the model's own types.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None keeps it from being imported
    import openvino as ov  # type: ignore[import-untyped]  # as onnxruntime

    core = ov.Core()
    model = core.read_model(str(path))
    shapes = {port: ov.PartialShape(a.shape) for port, a in zip(model.inputs, inputs, strict=True)}
    if any(port.partial_shape != shape for port, shape in shapes.items()):
        model.reshape(shapes)
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "EXECUTION_MODE_HINT": mode,
    }
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    return lambda given: list(request.infer([*given]).values())


Make: TypeAlias = Callable[[Path, int, Sequence[Array]], Call | None]

DEFAULT: Final = {".tflite": "litert", ".onnx": "onnxruntime"}
"""Whose format it is, and who therefore always competes."""

COMPETITORS: Final[Mapping[str, Mapping[str, Make]]] = {
    "litert": {"": litert},
    "onnxruntime": {"": onnxruntime},
    "openvino": {"": openvino, "accurate": partial(openvino, mode="ACCURACY")},
}
"""The ways to run each engine: as it runs by default, else where the class forbids that as its settings allow."""
