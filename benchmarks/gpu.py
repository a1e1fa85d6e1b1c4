"""The device `webgpu-software` beside LiteRT's WebGPU accelerator and ONNX Runtime's provider,
all on the same software adapter:

    python3 -m venv ENV && ENV/bin/pip install ai-edge-litert onnxruntime-webgpu
    PENSTOCK_BENCH_WEBGPU=ENV/bin/python .venv/bin/python -m benchmarks.gpu --results F.md

Both others need Mesa 25 or newer (`VK_DRIVER_FILES` chooses a driver of Vulkan). Each subject of a
network is a process of its own; they take turns, another one first in each round. A ratio is the
median over the rounds of Penstock's time over the other's. ONNX Runtime runs `.onnx` networks,
LiteRT `.tflite` ones. A network that Penstock does not run whole has a row as well.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import math
import os
import platform
import select
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

import numpy as np

from benchmarks import machine
from benchmarks.measuring import ROOT, Row, corpus_model
from benchmarks.starts import Start

NAME: Final = "gpu"
LIMIT: Final = 1.0
MEAN_LIMIT: Final = 0.5
START_MS: Final = 1300.0
START_NETWORK: Final = "mobilenet_v2_1.0_224_int8_tf2"
OTHERS: Final = {".tflite": "litert", ".onnx": "onnxruntime"}
ROUND_S: Final = 0.5
"""Seconds of runs of each subject in a round; at least one run."""

FIRST_S: Final = 240.0
"""Seconds until a subject has its first outputs and, Penstock, the shapes of its threads, after
which it does not race.
"""

QUICK_MACS: Final = 50_000_000
COUNTED_MACS: Final = 1_000_000
"""Networks above this number of multiply-accumulates count for the geometric mean."""


Race: TypeAlias = "dict[str, Any]"
Keep: TypeAlias = "Callable[[Sequence[Race], tuple[float, float] | None], None]"
"""Writes what is known after each race."""


class Subject:
    """The process of one subject on one network. Raises `RuntimeError` with its refusal."""

    def __init__(self, name: str, path: Path, inputs: Path, cache: str) -> None:
        python = sys.executable if name == "penstock" else others_python() or sys.executable
        script = Path(__file__).with_name("gpu_subject.py")
        command = [python, str(script), name, str(path), str(inputs), cache]
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        if name != "penstock":
            environment.pop("PYTHONPATH", None)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, env=environment, cwd=ROOT if name == "penstock" else "/",
        )  # fmt: skip
        self.name = name
        try:
            self.found: dict[str, Any] = self._answer(FIRST_S)
        except RuntimeError:
            self.close()
            raise
        if "refused" in self.found:
            self.close()
            raise RuntimeError(self.found["refused"])

    def runs(self, count: int) -> list[float]:
        """The seconds of so many runs."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        times: list[float] = self._answer(FIRST_S)
        return times

    def _answer(self, most_s: float) -> Any:
        output = self._process.stdout
        assert output is not None
        while True:
            ready, _, _ = select.select([output], [], [], most_s)
            if not ready:
                raise RuntimeError(f"no answer within {most_s:.0f} s")
            line = output.readline()
            if not line:
                raise RuntimeError(f"its process ended with {self._process.wait()}")
            if line[:1] in "{[":
                return json.loads(line)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def others_python() -> str | None:
    """The Python that has the other engines."""
    return os.environ.get("PENSTOCK_BENCH_WEBGPU")


def raced(entry: Mapping[str, Any], models: Path, cache: str, rounds: int) -> dict[str, Any]:
    """The times of each subject by round, the distances, and refusals, of one network."""
    found: dict[str, Any] = {
        "id": entry["id"],
        "macs": entry.get("macs_at_golden_shape") or entry["macs"] or 0,
        "times": {},
        "off": {},
        "first": {},
        "refused": {},
    }
    path = models / entry["file"]
    with ExitStack() as stack:
        inputs = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "arrays.npz"
        np.savez(inputs, **recorded(entry, models))
        subjects = []
        for name in ("penstock", OTHERS[path.suffix]):
            try:
                subject = stack.enter_context(Subject(name, path, inputs, cache))
            except RuntimeError as error:
                found["refused"][name] = str(error)
                continue
            found["off"][name], found["first"][name] = (
                subject.found["off"],
                subject.found["first_s"],
            )
            subjects.append(subject)
        counts = {s.name: max(1, round(ROUND_S / min(s.runs(2)))) for s in subjects}
        times: dict[str, list[float]] = {s.name: [] for s in subjects}
        for turn in range(rounds):
            for position in range(len(subjects)):
                subject = subjects[(turn + position) % len(subjects)]
                count = min(counts[subject.name], 200)
                times[subject.name].append(statistics.median(subject.runs(count)))
        found["times"] = times
    return found


