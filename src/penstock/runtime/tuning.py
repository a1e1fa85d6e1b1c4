"""Measured placement: times candidate plans on this machine, and stores the verdict."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from penstock import errors
from penstock.cache.verdicts import Verdict, Verdicts
from penstock.compilation.calls import check_interrupts
from penstock.compilation.compilation import compile_plan
from penstock.compilation.failing import driver_message
from penstock.compilation.prepared import CompileOptions
from penstock.distribution import FALLBACK_DEVICE
from penstock.execution.run import Run
from penstock.execution.state import State
from penstock.execution.variant import Variant
from penstock.hal import ExecutionConfig, PrepareConfig, ProgressEvent
from penstock.ir import DType, Model, NDArray, Operand, infer_shapes
from penstock.ir.types import static_shape
from penstock.partitioning.placement import candidates, place
from penstock.partitioning.placements import PREDICTED, Measured, Tuned
from penstock.partitioning.plan import ExecutionPlan
from penstock.partitioning.show import duration
from penstock.runtime import measuring
from penstock.runtime.compile_arguments import Counter, Occasion

DRAWN_LOOP_NS: Final = 2_000_000_000
"""Loop timeout of a measured run in nanoseconds: with random inputs a loop may never end."""

MOST_CANDIDATES: Final = 12
"""Maximum number of placements that are compiled and timed."""


def placed(occasion: Occasion, assignment: Sequence[str] | None = None) -> ExecutionPlan:
    """Calls `penstock.partitioning.placement.place` for this compile."""
    given = occasion.model, occasion.devices, occasion.policy, occasion.config.preference
    return place(*given, assignment, occasion.costs)


def measured_series(
    occasion: Occasion, plans: Mapping[str, ExecutionPlan], counter: Counter | None
) -> tuple[list[measuring.Series], dict[str, Measured], int]:
    """The samples of every plan, the plans that failed to compile by name, the compile count."""
    inputs = examples(occasion.model)
    failed: dict[str, Measured] = {}
    contenders, compiles = [], 0
    with ExitStack() as stack:
        for position, (name, plan) in enumerate(plans.items()):
            check_interrupts(occasion.config)
            if (progress := occasion.config.progress) is not None:
                progress(ProgressEvent("tune", name, position, len(plans)))
            try:
                variant = _compiled(occasion, plan)
            except errors.MissedDeadline:
                raise
            except errors.DriverError as error:
                failed[name] = Measured(name, 0, 0, 0, error=driver_message(error))
                continue
            own = stack.enter_context(ExitStack())
            own.callback(variant.close)
            compiles += variant.compilation.receipt.compiles
            contenders.append(measuring.Series(name, _runner(variant, inputs), own.close))
        clock, config = occasion.clock, occasion.config
        more: dict[str, Any] = {"rest": measuring.Rest()} if clock is None else {"clock": clock}
        more["warm_ns"] = measuring.SPREADING_NS
        if config.num_threads == 1:
            more["warm_ns"] = measuring.WARM_NS
        check = partial(check_interrupts, config)
        series = measuring.measure(contenders, energy=counter, check=check, **more)
    return series, failed, compiles


def _compiled(occasion: Occasion, plan: ExecutionPlan) -> Variant:
    """Compiles *plan* without cache and fallback, so that each device's own speed is measured."""
    config = replace(occasion.config, progress=None, accuracy=occasion.policy.accuracy)
    compilation = compile_plan(plan, occasion.named, config, CompileOptions(False))
    later = replace(config, deadline_ns=None, cancel=None)
    return Variant(compilation, occasion.named, later, False)


def _runner(variant: Variant, inputs: Sequence[NDArray]) -> Callable[[], None]:
    state = State(variant.model) if variant.model.entry.states else None
    config = ExecutionConfig(loop_timeout_ns=DRAWN_LOOP_NS)

    def run() -> None:
        variant.run(Run(config), inputs, None, state)

    return run


def measurable(occasion: Occasion) -> Occasion:
    """*occasion* with input shapes that are known: an unknown batch is `GUESSED_BATCH`.

    Raises `Unmeasurable` if other dimensions are unknown, and if the model cannot run with that
    batch.
    """
    model = occasion.model
    if all(static_shape(operand.shape) is not None for operand in model.inputs):
        return occasion
    shapes = occasion.measured_shapes
    try:
        assumed = infer_shapes(occasion.source, shapes)
    except errors.ModelError as error:
        raise Unmeasurable(f"the model does not run with {_in_words(occasion)}: {error}") from error
    for operand in assumed.inputs:
        if static_shape(operand.shape) is None:
            raise Unmeasurable(f"the shape of input {operand.name!r} is known only in a run")
    return replace(occasion, model=assumed, shapes=shapes)


