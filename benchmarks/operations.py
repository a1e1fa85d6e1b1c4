"""The reference driver against LiteRT's reference kernels: single operations, one core."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import penstock
from benchmarks.measuring import Row, interleaved, medians, worked
from benchmarks.models import elementwise, layers, recurrent
from benchmarks.models.making import Case
from benchmarks.networks import litert_runner

NAME = "operations"
LIMIT = 3.0
JUDGED = 1e6
"""Multiply-accumulates, or elements, from which an operation must meet the limit."""

ROUNDS = 25
QUICK_ROUNDS = 7
ENOUGH_SECONDS = 1.5
"""Seconds after which a model's rounds end; at least five rounds run."""


FAMILIES: Final[tuple[Callable[[], Iterator[Case]], ...]] = (
    layers.convolutions,
    layers.depthwise_convolutions,
    layers.transpose_convolutions,
    layers.fully_connected,
    layers.matrix_products,
    layers.volumes,
    recurrent.memories,
    recurrent.basic_memories,
    recurrent.basic_cells,
    recurrent.filters,
    recurrent.gated_units,
    elementwise.binary,
    elementwise.unary,
    elementwise.pools,
    elementwise.resizes,
    elementwise.reductions,
    elementwise.movements,
)
"""The functions that generate the models, by kind of operation."""


def rows(*, quick: bool) -> list[Row]:
    """Our time over LiteRT's, by operation. Empty without LiteRT."""
    found = []
    for case in cases():
        row = compared(case, rounds=QUICK_ROUNDS if quick else ROUNDS)
        if row is None:
            break
        found.append(row)
    return found


def cases() -> Iterator[Case]:
    """Every model that is timed."""
    for family in FAMILIES:
        yield from family()


def compared(case: Case, *, rounds: int) -> Row | None:
    """The ratio for one model; None if LiteRT is not installed."""
    feed = list(case.inputs)
    model = penstock.load(case.file)
    with penstock.compile(model, devices=["reference"], num_threads=1, cache=False) as compiled:
        other = litert_runner(case.file, {str(k): a for k, a in enumerate(feed)}, None)
        if other is None:
            return None
        run, kernels = other
        subjects: dict[str, Callable[[], float]] = {
            "penstock": lambda: worked(lambda: compiled.run(feed)),
            "litert": lambda: worked(run),
        }
        interleaved(subjects, 1)
        values: dict[str, list[float]] = {name: [] for name in subjects}
        for turn in range(rounds):
            for name, found in interleaved(subjects, 1).items():
                values[name] += found
            if turn >= 4 and sum(map(sum, values.values())) > ENOUGH_SECONDS:
                break
    middle = medians(values)
    note = f"{case.work / 1e6:.1f} M {case.unit}, {1e3 * middle['penstock']:.2f} ms"
    if kernels != "BUILTIN_REF":
        note += f", {kernels}"
    judged = case.work > JUDGED and kernels == "BUILTIN_REF"
    ratio = middle["penstock"] / middle["litert"]
    return Row(NAME, f"{case.name}, {note}", ratio, "x", LIMIT if judged else None)
