"""Penstock's tuned plan against LiteRT, ONNX Runtime and OpenVINO used directly, network by
network.

    python -m benchmarks.engines --results benchmarks/results/engines

Each race runs in its own process (`benchmarks.engine_race`), on as many cores as threads. One judge
(`benchmarks.gates`) checks that Penstock's plan and every engine are within the class: whole
outputs, and in `faithful` also each operation. The native engine of a format always competes with
default settings: LiteRT on `.tflite`, ONNX Runtime on `.onnx`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.engine_race import OURS
from benchmarks.exact_race import EXACT, aims, class_of, speed_up
from benchmarks.machine import instruction_sets, load
from benchmarks.measuring import ROOT, Row
from benchmarks.results import OtherRun, Results
from benchmarks.standings import Race, best, limit, means, medians, ratio, why

NAME: Final = "engines"
CLASSES: Final = ("faithful", "relaxed", EXACT)
ROUNDS: Final = 15
QUICK: Final = ("hello_world_int8", "resnet8_cifar10_int8", "mobilenet_v1_0.25_224_float")
LONGEST_S: Final = 1800
NATIVE: Final = {"tflite": "litert", "onnx": "onnxruntime"}


def parser_of(
    name: str, description: str | None, classes: Sequence[str], rounds: int
) -> argparse.ArgumentParser:
    """The options of a benchmark that races networks, by class and number of threads."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    parser.add_argument(
        "--results", type=Path, metavar="F", help="write F.json and F.md, race by race"
    )
    parser.add_argument("--classes", default=",".join(classes))
    parser.add_argument("--threads", default=",".join(map(str, counts())))
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--only", default="", metavar="ID,ID", help="these networks")
    return parser


def main() -> int:
    """Runs the races. Returns 0: every limit holds, 1: one does not, 2: results of another run."""
    given = parser_of(NAME, __doc__, CLASSES, ROUNDS).parse_args()
    try:
        results = Results(given.results, given.rounds)
    except OtherRun as error:
        print(error, file=sys.stderr)
        return 2
    chosen = networks(given.only.split(",") if given.only else ())
    threads = [int(n) for n in given.threads.split(",")]
    met = [
        show(row) for row in races(chosen, given.classes.split(","), threads, given.rounds, results)
    ]
    return 0 if all(met) else 1


def show(row: Row) -> bool:
    """Prints a row and returns whether its limit holds."""
    from benchmarks.__main__ import line

    print(line(row), flush=True)
    return row.met is not False


def rows(*, quick: bool) -> list[Row]:
    """One row per network, number of threads and class, then geometric means by competitor."""
    rounds = 5 if quick else ROUNDS
    named = os.environ.get("PENSTOCK_BENCH_ONLY", "")
    chosen = networks(named.split(",") if named else QUICK if quick else ())
    return list(races(chosen, CLASSES, counts(), rounds, Results(None, rounds)))


def races(
    entries: Sequence[dict[str, Any]],
    classes: Sequence[str],
    threads: Sequence[int],
    rounds: int,
    results: Results,
) -> Generator[Row, None, None]:
    """The rows of the races in *results*. Runs races that are missing or failed."""
    for accuracy in classes:
        for count in threads:
            done = []
            for entry in entries:
                race = results.races.get((accuracy, count, entry["id"]))
                if race is None or "failed" in race:
                    race = raced(entry, count, accuracy, rounds)
                    results.add(race)
                done.append(race)
                yield judged_exact(race) if accuracy == EXACT else judged(race)
            if accuracy == EXACT:
                yield from compared_exact(count, done)
            else:
                yield from compared(accuracy, count, done)


def networks(only: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The corpus's networks, or the named ones; empty without a corpus."""
    corpus = Path(os.environ.get("PENSTOCK_CORPUS") or ROOT.parent / "shared").expanduser()
    manifest = corpus / "models" / "manifest.json"
    if not manifest.is_file():
        return []
    entries = json.loads(manifest.read_bytes())["entries"]
    return [
        {**entry, "path": str(manifest.parent / entry["file"])}
        for entry in entries
        if entry["kind"] == "network" and (not only or entry["id"] in only)
    ]


def counts() -> Sequence[int]:
    """1 and 2 threads, as far as the machine has cores.

    The affinity of this process may already be restricted to one core.
    """
    return tuple(n for n in (1, 2) if n <= (os.cpu_count() or 1))


def raced(entry: dict[str, Any], threads: int, accuracy: str, rounds: int) -> Race:
    """What the race's process printed; `failed` if it failed."""
    race: Race = {
        "accuracy": accuracy,
        "threads": threads,
        "id": entry["id"],
        "macs": entry.get("macs"),
        "native": NATIVE[entry["format"]],
        "class": network_class(entry),
        "load": load(),
    }
    arguments = [entry["path"], str(threads), accuracy, str(rounds)]
    with tempfile.TemporaryDirectory() as scratch:
        return {**race, **printed("benchmarks.engine_race", arguments, scratch)}


def printed(program: str, arguments: Sequence[str], scratch: str) -> Race:
    """What *program* printed in a process of its own, whose cache and state are below *scratch*;
    `failed` if it failed.
    """
    kept = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    environment = {
        **kept,
        "PENSTOCK_CACHE_DIR": f"{scratch}/cache",
        "PENSTOCK_STATE_DIR": f"{scratch}/state",
        "PENSTOCK_KEY_STORE": "file",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [kept.get("PYTHONPATH")])]),
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", program, *arguments],
            check=False,
            capture_output=True,
            text=True,
            env=environment,
            cwd=ROOT,
            timeout=LONGEST_S,
            preexec_fn=_every_core,  # nothing runs in this process but this thread
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"no end after {LONGEST_S} s"}
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1][:200] if done.stderr.strip() else "?"
        return {"failed": f"exit code {done.returncode}: {last}"}
    found: Race = json.loads(done.stdout.splitlines()[-1])
    return found


