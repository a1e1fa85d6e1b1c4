"""`penstock run` from a shell beside a script for LiteRT that prepares the same picture
(`litert_script.py`), a process each time, interleaved, with one thread.

Both get a network and a picture, and print the best class. Penstock finds the plan and the compiled
network in its cache.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from benchmarks.measuring import ROOT, Row, corpus_model, interleaved, medians

NAME: Final = "command"
LIMIT_MS: Final = 80.0
UNTOLD_MS: Final = 15.0
"""The end of the process, and what the system needs to start it, are no part of the times that the
command prints.
"""

SCRIPT: Final = ROOT / "benchmarks" / "litert_script.py"
DIGITS: Final = ROOT / "examples" / "digits"
NETWORKS: Final = ("mobilenet_v2_1.0_224_uint8", "mobilenet_v1_0.25_128_uint8")
LONGEST_S: Final = 300

STARTS: Final = {
    "bare Python": ["-c", "pass"],
    "import penstock": ["-c", "import penstock"],
    "penstock --version": ["-m", "penstock", "--version"],
    "penstock knobs": ["-m", "penstock", "knobs"],
    "penstock cache ls": ["-m", "penstock", "cache", "ls"],
    "penstock devices": ["-m", "penstock", "devices"],
    "penstock run --help": ["-m", "penstock", "run", "--help"],
}
"""Programs whose processor time is shown, without a limit."""


def rows(*, quick: bool) -> list[Row]:
    """Milliseconds of `penstock run` over the script, what its printed times leave out, and the
    processor time of other commands.
    """
    rounds = 5 if quick else 15
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as place:
        environment = surroundings(Path(place))
        found = []
        if find_spec("ai_edge_litert") is not None:
            for name, model, picture in pictures(Path(place)):
                found += beside_script(name, [str(model), str(picture)], environment, rounds)
        return found + commands(environment, rounds)


def surroundings(place: Path) -> dict[str, str]:
    """The environment of all programs: caches of their own, one thread, compiled modules kept."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    own = {"PENSTOCK_CACHE_DIR": str(place / "cache"), "PENSTOCK_STATE_DIR": str(place / "state")}
    return {**kept, **own, "PENSTOCK_KEY_STORE": "file", "OMP_NUM_THREADS": "1"}


def pictures(place: Path) -> list[tuple[str, Path, Path]]:
    """Networks of the repository and of the corpus that take 8-bit pixels, each with a picture."""
    found = [("digits int8", DIGITS / "digits_int8.tflite", DIGITS / "seven.png")]
    for name in NETWORKS:
        if (model := corpus_model(name)) is not None:
            picture = place / "cat.png"
            if not picture.exists():
                from PIL import Image

                Image.open(model.parents[1] / "images" / "cat.bmp").save(picture)
            found.append((name, model, picture))
    return found


def beside_script(
    name: str, arguments: Sequence[str], environment: dict[str, str], rounds: int
) -> list[Row]:
    """The command's time over that of the script. Raises `RuntimeError` if they disagree."""
    untold: list[float] = []
    worked: dict[str, list[float]] = {"script": [], "penstock": []}
    line = ["-m", "penstock", "run", *arguments, "--threads", "1", "--top", "1"]

    def script() -> float:
        wall, cpu, _ = timed([str(SCRIPT), *arguments], environment)
        worked["script"].append(cpu)
        return wall

    def penstock() -> float:
        wall, cpu, printed = timed(line, environment)
        worked["penstock"].append(cpu)
        untold.append(wall - told_ms(printed))
        return wall

    subjects: dict[str, Callable[[], float]] = {"script": script, "penstock": penstock}
    *_, answer = timed([str(SCRIPT), *arguments], environment)
    timed(line, environment)
    *_, printed = timed(line, environment)
    if (found := best_class(printed)) != answer.split()[-1]:
        raise RuntimeError(f"{name}: the script says {answer!r}, penstock run {found!r}")
    if "hit" not in printed:
        raise RuntimeError(f"{name} is not in the cache: {printed}")
    walls = interleaved(subjects, rounds)
    for lists in (untold, *worked.values()):
        del lists[:-rounds]
    added = [one - other for one, other in zip(walls["penstock"], walls["script"], strict=True)]
    half, busy = medians({**walls, "added": added}), medians(worked)
    best = {subject: min(values) for subject, values in walls.items()}
    note = (
        f"{half['penstock']:.0f} and {half['script']:.0f}; "
        f"best {best['penstock']:.0f} and {best['script']:.0f}"
    )
    worked_note = f"{busy['penstock']:.0f} and {busy['script']:.0f}"
    over = busy["penstock"] - busy["script"]
    # Of the time beside the printed ones, which is short, the best: other load only adds to it.
    return [
        Row(NAME, f"{name}: penstock run over the script", half["added"], "ms", LIMIT_MS, note),
        Row(NAME, f"{name}: the same, processor", over, "ms", LIMIT_MS, worked_note),
        Row(NAME, f"{name}: beside the printed times", min(untold), "ms", UNTOLD_MS),
    ]


def commands(environment: dict[str, str], rounds: int) -> list[Row]:
    """Processor time of commands and of imports."""

    def cpu(line: Sequence[str]) -> Callable[[], float]:
        return lambda: timed(line, environment)[1]

    subjects = {name: cpu(line) for name, line in STARTS.items()}
    interleaved(subjects, 1)
    found = medians(interleaved(subjects, rounds))
    return [Row(NAME, f"{name}, processor", value, "ms") for name, value in found.items()]


def timed(line: Sequence[str], environment: dict[str, str]) -> tuple[float, float, str]:
    """Wall and processor milliseconds of Python with *line*, and what it printed."""
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *line],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        printed = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(line)} failed: {printed}")
    return wall * 1000, (used.ru_utime + used.ru_stime) * 1000, printed


def told_ms(printed: str) -> float:
    """The sum of the times that `penstock run` prints, in milliseconds."""
    (line,) = re.findall(r"^time: (.*);", printed, re.MULTILINE)
    units = {"ms": 1.0, "s": 1000.0}
    return sum(float(n) * units[unit] for n, unit in re.findall(r"([\d.]+) (m?s)\b", line))


def best_class(printed: str) -> str:
    """The class in the first row of the table that `penstock run` prints."""
    head, first = next(
        (line, row)
        for line, row in zip(printed.splitlines(), printed.splitlines()[1:], strict=False)
        if line.split()[:1] == ["class"]
    )
    assert "probability" in head
    return first.split()[0]
