"""Finds the costs of an engine from the times of small models."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from penstock.ir import NDArray
from penstock.partitioning.costs import LOOP, NEAREST, NOTHING, EngineCosts, Features
from penstock.runtime.calibration.samples import CHAIN, EDGE, NETWORK, STEP, TINY

LEAST_NS: Final = 20.0
"""Least time of an operation: what is left after a step's time may be less than the noise."""

LEAST_SHARE: Final = 1e-3
"""Least share of a network's time that its measured kinds are taken to have."""

NO_TIMES: Final[Mapping[str, float]] = {}

PASSES: Final = 500
"""Passes of coordinate descent. The problems have few unknowns."""

MEASURED_ERROR: Final = 1.5
"""Factor within which nine of ten predictions for whole networks lie (`benchmarks placement`)."""


PARTIAL_ERROR: Final = 1.8
"""The same where the time did not suffice for all samples: some cells are known by similar ones."""


class Timing(Struct, frozen=True):
    """A timed sample: its name and cell, the features of its operations with their cells, the bytes
    of its inputs and outputs, and nanoseconds of a run.
    """

    name: str
    cell: str
    parts: tuple[tuple[str, Features], ...]
    edge_bytes: float
    ns: float

    @property
    def features(self) -> Features:
        """The sum of all operations' features."""
        one, two, three, four = (
            sum(each) for each in zip(*(f for _, f in self.parts), strict=True)
        )
        return one, two, three, four


def fit(
    timings: Sequence[Timing],
    shipped: EngineCosts | None,
    source: str,
    before: Mapping[str, float] = NO_TIMES,
) -> EngineCosts:
    """The costs that explain *timings* best, with relative errors weighted equally.

    What samples do not tell is as in *shipped*, scaled as samples of the same or similar cells are.
    *before* are the nanoseconds of the samples, by name, from which *shipped* was made: by what it
    missed them there, it is expected to miss them here.
    """
    groups: dict[str, list[Timing]] = {}
    networks = [timing for timing in timings if timing.cell.startswith(NETWORK)]
    tiny = [timing for timing in timings if timing.cell.startswith(TINY)]
    for timing in timings:
        if timing not in networks and timing not in tiny:
            groups.setdefault(timing.cell, []).append(timing)
    step = _step(groups.pop(STEP, []), shipped)
    edge = _edge(groups.pop(EDGE, []), step, shipped)
    loops = groups.pop(LOOP, [])
    # Networks are timed last.
    error = MEASURED_ERROR if networks else PARTIAL_ERROR
    known = EngineCosts({}, {}, {}, step, edge, error, source)
    scales = _Scales(groups, known, shipped, before)
    cells = {cell: _cell(cell, group, known, scales) for cell, group in groups.items()}
    for cell in {} if shipped is None else shipped.cells:
        if cell not in cells:
            cells[cell] = _features(np.array(scales.expected(cell)))
    for cell, group in groups.items():
        if (quickest := _quickest(cell, cells)) > cells[cell][1]:
            cells[cell] = _cell(cell, group, known, scales, quickest)
    alone = _small(replace(known, cells=cells), tiny, shipped)
    if len({timing.parts for timing in loops}) > 1:
        alone.cells[LOOP] = _loop(loops, alone)
    together = _together(alone, networks)
    if shipped is not None:
        together = shipped.together | together
    return replace(alone, together=together)


def _small(alone: EngineCosts, tiny: Sequence[Timing], shipped: EngineCosts | None) -> EngineCosts:
    """*alone* with what small operations cost in a network: any operation of an element type the
    same, and a share of what its kind costs in a model of its own.

    In such a model an operation has the cost of its arguments too, and nothing to be fused with.
    Kinds that are in no network of *tiny* have the typical share. What any operation of an element
    type without such a network costs is as in *shipped*, or as for the others.
    """
    overheads: dict[str, float] = {}
    shares: dict[str, list[float]] = {}
    for dtype in {timing.cell.rpartition(" ")[2] for timing in tiny}:
        own = [timing for timing in tiny if timing.cell.endswith(f" {dtype}")]
        fixed = [[alone.of(cell, ONCE) or 0.0 for cell, _ in timing.parts] for timing in own]
        rest = [
            max(0.0, own_ns(t, alone) - sum(alone.of(c, f) or 0.0 for c, f in t.parts) + sum(once))
            for t, once in zip(own, fixed, strict=True)
        ]
        each = min(ns / len(timing.parts) for ns, timing in zip(rest, own, strict=True))
        overheads[dtype] = each
        for ns, once, timing in zip(rest, fixed, own, strict=True):
            share = (ns - each * len(once)) / max(sum(once), LEAST_NS)
            for cell in {cell for cell, _ in timing.parts}:
                shares.setdefault(cell, []).append(max(0.0, min(1.0, share)))
    found = {cell: statistics.mean(each) for cell, each in shares.items()}
    typical = {
        dtype: statistics.median(v for cell, v in found.items() if cell.endswith(f" {dtype}"))
        for dtype in overheads
    }
    other = statistics.median(typical.values()) if typical else 1.0
    cells = {}
    for cell, factors in alone.cells.items():
        share = found.get(cell, typical.get(cell.rpartition(" ")[2], other))
        cells[cell] = _features(np.array([share, 1, 1, 1]) * factors)
    return replace(alone, cells=cells, overhead=_overhead(overheads, alone.step_ns, shipped))


