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
from penstock.partitioning.costs import EngineCosts, Features
from penstock.runtime.calibration.samples import CHAIN, EDGE, NETWORK, STEP

LEAST_NS: Final = 20.0
"""Least time of an operation: what is left after a step's time may be less than the noise."""

FLOOR_NS: Final = 300.0
"""Time below which errors count as if the time were this long."""

LEAST_SHARE: Final = 1e-3
"""Least share of a network's time that its measured kinds are taken to have."""

PASSES: Final = 500
"""Passes of coordinate descent. The problems have few unknowns."""

MEASURED_ERROR: Final = 1.5
"""Factor within which nine of ten predictions for whole networks lie (`benchmarks placement`)."""


class Timing(Struct, frozen=True):
    """A timed sample: its cell, the features of its operations with their cells, the bytes of its
    inputs and outputs, and nanoseconds of a run.
    """

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


def fit(timings: Sequence[Timing], shipped: EngineCosts | None, source: str) -> EngineCosts:
    """The costs that explain *timings* best, with relative errors weighted equally.

    A cell with fewer sizes than unknowns is that of *shipped*, scaled to its measured sizes. A cell
    without any is scaled as the other cells are.
    """
    groups: dict[str, list[Timing]] = {}
    networks = [timing for timing in timings if timing.cell.startswith(NETWORK)]
    for timing in timings:
        if timing not in networks:
            groups.setdefault(timing.cell, []).append(timing)
    step = _step(groups.pop(STEP, []), shipped)
    edge = _edge(groups.pop(EDGE, []), step, shipped)
    cells: dict[str, Features] = {}
    scales: list[float] = []
    for cell, group in groups.items():
        rows = np.array([timing.features for timing in group])
        times = np.array([_own_ns(timing, step, edge) for timing in group])
        before = None if shipped is None else shipped.cells.get(cell)
        if before is not None:
            scale = _mean_ratio(times + FLOOR_NS, rows @ np.array(before) + FLOOR_NS)
            scales.append(scale)
            if len(group) < len(before):
                cells[cell] = _scaled(before, scale)
                continue
        weights = 1 / (times + FLOOR_NS)
        found = non_negative_least_squares(rows * weights[:, None], times * weights)
        cells[cell] = _features(found)
    if shipped is not None:
        scale = statistics.geometric_mean(scales) if scales else 1.0
        for cell, before in shipped.cells.items():
            cells.setdefault(cell, _scaled(before, scale))
    alone = EngineCosts(cells, {}, {}, step, edge, MEASURED_ERROR, source)
    together, overhead = _together(alone, networks)
    if shipped is not None:
        together, overhead = shipped.together | together, shipped.overhead | overhead
    return replace(alone, together=together, overhead=overhead)


STIFFNESS: Final = 0.5
"""How much an error of a network's time counts that a factor of `together` would explain."""


def _together(
    alone: EngineCosts, networks: Sequence[Timing]
) -> tuple[dict[str, float], dict[str, float]]:
    """By how much more operations cost in *networks* than alone: a factor for each cell, and
    nanoseconds for each operation of an element type.

    Alone, an operation finds its values and constants in the processor's caches, and an engine
    changes no layouts between operations of different kinds. What is found explains the times of
    the networks best; factors stay near 1 where these say nothing.
    """
    factors: dict[str, float] = {}
    overhead: dict[str, float] = {}
    for dtype in {timing.cell.rpartition(" ")[2] for timing in networks}:
        own = [timing for timing in networks if timing.cell.endswith(f" {dtype}")]
        names = sorted({cell for timing in own for cell, _ in timing.parts if cell in alone.cells})
        rows, wanted = [], []
        for timing in own:
            shares = dict.fromkeys(names, 0.0)
            rest = timing.ns - alone.step_ns - alone.edge_ns * timing.edge_bytes
            for cell, features in timing.parts:
                time = alone.of(cell, features) or 0.0
                if cell in shares:
                    shares[cell] += time
                else:
                    rest -= time
            row = [*shares.values(), 1e3 * len(timing.parts)]
            rows.append([amount / timing.ns for amount in row])
            wanted.append(max(rest, LEAST_NS) / timing.ns)
        known, times = np.array(rows), np.array(wanted)
        # Factors are near 1 once all operations share what they have in common.
        common = _mean_ratio(times, known[:, :-1].sum(axis=1))
        known[:, :-1] *= common
        stiff = np.eye(len(names), len(names) + 1) * STIFFNESS
        found = non_negative_least_squares(
            np.vstack([known, stiff]), np.append(times, np.full(len(names), STIFFNESS))
        )
        overall = _mean_ratio(times, known @ found)
        overhead[dtype] = round(float(found[-1]) * 1e3 * overall)
        for cell in alone.cells:
            if cell.endswith(f" {dtype}"):
                factor = float(found[names.index(cell)]) if cell in names else 1.0
                factors[cell] = round(factor * common * overall, 3)
    return factors, overhead


def _mean_ratio(times: NDArray, explained: NDArray) -> float:
    """The geometric mean of *times* over what is *explained* of them."""
    return math.exp(float(np.log(times / np.maximum(explained, LEAST_SHARE)).mean()))


def _own_ns(timing: Timing, step: float, edge: float) -> float:
    """The time of a sample's operations. At least half of what is not the step's is theirs: an
    engine may read inputs while it computes.
    """
    rest = timing.ns - step
    return max(rest - edge * timing.edge_bytes, rest / 2, LEAST_NS)


def _step(group: Sequence[Timing], shipped: EngineCosts | None) -> float:
    if group:
        return min(timing.ns for timing in group)
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


def non_negative_least_squares(rows: NDArray, wanted: NDArray) -> NDArray:
    """The x of 0 or more that minimises |rows x - wanted|, by coordinate descent."""
    sizes = np.linalg.norm(rows, axis=0)
    sizes[sizes == 0] = 1.0
    scaled = rows / sizes
    products, targets = scaled.T @ scaled, scaled.T @ wanted
    found = np.zeros(rows.shape[1])
    for _ in range(PASSES):
        for at in range(len(found)):
            if products[at, at] > 0:
                step = (targets[at] - products[at] @ found) / products[at, at]
                found[at] = max(0.0, found[at] + step)
    result: NDArray = found / sizes
    return result


def _scaled(cell: Features, scale: float) -> Features:
    return _features(np.array(cell) * scale)


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