def network_class(entry: dict[str, Any]) -> str:
    """The class of the network, by where most of its multiply-accumulates are."""
    import penstock

    return class_of(penstock.load(entry["path"]), entry.get("macs"))


def _every_core() -> None:
    """Lifts the affinity of this process in the child: a race chooses among all cores."""
    if sys.platform == "linux":
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


def judged(race: Race) -> Row:
    """Penstock's time over that of the fastest competitor within the class: the median of the
    rounds' ratios.

    Both ran under the same load in each round. The limit allows Penstock to be 2 % and 10 us
    slower.
    """
    measure = f"{race['accuracy']} {race['id']}, {race['threads']} threads"
    if "failed" in race:
        return Row(NAME, measure, math.inf, "x", 1.0, race["failed"])
    if not race["verdicts"][OURS]["in_class"]:
        note = f"beyond the class: {why(race['verdicts'][OURS])}"
        return Row(NAME, measure, math.inf, "x", 1.0, note)
    rival = best(race)
    if rival is None:
        return Row(NAME, measure, math.nan, "x", None, f"nobody competes: {race['refused']}")
    times = medians(race)
    mine = times.pop(OURS)
    devices = "+".join(dict.fromkeys(device for device, _ in race["plan"]))
    note = f"{mine * 1e3:.3f} ms on {devices} in {len(race['plan'])} steps; " + ", ".join(
        f"{name} {took * 1e3:.3f}"
        + ("" if race["verdicts"].get(name, {}).get("in_class", True) else " (beyond the class)")
        for name, took in times.items()
    )
    return Row(NAME, measure, ratio(race, rival), "x", round(limit(race, rival), 4), note)


def judged_exact(race: Race) -> Row:
    """Penstock's time over the native engine's, and the least that its class should reach."""
    measure = f"{EXACT} {race['id']}, {race['threads']} threads"
    if "failed" in race:
        return Row(NAME, measure, math.inf, "x", 1.0, race["failed"])
    if not race["verdicts"][OURS]["in_outputs"]:
        note = f"beyond the class: {why(race['verdicts'][OURS])}"
        return Row(NAME, measure, math.inf, "x", 1.0, note)
    if race["native"] not in race["times"]:
        return Row(NAME, measure, math.nan, "x", None, f"nobody competes: {race['refused']}")
    least = aims(instruction_sets())[race["class"]].least
    note = f"{race['class']}; " + ", ".join(
        f"{n} {1e3 * t:.3f} ms" for n, t in medians(race).items()
    )
    allowed = None if least is None else round(1 / least, 4)
    return Row(NAME, measure, 1 / speed_up(race), "x", allowed, note)


def compared_exact(threads: int, done: Sequence[Race]) -> Iterator[Row]:
    """The inverse of the geometric mean of each class, and of what it should reach."""
    for name, aim in aims(instruction_sets()).items():
        ratios = [
            speed_up(race)
            for race in done
            if "failed" not in race and race["class"] == name and race["native"] in race["times"]
        ]
        if ratios:
            mean = statistics.geometric_mean(ratios)
            note = f"{mean:.3f}x over {len(ratios)} networks"
            yield Row(
                NAME, f"{EXACT}, {threads} threads, {name}", 1 / mean, "x", 1 / aim.mean, note
            )


def compared(accuracy: str, threads: int, done: Sequence[Race]) -> Iterator[Row]:
    """The geometric mean of each competitor's time relative to Penstock.

    The row shows the inverse ratio, because a row's limit is an upper bound.
    """
    for name, (mean, count) in means(done).items():
        note = f"{name} takes {mean:.3f} times as long, over {count} networks"
        yield Row(NAME, f"{accuracy}, {threads} threads, over {name}", 1 / mean, "x", 1.0, note)


if __name__ == "__main__":
    sys.exit(main())
