"""What the device llvm costs beside its runs: compile time, size of code, start from the cache,
memory.

    python -m benchmarks.footprint --results benchmarks/results/footprint.md

Each network of the corpus starts three times, a process each on one core: compiled from nothing
into an empty cache, then from the cache, then on the native engine of its format.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import machine
from benchmarks.engine_race import draw, recorded
from benchmarks.engines import NATIVE, networks
from benchmarks.measuring import ROOT, Row

NAME: Final = "footprint"
QUICK: Final = ("hello_world_int8", "mobilenet_v2_1.0_224_int8_tf2")
LONGEST_S: Final = 600

SMALL_NETWORK: Final = "mobilenet_v2_1.0_224_int8_tf2"
START_LIMIT_S: Final = 6.0
SMALL_START_LIMIT_S: Final = 1.0
SMALL_CODE_LIMIT_KB: Final = 400.0
DRIVER_LIMIT_MS: Final = 10.0
LOAD_LIMIT_MS: Final = 5.0
LOAD_BYTES: Final = 4_500_000
"""Constants up to which the limit of a load holds: it verifies them."""

PEAK_LIMIT_MIB: Final = 15.0

HEAD: Final = """\
Written by `python -m benchmarks.footprint`. Each network starts on one core, a process each: with
an empty cache, from the cache, and on the native engine of its format. `start` is the processor
time from Penstock's import until the network is compiled, LLVM's import included; `driver` the
driver's part of a start from the cache, its import included; `load` a further load of the entry,
with verification. `peak` is the greatest resident memory of a process that loads the network and
runs it once; `native` is that of LiteRT, or of ONNX Runtime for `.onnx` files. **over**: beyond a
limit."""


def main() -> int:
    """Prints every row and writes the table. Returns 1 if a limit does not hold."""
    return write_table(NAME, __doc__, measured, judged, document)


def write_table(
    name: str,
    description: str | None,
    measured: Callable[[Sequence[str]], Iterable[dict[str, Any]]],
    judged: Callable[[dict[str, Any]], Iterable[Row]],
    document: Callable[[Sequence[dict[str, Any]]], Iterable[str]],
) -> int:
    """Prints the rows that are *judged* of what is *measured*, on one core, and writes the
    *document* of all so far. Returns 1 if a limit does not hold.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    parser.add_argument("--results", type=Path, metavar="F.md", help="write the table here")
    parser.add_argument("--only", default="", metavar="ID,ID", help="these networks")
    given = parser.parse_args()
    from benchmarks.__main__ import line, use_one_core

    use_one_core()
    found: list[dict[str, Any]] = []
    is_met = True
    for one in measured(given.only.split(",") if given.only else ()):
        found.append(one)
        for row in judged(one):
            print(line(row), flush=True)
            is_met = is_met and row.met is not False
        if given.results is not None:
            given.results.write_text("\n".join(document(found)) + "\n", "utf-8")
    return 0 if is_met else 1


def rows(*, quick: bool) -> list[Row]:
    """The rows of every network of the corpus, or of two. Empty without the corpus."""
    return [row for starts in measured(QUICK if quick else ()) for row in judged(starts)]


