"""The programs that `benchmarks.cache` starts: one function each, which prints one line of JSON.

`start_ms` is the processor time of the process until its first output. `clock` is the system's
monotonic clock at that moment (`time.perf_counter`, one clock for all processes). `phases` are its
parts by name, in processor time, so that other load on the machine does not count. Apart from JSON
this module imports nothing that bare Python has not imported.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final


class Phases:
    """Milliseconds by name. The time of an inner phase is subtracted from the outer one."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._open: list[str] = []

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        began = time.process_time()
        self._open.append(name)
        try:
            yield
        finally:
            took = (time.process_time() - began) * 1000
            self._open.pop()
            self.spent[name] = self.spent.get(name, 0.0) + took
            if self._open:
                self.spent[self._open[-1]] = self.spent.get(self._open[-1], 0.0) - took

    def around(self, owner: Any, method: str, name: str) -> None:
        """Counts the calls of *owner*'s method *name*."""
        inner: Callable[..., Any] = getattr(owner, method)

        def timed(*arguments: Any, **keywords: Any) -> Any:
            with self.of(name):
                return inner(*arguments, **keywords)

        setattr(owner, method, timed)


def finish(**told: object) -> None:
    """Prints the measurements. With the argument `hold` it then waits for the end of its input."""
    clock, start_ms = time.perf_counter(), time.process_time() * 1000
    print(json.dumps({"start_ms": start_ms, "clock": clock, **told}), flush=True)
    if "hold" in sys.argv:
        sys.stdin.read()


def bare() -> None:
    """NumPy alone."""
    import numpy as np

    finish(shape=np.zeros(1).shape)


def hashed(model: str) -> None:
    """NumPy, and the model read and hashed."""
    from hashlib import sha256

    import numpy as np

    # Paths take longer to import than this takes to run.
    with open(model, "rb") as file:  # noqa: PTH123
        digest = sha256(file.read()).hexdigest()
    finish(digest=digest, shape=np.zeros(1).shape)


def penstock_start(
    model: str,
    device: str,
    cache: str,
    accuracy: str = "faithful",
    threads: str = "",
    shape: str = "",
) -> None:
    """Penstock, from its import to the first output. *device* is names with commas between them;
    empty for every usable one. *shape* is that of the first input, with commas between dimensions.
    """
    import numpy as np

    import penstock

    before = time.process_time()
    compiled = penstock.compile(
        model,
        devices=device.split(",") if device else None,
        cache=cache or False,
        # Given on the command line.
        policy=penstock.Policy(accuracy=accuracy),  # type: ignore[arg-type]
        num_threads=int(threads) if threads else None,
        shapes={0: tuple(map(int, shape.split(",")))} if shape else None,
    )
    compiling = time.process_time() - before
    (x,) = compiled.inputs
    outputs = compiled(np.zeros([d or 1 for d in x.shape or ()], x.dtype.numpy))
    step, receipt = outputs.receipt.steps[0], compiled.receipt
    finish(
        compile_ms=compiling * 1000,
        execution_ms=(step.driver_ns or 0) / 1e6,
        compiles=receipt.compiles + outputs.receipt.compiles,
        devices=sorted({s.device for s in outputs.receipt.steps}),
        cache=[str(s.cache) for s in receipt.steps],
        plan=str(receipt.plan),
    )


WRAPPED: Final = (
    ("penstock.runtime.discovery", "Manager", "choose", "finding the device"),
    ("penstock.runtime.keeping", "", "case_of", "hashing the file, and what is installed"),
    ("penstock.runtime.keeping", "", "look_up", "reading the kept plan"),
    ("penstock.sealed.seal", "Seal", "load", "reading and verifying the entry"),
    ("penstock.sealed.seal", "Seal", "_trust", "opening the registry"),
    ("penstock.sealed.file_registry", "FileRegistry", "find", "looking into the registry"),
    ("penstock.sealed.keys", "FileKeyStore", "key", "key file"),
    ("penstock.sealed.keys", "KeyringStore", "key", "key store"),
    ("penstock.cache.directory", "CacheDirectory", "open", "opening the entry"),
)
"""Where the time of a warm start goes: functions by module and class, and the phase of each."""


