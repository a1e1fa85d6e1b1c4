"""The compile of an IF or a WHILE that the runtime carries out: each of its branches as a plan of
its own.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from penstock.cache.info import CacheInfo
from penstock.compilation.calls import describe
from penstock.compilation.prepared import (
    Compilation,
    CompileOptions,
    PreparedStep,
    close_all,
)
from penstock.compilation.receipt import CacheOutcome, Failure, StepReceipt
from penstock.errors import DriverError, MissedDeadline
from penstock.hal import Device, PreparedModelBase
from penstock.logs import Log
from penstock.partitioning.plan import Control, ExecutionPlan, ExecutionStep

if TYPE_CHECKING:
    from penstock.compilation.caching import Caching

log = Log(__name__)


def prepare_control(
    step: ExecutionStep,
    control: Control,
    device: Device,
    options: CompileOptions,
    compile_branch: Callable[[ExecutionPlan, CompileOptions], Compilation],
    prepare_whole: Callable[[ExecutionStep], tuple[PreparedStep, int]],
) -> tuple[PreparedStep, int]:
    """*step*, which is *control*, with every branch compiled by *compile_branch*; and how many
    compiles it took.

    Where a branch cannot be compiled, and *options* allow a fall-back, *prepare_whole* prepares the
    step as a whole on its own *device*. Raises what these do.
    """
    began = time.perf_counter_ns()
    done: list[Compilation] = []
    try:
        for place, branch in enumerate(control.branches):
            caching = _caching_of(options.caching, step, place, branch)
            done.append(compile_branch(branch, replace(options, caching=caching)))
    except MissedDeadline:
        close_all(done)
        raise
    except DriverError as error:
        close_all(done)
        if not options.allow_fallback:
            raise
        return _as_a_whole(step, prepare_whole, error)
    except BaseException:
        close_all(done)
        raise
    compiled = Control(control.kind, tuple(one.plan for one in done))
    receipt = StepReceipt(
        step.device,
        step.operations,
        time.perf_counter_ns() - began,
        cache=CacheOutcome("off", "the runtime carries it out"),
        step=step.index,
        start_ns=began,
        inner=tuple(
            replace(inner, part=part)
            for part, one in zip(control.parts, done, strict=True)
            for inner in one.receipt.steps
        ),
    )
    made = PreparedStep(
        replace(step, control=compiled),
        device,
        CarriedOut(),
        receipt,
        branches=tuple(done),
    )
    return made, sum(one.receipt.compiles for one in done)


class CarriedOut(PreparedModelBase):
    """Stands for what the runtime carries out: no driver has prepared it, and nothing executes it."""


def _as_a_whole(
    step: ExecutionStep,
    prepare_whole: Callable[[ExecutionStep], tuple[PreparedStep, int]],
    error: DriverError,
) -> tuple[PreparedStep, int]:
    log.warning(
        "step %d: a branch did not compile, %s runs it as a whole: %s",
        step.index,
        step.device,
        describe(error),
    )
    whole, compiles = prepare_whole(replace(step, control=None))
    failure = Failure("a branch of it", describe(error), error.status)
    receipt = replace(
        whole.receipt,
        fallback_from=failure.device,
        error=failure.error,
        failures=(failure, *whole.receipt.failures),
    )
    return replace(whole, receipt=receipt), compiles


def _caching_of(
    caching: Caching | None, step: ExecutionStep, place: int, branch: ExecutionPlan
) -> Caching | None:
    """How a branch uses the cache: as the model that it is. A caller's own token becomes one for
    each branch, his own files serve one step alone.
    """
    if caching is None or caching.in_given_files:
        return None
    info = caching.info
    if info.token is not None and info.place is not None:
        path = f"branch {place} of step {step.index}".encode()
        info = CacheInfo(
            info.place,
            hashlib.sha256(info.token + path).digest(),
            trust_token=info.trust_token,
        )
    return replace(caching, info=info, model=branch.model, shapes={}, plan=branch)
