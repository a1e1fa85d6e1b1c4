"""Candidate plans of one compile: what is worth to be measured, compiled, timed in turns, and proved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from penstock.compilation.calls import check_interrupts
from penstock.compilation.compilation import Means, compile_plan
from penstock.compilation.failing import told
from penstock.errors import FOREIGN, DriverError, MissedDeadline, PlacementError
from penstock.execution.state import State
from penstock.execution.trace import Trace
from penstock.execution.variant import Variant
from penstock.hal import AccuracyClass, Device, ExecutionConfig, PrepareConfig, ProgressEvent
from penstock.ir import Model, NDArray
from penstock.ir.types import static_shape
from penstock.partitioning.fallback import held_to_proof
from penstock.partitioning.placement import candidates, place
from penstock.partitioning.plan import ExecutionPlan, Measured
from penstock.partitioning.policy import Policy
from penstock.partitioning.support import REFERENCE_DEVICE
from penstock.runtime.energy import EnergyCounter
from penstock.runtime.examples import examples, is_drawn
from penstock.runtime.measuring import SPREADING_NS, WARM_NS, Contender, Counter, Series, measure
from penstock.runtime.rest import Rest

if TYPE_CHECKING:
    from penstock.runtime.proving import Run

PROVED: Final[AccuracyClass] = "faithful"
"""The class that plans in the lesser one, `PROVABLE`, may be proved to keep."""
PROVABLE: Final[AccuracyClass] = "stepwise"

MOST_CANDIDATES: Final = 12
"""Placements that are compiled and timed, at most."""


class Proof(msgspec.Struct, frozen=True):
    """Whether a plan was measured to be within a class as a whole, what was measured, in words, and how many
    driver compiles that took.
    """

    holds: bool
    told: str
    compiles: int = 0


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


def placed(occasion: Occasion, assignment: Sequence[str] | None = None) -> ExecutionPlan:
    """`penstock.partitioning.placement.place`, of this compile."""
    return place(
        occasion.model,
        occasion.devices,
        occasion.policy,
        occasion.config.preference,
        assignment,
    )


def worth_measuring(occasion: Occasion) -> list[tuple[str, ExecutionPlan]]:
    """Plans with a name each: those of the policy's class, then those in `stepwise` that have to be proved."""
    found = candidates(
        occasion.model, occasion.devices, occasion.policy, occasion.config.preference
    )
    return [*found[:MOST_CANDIDATES], *_stepwise(occasion)]


def _stepwise(occasion: Occasion) -> list[tuple[str, ExecutionPlan]]:
    """The plans of single devices that compute quantised operations otherwise where each has to be within a step by itself,
    and no more: what LiteRT's own kernels allow as a whole, which is what `faithful` asks, a measurement may show.
    """
    operands = occasion.model.entry.operands
    if (
        occasion.policy.accuracy != PROVED
        or REFERENCE_DEVICE not in occasion.named
        or not any(operand.quantization is not None for operand in operands)
        # Outputs of one input alone, all zeros, would prove nothing.
        or not any(map(is_drawn, occasion.model.inputs))
    ):
        return []
    rounding = [device.name for device in occasion.devices if _rounds_for_class(device)]
    if not rounding:
        return []
    policy = replace(occasion.policy, accuracy=PROVABLE)
    try:
        found = candidates(occasion.model, occasion.devices, policy, occasion.config.preference)
    except PlacementError:
        # The policy's own class has plans; its limits on steps may be missed in another.
        return []
    return [
        (f"{name}, {PROVABLE}", held_to_proof(plan)) for name, plan in found if name in rounding
    ]


def _rounds_for_class(device: Device) -> bool:
    try:
        return device.capabilities.rounds_for_class
    except FOREIGN:  # a device that cannot be asked is nothing to measure
        return False


def measured_series(
    occasion: Occasion, plans: Mapping[str, ExecutionPlan], counter: Counter | None
) -> tuple[list[Series], dict[str, Measured], int]:
    """The samples of every plan, those that failed to compile by name, and how many compiles it took."""
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
            warm_ns=WARM_NS if occasion.config.num_threads == 1 else SPREADING_NS,
            **more,
        )
    return series, failed, compiles


def _compiled(occasion: Occasion, plan: ExecutionPlan) -> Variant:
    """*plan* compiled, without cache and fall-back: a device that fails shall not win by another's speed."""
    config = replace(occasion.config, progress=None, accuracy=plan.accuracy)
    compilation = compile_plan(plan, occasion.named, config, Means(False))
    later = replace(config, deadline_ns=None, cancel=None)
    return Variant(compilation, occasion.named, later, False)


def _first_state(variant: Variant) -> State | None:
    return State(variant.model) if variant.model.entry.states else None


def _runner(variant: Variant, inputs: Sequence[NDArray]) -> Callable[[], None]:
    state = _first_state(variant)
    config = ExecutionConfig()

    def run() -> None:
        trace = Trace()
        # As a compiled model's runs do.
        if variant.is_one_call and variant.run_once(inputs, state, config, trace) is not None:
            return
        variant.run(inputs, None, state, config, trace)

    return run


def unmeasurable(model: Model) -> str:
    """Why no plan of *model* can be measured, in words; empty where one can."""
    for operand in model.inputs:
        if static_shape(operand.shape) is None:
            return f"the shape of input {operand.name!r} is not known: give shapes"
    return ""


def proved(occasion: Occasion, name: str, plan: ExecutionPlan, usual: ExecutionPlan) -> Proof:
    """Whether *plan*, of that name, is within what the class of *usual* allows (`penstock.runtime.proving`)."""
    from penstock.runtime.proving import MOST_EXAMPLES, prove

    policy = Policy(accuracy="exact")
    asked = occasion.config
    # The reference may take long: one that waits for it can end that.
    config = ExecutionConfig(deadline_ns=asked.deadline_ns, cancel=asked.cancel)
    compiles = 0
    with ExitStack() as stack:

        def computer(plan: ExecutionPlan) -> Run:
            nonlocal compiles
            variant = _compiled(occasion, plan)
            stack.callback(variant.close)
            compiles += variant.compilation.receipt.compiles
            state = _first_state(variant)
            return lambda inputs: variant.run(inputs, None, state, config, Trace())

        def before(done: int) -> None:
            check_interrupts(asked)
            if asked.progress is not None:
                asked.progress(ProgressEvent("prove", name, done, 3 * MOST_EXAMPLES))

        try:
            exact = place(occasion.model, [occasion.named[REFERENCE_DEVICE]], policy)
            holds, words = prove(
                occasion.model,
                computer(plan),
                computer(usual),
                computer(exact),
                before,
            )
            return Proof(holds, words, compiles)
        except MissedDeadline:
            raise
        except (DriverError, PlacementError) as error:
            return Proof(False, told(error), compiles)
