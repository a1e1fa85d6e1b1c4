"""The races of a run as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any, Final

from benchmarks.engine_race import BURST, OURS
from benchmarks.exact_race import DEVICES, EXACT, table as exact_table
from benchmarks.standings import Race, best, lost, means, medians, ratio, why

ENGINES: Final = ("litert", "onnxruntime", "openvino")


def document(setting: Mapping[str, Any], races: Mapping[Any, Race]) -> Iterator[str]:
    """The Markdown of all races."""
    yield "# Penstock's tuned plan beside the engines used directly"
    yield ""
    yield (
        "Written by `python -m benchmarks.engines`; `benchmarks/README.md` says how it races and "
        "judges."
    )
    yield ""
    yield from setting_lines(setting, races)
    yield ""
    yield (
        "Times are milliseconds, the median of the rounds. `ratio` is Penstock's `run` over the "
        "quickest competitor"
    )
    yield (
        "within the class (below 1: Penstock is quicker), the median of each round's; `burst` is "
        "the same of a burst."
    )
    yield (
        "`by outputs` is the ratio over the quickest whose whole outputs are within the class, "
        "whatever its operations"
    )
    yield (
        "are: its time is marked †. **lost**: slower than the best by more than 2 % and 10 µs, "
        "or beyond the class."
    )
    for group in sorted({(race["accuracy"], race["threads"]) for race in races.values()}):
        chosen = [r for r in races.values() if (r["accuracy"], r["threads"]) == group]
        if group[0] == EXACT:
            yield from exact(group[1], chosen, setting["instruction sets"])
        else:
            yield from table(*group, chosen)


def setting_lines(setting: Mapping[str, Any], races: Mapping[Any, Race]) -> Iterator[str]:
    """The machine, versions, code, dates and load of *races*."""
    versions = ", ".join(f"{name} {number}" for name, number in setting["versions"].items())
    dates = sorted(race["at"] for race in races.values())
    for name in ("processor", "instruction sets", "cores", "memory", "system", "python"):
        yield f"- {name}: {setting[name]}"
    yield f"- versions: {versions}"
    yield f"- code: {setting['code']}"
    yield f"- races: {len(races)}, of {setting['rounds']} rounds, from {dates[0]} to {dates[-1]}"
    loads = [race["load"] for race in races.values() if race.get("load") is not None]
    if loads:
        yield (
            f"- load of the machine when a race began: median {statistics.median(loads):.2f}, "
            f"most {max(loads):.2f}"
        )


def exact(threads: int, races: list[Race], instruction_sets: str) -> Iterator[str]:
    """The section of the class `exact`: Penstock's own compiler."""
    failed = [race for race in races if "failed" in race]
    alone = [r for r in races if "failed" not in r and r["native"] not in r["times"]]
    yield ""
    yield f"## {EXACT}, {threads} thread{'s' if threads > 1 else ''}"
    yield ""
    yield (
        f"`devices={DEVICES.split(',')}` beside the engine of the format as it runs by default, "
        "which is judged by nothing. The ratio is its time"
    )
    yield "over Penstock's, the median of each round's; beside medians stands the middle half."
    yield from exact_table([r for r in races if r not in alone], instruction_sets)
    if failed or alone:
        yield ""
    yield from (f"- {race['id']}: no race: {race['failed']}" for race in failed)
    yield from (f"- {race['id']}: the native engine does not run it" for race in alone)


def table(accuracy: str, threads: int, races: list[Race]) -> Iterator[str]:
    done = [race for race in races if "failed" not in race]
    rivalled = [race for race in done if best(race) is not None]
    slower = [race for race in rivalled if ratio(race, str(best(race))) > 1]
    yield ""
    yield f"## {accuracy}, {threads} thread{'s' if threads > 1 else ''}"
    yield ""
    yield (
        f"{len(races)} networks; {sum(map(lost, races))} lost, "
        f"{sum(lost(race, by='in_outputs') for race in races)} by outputs alone; "
        f"slower than the best by any amount: {len(slower)}."
    )
    for name, (mean, count) in means(races).items():
        yield (
            f"Over the {count} networks above a million multiply-accumulates that {name} runs "
            "within the class, "
            f"it takes {mean:.3f} times as long (geometric mean)."
        )
    yield ""
    yield f"| network | Penstock | burst | {' | '.join(ENGINES)} | ratio | burst | by outputs | |"
    yield f"|---|---|---|{'---|' * len(ENGINES)}---|---|---|---|"
    notes = []
    for race in races:
        if "failed" in race:
            yield f"| {race['id']} | {'| ' * (len(ENGINES) + 5)}| **lost** |"
            notes.append(f"- {race['id']}: no race: {race['failed']}")
            continue
        yield row(race)
        notes += remarks(race)
    if notes:
        yield ""
        yield "Who does not race, or is beyond the class, and why:"
        yield ""
        yield from notes


def row(race: Race) -> str:
    times = medians(race)
    devices = "+".join(dict.fromkeys(device for device, _ in race["plan"]))
    cells = [f"{race['id']}", f"{1e3 * times[OURS]:.3f} {devices}", f"{1e3 * times[BURST]:.3f}"]
    for engine in ENGINES:
        ways = [name for name in times if name.split(" (")[0] == engine]
        cells.append(", ".join(cell(race, name, times[name]) for name in ways) or "-")
    in_class, by_outputs = best(race), best(race, by="in_outputs")
    for rival, ours in ((in_class, OURS), (in_class, BURST), (by_outputs, OURS)):
        cells.append("-" if rival is None else f"{ratio(race, rival, ours):.3f}")
    if lost(race):
        cells.append("**lost**")
    else:
        cells.append("lost by outputs" if lost(race, by="in_outputs") else "")
    return f"| {' | '.join(cells)} |"


def cell(race: Race, name: str, took: float) -> str:
    way = name.partition(" ")[2]
    mark = "" if race["verdicts"][name]["in_class"] else "†"
    return f"{1e3 * took:.3f}{mark}{' ' + way if way else ''}"


def remarks(race: Race) -> Iterator[str]:
    refused = dict(race["refused"])
    if not race["verdicts"][OURS]["in_class"]:
        refused[OURS] = why(race["verdicts"][OURS])
    for name, reason in refused.items():
        yield f"- {race['id']}, {name}: {' '.join(reason.split())[:300]}"
    if not race["verdicts"][OURS]["cases"]:
        yield f"- {race['id']}: nothing is recorded, and nothing was judged"
