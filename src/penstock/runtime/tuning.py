"""Measured placement: candidate plans timed on this machine, and the verdict kept for later starts."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import asdict, replace

from penstock.cache.ingredients import placement_key
from penstock.cache.verdicts import Verdict, Verdicts
from penstock.distribution import FALLBACK_DEVICE
from penstock.errors import (
    CacheError,
    MissedDeadline,
    MissedDeadlinePersistent,
    MissedDeadlineTransient,
    Refusal,
    RefusalCode,
)
from penstock.hal import PrepareConfig
from penstock.partitioning.plan import PREDICTED, ExecutionPlan, Measured, Tuned
from penstock.partitioning.show import duration
from penstock.runtime.measuring import choose, joules
from penstock.runtime.trial import (
    Occasion,
    measured_series,
    placed,
    unmeasurable,
    worth_measuring,
)

log = logging.getLogger(__name__)

TOO_LATE: Final = "the compile's timeout had passed before the placements were measured: give a longer one, or do not tune"

ONLY_PLACEMENT: Final = "there is no other placement"

NO_COUNTER: Final = "this machine lets no energy counter be read, so nothing was measured"


def stored_plan(occasion: Occasion) -> ExecutionPlan | None:
    """The plan of the verdict stored for exactly this: model, shapes, devices and their versions,
    policy, preference and threads. None where there is none, where it is of another accuracy class
    than the policy's, or where it is not allowed any more.
    """
    if occasion.directory is None:
        return None
    verdict = Verdicts(occasion.directory).load(_key(occasion))
    if verdict is None or verdict.accuracy != occasion.policy.accuracy:
        return None
    try:
        tuned = msgspec.json.decode(verdict.report, type=Tuned)
    except msgspec.DecodeError:
        return None
    plan = placed(occasion, verdict.devices)
    if tuple(placement.device for placement in plan.operations) != verdict.devices:
        return None
    return with_reasons(replace(plan, tuned=replace(tuned, stored=True)), occasion.config)


def tuned_plan(occasion: Occasion) -> ExecutionPlan:
    """The plan that measuring chose, `ExecutionPlan.tuned` with what was measured; kept where there
    is a directory.

    Every candidate is within the policy's accuracy class; one that fails to compile or to run is
    rejected. Raises what `place` raises, and `Cancelled` and `MissedDeadline*` of the compile's
    own.
    """
    try:
        return _tuned(occasion)
    except MissedDeadline as error:
        # What each driver and step calls its beginning is in the midst of this.
        is_transient = isinstance(error, MissedDeadlineTransient)
        kind = MissedDeadlineTransient if is_transient else MissedDeadlinePersistent
        raise kind(TOO_LATE) from error


def _tuned(occasion: Occasion) -> ExecutionPlan:
    low_power = occasion.config.preference == "low_power"
    plan = placed(occasion)
    if reason := unmeasurable(occasion.model):
        return _not_measured(plan, reason)
    counter = occasion.counter() if low_power else None
    if low_power and counter is None:
        return _not_measured(plan, NO_COUNTER)
    plans = dict(worth_measuring(occasion))
    if len(plans) == 1:
        name, only = next(iter(plans.items()))
        return replace(only, tuned=Tuned((), name, ONLY_PLACEMENT, outcome="only"))
    series, failed, compiles = measured_series(occasion, plans, counter)
    found = {each.name: each.measured() for each in series} | failed
    measured = tuple(found[name] for name in plans)
    try:
        winner, reason = choose(series, _alone(occasion, measured))
    except ValueError as error:
        return replace(plan, tuned=Tuned(measured, PREDICTED, str(error), compiles))
    tuned = Tuned(measured, winner, reason, compiles, created=time.time())
    log.info("tuned: %s (%s)", winner, reason)
    chosen = replace(plans[winner], tuned=tuned)
    _keep(occasion, chosen)
    return with_reasons(chosen, occasion.config)


def _alone(occasion: Occasion, measured: Sequence[Measured]) -> list[str]:
    """The single devices one of which wins unless another placement is better by more than the
    noise. The reference is such another one, wherever an engine could be measured.
    """
    ran = {each.name for each in measured if each.error is None}
    alone = [device.name for device in occasion.devices if device.name in ran]
    return [name for name in alone if name != FALLBACK_DEVICE] or alone


def _not_measured(plan: ExecutionPlan, reason: str) -> ExecutionPlan:
    log.warning("tune: nothing was measured, the placement is the predicted one: %s", reason)
    return replace(plan, tuned=Tuned((), PREDICTED, reason, outcome="unmeasured"))


def with_reasons(plan: ExecutionPlan, config: PrepareConfig) -> ExecutionPlan:
    """*plan*, with what was measured of a device by itself as the reason against it in the place of
    a prediction.
    """
    if plan.tuned is None:
        return plan
    by_energy = config.preference == "low_power"
    measured = {m.name: m for m in plan.tuned.candidates}
    winner = measured.get(plan.tuned.winner)
    if winner is None:
        return plan
    losses = {
        device: Refusal(RefusalCode.MEASURED, _loss(measured[device], winner, by_energy=by_energy))
        for device in plan.devices
        if device in measured and device != winner.name
    }
    operations = tuple(
        replace(
            placement,
            refusals={
                device: losses[device]
                if device in losses and why.code is RefusalCode.PREDICTED
                else why
                for device, why in placement.refusals.items()
            },
        )
        for placement in plan.operations
    )
    return replace(plan, operations=operations)


def _loss(loser: Measured, winner: Measured, *, by_energy: bool) -> str:
    if loser.error is not None:
        return f"failed as it was measured: {loser.error}"
    if by_energy and loser.energy_uj is not None and winner.energy_uj is not None:
        amounts = f"{joules(loser.energy_uj)} against {joules(winner.energy_uj)}"
        better = loser.energy_uj < winner.energy_uj
        return f"measured {'no better than the noise' if better else 'to take more energy'}: {amounts} a run"
    amounts = f"{duration(loser.median_ns)} against {duration(winner.median_ns)} a run"
    better = loser.median_ns < winner.median_ns
    return f"measured {'no better than the noise' if better else 'slower'}: {amounts}"


def _keep(occasion: Occasion, plan: ExecutionPlan) -> None:
    if occasion.directory is None or plan.tuned is None or _is_without_some(plan):
        return
    verdict = Verdict(
        key=_key(occasion),
        accuracy=occasion.policy.accuracy,
        devices=tuple(placement.device for placement in plan.operations),
        report=msgspec.Raw(msgspec.json.encode(plan.tuned)),
        # Not imported: the top package imports this one.
        penstock=sys.modules["penstock"].__version__,
        model=occasion.source.digest.hex(),
    )
    try:
        Verdicts(occasion.directory).save(verdict)
    except CacheError as error:
        log.warning("the measured placement is not kept: %s", error)


def _is_without_some(plan: ExecutionPlan) -> bool:
    """Whether a device could not be asked, which may be there the next time."""
    from penstock.execution.availability import lists_unavailable

    return any(lists_unavailable(placement.refusals) for placement in plan.operations[:1])


def _key(occasion: Occasion) -> str:
    """The key of the verdict on *occasion*: the model's content counts, not its file."""
    policy = asdict(occasion.policy)
    return placement_key(
        occasion.source,
        occasion.devices,
        occasion.config,
        occasion.shapes,
        {name: _plain(policy[name]) for name in _DEMANDS},
    )


_DEMANDS: Final = (
    "accuracy",
    "require",
    "forbid",
    "min_coverage",
    "max_partitions",
    "min_partition_size",
)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: list(names) for key, names in value.items()}
    return value
