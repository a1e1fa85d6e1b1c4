"""Candidate plans of one compile: compiled, and timed in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from penstock.compilation.calls import check_interrupts
from penstock.compilation.compilation import compile_plan
from penstock.compilation.failing import driver_message
from penstock.compilation.prepared import CompileOptions
from penstock.errors import DriverError, MissedDeadline
from penstock.execution.run import Run
from penstock.execution.state import State
from penstock.execution.variant import Variant
from penstock.hal import Device, ExecutionConfig, PrepareConfig, ProgressEvent
from penstock.ir import Model, NDArray
from penstock.ir.types import static_shape
from penstock.partitioning.placement import candidates, place
from penstock.partitioning.plan import ExecutionPlan, Measured
from penstock.partitioning.policy import Policy
from penstock.runtime.energy import EnergyCounter
from penstock.runtime.examples import examples
from penstock.runtime.measuring import SPREADING_NS, WARM_NS, Contender, Counter, Series, measure
from penstock.runtime.rest import Rest

DRAWN_LOOP_NS: Final = 2_000_000_000
"""Nanoseconds that a loop of a measured run may take: with drawn inputs it may have no end."""

MOST_CANDIDATES: Final = 12
"""Placements that are compiled and timed, at most."""


class Occasion(msgspec.Struct, frozen=True):
    """What one compile places: *source* is the model before *shapes* were put into it, *model*
    after.

    *named* maps names to the devices that plans may use, *directory* is the cache directory (None:
    no verdict is read or kept). *counter* finds the energy counter, *clock* gives nanoseconds
    (None: the machine's own).
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
    """Plans with a name each. Every operation of each of them is in the policy's accuracy class."""
    found = candidates(
        occasion.model, occasion.devices, occasion.policy, occasion.config.preference
    )
    return found[:MOST_CANDIDATES]


def measured_series(
    occasion: Occasion, plans: Mapping[str, ExecutionPlan], counter: Counter | None
) -> tuple[list[Series], dict[str, Measured], int]:
    """The samples of every plan, those that failed to compile by name, and how many compiles it
    took.
    """
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
                failed[name] = Measured(name, 0, 0, 0, error=driver_message(error))
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
    """*plan* compiled, without cache and fall-back: a device that fails shall not win by another's
    speed.
    """
    config = replace(occasion.config, progress=None, accuracy=occasion.policy.accuracy)
    compilation = compile_plan(plan, occasion.named, config, CompileOptions(False))
    later = replace(config, deadline_ns=None, cancel=None)
    return Variant(compilation, occasion.named, later, False)


def _first_state(variant: Variant) -> State | None:
    return State(variant.model) if variant.model.entry.states else None


def _runner(variant: Variant, inputs: Sequence[NDArray]) -> Callable[[], None]:
    state = _first_state(variant)
    config = ExecutionConfig(loop_timeout_ns=DRAWN_LOOP_NS)

    def run() -> None:
        variant.run(Run(config), inputs, None, state)

    return run


def unmeasurable(model: Model) -> str:
    """Why no plan of *model* can be measured, in words; empty where one can."""
    for operand in model.inputs:
        if static_shape(operand.shape) is None:
            return f"the shape of input {operand.name!r} is not known: give shapes"
    return ""
