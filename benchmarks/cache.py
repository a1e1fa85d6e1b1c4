"""Warm starts from the compilation cache, compared with cold starts, OpenVINO's cache, LiteRT and
bare NumPy.

For small networks the figure is wall time: the best of interleaved starts, because other load on
the machine only ever adds to it. Processor time would also count the time that NumPy's linear
algebra threads spend waiting for work.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.measuring import Row, corpus_model, interleaved, medians
from benchmarks.models.mobilenet import mobilenet_v2
from benchmarks.starts import Held, Start
from penstock.export import tflite
from penstock.ir import DType, ModelBuilder

NAME = "cache"
ADDED_LIMIT_MS: Final = 40.0
PROCESSES: Final = 8
NETWORK = "mobilenet_v2_1.0_224_int8_tf2"


def rows(*, quick: bool) -> list[Row]:
    """Latency of starts and memory of processes.

    Milliseconds from a process's start to its first output, the phases of that time, and ratios;
    MiB of processes that have one network loaded.
    """
    rounds = 3 if quick else 15
    found = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as place:
        directory = Path(place)
        found += _small(directory, 2 * rounds + 1)
        for name, model, accuracy in _networks(directory):
            if find_spec("openvino") is not None:
                found += _network(name, model, accuracy, directory / "cache", rounds)
                found += _memory(name, model, accuracy, directory / "cache")
    return found


def _networks(directory: Path) -> Iterator[tuple[str, Path, str]]:
    if (path := corpus_model(NETWORK)) is not None:
        yield "MobileNetV2 int8", path, "relaxed"
    path = directory / "mobilenet_v2_float.tflite"
    path.write_bytes(mobilenet_v2())
    yield "MobileNetV2 float", path, "relaxed"


def _small(directory: Path, rounds: int) -> list[Row]:
    """A warm start on `sample`. Its own work is almost nothing, so this is Penstock's overhead over
    Python and NumPy.
    """
    model = directory / "small.tflite"
    model.write_bytes(small())
    cache, state = str(directory / "small"), str(directory / "state")
    stored = {"PENSTOCK_STATE_DIR": state, "PENSTOCK_KEY_STORE": "auto"}
    filed = {"PENSTOCK_STATE_DIR": state, "PENSTOCK_KEY_STORE": "file"}
    arguments = (str(model), "sample", cache)
    subjects = {
        "Python and NumPy": Start("bare", ()),
        "the model read and hashed": Start("hashed", (str(model),)),
        "warm, key store off": Start("penstock_start", arguments, filed),
        "warm, key store on": Start("penstock_start", arguments, stored),
        "warm, every device": Start("penstock_start", (str(model), "", cache), filed),
        "cold": Start("penstock_start", (*arguments[:2], ""), filed),
    }
    if find_spec("ai_edge_litert") is not None:
        subjects["LiteRT"] = Start("litert_start", (str(model),))
    for start in (*subjects.values(), *subjects.values()):
        start.run()
    warm = subjects["warm, key store off"].run()
    if warm["compiles"]:
        raise RuntimeError(f"a warm start compiled: {warm['cache']}")
    worked: dict[str, list[float]] = {name: [] for name in subjects}
    walls = interleaved({n: _started(s, worked[n]) for n, s in subjects.items()}, rounds)
    best = {name: min(values) for name, values in walls.items()}
    half, busy = medians(walls), medians(worked)
    base, read = "Python and NumPy", "the model read and hashed"
    made = [
        Row(
            NAME,
            f"small network: {base}, from the process's start",
            best[base],
            "ms",
            note=f"median {half[base]:.1f}; processor {busy[base]:.1f}",
        )
    ]
    for name in subjects:
        if name != base:
            allowed = max(0.0, best[read] - best[base]) + ADDED_LIMIT_MS
            made.append(
                Row(
                    NAME,
                    f"small network, over that: {name}",
                    best[name] - best[base],
                    "ms",
                    allowed if name == "warm, key store off" else None,
                    f"median {half[name] - half[base]:.1f}; processor "
                    f"{busy[name] - busy[base]:.1f}",
                )
            )
    return made + _phases(arguments, filed, rounds)


def _started(start: Start, worked: list[float]) -> Callable[[], float]:
    """Wall time from the process's start to the first output, without the driver's execution.

    Adds the processor time to *worked*.
    """

    def run() -> float:
        told = start.run()
        execution = told.get("execution_ms", 0.0)
        worked.append(float(told["start_ms"] - execution))
        return float(told["wall_ms"] - execution)

    return run


def _phases(arguments: tuple[str, ...], environment: dict[str, str], rounds: int) -> list[Row]:
    """The phases of a warm start and their times."""
    modules = Start("penstock_modules", arguments, environment).run()["modules"]
    start = Start("penstock_phases", arguments, environment, json.dumps(modules) + "\n")
    start.run()
    each: dict[str, list[float]] = {}
    for _ in range(rounds):
        for phase, took in start.run()["phases"].items():
            each.setdefault(phase, []).append(took)
    made = [
        Row(NAME, f"  of it: {phase}", statistics.median(took), "ms")
        for phase, took in each.items()
    ]
    return sorted(made, key=lambda row: -row.value)


def small() -> bytes:
    """Two dense layers, float32[1, 64] to float32[1, 10]."""
    builder = ModelBuilder()
    rng = np.random.default_rng(7)
    x = builder.input(DType.FLOAT32, (1, 64), "x")
    for outputs, inputs in ((32, 64), (10, 32)):
        weights = builder.constant(rng.standard_normal((outputs, inputs)).astype(np.float32))
        made = (DType.FLOAT32, (1, outputs))
        (x,) = builder.operation("FULLY_CONNECTED", [x, weights, None], [made])
    return tflite.write(builder.build([x]))


def _network(name: str, model: Path, accuracy: str, cache: Path, rounds: int) -> list[Row]:
    """Cold and warm starts of one network, alternating. A cold start finds an empty directory."""
    state = str(cache / "state")
    environment = {"PENSTOCK_STATE_DIR": state, "PENSTOCK_KEY_STORE": "file"}
    cold, warm, own = cache / "cold", cache / "warm", cache / "openvino"
    ours = (str(model), "openvino-cpu")
    starts = {
        "cold": Start("penstock_start", (*ours, str(cold), accuracy), environment),
        "warm": Start("penstock_start", (*ours, str(warm), accuracy), environment),
        "warm, every device": Start(
            "penstock_start", (str(model), "", str(warm), accuracy), environment
        ),
        "OpenVINO, cold": Start("openvino_start", (str(model), str(cache / "none"))),
        "OpenVINO, its own cache": Start("openvino_start", (str(model), str(own))),
    }
    if find_spec("ai_edge_litert") is not None:
        starts["LiteRT"] = Start("litert_start", (str(model),))
    compiling: dict[str, list[float]] = {n: [] for n in starts}

    def run(label: str) -> Callable[[], float]:
        def once() -> float:
            for directory in (cold, cache / "none"):
                shutil.rmtree(directory, ignore_errors=True)
            told = starts[label].run()
            compiling[label].append(told["compile_ms"])
            _expect(label, told)
            return float(told["start_ms"])

        return once

    for start in (*starts.values(), *starts.values()):
        start.run()
    found = medians(interleaved({n: run(n) for n in starts}, max(3, rounds // 2)))
    within = medians(compiling)
    made = [Row(NAME, f"{name}: {n}, to the first output", v, "ms") for n, v in found.items()]
    made += [Row(NAME, f"{name}: {n}, the compile in it", v, "ms") for n, v in within.items()]
    for other in starts:
        if other != "warm":
            made.append(Row(NAME, f"{name}: warm over {other}", found["warm"] / found[other], "x"))
    made.append(
        Row(NAME, f"{name}: warm over cold, the compile", within["warm"] / within["cold"], "x")
    )
    return made


def _expect(label: str, told: dict[str, Any]) -> None:
    wanted = {"cold": 1, "warm": 0}.get(label)
    if wanted is not None and bool(told["compiles"]) != bool(wanted):
        raise RuntimeError(f"a {label} start made {told['compiles']} compiles: {told['cache']}")


def _memory(name: str, model: Path, accuracy: str, cache: Path) -> list[Row]:
    """MiB that each additional process needs when it loads and runs the same network.

    Averaged over the second to the eighth process.
    """
    if not Path("/proc/self/smaps_rollup").exists():
        return []
    environment = {"PENSTOCK_STATE_DIR": str(cache / "state"), "PENSTOCK_KEY_STORE": "file"}
    ours = (str(model), "openvino-cpu", str(cache / "warm"), accuracy)
    subjects = {
        "warm": Start("penstock_start", ours, environment),
        "OpenVINO, its own cache": Start("openvino_start", (str(model), str(cache / "openvino"))),
    }
    if find_spec("ai_edge_litert") is not None:
        subjects["LiteRT"] = Start("litert_start", (str(model),))
    made = []
    for label, start in subjects.items():
        with ExitStack() as stack:
            first = stack.enter_context(Held(start))
            alone = first.memory()
            others = [stack.enter_context(Held(start)) for _ in range(PROCESSES - 1)]
            together = sum(h.memory()["pss"] for h in (first, *others))
            private = statistics.median(h.memory()["private"] for h in others)
        extra = (together - alone["pss"]) / (PROCESSES - 1)
        made += [
            Row(NAME, f"{name}: {label}, the first process", alone["pss"], "MiB"),
            Row(
                NAME,
                f"{name}: {label}, each of 7 more",
                extra,
                "MiB",
                note=f"{private:.1f} private",
            ),
        ]
    return made