def _in_words(occasion: Occasion) -> str:
    """The shapes that are assumed for *occasion*, as text; empty if all are known."""
    inputs, shapes = occasion.model.inputs, occasion.measured_shapes
    return ", ".join(
        f"{operand.name!r} {'x'.join(map(str, shapes[at]))}"
        for at, operand in enumerate(inputs)
        if at in shapes and operand.shape != shapes[at]
    )


class Unmeasurable(Exception):  # an answer
    """Why no plan of a model can be measured."""


log = logging.getLogger(__name__)

TOO_LATE: Final = (
    "the compile's timeout had passed before the placements were measured: give a "
    "longer one, or do not tune"
)

FIRST_RUN: Final = "the first run with other shapes measures, or give shapes"

ONLY_PLACEMENT: Final = "there is no other placement"

NO_COUNTER: Final = "this machine lets no energy counter be read, so nothing was measured"


def stored_plan(occasion: Occasion) -> ExecutionPlan | None:
    """The plan of the stored verdict on *occasion*; None if there is none that is allowed."""
    key = occasion.verdict_key
    verdict = (occasion.verdicts or {}).get(key)
    if verdict is None and occasion.directory is not None:
        verdict = Verdicts(occasion.directory).load(key)
    if verdict is None or verdict.accuracy != occasion.policy.accuracy:
        return None
    try:
        tuned = msgspec.json.decode(verdict.report, type=Tuned)
    except msgspec.DecodeError:
        return None
    tuned = replace(tuned, stored=occasion.directory is not None)
    return _with_verdict(occasion, verdict.devices, tuned)


def _with_verdict(occasion: Occasion, devices: Sequence[str], tuned: Tuned) -> ExecutionPlan | None:
    """The plan with the measured device of each operation; None if it is not allowed.

    Devices may support less while the batch is unknown. Only runs with that batch, whose shapes are
    known, are then placed as measured.
    """
    plan, words = placed(occasion, devices), _in_words(occasion)
    if not words and plan.assignment != tuple(devices):
        return None
    return with_reasons(replace(plan, tuned=replace(tuned, shapes=words)), occasion.config)


def tuned_plan(occasion: Occasion) -> ExecutionPlan:
    """The plan chosen by measuring, with the measurements in `ExecutionPlan.tuned`.

    The verdict is stored if there is a cache directory. Every candidate is in the policy's accuracy
    class; one that fails to compile or to run is rejected. Raises what `place` raises, and
    `Cancelled` and `MissedDeadline*` of the compile.
    """
    try:
        return _tuned(occasion)
    except errors.MissedDeadline as error:
        # The original message is about one candidate; this one is about the whole measurement.
        is_transient = isinstance(error, errors.MissedDeadlineTransient)
        kind = errors.MissedDeadlineTransient if is_transient else errors.MissedDeadlinePersistent
        raise kind(TOO_LATE) from error


def _tuned(occasion: Occasion) -> ExecutionPlan:
    low_power = occasion.config.preference == "low_power"
    plan = placed(occasion)
    try:
        known = measurable(occasion)
    except Unmeasurable as error:
        return _not_measured(plan, f"{error}: {FIRST_RUN}")
    if known is not occasion:
        best = _tuned(known)
        if best.tuned is None or not best.tuned.candidates:
            return replace(plan, tuned=best.tuned)
        devices = best.assignment
        return _with_verdict(occasion, devices, best.tuned) or plan
    counter = (occasion.counter or measuring.EnergyCounter.find)() if low_power else None
    if low_power and counter is None:
        return _not_measured(plan, NO_COUNTER)
    # All their operations are in the policy's accuracy class.
    given = occasion.model, occasion.devices, occasion.policy, occasion.config.preference
    found = candidates(*given, occasion.costs)
    plans = dict(found[:MOST_CANDIDATES])
    if len(plans) == 1:
        name, only = next(iter(plans.items()))
        return replace(only, tuned=Tuned((), name, ONLY_PLACEMENT, outcome="only"))
    series, failed, compiles = measured_series(occasion, plans, counter)
    results = {each.name: each.measured() for each in series} | failed
    measured = tuple(results[name] for name in plans)
    # One of the candidates on a single device wins unless another is better beyond the noise.
    ran = {each.name for each in measured if each.error is None}
    alone = [device.name for device in occasion.devices if device.name in ran]
    alone = [name for name in alone if name != FALLBACK_DEVICE] or alone
    try:
        winner, reason = measuring.choose(series, alone)
    except ValueError as error:
        return replace(plan, tuned=Tuned(measured, PREDICTED, str(error), compiles))
    tuned = Tuned(measured, winner, reason, compiles, created=time.time())
    log.info("tuned: %s (%s)", winner, reason)
    chosen = replace(plans[winner], tuned=tuned)
    _keep(occasion, chosen)
    return with_reasons(chosen, occasion.config)


