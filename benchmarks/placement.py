"""The plan that Penstock chooses by default beside the plan of each engine alone.

    python -m benchmarks.placement --results benchmarks/results/placement

Every network of the corpus, in the classes `faithful` and `relaxed`, with 1 and 2 threads. A race
(`benchmarks.placement_race`) is a process on as many cores as threads. An engine alone is
`devices=[ENGINE, "reference"]` in the same class. Predictions are judged beside the measured times.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from benchmarks.engines import QUICK, counts, networks, parser_of, printed, show
from benchmarks.machine import load
from benchmarks.measuring import Row
from benchmarks.placement_race import CHOSEN, TUNED
from benchmarks.placement_standings import (
    MOST_MEAN,
    MOST_MISSED,
    Race,
    limit,
    missed,
    predictions,
    ratio,
    rival,
    took,
)
from benchmarks.placement_table import devices_of, document
from benchmarks.results import OtherRun, Results

NAME: Final = "placement"
CLASSES: Final = ("faithful", "relaxed")
ROUNDS: Final = 5


def main() -> int:
    """Runs the races. Returns 0: every limit holds, 1: one does not, 2: results of another run."""
    parser = parser_of(NAME, __doc__, CLASSES, ROUNDS)
    parser.add_argument("--tuned", action="store_true", help="race the plan of tune=True too")
    parser.add_argument(
        "--home",
        metavar="DIR",
        help="keep the cache and the state of the races below DIR (default: removed afterwards)",
    )
    given = parser.parse_args()
    try:
        results = Results(given.results, given.rounds, document)
    except OtherRun as error:
        print(error, file=sys.stderr)
        return 2
    chosen = networks(given.only.split(",") if given.only else ())
    groups = [(a, int(n)) for a in given.classes.split(",") for n in given.threads.split(",")]
    with tempfile.TemporaryDirectory() as scratch:
        home = given.home or scratch
        found = races(chosen, groups, given.rounds, results, home, tuned=given.tuned)
        met = [show(row) for row in found]
    return 0 if all(met) else 1


def rows(*, quick: bool) -> list[Row]:
    """Two rows per network, number of threads and class at most, then what holds of all."""
    rounds = 3 if quick else ROUNDS
    named = os.environ.get("PENSTOCK_BENCH_ONLY", "")
    chosen = networks(named.split(",") if named else QUICK if quick else ())
    groups = [(accuracy, count) for accuracy in CLASSES for count in counts()]
    with tempfile.TemporaryDirectory() as home:
        return list(races(chosen, groups, rounds, Results(None, rounds, document), home))


def races(
    entries: Sequence[dict[str, Any]],
    groups: Iterable[tuple[str, int]],
    rounds: int,
    results: Results,
    home: str,
    *,
    tuned: bool = False,
) -> Iterator[Row]:
    """The rows of the races in *results*, by class and number of threads. Runs races that are
    missing, failed, or without the tuned plan if *tuned* asks for it.
    """
    for accuracy, count in groups:
        done = []
        for entry in entries:
            race = results.races.get((accuracy, count, entry["id"]))
            if race is None or "failed" in race or (tuned and TUNED not in race["plans"]):
                race = raced(entry, count, accuracy, rounds, home, tuned=tuned)
                results.add(race)
            done.append(race)
            yield from judged(race)
        yield from summed(accuracy, count, done)


def raced(
    entry: dict[str, Any], threads: int, accuracy: str, rounds: int, home: str, *, tuned: bool
) -> Race:
    """What the race's process printed; `failed` if it failed."""
    race: Race = {"accuracy": accuracy, "threads": threads, "id": entry["id"], "load": load()}
    arguments = [entry["path"], str(threads), accuracy, str(rounds), *([TUNED] if tuned else [])]
    return {**race, **printed("benchmarks.placement_race", arguments, home)}


def judged(race: Race) -> Iterator[Row]:
    """The default plan's time over that of the best engine alone; then the tuned plan's."""
    measure = f"{race['accuracy']} {race['id']}, {race['threads']} threads"
    if "failed" in race:
        yield Row(NAME, measure, math.inf, "x", 1.0, race["failed"])
        return
    for ours in [CHOSEN, *([TUNED] if TUNED in race["plans"] else [])]:
        named = f"{measure}, tuned" if ours == TUNED else measure
        mine = f"{1e3 * took(race, ours):.3f} ms on {devices_of(race, ours)}"
        best = rival(race)
        if best is None:
            yield Row(NAME, named, math.nan, "x", None, f"{mine}; no engine alone")
            continue
        note = f"{mine}; {best} {1e3 * took(race, best):.3f} ms"
        yield Row(NAME, named, ratio(race, ours), "x", round(limit(race, ours), 4), note)


def summed(accuracy: str, threads: int, done: Sequence[Race]) -> Iterator[Row]:
    """The geometric mean of the ratios, and the percentage of predictions that are off."""
    ran = [race for race in done if "failed" not in race]
    group = f"{accuracy}, {threads} threads"
    if ratios := [ratio(race, CHOSEN) for race in ran if rival(race) is not None]:
        mean = statistics.geometric_mean(ratios)
        note = f"over {len(ratios)} networks"
        yield Row(NAME, f"{group}, geometric mean", mean, "x", MOST_MEAN, note)
    for subjects in (CHOSEN, "engines"):
        found = predictions(ran, chosen=subjects == CHOSEN)
        if found:
            what = "default plans" if subjects == CHOSEN else "engines alone"
            note = f"{sum(map(missed, found))} of {len(found)}"
            yield Row(
                NAME,
                f"{group}, {what} predicted wrongly",
                100 * sum(map(missed, found)) / len(found),
                "%",
                MOST_MISSED,
                note,
            )


if __name__ == "__main__":
    sys.exit(main())