ONCE: Final[Features] = (1.0, 0.0, 0.0, 0.0)
"""The features of an operation without elements."""


def _overhead(
    measured: Mapping[str, float], step_ns: float, shipped: EngineCosts | None
) -> dict[str, float]:
    """The *measured* overheads, those in *shipped* of other element types on the same scale, and a
    typical one.
    """
    others = {} if shipped is None else shipped.overhead
    common = [(ns + 1) / (others[dtype] + 1) for dtype, ns in measured.items() if dtype in others]
    if not common and shipped is not None and shipped.step_ns:
        # What a step costs is work of the same sort.
        common = [step_ns / shipped.step_ns]
    scale = statistics.geometric_mean(common) if common else 1.0
    result = {dtype: float(round(ns * scale)) for dtype, ns in others.items()}
    typical = statistics.median(measured.values()) if measured else 0.0
    return (
        {"other": float(round(typical))}
        | result
        | {dtype: float(round(ns)) for dtype, ns in measured.items()}
    )


PRODUCTS: Final = frozenset({
    "CONV_2D", "CONV_2D 1x1", "CONV_2D few", "CONV_2D long", "CONV_2D narrow", "DEPTHWISE_CONV_2D",
    "DEPTHWISE_CONV_2D times", "TRANSPOSE_CONV", "LSTM", "SVDF", "FULLY_CONNECTED",
    "FULLY_CONNECTED large", "FULLY_CONNECTED rows", "BATCH_MATMUL",
})  # fmt: skip
"""Kinds that multiply and add. Their speed differs between processors in another way."""

DENSE: Final = ("CONV_2D", "CONV_2D 1x1")
"""Kinds that multiply as quickly as an engine can: no other kind's samples took less a product."""

EVERY_CELL: Final = "every cell"

TRUST: Final = 0.4
"""How much an error counts by which a cell's terms differ from the expected ones."""

LEAST_PART: Final = 0.1
"""Least part of a cell's time that a term is taken to have. Small terms explain no large errors."""

SLIGHT: Final = 0.02
"""The same for the terms of sizes, where nothing is expected."""


class _Scales:
    """How much longer samples took than *shipped* predicts, by cell and by what cells share."""

    def __init__(
        self,
        groups: Mapping[str, list[Timing]],
        known: EngineCosts,
        shipped: EngineCosts | None,
        before: Mapping[str, float],
    ) -> None:
        self._known, self._shipped, self._before = known, shipped, before
        self._logs: dict[str, list[float]] = {}
        for cell, group in groups.items():
            if shipped is None or cell not in shipped.cells:
                continue
            found = [
                math.log(
                    (self.own(timing) + noise(known)) / (self._predicted(timing) + noise(known))
                )
                for timing in group
            ]
            kind, _, dtype = cell.rpartition(" ")
            self._logs[cell] = found
            for name in (f"{_family(kind)} {dtype}", _family(kind), EVERY_CELL):
                self._logs.setdefault(name, []).append(statistics.mean(found))

    def own(self, timing: Timing) -> float:
        """The time of the operations of *timing*, without what the shipped costs miss of it."""
        own, then = own_ns(timing, self._known), self._before.get(timing.name)
        if self._shipped is None or then is None or timing.cell not in self._shipped.cells:
            return own
        there = own_ns(replace(timing, ns=then), self._shipped)
        least = noise(self._shipped)
        return own * (self._predicted(timing) + least) / (there + least)

    def _predicted(self, timing: Timing) -> float:
        """What the shipped costs say of *timing*, whose cell they have."""
        shipped = {} if self._shipped is None else self._shipped.cells
        each = self._whole(timing.cell, shipped[timing.cell])
        return math.fsum(a * b for a, b in zip(each, timing.features, strict=True))

    def _whole(self, cell: str, before: Features) -> Features:
        """The shipped cell with what any operation costs."""
        shipped = self._shipped
        more = 0.0 if shipped is None else overhead_of(shipped, cell)
        return (before[0] + more, *before[1:])

    def of(self, cell: str) -> float:
        """The expected scale of *cell*, from its samples or from the most similar cells.

        One sample alone errs by more than cells of one sort of work and element type differ: these
        count as one sample more.
        """
        own = self._logs.get(cell, [])
        if own:
            kind, _, dtype = cell.rpartition(" ")
            similar = self._logs[f"{_family(kind)} {dtype}"]
        else:
            similar = next((self._logs[n] for n in _shared(cell) if n in self._logs), [0.0])
        return math.exp((math.fsum(own) + statistics.median(similar)) / (len(own) + 1))

    def expected(self, cell: str) -> Features | None:
        """The cell as shipped with what any operation costs, scaled. None if it is not shipped."""
        before = None if self._shipped is None else self._shipped.cells.get(cell)
        if before is None:
            return None
        scale = self.of(cell)
        one, two, three, four = (scale * ns for ns in self._whole(cell, before))
        if self._known.step_ns and self._shipped is not None and self._shipped.step_ns:
            # What does not grow with sizes is work of the same sort as that of a step.
            one = min(one, one / scale * self._known.step_ns / self._shipped.step_ns)
        return one, two, three, four


