"""The races of `benchmarks placement` as Markdown."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from benchmarks.engine_table import setting_lines
from benchmarks.placement_race import CHOSEN, ENGINES, TUNED
from benchmarks.placement_standings import (
    MISSED,
    Race,
    excess,
    lost,
    missed,
    predicted,
    predictions,
    ratio,
    rival,
    subject,
    took,
)

DRAWS: Final = 5
"""Halves of the networks that are shown."""


def document(setting: Mapping[str, Any], races: Mapping[Any, Race]) -> Iterator[str]:
    """The Markdown of all races."""
    yield "# The plan that Penstock chooses beside each engine alone"
    yield ""
    yield "Written by `python -m benchmarks.placement`; `benchmarks/README.md` says how it races."
    yield ""
    yield from setting_lines(setting, races)
    yield ""
    yield (
        "Times are milliseconds, the median of the rounds, with one thread of the processor, which "
        "other programs do not lengthen; in brackets, the predicted over the "
        f"measured time, marked ! where it is off by more than {MISSED:g} times."
    )
    yield (
        "`ratio` is the default plan over the best engine alone (`devices=[ENGINE, "
        '"reference"]`), the median of each round\'s. = has the plan of the subject named.'
    )
    for group in sorted({(race["accuracy"], race["threads"]) for race in races.values()}):
        yield from section(
            *group, [r for r in races.values() if (r["accuracy"], r["threads"]) == group]
        )


def section(accuracy: str, threads: int, races: Sequence[Race]) -> Iterator[str]:
    done = [race for race in races if "failed" not in race]
    ratios = [ratio(race, CHOSEN) for race in done if rival(race) is not None]
    tuned = [race for race in done if TUNED in race["plans"]]
    yield ""
    yield f"## {accuracy}, {threads} thread{'s' if threads > 1 else ''}"
    yield ""
    yield f"{len(races)} networks; {sum(map(lost, races))} lost."
    if ratios:
        yield f"Geometric mean {statistics.geometric_mean(ratios):.3f}x, most {max(ratios):.2f}x."
    for what, chosen in (("default plans", True), ("plans of engines alone", False)):
        found = predictions(done, chosen=chosen)
        held = len(found) - sum(map(missed, found))
        yield f"Predictions within {MISSED:g}x: {held} of {len(found)} {what}."
    yield from halves(done)
    if tuned:
        yield f"Tuned plans lost: {sum(lost(race, TUNED) for race in tuned)} of {len(tuned)}."
    yield ""
    yield f"| network | default | best | ratio | excess us | {' | '.join(ENGINES)} | tuned | |"
    yield f"|---|---|---|---|---|{'---|' * len(ENGINES)}---|---|"
    for race in sorted(done, key=lambda race: -ratio(race, CHOSEN)):
        yield row(race)
    for race in races:
        if "failed" in race:
            yield f"| {race['id']} | {race['failed']} |{' |' * (len(ENGINES) + 4)} **lost** |"


def halves(races: Sequence[Race]) -> Iterator[str]:
    """The figures of halves of the networks, drawn by seeds.

    Costs are fitted to models that the program makes, and to no network: every half is one that
    nothing was fitted to.
    """
    for seed in range(DRAWS):
        drawn = random.Random(seed).sample(list(races), len(races) // 2)  # noqa: S311
        ratios = [ratio(race, CHOSEN) for race in drawn if rival(race) is not None]
        found = predictions(drawn, chosen=True)
        if ratios:
            held = len(found) - sum(map(missed, found))
            mean = statistics.geometric_mean(ratios)
            within = f"{held} of {len(found)} predicted within {MISSED:g}x"
            losses = sum(map(lost, drawn))
            yield f"Half drawn by seed {seed}: geometric mean {mean:.3f}x, {losses} lost, {within}."


def row(race: Race) -> str:
    best = rival(race)
    cells = [race["id"], f"{devices_of(race, CHOSEN)} {cell(race, CHOSEN)}"]
    cells.append("-" if best is None else f"{best} {1e3 * took(race, best):.3f}")
    cells += [f"{ratio(race, CHOSEN):.3f}", f"{1e6 * excess(race, CHOSEN):.0f}"]
    cells += [cell(race, engine) for engine in ENGINES]
    cells.append(f"{ratio(race, TUNED):.3f}" if TUNED in race["plans"] else "-")
    marks = [name for name in (CHOSEN, TUNED) if lost(race, name)]
    cells.append("" if not marks else "**lost**" if CHOSEN in marks else "tuned lost")
    return f"| {' | '.join(cells)} |"


def cell(race: Race, name: str) -> str:
    """A subject's time and how its prediction was."""
    if name not in race["plans"]:
        return "-"
    off = predicted(race, name)
    mark = "!" if missed(off) else ""
    factor = "?" if off is None else f"{off:.2f}"
    same = subject(race, name)
    shown = f"={same}" if same != name else f"{1e3 * took(race, name):.3f}"
    return f"{shown} ({factor}{mark})"


def devices_of(race: Race, name: str) -> str:
    """The devices of a subject's plan, each once."""
    return "+".join(dict.fromkeys(device for device, _ in race["plans"][name]["steps"])) or "-"