def recorded(entry: Mapping[str, Any], models: Path) -> dict[str, Any]:
    """The inputs and outputs of the first case of a network, in the file's order. The outputs are
    left out where the case has others.
    """
    case = entry["golden"]["cases"][0]
    with np.load(models / entry["golden"]["file"], allow_pickle=False) as arrays:
        given = [arrays[f"{case['id']}/in/{k}"] for k in case["inputs"]]
        wanted = [arrays[f"{case['id']}/out/{k}"] for k in case["outputs"]]
    found = {f"in{k}": a for k, a in enumerate(given)}
    return {**found, **{f"out{k}": a for k, a in enumerate(wanted)}}


def networks(*, quick: bool) -> Iterator[tuple[Mapping[str, Any], Path]]:
    """The networks of the corpus without a signature, the smallest first."""
    sample = corpus_model("hello_world_float")
    if sample is None:
        return
    models = sample.parent.parent
    entries = json.loads((models / "manifest.json").read_bytes())["entries"]
    chosen = [e for e in entries if e["kind"] == "network"]
    for entry in sorted(chosen, key=lambda e: e.get("macs_at_golden_shape") or e["macs"] or 0):
        macs = entry.get("macs_at_golden_shape") or entry["macs"] or 0
        if "signature" not in entry["golden"]["cases"][0] and not (quick and macs > QUICK_MACS):
            yield entry, models


def ratio(race: Mapping[str, Any]) -> float | None:
    """The median over the rounds of Penstock's time over the other's."""
    others = [name for name in race["times"] if name != "penstock"]
    if not others or "penstock" not in race["times"]:
        return None
    pairs = zip(race["times"]["penstock"], race["times"][others[0]], strict=True)
    found: float = statistics.median(ours / theirs for ours, theirs in pairs)
    return found


def mean_of(races: Sequence[Mapping[str, Any]], other: str | None = None) -> float | None:
    """The geometric mean of the ratios of larger networks, to *other* or to both."""
    found = [
        r
        for race in races
        if race["macs"] > COUNTED_MACS and (other is None or other in race["times"])
        if (r := ratio(race)) is not None
    ]
    return math.exp(statistics.fmean(map(math.log, found))) if found else None