def measured(only: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """The starts of each network: `cold`, `warm` and `native`, None where a process failed."""
    for entry in networks(only):
        path = Path(entry["path"])
        inputs = recorded(path) or draw(path)
        if any(array.dtype == object for array in inputs):
            continue
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as place:
            import numpy as np

            arrays = str(Path(place, "inputs.npz"))
            np.savez(arrays, **{str(at): array for at, array in enumerate(inputs)})
            cache = str(Path(place, "cache"))
            native = NATIVE[path.suffix.removeprefix(".")]
            yield {
                "id": entry["id"],
                "load": machine.load(),
                "cold": started(place, "llvm", str(path), arrays, cache),
                "warm": started(place, "llvm", str(path), arrays, cache),
                "native": started(place, native, str(path), arrays),
            }


def started(state: str, *arguments: str) -> dict[str, Any] | None:
    """The figures of one start; None if its process failed. Keys and registries are in *state*."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    own = {"PENSTOCK_STATE_DIR": state, "PENSTOCK_KEY_STORE": "file"}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.footprint_start", *arguments],
        check=False, capture_output=True, text=True, timeout=LONGEST_S, cwd=ROOT,
        env={**kept, **own},
    )  # fmt: skip
    if done.returncode:
        return None
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def judged(starts: dict[str, Any]) -> list[Row]:
    """The rows of one network, with the limits that hold for it."""
    name, cold, warm, native = (starts[k] for k in ("id", "cold", "warm", "native"))
    if cold is None or warm is None:
        return [Row(NAME, f"{name}: a start failed", 1, "", 0)]
    small = name == SMALL_NETWORK
    whole = cold["whole"]
    code, constants = cold["code"], cold["constants"]
    limit = SMALL_START_LIMIT_S if small else START_LIMIT_S
    made = [Row(NAME, f"{name}: compiled from nothing", cold["start_ms"] / 1000, "s", limit)]
    kb = SMALL_CODE_LIMIT_KB if small else None
    made.append(Row(NAME, f"{name}: code", code / 1000, "kB", kb))
    # A network without a step for the device has no entry, and shapes that only a run knows none
    # before it.
    if warm["compiles"] == 0 and code:
        load = LOAD_LIMIT_MS if constants <= LOAD_BYTES else None
        note = f"{constants / 1e6:.1f} MB of constants"
        driver = DRIVER_LIMIT_MS if small else None
        part = f"{name}: the driver's part of a warm start"
        made.append(Row(NAME, part, warm["driver_ms"], "ms", driver))
        if warm["load_ms"] is not None:
            made.append(Row(NAME, f"{name}: load of the entry", warm["load_ms"], "ms", load, note))
        if warm["llvm"]:
            made.append(Row(NAME, f"{name}: a hit imports LLVM", 1, "", 0))
    if whole and native is not None:
        more = warm["peak_mib"] - native["peak_mib"]
        note = f"{warm['peak_mib']:.0f} MiB over {native['peak_mib']:.0f}"
        note += f"; {cold['peak_mib']:.0f} where it is compiled"
        made.append(Row(NAME, f"{name}: peak above native", more, "MiB", PEAK_LIMIT_MIB, note))
    return made


def document(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The Markdown of the table."""
    yield "# What the device llvm costs beside its runs"
    yield ""
    yield from HEAD.splitlines()
    yield ""
    yield f"- processor: {machine.processor()}"
    yield f"- instruction sets: {machine.instruction_sets()}"
    yield f"- system: {platform.system()} {platform.release()} {platform.machine()}"
    yield f"- python: {platform.python_version()}"
    versions = ", ".join(f"{name} {number}" for name, number in machine.installed().items())
    yield f"- versions: {versions}"
    yield f"- code: {machine.code()}"
    if loads := [starts["load"] for starts in found if starts.get("load") is not None]:
        middle = statistics.median(loads)
        yield f"- load of the machine when a network's turn came: median {middle:.1f}"
    yield ""
    yield (
        "| network | start s | code kB | constants MB | driver ms | load ms | peak, compiled MiB "
        "| peak, cached MiB | native MiB | more MiB | |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for starts in found:
        yield table_row(starts)


def table_row(starts: dict[str, Any]) -> str:
    cold, warm, native = (starts[k] for k in ("cold", "warm", "native"))
    if cold is None or warm is None:
        return f"| {starts['id']} | | | | | | | | | | **failed** |"
    hit = warm["compiles"] == 0 and cold["code"]
    load = warm.get("load_ms")
    marks = [] if cold["whole"] else ["not whole"]
    if any(row.met is False for row in judged(starts)):
        marks.insert(0, "**over**")
    cells = [
        starts["id"],
        f"{cold['start_ms'] / 1000:.2f}",
        f"{cold['code'] / 1000:.0f}",
        f"{cold['constants'] / 1e6:.2f}",
        f"{warm['driver_ms']:.1f}" if hit else "",
        f"{load:.1f}" if hit and load is not None else "",
        f"{cold['peak_mib']:.0f}",
        f"{warm['peak_mib']:.0f}",
        "" if native is None else f"{native['peak_mib']:.0f}",
        "" if native is None else f"{warm['peak_mib'] - native['peak_mib']:+.0f}",
        ", ".join(marks),
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
