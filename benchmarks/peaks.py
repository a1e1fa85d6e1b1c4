"""The greatest memory of a process that runs a network on an engine through Penstock, beside that
of the engine by its own Python interface.

    python -m benchmarks.peaks --results benchmarks/results/peaks.md

Penstock finds the plan in its cache, and what the engine compiled, if that engine has a cache.
"""

from __future__ import annotations

import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import machine
from benchmarks.engine_race import draw, recorded
from benchmarks.engines import networks
from benchmarks.footprint import started, write_table
from benchmarks.measuring import Row

NAME: Final = "peaks"
LIMIT_MIB: Final = 15.0
QUICK: Final = ("mobilenet_v2_1.0_224_int8_tf2",)
ENGINES: Final = {
    "tflite": {"xnnpack": "litert", "openvino-cpu": "openvino"},
    "onnx": {"onnxruntime-cpu": "onnxruntime"},
}
"""The devices for the networks of each format, and their engines' own interfaces."""

HEAD: Final = """\
Written by `python -m benchmarks.peaks`. Each network starts on one core, a process each: through
Penstock, on the device alone, with a filled cache, and by the engine's own Python interface. `peak`
is the greatest resident memory of the process, which runs the network once. Networks of which the
device does not run all operations are left out. **over**: beyond the limit of 15 MiB."""


def main() -> int:
    """Prints every row and writes the table. Returns 1 if a limit does not hold."""
    return write_table(NAME, __doc__, measured, lambda one: [judged(one)], document)


def rows(*, quick: bool) -> list[Row]:
    """The rows of every network of the corpus, or of one. Empty without the corpus."""
    return [judged(one) for one in measured(QUICK if quick else ())]


def measured(only: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """The peaks of each network and engine: `ours` and `own`, in MiB."""
    import numpy as np

    for entry in networks(only):
        path = Path(entry["path"])
        inputs = recorded(path) or draw(path)
        if any(array.dtype == object for array in inputs):
            continue
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as place:
            arrays = str(Path(place, "inputs.npz"))
            np.savez(arrays, **{str(at): array for at, array in enumerate(inputs)})
            for device, engine in ENGINES[entry["format"]].items():
                given = place, device, str(path), arrays, str(Path(place, "cache"))
                cold = started(*given)
                if cold is None or not cold["whole"]:
                    continue
                warm, own = started(*given), started(place, engine, str(path), arrays)
                if warm is None or own is None:
                    continue
                if warm["plan"] != "hit":
                    raise RuntimeError(f"{entry['id']} on {device} found no plan: {warm['plan']}")
                found = {"ours": warm["peak_mib"], "cold": cold["peak_mib"]}
                yield {"id": entry["id"], "device": device, **found, "own": own["peak_mib"]}


def judged(one: dict[str, Any]) -> Row:
    """The row of one network on one engine."""
    note = f"{one['ours']:.0f} MiB over {one['own']:.0f}; {one['cold']:.0f} where it is compiled"
    more = one["ours"] - one["own"]
    return Row(NAME, f"{one['id']} on {one['device']}: peak", more, "MiB", LIMIT_MIB, note)


def document(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The Markdown of the table."""
    yield "# The greatest memory of engines through Penstock"
    yield ""
    yield from HEAD.splitlines()
    yield ""
    yield f"- processor: {machine.processor()}"
    yield f"- system: {platform.system()} {platform.release()} {platform.machine()}"
    yield f"- python: {platform.python_version()}"
    versions = ", ".join(f"{name} {number}" for name, number in machine.installed().items())
    yield f"- versions: {versions}"
    yield f"- code: {machine.code()}"
    yield ""
    yield "| network | device | peak MiB | where it is compiled | engine alone | more | |"
    yield "|---|---|---|---|---|---|---|"
    for one in found:
        cells = [f"{one[k]:.0f}" for k in ("ours", "cold", "own")]
        mark = "**over**" if judged(one).met is False else ""
        more = f"{one['ours'] - one['own']:+.0f}"
        yield f"| {one['id']} | {one['device']} | {' | '.join(cells)} | {more} | {mark} |"


if __name__ == "__main__":
    sys.exit(main())
