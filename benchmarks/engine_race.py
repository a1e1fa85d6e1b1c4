"""One network, one number of threads, one accuracy class: Penstock's tuned plan and every engine used directly, in turns.

A program of its own, so that each race has a process, and its threads, to itself:

    python -m benchmarks.engine_race MODEL THREADS ACCURACY ROUNDS [DEVICE,...]

It prints one line of JSON: seconds of a run by subject, how far each competitor is from what the class allows, and
what the plan was.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

Array: TypeAlias = Any
Call: TypeAlias = Callable[[Sequence[Array]], Sequence[Array]]
"""Outputs of inputs, both in the network's order."""

TURN_S: Final = 0.05
"""How long a subject runs in its turn, at the least one run."""

REST_S: Final = 0.004
"""Threads of the subject before spin no longer than this."""

OURS: Final = "penstock"


def main(model: str, threads: str, accuracy: str, rounds: str, devices: str = "") -> None:
    use_cores(int(threads))
    path = Path(model)
    inputs = recorded(path) or draw(path)
    call, told = ours(path, int(threads), accuracy, inputs, devices)
    subjects = {OURS: call}
    refused: dict[str, str] = {}
    for name, make in COMPETITORS.items():
        try:
            made = make(path, int(threads), inputs)
            if made is None:
                continue
            if accuracy == "faithful" and name != DEFAULT[path.suffix]:
                hold_to_bound(path, make, int(threads))
        except Exception as error:  # noqa: BLE001  # an engine that cannot run a network does not compete
            refused[name] = f"{type(error).__name__}: {str(error)[:160]}"
            continue
        subjects[name] = made
    times = race({name: partial(call, inputs) for name, call in subjects.items()}, int(rounds))
    print(json.dumps({"times": times, "refused": refused, **told}))


def hold_to_bound(path: Path, make: Make, threads: int) -> None:
    """Raises `AssertionError` where an engine's recorded cases lie farther off than `faithful` allows."""
    from tests.golden.cases import entries
    from tests.golden.engine_rules import judge
    from tests.golden.recorded import judged_cases

    for entry in entries("network", "onnx" if path.suffix == ".onnx" else "tflite"):
        if Path(entry["file"]).name != path.name:
            continue
        for inputs, judged in judged_cases(entry):
            call = make(path, threads, inputs)
            if call is not None:
                judge([*call(inputs)], judged, "faithful")


def recorded(path: Path) -> list[Array]:
    """The first recorded inputs of a network with unknown dimensions behind the first, of which not every size makes
    sense; none of any other.
    """
    import penstock
    from tests.golden.cases import entries
    from tests.golden.recorded import judged_cases

    shapes = [operand.shape for operand in penstock.load(path).inputs]
    if all(shape is not None and None not in shape[1:] for shape in shapes):
        return []
    for entry in entries("network", "onnx" if path.suffix == ".onnx" else "tflite"):
        if Path(entry["file"]).name == path.name:
            return next((inputs for inputs, _ in judged_cases(entry)), [])
    return []


def use_cores(threads: int) -> None:
    """As many cores as threads, before anything that starts threads is imported."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    if sys.platform == "linux":
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])


def race(subjects: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """The median run of each subject's turn in each round; every round begins with another subject."""
    names = list(subjects)
    counts = {}
    for name, run in subjects.items():
        run()
        began = time.perf_counter()
        run()
        took = max(time.perf_counter() - began, 1e-7)
        counts[name] = max(1, min(1000, round(TURN_S / took)))
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for position in range(len(names)):
            name = names[(turn + position) % len(names)]
            time.sleep(REST_S)
            times[name].append(turn_of(subjects[name], counts[name]))
    return times


def turn_of(run: Callable[[], Any], count: int) -> float:
    run()
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        run()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def draw(path: Path) -> list[Array]:
    """Seeded inputs in the shapes and types of the network, unknown dimensions 1."""
    import numpy as np

    import penstock

    rng = np.random.default_rng(0)
    drawn: list[Array] = []
    for operand in penstock.load(path).inputs:
        shape = [d or 1 for d in operand.shape or ()]
        dtype = operand.dtype.numpy
        if dtype.kind == "f":
            drawn.append(rng.uniform(-1, 1, shape).astype(dtype))
        elif dtype.kind == "b":
            drawn.append(rng.integers(0, 2, shape).astype(dtype))
        elif dtype.itemsize == 1:
            drawn.append(rng.integers(0, 256, shape).astype(np.uint8).view(dtype))
        elif dtype.kind in "iu":
            drawn.append(rng.integers(0, 2, shape).astype(dtype))
        else:
            drawn.append(np.full(shape, b"word", object))
    return drawn


def ours(
    path: Path, threads: int, accuracy: str, inputs: Sequence[Array], devices: str
) -> tuple[Call, dict[str, Any]]:
    """Penstock's tuned plan, over every usable device or those named."""
    import penstock

    model = penstock.load(path)
    shapes = {
        operand.name: array.shape
        for operand, array in zip(model.inputs, inputs, strict=True)
        if operand.shape is None or None in operand.shape
    }
    compiled = penstock.compile(
        model,
        devices=devices.split(",") if devices else None,
        shapes=shapes or None,
        policy=penstock.Policy(accuracy=accuracy),  # type: ignore[arg-type]  # told on the command line
        num_threads=threads,
        tune=True,
        cache=os.environ.get("PENSTOCK_CACHE_DIR") or False,
    )
    plan = [(step.device, len(step.operations)) for step in compiled.plan.steps]
    return compiled.run, {"plan": plan}


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


def openvino(path: Path, threads: int, inputs: Sequence[Array]) -> Call:
    """OpenVINO's compiled model, in the order of its own inputs."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None keeps it from being imported
    import openvino as ov  # type: ignore[import-untyped]  # as onnxruntime

    core = ov.Core()
    model = core.read_model(str(path))
    if any(port.partial_shape.is_dynamic for port in model.inputs):
        model.reshape({port: list(a.shape) for port, a in zip(model.inputs, inputs, strict=True)})
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    return lambda given: list(request.infer([*given]).values())


Make: TypeAlias = Callable[[Path, int, Sequence[Array]], Call | None]

DEFAULT: Final = {".tflite": "litert", ".onnx": "onnxruntime"}
"""Whose format it is, and who therefore always competes."""

COMPETITORS: Final[Mapping[str, Make]] = {
    "litert": litert,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
}


if __name__ == "__main__":
    main(*sys.argv[1:])
