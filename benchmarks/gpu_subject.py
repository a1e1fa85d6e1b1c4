"""One subject of `benchmarks.gpu`, in a process of its own: an error in WebGPU may end a process.

    python gpu_subject.py SUBJECT MODEL INPUTS.npz [CACHE]

Prints one line of JSON when the first outputs are there. Then each line of its input asks for a
number of runs, and it answers with their seconds. It imports nothing of Penstock's but for the
subject `penstock`, so that the others run in another environment.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

WARM_RUNS: Final = 10
"""Runs after which Penstock measures the shapes of threads, and two more."""

Array = Any
Call = Callable[[], Sequence[Array]]


def penstock(path: str, inputs: Sequence[Array], cache: str) -> tuple[Call, str]:
    """The device `webgpu-software`, in this process, as the others are in theirs."""
    import penstock

    model = penstock.load(path)
    shapes = {k: a.shape for k, a in enumerate(inputs) if model.inputs[k].shape != a.shape}
    compiled = penstock.compile(
        model,
        devices=["webgpu-software"],
        cache=cache or False,
        isolate=False,
        shapes=shapes or None,
        policy=penstock.Policy(accuracy="exact", allow_fallback=False),
    )
    given, count = list(inputs), len(compiled.outputs)

    def run() -> list[Array]:
        found = compiled.run(given)
        return [found[k] for k in range(count)]

    return run, str(compiled.plan.summary())


def litert(path: str, inputs: Sequence[Array], cache: str) -> tuple[Call, str]:
    """LiteRT's compiled model on its WebGPU accelerator."""
    del cache
    from ai_edge_litert.compiled_model import CompiledModel
    from ai_edge_litert.hardware_accelerator import HardwareAccelerator

    model = CompiledModel.from_file(path, hardware_accel=HardwareAccelerator.GPU)
    if not model.is_fully_accelerated():
        raise RuntimeError("the accelerator does not take every operation")
    signature = model.get_signature_by_index(0)
    sources, targets = model.create_input_buffers(0), model.create_output_buffers(0)
    named = model.get_input_tensor_details(signature["key"])
    places = [named[name] for name in signature["inputs"]]
    made = model.get_output_tensor_details(signature["key"])
    results = [made[name] for name in signature["outputs"]]
    if [tuple(p["shape"]) for p in places] != [a.shape for a in inputs]:
        raise RuntimeError("inputs of other shapes, or in another order")

    def run() -> list[Array]:
        for buffer, array in zip(sources, inputs, strict=True):
            buffer.write(array)
        model.run_by_index(0, sources, targets)
        return [
            buffer.read(int(np.prod(place["shape"])), np.dtype(place["dtype"]).type)
            for buffer, place in zip(targets, results, strict=True)
        ]

    return run, "fully accelerated"


def onnxruntime(path: str, inputs: Sequence[Array], cache: str) -> tuple[Call, str]:
    """ONNX Runtime on its WebGPU provider alone."""
    del cache
    import onnxruntime as ort  # type: ignore[import-untyped]  # it is published without types

    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    session = ort.InferenceSession(path, options, providers=["WebGpuExecutionProvider"])
    names = [place.name for place in session.get_inputs()]
    given = dict(zip(names, inputs, strict=True))
    return (lambda: session.run(None, given)), "no fallback to the processor"


SUBJECTS: Final = {"penstock": penstock, "litert": litert, "onnxruntime": onnxruntime}


def main(subject: str, path: str, inputs: str, cache: str = "") -> None:
    with np.load(inputs, allow_pickle=False) as file:
        arrays = [file[f"in{k}"] for k in range(sum(n.startswith("in") for n in file.files))]
        wanted = [file[f"out{k}"] for k in range(len(file.files) - len(arrays))]
    began = time.perf_counter()
    try:
        run, note = SUBJECTS[subject](path, arrays, cache)
        first = run()
    except Exception as error:  # noqa: BLE001  # whatever it raises is why it does not race
        print(json.dumps({"refused": f"{type(error).__name__}: {str(error)[:300]}"}), flush=True)
        return
    took = time.perf_counter() - began
    off = distance(wanted, first)
    if subject == "penstock":
        tune(run)
    print(json.dumps({"first_s": took, "note": note, "off": off}), flush=True)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            began = time.perf_counter()
            run()
            times.append(time.perf_counter() - began)
        print(json.dumps(times), flush=True)


def tune(run: Call) -> None:
    """Runs until the shapes of threads have been measured, if they are."""
    for _ in range(WARM_RUNS):
        run()
    for thread in threading.enumerate():
        if thread.name == "penstock-webgpu-tuning":
            thread.join()


def distance(wanted: Sequence[Array], got: Sequence[Array]) -> float | None:
    """The greatest difference: of integers in steps, of floats over the largest of the output. None
    where the outputs are not those that were recorded, as of networks with a state.
    """
    if len(wanted) != len(got) or not wanted:
        return None
    worst = 0.0
    for w, g in zip(wanted, got, strict=True):
        if w.size != np.size(g):
            return None
        w64, g64 = (np.asarray(a, np.float64).reshape(-1) for a in (w, g))
        off = float(np.max(np.abs(w64 - g64), initial=0.0))
        if w.dtype.kind == "f":
            off /= max(float(np.max(np.abs(w64), initial=0.0)), 1e-9)
        worst = max(worst, off)
    return worst


if __name__ == "__main__":
    main(*sys.argv[1:])