def _not_measured(plan: ExecutionPlan, reason: str) -> ExecutionPlan:
    log.warning("tune: nothing was measured, the placement is the predicted one: %s", reason)
    return replace(plan, tuned=Tuned((), PREDICTED, reason, outcome="unmeasured"))


def with_reasons(plan: ExecutionPlan, config: PrepareConfig) -> ExecutionPlan:
    """*plan* with measured times instead of predictions as the reasons against devices."""
    if plan.tuned is None:
        return plan
    by_energy = config.preference == "low_power"
    measured = {m.name: m for m in plan.tuned.candidates}
    winner = measured.get(plan.tuned.winner)
    if winner is None:
        return plan
    losses = {
        device: errors.Refusal(
            errors.RefusalCode.MEASURED, _loss(measured[device], winner, by_energy=by_energy)
        )
        for device in plan.devices
        if device in measured and device != winner.name
    }
    operations = []
    for placement in plan.operations:
        refusals = {
            device: losses.get(device, why) if why.code is errors.RefusalCode.PREDICTED else why
            for device, why in placement.refusals.items()
        }
        operations.append(replace(placement, refusals=refusals))
    return replace(plan, operations=tuple(operations))


def _loss(loser: Measured, winner: Measured, *, by_energy: bool) -> str:
    if loser.error is not None:
        return f"failed as it was measured: {loser.error}"
    if by_energy and loser.energy_uj is not None and winner.energy_uj is not None:
        mine, best, worse = loser.energy_uj, winner.energy_uj, "to take more energy"
        amounts = f"{measuring.joules(mine)} against {measuring.joules(best)}"
    else:
        mine, best, worse = loser.median_ns, winner.median_ns, "slower"
        amounts = f"{duration(mine)} against {duration(best)}"
    words = "no better than the noise" if mine < best else worse
    return f"measured {words}: {amounts} a run"


def _keep(occasion: Occasion, plan: ExecutionPlan) -> None:
    from penstock.execution.availability import lists_unavailable

    # A device that did not answer may be available next time.
    is_partial = any(lists_unavailable(placement.refusals) for placement in plan.operations[:1])
    if plan.tuned is None or is_partial:
        return
    verdict = Verdict(
        key=occasion.verdict_key,
        accuracy=occasion.policy.accuracy,
        devices=plan.assignment,
        report=msgspec.Raw(msgspec.json.encode(plan.tuned)),
        # Read from `sys.modules`: an import would be circular.
        penstock=sys.modules["penstock"].__version__,
        model=occasion.source.digest.hex(),
    )
    if occasion.verdicts is not None:
        occasion.verdicts[verdict.key] = verdict
    if occasion.directory is None:
        return
    try:
        Verdicts(occasion.directory).save(verdict)
    except errors.CacheError as error:
        log.warning("the measured placement is not kept: %s", error)


RANGED: Final = frozenset({DType.INT8, DType.UINT8, DType.INT16})
WHOLE: Final = frozenset({DType.UINT8, DType.INT16, DType.INT32, DType.INT64})

PICTURE_RANK: Final = 4
COLOURS: Final = (1, 3, 4)
"""Channel counts of a picture: grey; red, green, blue; these and opacity."""

BRIGHTEST: Final = 255


def example(operand: Operand, seed: int = 0) -> NDArray:
    """Random values of an input with a known shape; the same for each call with one *seed*.

    - Floats: from 0 to 1; with an odd seed from -1 to 1.
    - Quantised types: real numbers over the type's range.
    - Integers without a scale: from 0 to 255 if the shape is that of a picture (rank 4, with 1, 3
      or 4 channels last).
    - Any other type: zeros.
    """
    shape = static_shape(operand.shape) or ()
    rng = np.random.default_rng(seed)
    dtype = operand.dtype.numpy
    if operand.dtype is DType.STRING:
        array: NDArray = np.empty(shape, object)
        array[...] = b""
        return array
    if operand.dtype.is_float:
        values: NDArray = rng.random(shape, np.float32)
        if seed % 2:
            values = values * np.float32(2) - np.float32(1)
        return values.astype(dtype)
    is_whole = operand.dtype in WHOLE and operand.quantization is None
    if is_whole and len(shape) == PICTURE_RANK and shape[-1] in COLOURS:
        return rng.integers(0, BRIGHTEST, shape, dtype, endpoint=True)
    if operand.quantization is not None and operand.dtype in RANGED:
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    return np.zeros(shape, dtype)


def examples(model: Model) -> list[NDArray]:
    """An example of each of the model's inputs, in order."""
    return [example(operand) for operand in model.inputs]