def penstock_phases(model: str, device: str, cache: str) -> None:
    """`penstock_start` with everything imported first, and the time of each phase."""
    import numpy as np

    phases = Phases()
    with phases.of("imports"):
        from importlib import import_module

        for name in json.loads(sys.stdin.readline()):
            import_module(name)
    import penstock

    for module, kind, function, name in WRAPPED:
        owner = sys.modules.get(module)
        if kind:
            owner = getattr(owner, kind, None)
        if owner is not None and hasattr(owner, function):
            phases.around(owner, function, name)
    with phases.of("compiling, the rest of it"):
        compiled = penstock.compile(model, devices=[device], cache=cache or False)
    (x,) = compiled.inputs
    zeros = np.zeros([d or 1 for d in x.shape or ()], x.dtype.numpy)
    with phases.of("first run"):
        compiled(zeros)
    finish(phases=phases.spent, compiles=compiled.receipt.compiles)


def penstock_modules(model: str, device: str, cache: str) -> None:
    """The modules that such a start imports after NumPy's, in order."""
    import numpy as np

    before = set(sys.modules)
    import penstock

    compiled = penstock.compile(model, devices=[device], cache=cache or False)
    (x,) = compiled.inputs
    compiled(np.zeros([d or 1 for d in x.shape or ()], x.dtype.numpy))
    finish(
        compiles=compiled.receipt.compiles,
        modules=[name for name in sys.modules if name not in before],
    )


def interpreter_modules(model: str, device: str, cache: str) -> None:
    """The modules that a start of Penstock's interpreter imports after NumPy's, in order."""
    import numpy as np

    before = set(sys.modules)
    from penstock.tflite import Interpreter

    interpreter = Interpreter(model, devices=[device], cache=cache)
    interpreter.allocate_tensors()
    (x,), (y,) = interpreter.get_input_details(), interpreter.get_output_details()
    interpreter.set_tensor(x["index"], np.zeros(x["shape"], x["dtype"]))
    interpreter.invoke()
    interpreter.get_tensor(y["index"])
    finish(modules=[name for name in sys.modules if name not in before])


def interpreter_start(model: str, device: str, cache: str) -> None:
    """Penstock's interpreter, as `penstock_start`."""
    from penstock.tflite import Interpreter

    chosen = device.split(",") if device else None
    _interpreted(lambda: Interpreter(model, num_threads=1, devices=chosen, cache=cache))


def openvino_start(model: str, cache: str) -> None:
    """OpenVINO's start, with its `CACHE_DIR` at *cache* ("": no cache)."""
    import numpy as np
    import openvino  # type: ignore[import-untyped]  # it is published without types

    core = openvino.Core()
    core.set_property({"INFERENCE_NUM_THREADS": 1} | ({"CACHE_DIR": cache} if cache else {}))
    before = time.process_time()
    compiled = core.compile_model(model, "CPU")
    compiling = time.process_time() - before
    x = compiled.inputs[0]
    compiled([np.zeros(list(x.shape), x.element_type.to_dtype())])
    finish(compile_ms=compiling * 1000)


def litert_start(model: str) -> None:
    """LiteRT's interpreter, from its import to the first output."""
    from ai_edge_litert.interpreter import Interpreter

    _interpreted(lambda: Interpreter(model, num_threads=1))


def _interpreted(make: Callable[[], Any]) -> None:
    """The first outputs of the interpreter that *make* returns."""
    import numpy as np

    before = time.process_time()
    interpreter = make()
    interpreter.allocate_tensors()
    compiling = time.process_time() - before
    for x in interpreter.get_input_details():
        interpreter.set_tensor(x["index"], np.zeros(x["shape"], x["dtype"]))
    interpreter.invoke()
    for y in interpreter.get_output_details():
        interpreter.get_tensor(y["index"])
    finish(compile_ms=compiling * 1000)
