"""The engines that race against Penstock, used directly from Python by the fastest path of their
API.

Every engine returns views of memory that its next run overwrites, as `CompiledModel.burst` does. If
its API allows, it reads inputs from the caller's memory without a copy.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from benchmarks.conversion import Converter

Array: TypeAlias = Any
Call: TypeAlias = Callable[[Sequence[Array]], Sequence[Array]]
"""Maps inputs to outputs, both in the network's order. Outputs are valid until the next call."""

Make: TypeAlias = Callable[[Path, int, Sequence[Array]], Call]
"""Makes an engine's call from a file, a number of threads and the shapes of some inputs.

Raises whatever the engine raises.
"""

converted: Final = Converter()


def litert(path: Path, threads: int, inputs: Sequence[Array], *, copies: bool = False) -> Call:
    """LiteRT's interpreter with default settings. Outputs are views of its tensors; with *copies*
    they are arrays of the caller, as `get_tensor` returns them.
    """
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path), num_threads=threads)
    places = interpreter.get_input_details()
    for place, array in zip(places, inputs, strict=True):
        if tuple(place["shape"]) != array.shape:
            interpreter.resize_tensor_input(place["index"], array.shape)
    interpreter.allocate_tensors()
    details = interpreter.get_output_details()
    read = [
        partial(interpreter.get_tensor, place["index"])
        if copies or place["dtype"] is bytes or place["dtype"].__name__ == "bytes_"
        else interpreter.tensor(place["index"])
        for place in details
    ]
    indexes = [place["index"] for place in places]

    def run(given: Sequence[Array]) -> list[Array]:
        for index, array in zip(indexes, given, strict=True):
            interpreter.set_tensor(index, array)
        interpreter.invoke()
        return [output() for output in read]

    return run


def onnxruntime(path: Path, threads: int, inputs: Sequence[Array]) -> Call:
    """ONNX Runtime's session on its CPU provider, with bound inputs and outputs.

    For a `.tflite` file it runs the file that tf2onnx converts it to.
    """
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import numpy as np
    import onnxruntime as ort  # type: ignore[import-untyped]  # it is published without types

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    file = path if path.suffix == ".onnx" else converted(path)
    cpu = ["CPUExecutionProvider"]
    session = ort.InferenceSession(file.read_bytes(), options, providers=cpu)
    if path.suffix == ".tflite" and not takes(session, inputs):
        with tempfile.NamedTemporaryFile(suffix=".tflite") as other:
            other.write(resized(path, inputs))
            other.flush()
            file = converted(Path(other.name))
        session = ort.InferenceSession(file.read_bytes(), options, providers=cpu)
    names = [place.name for place in session.get_inputs()]

    def plain(given: Sequence[Array]) -> Sequence[Array]:
        outputs: Sequence[Array] = session.run(None, dict(zip(names, given, strict=True)))
        return outputs

    first = plain(inputs)
    if any(array.dtype == object for array in (*inputs, *first)) or not fixed(session, first):
        return plain
    outputs = [np.empty_like(array) for array in first]
    binding = session.io_binding()
    for place, array in zip(session.get_outputs(), outputs, strict=True):
        binding.bind_output(place.name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    bound: list[Array] = []

    def run(given: Sequence[Array]) -> Sequence[Array]:
        if not same(given, bound):
            bound[:] = [np.ascontiguousarray(array) for array in given]
            for name, array in zip(names, bound, strict=True):
                binding.bind_cpu_input(name, array)
        session.run_with_iobinding(binding)
        return outputs

    return run


def takes(session: Any, inputs: Sequence[Array]) -> bool:
    """Whether *inputs* have the shapes that the file fixes."""
    return all(
        len(place.shape) == array.ndim
        and all(
            not isinstance(d, int) or d == n for d, n in zip(place.shape, array.shape, strict=True)
        )
        for place, array in zip(session.get_inputs(), inputs, strict=True)
    )


def resized(path: Path, inputs: Sequence[Array]) -> bytes:
    """A `.tflite` file resized to the shapes of *inputs*, as LiteRT does at run time."""
    import penstock
    from penstock.export.tflite import write
    from penstock.ir import infer_shapes

    shapes = {at: array.shape for at, array in enumerate(inputs)}
    return write(infer_shapes(penstock.load(path), shapes))


def fixed(session: Any, outputs: Sequence[Array]) -> bool:
    """Whether the file declares a static, non-empty shape for every output."""
    return all(
        all(isinstance(d, int) for d in place.shape or [None]) and array.size
        for place, array in zip(session.get_outputs(), outputs, strict=True)
    )


def same(given: Sequence[Array], bound: Sequence[Array]) -> bool:
    return len(given) == len(bound) and all(map(lambda a, b: a is b, given, bound))


def openvino(path: Path, threads: int, inputs: Sequence[Array], mode: str = "PERFORMANCE") -> Call:
    """OpenVINO's compiled model, with inputs in its own order.

    Inputs share the caller's memory; outputs are views of OpenVINO's memory. *mode* is its
    execution hint. By default OpenVINO computes float32 in bfloat16 if the processor supports it.
    Under `ACCURACY` it keeps the model's types.
    """
    # None keeps it from being imported.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import numpy as np
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
    compiled = core.compile_model(model, "CPU", settings)
    request = compiled.create_infer_request()
    count = len(compiled.outputs)
    bound: list[Array] = []

    def shared(given: Sequence[Array]) -> list[Array]:
        found = request.infer([*given], share_inputs=True, share_outputs=True)
        return list(found.values())

    if any(array.dtype == object or not array.size for array in inputs):
        return shared

    def run(given: Sequence[Array]) -> list[Array]:
        if not same(given, bound):
            bound[:] = [np.ascontiguousarray(array) for array in given]
            for at, array in enumerate(bound):
                request.set_input_tensor(at, ov.Tensor(array, shared_memory=True))
        request.infer()
        return [request.get_output_tensor(at).data for at in range(count)]

    return run


copying_litert: Final = partial(litert, copies=True)
"""LiteRT by `set_tensor`, `invoke` and `get_tensor`."""

DEFAULT: Final = {".tflite": "litert", ".onnx": "onnxruntime"}
"""The native engine of each format. It always competes."""

READS: Final = {
    "litert": {".tflite"},
    "onnxruntime": {".onnx", ".tflite"},
    "openvino": {".onnx", ".tflite"},
}
"""The formats that each engine runs; ONNX Runtime runs `.tflite` through tf2onnx."""

COMPETITORS: Final[Mapping[str, Mapping[str, Make]]] = {
    "litert": {"": litert},
    "onnxruntime": {"": onnxruntime},
    "openvino": {"": openvino, "accurate": partial(openvino, mode="ACCURACY")},
}
"""The configurations of each engine: the default, then the one to use if that is rejected."""
