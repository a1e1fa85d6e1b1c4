"""One start of one network: a program, so that its processor time and its memory are its own.

    python -m benchmarks.footprint_start SUBJECT MODEL INPUTS [CACHE]

SUBJECT is `llvm`, an engine by its own interface (`litert`, `onnxruntime`, `openvino`), or another
device of Penstock's. INPUTS is an `.npz` file of arrays. It prints one line of JSON: the greatest
resident memory (`peak_mib`), of `llvm` what `ours` returns, and of another device what `device`
returns.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.measuring import other_shapes

if TYPE_CHECKING:
    from penstock import CompiledModel

RUNTIME: Final = ("hashlib", "penstock.partitioning.placement", "penstock.cache.directory")
"""What the runtime itself imports in every start from the cache: no part of the driver."""

AGAIN: Final = 7
"""Further loads of an entry in the same process, whose median is the time of a load."""


ENGINES: Final = {
    "litert": "copying_litert",
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
}
"""Functions of `benchmarks.competitors`."""


def main(subject: str, model: str, inputs: str, cache: str = "") -> None:
    import numpy as np

    with np.load(inputs) as file:
        given = [file[name] for name in sorted(file.files, key=int)]
    found: dict[str, Any] = {}
    if subject == "llvm":
        found = ours(Path(model), given, cache)
    elif subject in ENGINES:
        from benchmarks import competitors

        getattr(competitors, ENGINES[subject])(Path(model), 1, given)(given)
        found["peak_mib"] = peak_mib()
    else:
        found = device(subject, model, given, cache)
    print(json.dumps(found))


def device(name: str, path: str, inputs: Sequence[Any], cache: str) -> dict[str, Any]:
    """Compiles or loads a network for that device and runs it once: whether it runs all of it."""
    import penstock
    from benchmarks import competitors

    # Imported where an engine runs by its own interface, too.
    assert set(ENGINES.values()) <= set(dir(competitors))
    compiled = penstock.compile(
        path, devices=[name, "reference"], cache=cache, num_threads=1, isolate=False,
        shapes={at: array.shape for at, array in enumerate(inputs)},
        policy=penstock.Policy(accuracy="relaxed"),
    )  # fmt: skip
    compiled.run([*inputs])
    whole = {step.device for step in compiled.plan.steps} == {name}
    return {"peak_mib": peak_mib(), "whole": whole, "plan": str(compiled.receipt.plan)}


def ours(path: Path, inputs: Sequence[Any], cache: str) -> dict[str, Any]:
    """Compiles or loads a network and runs it once. Processor milliseconds: from Penstock's import
    until the network is compiled (`start_ms`), the driver's part of it (`driver_ms`, its import
    included), and further loads from the cache (`load_ms`). Bytes of code and of constants.
    """
    began = time.process_time()
    import penstock

    model = penstock.load(path)
    watch = Watch()

    def start() -> CompiledModel:
        return penstock.compile(
            model, devices=["llvm", "reference"], shapes=other_shapes(model, inputs) or None,
            cache=cache or False, policy=penstock.Policy(accuracy="exact"), num_threads=1,
            isolate=False,
        )  # fmt: skip

    compiled = start()
    start_ms = (time.process_time() - began) * 1000
    driver_ms = watch.spent
    compiled.run([*inputs])
    found: dict[str, Any] = {
        "start_ms": start_ms,
        "driver_ms": driver_ms,
        "peak_mib": peak_mib(),
        "whole": {step.device for step in compiled.plan.steps} == {"llvm"},
        "compiles": compiled.receipt.compiles,
        "llvm": "llvmlite" in sys.modules,
        "code": watch.code,
        "constants": watch.constants,
    }
    if not compiled.receipt.compiles:
        loads = []
        for _ in range(AGAIN):
            compiled.close()
            watch.loads.clear()
            compiled = start()
            compiled.run([*inputs])
            loads += watch.loads
        found["load_ms"] = sorted(loads)[len(loads) // 2] if loads else None
    return found


class Watch:
    """Counts the processor milliseconds inside the driver, and the sizes of what it saves."""

    def __init__(self) -> None:
        for name in RUNTIME:
            import_module(name)
        began = time.process_time()
        from penstock.drivers.llvm import LlvmDevice, artefact

        self.spent = (time.process_time() - began) * 1000
        self.loads: list[float] = []
        self.code = self.constants = 0
        for name in ("check", "supported_operations", "prepare_model", "prepare_model_from_cache"):
            setattr(LlvmDevice, name, self._timed(getattr(LlvmDevice, name), name))
        pack = artefact.pack

        def packed(manifest: artefact.Manifest, code: bytes, constants: memoryview) -> Any:
            self.code, self.constants = len(code), len(constants)
            return pack(manifest, code, constants)

        artefact.pack = packed

    def _timed(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        def timed(*arguments: Any, **keywords: Any) -> Any:
            began = time.process_time()
            try:
                return method(*arguments, **keywords)
            finally:
                took = (time.process_time() - began) * 1000
                self.spent += took
                if name == "prepare_model_from_cache":
                    self.loads.append(took)

        return timed


def peak_mib() -> float:
    """The greatest resident memory of this process so far (Linux)."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise OSError("the system does not tell the greatest memory of a process")


if __name__ == "__main__":
    main(*sys.argv[1:])
