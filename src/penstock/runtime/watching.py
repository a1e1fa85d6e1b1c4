"""Records what runs take, for `penstock.runtime.learning`, which a start need not import."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.execution.variant import Variant

LEAST_RUNS: Final = 16
"""Runs from which something is learned, after those that warm up."""

WARM_UP: Final = 4
"""First runs that do not count: caches, frequencies and threads are cold."""


def watch(variant: Variant, directory: str, key: str) -> None:
    """Records the times of the first runs of *variant*, and learns from them when it is gone.

    Not for a plan without a prediction, or one that falls back: its times are of another plan.
    """
    plan = variant.compilation.plan
    fell_back = any(step.failures for step in variant.compilation.receipt.steps)
    if plan.predicted_ns is None or plan.tuned is not None or plan.apart or fell_back:
        return
    times: list[int] = []
    variant.times = times
    given = os.getpid(), times, directory, key, plan.assignment, plan.predicted_ns
    weakref.finalize(variant, end, *given)


def end(
    process: int, times: list[int], directory: str, key: str, devices: Sequence[str], predicted: int
) -> None:
    """Learns from *times*, if they are enough and this is *process*, and no fork of it."""
    taken = times[WARM_UP:]
    if len(taken) < LEAST_RUNS or os.getpid() != process:
        return
    from penstock.runtime.learning import learn

    learn(taken, directory, key, devices, predicted)
