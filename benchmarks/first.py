"""The first output beside LiteRT's: from the start of a process, Python and NumPy included, with
one thread and a filled cache.

The limits hold for the difference of each pair of starts, by wall time and by processor time.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from benchmarks import machine
from benchmarks.measuring import ROOT, Row, corpus_model, interleaved
from benchmarks.starts import Start

NAME: Final = "first"
NETWORKS: Final = {
    "ResNet-8": "resnet8_cifar10_int8",
    "MobileNetV2 int8": "mobilenet_v2_1.0_224_int8_tf2",
    "SSD-MobileNetV1": "ssd_mobilenet_v1_coco_uint8",
}
DRIVERS: Final = 10
LITERT: Final = "LiteRT"
DEFAULT: Final = "compile"
ENGINES: Final = {"llvm": "llvm", "xnnpack": "xnnpack,reference"}
"""The devices of further starts, by their names."""
DECLARED: Final = "compile with the shapes of the file"
"""Of a network of open batch; the other starts give the shape of their run."""
FOREIGN: Final = f"compile with {DRIVERS} further drivers"
LIMIT_MS: Final = 10.0
XNNPACK_LIMIT_MS: Final = 35.0
"""Milliseconds above LiteRT. For a network on `xnnpack` LiteRT is loaded too, and packs weights."""
FOREIGN_LIMIT_MS: Final = 3.0
"""Milliseconds above the same start without drivers of other distributions."""


def rows(*, quick: bool) -> list[Row]:
    """Milliseconds of each network's starts above LiteRT's."""
    if find_spec("ai_edge_litert") is None:
        return []
    found: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as place:
        foreign = drivers(Path(place, "site"))
        for name, stem in NETWORKS.items():
            if (model := corpus_model(stem)) is not None:
                found += beside(name, str(model), Path(place), foreign, 5 if quick else 15)
    return found


def drivers(place: Path) -> str:
    """A directory with distributions of one driver each; importing it takes a process's start."""
    for number in range(DRIVERS):
        metadata = place / f"toy_driver_{number}-1.0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Name: toy-driver-{number}\nVersion: 1.0\n", "utf-8")
        module = f"toy_driver_{number}"
        entry = f"[penstock.drivers]\ntoy{number} = {module}:create\n"
        (metadata / "entry_points.txt").write_text(entry, "utf-8")
        (place / f"{module}.py").write_text(
            "from penstock.drivers.null import NullDevice\n\n\n"
            f"class Toy(NullDevice):\n    name = 'toy{number}'\n\n\n"
            "def create():\n    return Toy()\n",
            "utf-8",
        )
    return str(place)


def beside(name: str, model: str, place: Path, foreign: str, rounds: int) -> Iterator[Row]:
    """The rows of one network."""
    own = {
        "PENSTOCK_STATE_DIR": str(place / "state"),
        "PENSTOCK_KEY_STORE": "file",
        "OMP_NUM_THREADS": "1",
    }
    cache = str(place / "cache")
    shape = shape_of(model)
    ours = (cache, "faithful", "1", shape)
    path = {"PYTHONPATH": os.pathsep.join([str(ROOT), foreign])}
    starts = {
        LITERT: Start("litert_start", (model,), own),
        DEFAULT: Start("penstock_start", (model, "", *ours), own),
        **{
            f"compile on {name}": Start("penstock_start", (model, devices, *ours), own)
            for name, devices in ENGINES.items()
        },
        "Interpreter": Start("interpreter_start", (model, "", cache), own),
        **{
            f"Interpreter on {name}": Start("interpreter_start", (model, devices, cache), own)
            for name, devices in ENGINES.items()
        },
        FOREIGN: Start("penstock_start", (model, "", *ours), {**own, **path}),
    }
    if shape:
        starts[DECLARED] = Start("penstock_start", (model, "", cache, "faithful", "1", ""), own)
    reports: dict[str, dict[str, Any]] = {}
    worked: dict[str, list[float]] = {}
    for _ in range(2):
        for subject, start in starts.items():
            reports[subject] = start.run()
            worked[subject] = []
    if planned := [n for n in reports if reports[n].get("plan", "hit") != "hit"]:
        raise RuntimeError(f"{name}: {', '.join(planned)} found no kept plan")

    def timed(subject: str) -> Callable[[], float]:
        def once() -> float:
            found = starts[subject].run()
            worked[subject].append(found["start_ms"])
            return float(found["wall_ms"])

        return once

    load = machine.load()
    walls = interleaved({subject: timed(subject) for subject in starts}, rounds)
    for clock, times in (("wall", walls), ("processor", worked)):
        yield Row(
            NAME,
            f"{name}: {LITERT}, {clock}",
            statistics.median(times[LITERT]),
            "ms",
            None,
            f"{half(times[LITERT])}; load {load:.1f}" if load is not None else half(times[LITERT]),
        )
        for subject in starts:
            if subject == LITERT:
                continue
            # An interpreter does not tell its devices: they are those of the same compile.
            devices = reports[subject.replace("Interpreter", DEFAULT)]["devices"]
            base, limit = LITERT, XNNPACK_LIMIT_MS if "xnnpack" in devices else LIMIT_MS
            if subject == FOREIGN:
                base, limit = DEFAULT, FOREIGN_LIMIT_MS
            more = [a - b for a, b in zip(times[subject], times[base], strict=True)]
            note = f"{statistics.median(times[subject]):.0f}; middle half {half(more)}"
            note += f"; on {' and '.join(devices)}"
            measure = f"{name}: {subject} over {base}, {clock}"
            yield Row(NAME, measure, statistics.median(more), "ms", limit, note)


def shape_of(model: str) -> str:
    """The shape of the first input if the model leaves its batch open; else an empty text."""
    import penstock

    shape = penstock.load(model).inputs[0].shape or ()
    return ",".join(str(d or 1) for d in shape) if None in shape else ""


def half(values: Sequence[float]) -> str:
    """The middle half of *values*."""
    first, _, last = statistics.quantiles(values, n=4)
    return f"{first:.0f} to {last:.0f}"
