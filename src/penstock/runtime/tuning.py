"""Measured placement: candidate plans timed on this machine, and the verdict kept for later starts."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import asdict, replace

from penstock.cache.ingredients import CACHE_SCHEMA, cpu_features
from penstock.cache.verdicts import Verdict, Verdicts, verdict_key
from penstock.compilation.calls import check_interrupts
from penstock.compilation.compilation import Means, compile_plan
from penstock.compilation.failing import told
from penstock.errors import CacheError, DriverError, MissedDeadline
from penstock.execution.state import State
from penstock.execution.trace import Trace
from penstock.execution.variant import Variant
from penstock.hal import Device, ExecutionConfig, PrepareConfig, ProgressEvent
from penstock.ir import DType, Model, NDArray, Operand
from penstock.ir.types import static_shape
from penstock.partitioning.placement import candidates, place
from penstock.partitioning.plan import ONLY_PLACEMENT, PREDICTED, ExecutionPlan, Measured, Tuned
from penstock.partitioning.policy import Policy
from penstock.partitioning.reasons import duration
from penstock.partitioning.support import REFERENCE_DEVICE
from penstock.runtime.energy import EnergyCounter
from penstock.runtime.measuring import Contender, Counter, Series, choose, joules, measure
from penstock.runtime.rest import Rest

log = logging.getLogger(__name__)

MOST_CANDIDATES: Final = 12
"""Placements that are compiled and timed, at most."""

VERDICT_SCHEMA: Final = "1"
"""Raised when equal keys would no longer mean equal plans."""

NO_COUNTER: Final = "this machine lets no energy counter be read, so nothing was measured"


class Occasion(msgspec.Struct, frozen=True):
    """What one compile places: *source* is the model before *shapes* were put into it, *model* after.

    *named* maps names to the devices that plans may use, *directory* is the cache directory (None: no verdict is read
    or kept). *counter* finds the energy counter, *clock* gives nanoseconds (None: the machine's own).
    """

    source: Model
    model: Model
    shapes: Mapping[int, Sequence[int]]
    devices: Sequence[Device]
    named: Mapping[str, Device]
    policy: Policy
    config: PrepareConfig
    directory: str | None = None
    counter: Callable[[], Counter | None] = EnergyCounter.find
    clock: Callable[[], int] | None = None


def stored_plan(occasion: Occasion) -> ExecutionPlan | None:
    """The plan of the verdict stored for exactly this: model, shapes, devices and their versions, policy,
    preference and threads. None where there is none, or it is not allowed any more.
    """
    if occasion.directory is None:
        return None
    verdict = Verdicts(occasion.directory).load(_key(occasion))
    if verdict is None:
        return None
    try:
        tuned = msgspec.json.decode(verdict.report, type=Tuned)
    except msgspec.DecodeError:
        return None
    plan = _placed(occasion, verdict.devices)
    if tuple(placement.device for placement in plan.operations) != verdict.devices:
        return None
    return with_reasons(replace(plan, tuned=replace(tuned, stored=True)), occasion.config)


def tuned_plan(occasion: Occasion) -> ExecutionPlan:
    """The plan that measuring chose, `ExecutionPlan.tuned` with what was measured; kept where there is a directory.

    A candidate that fails to compile or to run is out. Raises what `place` raises, and `Cancelled` and
    `MissedDeadline*` of the compile's own.
    """
    low_power = occasion.config.preference == "low_power"
    plan = _placed(occasion)
    if reason := _unmeasurable(occasion.model):
        return _not_measured(plan, reason)
    counter = occasion.counter() if low_power else None
    if low_power and counter is None:
        return _not_measured(plan, NO_COUNTER)
    plans = dict(_candidates(occasion))
    if len(plans) == 1:
        name, only = next(iter(plans.items()))
        return replace(only, tuned=Tuned((), name, ONLY_PLACEMENT))
    series, failed, compiles = _measure(occasion, plans, counter)
    done = {each.name: each.measured() for each in series} | failed
    measured = [done[name] for name in plans]
    try:
        winner, reason = choose(series, _alone(occasion, measured))
    except ValueError as error:
        return replace(plan, tuned=Tuned(tuple(measured), PREDICTED, str(error), compiles))
    tuned = Tuned(tuple(measured), winner, reason, compiles, created=time.time())
    log.info("tuned: %s (%s)", winner, reason)
    chosen = replace(plans[winner], tuned=tuned)
    _keep(occasion, chosen)
    return with_reasons(chosen, occasion.config)


def _alone(occasion: Occasion, measured: Sequence[Measured]) -> list[str]:
    """The single devices one of which wins unless another placement is better by more than the noise. The reference is
    such another one, wherever an engine could be measured.
    """
    ran = {each.name for each in measured if each.error is None}
    alone = [device.name for device in occasion.devices if device.name in ran]
    return [name for name in alone if name != REFERENCE_DEVICE] or alone


def _not_measured(plan: ExecutionPlan, reason: str) -> ExecutionPlan:
    log.warning("tune: nothing was measured, the placement is the predicted one: %s", reason)
    return replace(plan, tuned=Tuned((), PREDICTED, reason))


def with_reasons(plan: ExecutionPlan, config: PrepareConfig) -> ExecutionPlan:
    """*plan*, with what was measured of a device by itself as the reason against it in the place of a prediction."""
    if plan.tuned is None:
        return plan
    by_energy = config.preference == "low_power"
    measured = {m.name: m for m in plan.tuned.candidates}
    winner = measured.get(plan.tuned.winner)
    if winner is None:
        return plan
    losses = {
        device: _loss(measured[device], winner, by_energy=by_energy)
        for device in plan.devices
        if device in measured and device != winner.name
    }
    operations = tuple(
        replace(
            placement,
            reasons={
                device: losses[device]
                if device in losses and reason.startswith(PREDICTED)
                else reason
                for device, reason in placement.reasons.items()
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


def _placed(occasion: Occasion, assignment: Sequence[str] | None = None) -> ExecutionPlan:
    return place(
        occasion.model,
        occasion.devices,
        occasion.policy,
        occasion.config.preference,
        assignment,
    )


def _candidates(occasion: Occasion) -> list[tuple[str, ExecutionPlan]]:
    found = candidates(
        occasion.model, occasion.devices, occasion.policy, occasion.config.preference
    )
    return found[:MOST_CANDIDATES]


def _measure(
    occasion: Occasion, plans: Mapping[str, ExecutionPlan], counter: Counter | None
) -> tuple[list[Series], dict[str, Measured], int]:
    """The samples of every plan, those that failed to compile by name, and how many compiles it took."""
    inputs = [_example(operand) for operand in occasion.model.inputs]
    failed: dict[str, Measured] = {}
    contenders, compiles = [], 0
    with ExitStack() as stack:
        for position, (name, plan) in enumerate(plans.items()):
            check_interrupts(occasion.config)
            if (progress := occasion.config.progress) is not None:
                progress(ProgressEvent("tune", name, position, len(plans)))
            try:
                variant = _compiled(occasion, plan)
            except MissedDeadline:
                raise
            except DriverError as error:
                failed[name] = Measured(name, 0, 0, 0, error=told(error))
                continue
            own = stack.enter_context(ExitStack())
            own.callback(variant.close)
            compiles += variant.compilation.receipt.compiles
            contenders.append(Contender(name, _runner(variant, inputs), own.close))
        more: dict[str, Any] = (
            {"rest": Rest()} if occasion.clock is None else {"clock": occasion.clock}
        )
        series = measure(
            contenders,
            energy=counter,
            check=lambda: check_interrupts(occasion.config),
            **more,
        )
    return series, failed, compiles


def _compiled(occasion: Occasion, plan: ExecutionPlan) -> Variant:
    """*plan* compiled, without cache and fall-back: a device that fails shall not win by another's speed."""
    config = replace(occasion.config, progress=None)
    compilation = compile_plan(plan, occasion.named, config, Means(False))
    later = replace(config, deadline_ns=None, cancel=None)
    return Variant(compilation, occasion.named, later, False)


def _runner(variant: Variant, inputs: Sequence[NDArray]) -> Callable[[], None]:
    state = State(variant.model) if variant.model.entry.states else None
    config = ExecutionConfig()

    def run() -> None:
        trace = Trace()
        # As a compiled model's runs do.
        if variant.is_one_call and variant.run_once(inputs, state, config, trace) is not None:
            return
        variant.run(inputs, None, state, config, trace)

    return run


def _unmeasurable(model: Model) -> str:
    for operand in model.inputs:
        if static_shape(operand.shape) is None:
            return f"the shape of input {operand.name!r} is not known: give shapes"
    return ""


def _example(operand: Operand) -> NDArray:
    """Floats from 0 to 1, real numbers of a quantised type over its range, zeros of any other."""
    shape = static_shape(operand.shape) or ()
    rng = np.random.default_rng(0)
    if operand.dtype is DType.STRING:
        array: NDArray = np.empty(shape, object)
        array[...] = b""
        return array
    dtype = operand.dtype.numpy
    if operand.dtype.is_float:
        return rng.random(shape, np.float32).astype(dtype)
    if operand.quantization is not None and operand.dtype in {DType.INT8, DType.UINT8}:
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    return np.zeros(shape, dtype)


def _keep(occasion: Occasion, plan: ExecutionPlan) -> None:
    if occasion.directory is None or plan.tuned is None or _is_without_some(plan):
        return
    verdict = Verdict(
        key=_key(occasion),
        devices=tuple(placement.device for placement in plan.operations),
        report=msgspec.Raw(msgspec.json.encode(plan.tuned)),
        # Not imported: the top package imports this one.
        penstock=sys.modules["penstock"].__version__,
    )
    try:
        Verdicts(occasion.directory).save(verdict)
    except CacheError as error:
        log.warning("the measured placement is not kept: %s", error)


def _is_without_some(plan: ExecutionPlan) -> bool:
    """Whether a device could not be asked, which may be there the next time."""
    from penstock.execution.absence import is_absent

    return any(is_absent(placement.reasons) for placement in plan.operations[:1])


def _key(occasion: Occasion) -> str:
    """Everything that a verdict depends on, named: the model's content, not its file."""
    digest, config = occasion.source.digest, occasion.config
    policy = asdict(occasion.policy)
    demands = {name: policy[name] for name in _DEMANDS}
    return verdict_key(
        {
            "structure": digest.structure.hex(),
            "constants": digest.constants.hex(),
            "shapes": " ".join(
                f"{position}:{'x'.join(map(str, shape))}"
                for position, shape in sorted(occasion.shapes.items())
            ),
            "devices": "\n".join(f"{d.name}\t{d.version}" for d in occasion.devices),
            "preference": config.preference,
            "priority": config.priority,
            "num_threads": str(config.num_threads),
            "policy": msgspec.json.encode(
                {name: _plain(value) for name, value in demands.items()}, order="sorted"
            ).decode(),
            "cpu_features": cpu_features(),
            "schema": f"{CACHE_SCHEMA}.{VERDICT_SCHEMA}",
        }
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