def _family(kind: str) -> str:
    return "products" if kind in PRODUCTS else "others"


def _shared(cell: str) -> tuple[str, ...]:
    """Names of what *cell* has in common with others, the most similar first."""
    kind, _, dtype = cell.rpartition(" ")
    family = _family(kind)
    types = (dtype, *NEAREST.get(dtype, ()))
    return (
        *(f"{kind} {name}" for name in types),
        *(f"{family} {name}" for name in types),
        family,
        EVERY_CELL,
    )


def _quickest(cell: str, cells: Mapping[str, Features]) -> float:
    """The least time of a multiply-accumulate in *cell*: that of the quicker dense kind. Where
    products and bytes of the samples grow alike, all their time could go to the bytes, of which
    larger operations have less.
    """
    kind, _, dtype = cell.rpartition(" ")
    if kind not in PRODUCTS or kind in DENSE:
        return 0.0
    dense = (cells.get(f"{name} {dtype}") for name in DENSE)
    return min((each[1] for each in dense if each is not None), default=0.0)


def _cell(
    cell: str,
    group: Sequence[Timing],
    known: EngineCosts,
    scales: _Scales,
    quickest: float = 0.0,
) -> Features:
    """The cell that explains the times of *group*, near to what is expected of it. A multiply-
    accumulate takes *quickest* or more.
    """
    rows = np.array([timing.features for timing in group])
    times = np.array([scales.own(timing) for timing in group])
    # A sample that takes little more than a step says little of its operations.
    weights = 1 / (times + known.step_ns / 4 + LEAST_NS)
    rows, wanted = rows * weights[:, None], times * weights
    expected = scales.expected(cell)
    amounts = np.sqrt((rows**2).mean(axis=0))
    trust = np.full(rows.shape[1], TRUST)
    if expected is None:
        # What few sizes leave open grows with them.
        expected, trust[1:] = NOTHING, SLIGHT
    else:
        parts = amounts * np.array(expected)
        trust /= np.maximum(parts / max(float(parts.sum()), 1e-9), LEAST_PART)
    near = np.diag(trust * amounts)
    rows = np.vstack([rows, near])
    wanted = np.append(wanted, near @ np.array(expected))
    least = np.array([0.0, quickest, 0.0, 0.0])
    return _features(bounded_least_squares(rows, wanted, least, MOST))


MOST: Final = np.array([math.inf, math.inf, 8.0, 4.0])
"""Upper bounds of a cell's terms. No engine takes longer to read a byte than a slow memory does;
a sample with few bytes would otherwise put all its time on them.
"""


def _loop(group: Sequence[Timing], alone: EngineCosts) -> Features:
    """What a loop and a round of it cost, beside what it enters."""
    by_rounds = sorted(group, key=lambda timing: len(timing.parts))
    few, many = by_rounds[0], by_rounds[-1]

    def rest(timing: Timing) -> tuple[float, float]:
        (rounds,) = (features[1] for cell, features in timing.parts if cell == LOOP)
        inner = sum(alone.of(c, f) or 0.0 for c, f in timing.parts if c != LOOP)
        return rounds, own_ns(timing, alone) - inner

    (first, short), (last, long) = rest(few), rest(many)
    # Less than nothing if an engine compiles the loop away.
    each = max(0.0, (long - short) / max(1.0, last - first))
    return _features(np.array([max(0.0, short - first * each), each, 0.0, 0.0]))


def overhead_of(costs: EngineCosts, cell: str) -> float:
    """What *costs* count for any operation of the element type of *cell*."""
    return costs.overhead_of(cell.rpartition(" ")[2])


def noise(known: EngineCosts) -> float:
    """Nanoseconds by which times of samples differ by chance."""
    return 0.05 * known.step_ns + LEAST_NS


