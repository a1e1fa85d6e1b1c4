"""Writes the shipped tables of what operations cost, and the times that they were made from:
`python tools/ship_costs.py [DEVICE ...] [THREADS ...]`.

Measures Penstock's own devices on this machine, which should do nothing else, for 1 and 2 threads,
and writes the tables of its sort of processor. Each device, class and number of threads has a
process of its own, in which the device computes too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from penstock.threads import VARIABLES

ROOT: Final = Path(__file__).resolve().parent.parent
TABLES: Final = ROOT / "src/penstock/runtime/calibration/shipped.json"
TIMES: Final = ROOT / "src/penstock/runtime/calibration/shipped_times.json"

MEASURED: Final = (
    ("llvm", "stepwise", "any"),
    ("xnnpack", "stepwise", "any"),
    ("xnnpack", "exact", "exact"),
    ("onnxruntime-cpu", "stepwise", "any"),
    ("onnxruntime-cpu", "relaxed", "relaxed"),
    ("openvino-cpu", "stepwise", "any"),
    ("openvino-cpu", "relaxed", "relaxed"),
    ("reference", "stepwise", "any"),
    ("webgpu-software", "stepwise", "any"),
)
"""Device, the class in which it is measured, and the class for which the table holds."""

SECONDS: Final = 3600.0
"""More processor time than all samples take. Most of it compiles shaders."""

RASTERISER: Final = "LP_NUM_THREADS"
"""The variable that tells lavapipe its number of threads."""


def main(*words: str) -> None:
    from penstock.runtime.calibration.tables import sort_of_processor

    threads = [word for word in words if word.isdigit()]
    devices = {word for word in words if not word.isdigit()}

    files = TABLES, TIMES
    every = [json.loads(f.read_text(encoding="utf-8")) if f.is_file() else {} for f in files]
    tables, times = (each.setdefault(sort_of_processor(), {}) for each in every)
    for count in threads or ("1", "2"):
        for device, accuracy, label in MEASURED:
            if devices and device not in devices:
                continue
            print(device, accuracy, count, flush=True)
            table, found = measured(device, accuracy, count)
            # A device may refuse the sample of a step in a class.
            step = table["step_ns"] or tables[f"{device} any"][count]["step_ns"]
            tables.setdefault(f"{device} {label}", {})[count] = {**table, "step_ns": step}
            times.setdefault(f"{device} {label}", {})[count] = found
            for file, content in zip(files, every, strict=True):
                file.write_text(text_of(content), encoding="utf-8")


def measured(
    device: str, accuracy: str, threads: str
) -> tuple[Mapping[str, Any], Mapping[str, float]]:
    """The table that a process of its own measures, and the nanoseconds of each sample."""
    done = subprocess.run(
        [sys.executable, __file__, "--one", device, accuracy, threads],
        env={**os.environ, **dict.fromkeys((*VARIABLES, RASTERISER), threads)},
        stdout=subprocess.PIPE,
        check=True,
    )
    table, times = json.loads(done.stdout)
    return table, times


def measure(device: str, accuracy: Any, threads: int) -> None:
    """Prints the table of one device, and the times of its samples."""
    from penstock.runtime.calibration.fitting import as_plain, fit
    from penstock.runtime.calibration.samples import samples
    from penstock.runtime.calibration.timing import time_samples
    from penstock.runtime.discovery import manager

    if sys.platform == "linux":
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])
    (found,) = manager.choose([device], isolate=False)
    timings = time_samples(found, samples(), accuracy, threads, seconds=SECONDS)
    times = {timing.name: round(timing.ns) for timing in timings}
    print(json.dumps([as_plain(fit(timings, None, "")), times]))


def text_of(tables: Mapping[str, Any]) -> str:
    """JSON with one line for each cell, so that differences can be read."""

    def lines(value: Any) -> str:
        if not isinstance(value, Mapping):
            return json.dumps(value, separators=(",", ":"))
        inner = ",\n".join(f'"{k}":{lines(v)}' for k, v in sorted(value.items()))
        return f"{{\n{inner}\n}}"

    return lines(tables) + "\n"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        measure(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main(*sys.argv[1:])
