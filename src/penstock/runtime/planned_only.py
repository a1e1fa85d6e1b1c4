"""A compile that is its kept plan alone: of a model with unknown dimensions, whose runs each have
the form of their own shapes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from penstock import hal
from penstock.compilation.calls import is_simulated
from penstock.compilation.prepared import Compilation
from penstock.compilation.receipt import Receipt
from penstock.compilation.step_receipt import CacheOutcome, Recorder, StepReceipt
from penstock.runtime.planning import notes_on_devices

if TYPE_CHECKING:
    from penstock.runtime.compile_arguments import CompileArguments
    from penstock.runtime.discovery import Manager
    from penstock.runtime.keeping import RestoredPlan

NOT_NEEDED: Final = CacheOutcome(
    "off", "not prepared: each run is prepared for its own shapes, or loaded for them"
)


def planned_only(
    restored: RestoredPlan,
    outcome: CacheOutcome | None,
    config: hal.PrepareConfig,
    arguments: CompileArguments,
    manager: Manager,
    recorder: Recorder,
) -> Compilation:
    """The compilation of the plan *restored*, without a prepared step. *outcome* is that of the
    cache for the plan. Reports the end of the compile to the progress callback of *config*.
    """
    plan, began = restored.plan, time.perf_counter_ns()
    steps = tuple(
        StepReceipt(
            step.device,
            step.operations,
            0,
            cache=NOT_NEEDED,
            step=step.index,
            start_ns=began,
            simulated=is_simulated(restored.devices[step.device]),
        )
        for step in plan.steps
    )
    if config.progress is not None:
        config.progress(hal.ProgressEvent("compile", "", len(steps), len(steps)))
    notes = () if plan.slow is None else (str(plan.slow),)
    receipt = Receipt(
        steps,
        wall_ns=time.perf_counter_ns() - began,
        start_ns=began,
        spans=tuple(recorder.spans),
        stage="compile",
        notes=(*notes, *notes_on_devices(plan, arguments, manager)),
        plan=outcome,
    )
    return Compilation(plan, (), receipt)