def started(cache: str, rounds: int) -> tuple[float, float]:
    """Milliseconds until the first output of a process with a filled cache, and those of Python
    with NumPy: medians.
    """
    model = corpus_model(START_NETWORK)
    ours = Start("penstock_start", (str(model), "webgpu-software", cache, "exact"))
    bare = Start("bare", ())
    ours.run()
    pairs = [(ours.run()["wall_ms"], bare.run()["wall_ms"]) for _ in range(rounds)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def rows(*, quick: bool) -> list[Row]:
    """As `benchmarks.__main__` prints them. Empty without the corpus."""
    return rows_of(*measured(quick=quick, rounds=3 if quick else 7, only=()))


def measured(
    *, quick: bool, rounds: int, only: Sequence[str], keep: Keep = lambda _races, _start: None
) -> tuple[list[dict[str, Any]], tuple[float, float] | None]:
    """The races, and the start."""
    races, start = list[dict[str, Any]](), None
    with tempfile.TemporaryDirectory(prefix="penstock-gpu-") as cache:
        for entry, models in networks(quick=quick):
            if only and entry["id"] not in only:
                continue
            races.append(raced(entry, models, cache, rounds))
            print(summary(races[-1]), file=sys.stderr, flush=True)
            keep(races, None)
        if races:
            start = started(cache, 3 if quick else 9)
            keep(races, start)
    return races, start


def rows_of(
    races: Sequence[Mapping[str, Any]], start: tuple[float, float] | None
) -> list[Row]:  # fmt: skip
    found = [
        Row(NAME, race["id"], value, "x", LIMIT, summary(race))
        for race in races
        if (value := ratio(race)) is not None
    ]
    if (mean := mean_of(races)) is not None:
        found.append(Row(NAME, "geometric mean above a million products", mean, "x", MEAN_LIMIT))
    if start is not None:
        found.append(
            Row(NAME, f"second start, {START_NETWORK}", start[0] - start[1], "ms", START_MS)
        )
    return found


def summary(race: Mapping[str, Any]) -> str:
    """A race in one line: the median time of each subject, or its refusal."""
    times = {name: 1e3 * statistics.median(each) for name, each in race["times"].items()}
    parts = [f"{name} {took:.2f} ms" for name, took in times.items()]
    parts += [f"{name} refuses: {why[:90]}" for name, why in race["refused"].items()]
    return f"{race['id']}: {', '.join(parts)}"


HEAD: Final = """\
# Graphics processors' kernels on a software adapter

Written by `python -m benchmarks.gpu`: the device `webgpu-software` beside LiteRT's WebGPU
accelerator (`.tflite`) and ONNX Runtime's WebGPU provider without fallback to the processor
(`.onnx`), all on Mesa's software Vulkan, which computes on the processor. Nothing here is of a
graphics processor. Each subject computes in a process of its own, Penstock without a host
process (`isolate=False`), once it has measured the shapes of its threads. A ratio is the median
over the rounds of Penstock's time over the other's: below 1, Penstock is faster. *off* is the
distance from the recorded outputs: steps of integers, shares of the largest output of floats;
"?" where other outputs were recorded. *first* is until the first outputs, less where the
driver's cache has shaders of earlier runs. The geometric means are of networks above a million
multiply-accumulates.
"""


def document(
    races: Sequence[Mapping[str, Any]], start: tuple[float, float] | None, adapter: str, rounds: int
) -> str:
    """The text of the results."""
    installed = {**machine.installed(), **versions_of_others()}
    versions = ", ".join(f"{name} {number}" for name, number in installed.items())
    lines = [
        HEAD,
        f"- date: {dt.datetime.now(dt.UTC):%Y-%m-%d}, adapter: {adapter}",
        f"- processor: {machine.processor()}, one core",
        f"- versions: Python {platform.python_version()}, {versions}",
        f"- code: {machine.code()}",
        f"- {rounds} rounds",
    ]
    for other in OTHERS.values():
        known = [r for race in races if other in race["times"] if (r := ratio(race)) is not None]
        mean = mean_of(races, other)
        if known and mean is not None:
            won = sum(r < 1 for r in known)
            lines.append(f"- {other}: faster on {won} of {len(known)}, geometric mean {mean:.2f}")
    mean = mean_of(races)
    if mean is not None:
        lines.append(f"- both: geometric mean {mean:.2f} (the limit is {MEAN_LIMIT})")
    if start is not None:
        lines.append(
            f"- second start of {START_NETWORK}, on the system's Vulkan driver, its host process "
            f"included: {start[0]:.0f} ms, "
            f"{start[0] - start[1]:.0f} ms over Python with NumPy (the limit is {START_MS:.0f})"
        )
    head = (
        "| network | M products | Penstock ms | off | first s | other ms | off | first s | ratio |"
    )
    lines += ["", head, "|---|---|---|---|---|---|---|---|---|"]
    lines += [_row(race) for race in races]
    return "\n".join(lines) + "\n"


def _row(race: Mapping[str, Any]) -> str:
    others = [n for n in (*race["times"], *race["refused"]) if n != "penstock"]
    cells = [race["id"], f"{race['macs'] / 1e6:.1f}"]
    for name in ("penstock", *others[:1]):
        if name in race["times"]:
            off = race["off"][name]
            took = 1e3 * statistics.median(race["times"][name])
            cells += [f"{took:.2f}", "?" if off is None else f"{off:.2g}"]
            cells.append(f"{race['first'][name]:.1f}")
        else:
            cells += [f"refuses: {race['refused'][name][:120].replace('|', '/')}", "", ""]
    value = ratio(race)
    cells.append("" if value is None else f"{value:.2f}" if value < 1 else f"**{value:.2f}**")
    return f"| {' | '.join(cells)} |".replace("\n", " ")


def versions_of_others() -> dict[str, str]:
    """The versions that the other Python has."""
    names = ("ai-edge-litert", "onnxruntime-webgpu")
    code = (
        "import json, importlib.metadata as m\n"
        f"print(json.dumps({{d.name: d.version for d in m.distributions() if d.name in {names}}}))"
    )
    python = others_python() or sys.executable
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    found: dict[str, str] = json.loads(done.stdout or "{}")
    return found


def adapter_name() -> str:
    """The software adapter, and the version of its driver."""
    code = (
        "from penstock.drivers.webgpu import engine\n"
        "from penstock.drivers.webgpu.installation import SOFTWARE\n"
        "print(engine.opened(SOFTWARE).adapter)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "none"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--results", type=Path, metavar="F.md", help="write the table here")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="smaller networks alone")
    parser.add_argument("--only", default="", help="networks, with commas between")
    given = parser.parse_args()
    from benchmarks.__main__ import line, use_one_core

    use_one_core()
    only = tuple(filter(None, given.only.split(",")))

    def keep(races: Sequence[Race], start: tuple[float, float] | None) -> None:
        if given.results is not None:
            given.results.write_text(document(races, start, adapter, given.rounds), "utf-8")

    adapter = adapter_name()
    races, start = measured(quick=given.quick, rounds=given.rounds, only=only, keep=keep)
    found = rows_of(races, start)
    for row in found:
        print(line(row), flush=True)
    return 0 if all(row.met is not False for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
