"""Learns from runs what plans of a network really take, and corrects the predictions of the next
compile.

While a program runs, only times are recorded. When the compiled model is gone, or the program ends,
the time of the quickest tenth of the runs is kept with the plan's prediction, sealed, below the
cache directory. The next compile multiplies the costs of a device by what its plan took compared
with the prediction. A device whose plan has not run yet must be predicted to be better by the error
of predictions. So a plan that runs proved slow is replaced, never during a run, and two plans that
have both run are compared by what they took.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock import errors
from penstock.cache.verdicts import Learned, LearnedTimes, ObservedPlan
from penstock.logs import Log
from penstock.partitioning.costs import Costs

if TYPE_CHECKING:
    from penstock.partitioning.plan import ExecutionPlan

log = Log(__name__)

MOST_PLANS: Final = 8
"""Observed plans of one network that are kept."""

DIFFERENCE: Final = 1.25
"""Factor below which a plan took what was predicted: nothing is corrected."""


def learn(
    times: Sequence[int], directory: str, key: str, devices: Sequence[str], predicted: int
) -> None:
    """Keeps what runs took: *times* of the plan with these *devices*."""
    taken = sorted(times)
    # Other work of the machine makes runs longer, and some of them less.
    quick, median = taken[len(taken) // 10], taken[len(taken) // 2]
    observed = ObservedPlan(tuple(devices), predicted, quick, median - quick, len(taken))
    try:
        records = LearnedTimes(directory)
        known = records.load(key)
        plans = () if known is None else known.plans
        before = next((one for one in plans if one.devices == observed.devices), None)
        if not says_more(observed, before, is_first=not plans):
            return
        others = tuple(one for one in plans if one is not before)
        records.save(Learned(key=key, plans=(observed, *others)[:MOST_PLANS]))
    except (errors.CacheError, OSError) as error:
        log.info("what runs took is not kept: %s", error)


def says_more(observed: ObservedPlan, before: ObservedPlan | None, *, is_first: bool) -> bool:
    """Whether *observed* is worth keeping beside what is known of the same plan, and of others.

    A machine that does other work makes runs longer, never shorter: of two sessions the quicker one
    counts. Times as predicted are kept only where another plan of the network has run.
    """
    if before is not None:
        return observed.ns * DIFFERENCE < before.ns
    return not is_first or is_off(observed)


def is_off(observed: ObservedPlan) -> bool:
    """Whether the runs took clearly less or more than predicted, beyond their own spread."""
    ratio = observed.ns / max(1, observed.predicted_ns)
    beyond = abs(observed.ns - observed.predicted_ns) > observed.spread_ns
    return beyond and not 1 / DIFFERENCE <= ratio <= DIFFERENCE


def learned_plans(directory: str | None, key: str) -> tuple[ObservedPlan, ...]:
    """What is known of plans of the network with that key."""
    if directory is None:
        return ()
    found = LearnedTimes(directory).load(key)
    return () if found is None else found.plans


def corrected(
    costs: Costs, plans: Sequence[ObservedPlan], predicted: Sequence[int | None]
) -> Costs:
    """*costs*, corrected by *plans*, of which *predicted* has what *costs* predict.

    The device with most operations of a plan is corrected by the plan's time.
    """
    factors: dict[str, float] = {}
    for plan, ns in zip(plans, predicted, strict=True):
        name, _ = Counter(plan.devices).most_common(1)[0]
        if ns and name in costs:
            factors.setdefault(name, plan.ns / ns)
    if not factors:
        return costs
    return {name: replace(one, scale=factors.get(name, one.error)) for name, one in costs.items()}


def words(plans: Sequence[ObservedPlan], plan: ExecutionPlan, otherwise: ExecutionPlan) -> str:
    """What runs changed, as a remark on *plan*; *otherwise* is the plan without them."""
    from penstock.partitioning.show import duration

    took = "; ".join(
        f"{' and '.join(dict.fromkeys(one.devices))} took {duration(one.ns)} a run" for one in plans
    )
    if plan.assignment == otherwise.assignment:
        return f"corrected by runs: {took}"
    before = " and ".join(dict.fromkeys(step.device for step in otherwise.steps))
    return f"corrected by runs, without which {before} would be used: {took}"


def mark_of(plans: Sequence[ObservedPlan]) -> str:
    """A text that changes with what *plans* say by more than `DIFFERENCE`."""
    rows = []
    for plan in plans:
        ratio = plan.ns / max(1, plan.predicted_ns)
        step = round(math.log(max(ratio, 1e-6)) / math.log(DIFFERENCE))
        rows.append(f"{'+'.join(dict.fromkeys(plan.devices))}:{step}")
    return " ".join(sorted(rows))