STIFFNESS: Final = 0.5
"""How much an error of a network's time counts that a factor of `together` would explain."""


def _together(alone: EngineCosts, networks: Sequence[Timing]) -> dict[str, float]:
    """By what factor operations cost more in *networks* than alone, for each cell.

    Alone, an operation finds its values and constants in the processor's caches, and an engine
    changes no layouts between operations of different kinds. What is found explains the times of
    the networks best; factors stay near a common one where these say nothing.
    """
    factors: dict[str, float] = {}
    for dtype in {timing.cell.rpartition(" ")[2] for timing in networks}:
        own = [timing for timing in networks if timing.cell.endswith(f" {dtype}")]
        names = sorted({cell for timing in own for cell, _ in timing.parts if cell in alone.cells})
        rows, wanted = [], []
        for timing in own:
            shares = dict.fromkeys(names, 0.0)
            rest = timing.ns - alone.step_ns - alone.edge_ns * timing.edge_bytes
            for cell, features in timing.parts:
                time, more = alone.of(cell, features) or 0.0, overhead_of(alone, cell)
                if cell in shares:
                    shares[cell] += time - more
                    rest -= more
                else:
                    rest -= time
            rows.append([amount / timing.ns for amount in shares.values()])
            wanted.append(max(rest, LEAST_NS) / timing.ns)
        known, times = np.array(rows), np.array(wanted)
        # Factors are near 1 once all operations share what they have in common.
        common = _mean_ratio(times, known.sum(axis=1))
        known *= common
        stiff = np.eye(len(names)) * STIFFNESS
        found = bounded_least_squares(
            np.vstack([known, stiff]), np.append(times, np.full(len(names), STIFFNESS))
        )
        overall = _mean_ratio(times, known @ found)
        for cell in alone.cells:
            if cell.endswith(f" {dtype}"):
                factor = float(found[names.index(cell)]) if cell in names else 1.0
                factors[cell] = round(factor * common * overall, 3)
    return factors


def _mean_ratio(times: NDArray, explained: NDArray) -> float:
    """The geometric mean of *times* over what is *explained* of them."""
    return math.exp(float(np.log(times / np.maximum(explained, LEAST_SHARE)).mean()))


def own_ns(timing: Timing, known: EngineCosts) -> float:
    """The time of a sample's operations. At least half of what is not the step's is theirs: an
    engine may read inputs while it computes.
    """
    rest = timing.ns - known.step_ns
    return max(rest - known.edge_ns * timing.edge_bytes, rest / 2, LEAST_NS)


def _step(group: Sequence[Timing], shipped: EngineCosts | None) -> float:
    if group:
        return statistics.median(timing.ns for timing in group)
    return 0.0 if shipped is None else shipped.step_ns


def _edge(group: Sequence[Timing], step: float, shipped: EngineCosts | None) -> float:
    """Nanoseconds for a byte of a model's inputs and outputs, beside its operations.

    The least of several sizes: an operation takes longer on values that are not in a cache, which
    is no cost of an edge.
    """
    found = []
    for one, many in itertools.pairwise(group):
        if one.edge_bytes == many.edge_bytes:
            each = (many.ns - one.ns) / (CHAIN - 1)
            found.append(max(0.0, one.ns - step - each) / one.edge_bytes)
    if found:
        return min(found)
    return 0.0 if shipped is None else shipped.edge_ns


def bounded_least_squares(
    rows: NDArray, wanted: NDArray, least: NDArray | float = 0.0, most: NDArray | float = math.inf
) -> NDArray:
    """The x from *least* to *most* that minimises |rows x - wanted|, by coordinate descent."""
    sizes = np.linalg.norm(rows, axis=0)
    sizes[sizes == 0] = 1.0
    scaled = rows / sizes
    products, targets = scaled.T @ scaled, scaled.T @ wanted
    lower, upper = least * sizes, most * sizes
    found = np.zeros(rows.shape[1]) + lower
    for _ in range(PASSES):
        for at in range(len(found)):
            if products[at, at] > 0:
                step = (targets[at] - products[at] @ found) / products[at, at]
                found[at] = min(max(lower[at], found[at] + step), upper[at])
    result: NDArray = found / sizes
    return result


def _features(values: NDArray) -> Features:
    one, two, three, four = (float(f"{value:.4g}") for value in values)
    return one, two, three, four


def as_plain(costs: EngineCosts) -> Mapping[str, object]:
    """*costs* as values of JSON."""
    return {
        "step_ns": round(costs.step_ns),
        "edge_ns": float(f"{costs.edge_ns:.4g}"),
        "overhead": costs.overhead,
        "together": dict(sorted(costs.together.items())),
        "cells": {name: list(cell) for name, cell in sorted(costs.cells.items())},
    }
