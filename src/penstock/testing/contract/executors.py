"""Every way to execute a prepared model (NNAPI 5.4): generated tests, quality of service."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from penstock import errors, hal
from penstock.testing.contract.cases import (
    Case,
    case_named,
    dynamic_cases,
    is_supported,
    loop,
    looping,
    one_case,
    static_cases,
    supported_cases,
    with_other_inputs,
)
from penstock.testing.contract.mutations import request_mutations
from penstock.testing.contract.promise import (
    Check,
    NotCovered,
    Suite,
    allowed,
    named,
    refused,
    require,
)
from penstock.testing.contract.trial import (
    PLAIN,
    Kind,
    Trial,
    check_run,
    compare,
    each_kind,
    each_prepared,
    kinds,
    memory_kinds,
    prepare,
    ready,
)

Execute: TypeAlias = Callable[
    [hal.PreparedModel, hal.Request, hal.ExecutionConfig], hal.ExecutionResult
]

GENERATED: Final = Suite("generated", "executing", "PreparedModel")
QUALITY: Final = Suite("quality", "executing", "ExecutionConfig")

LOOP_TIMEOUT_NS: Final = 20_000_000
PATIENCE_NS: Final = 60 * 10**9
"""Seconds after which a fence counts as never signalled, also on a loaded machine."""
SHORT_NS: Final = 5_000_000
FAR_NS: Final = 600 * 10**9

SOON: Final[dict[str, Callable[[], int]]] = {
    "now": time.monotonic_ns,
    "in 5 ms": lambda: time.monotonic_ns() + SHORT_NS,
}
"""Deadlines so short that they may be missed, made when they are needed."""
LATE: Final[dict[str, Callable[[], int | None]]] = {
    "never": lambda: None,
    "in 10 min": lambda: time.monotonic_ns() + FAR_NS,
}
"""Deadlines that must not be missed."""


class Executor(Struct, frozen=True):
    """One way to execute; *execute* raises the driver's error.

    *fenced* ways accept no outputs of unknown shape, and report no times.
    """

    name: str
    execute: Execute
    fenced: bool = False

    def expect(
        self,
        device: hal.Device,
        prepared: hal.PreparedModel,
        trial: Trial,
        what: str,
        config: hal.ExecutionConfig = PLAIN,
    ) -> None:
        """Executes *trial* this way; its answer must be right."""
        result = self.execute(prepared, trial.request, config)
        trial.expect(device, result, f"{self.name}, {what}")


def _burst(
    prepared: hal.PreparedModel, request: hal.Request, config: hal.ExecutionConfig
) -> hal.ExecutionResult:
    with closing(prepared.configure_burst()) as burst:
        return burst.execute(request, config)


def _reusable(
    prepared: hal.PreparedModel, request: hal.Request, config: hal.ExecutionConfig
) -> hal.ExecutionResult:
    """Executes twice and returns the second result: the execution is reused."""
    with closing(prepared.create_reusable_execution(request)) as execution:
        execution.execute(config)
        return execution.execute(config)


def _fenced(
    prepared: hal.PreparedModel, request: hal.Request, config: hal.ExecutionConfig
) -> hal.ExecutionResult:
    fence = prepared.execute_fenced(request, [], config)
    require(fence.wait(PATIENCE_NS), "the fence of an execution never signals")
    if (error := fence.error()) is not None:
        raise error
    return hal.ExecutionResult()


def _in_a_thread(execute: Execute) -> Execute:
    """Calls *execute* in a new thread, as an asynchronous execution."""

    def run(
        prepared: hal.PreparedModel, request: hal.Request, config: hal.ExecutionConfig
    ) -> hal.ExecutionResult:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(execute, prepared, request, config).result()

    return run


SYNC: Final = Executor("sync", lambda prepared, *arguments: prepared.execute(*arguments))
ASYNC: Final = Executor("async", _in_a_thread(SYNC.execute))
BURST: Final = Executor("burst", _burst)
FENCED: Final = Executor("fenced", _fenced, fenced=True)
REUSABLE: Final = Executor("reusable", _reusable)
REUSABLE_ASYNC: Final = Executor("reusable async", _in_a_thread(_reusable))

EXECUTORS: Final = (SYNC, ASYNC, BURST, FENCED, REUSABLE, REUSABLE_ASYNC)


def _general(executor: Executor) -> Check:
    """The known answers, from every kind of memory, with and without timing."""

    def check(device: hal.Device) -> None:
        cases = static_cases(device) if executor.fenced else supported_cases(device)
        for case, prepared in each_prepared(device, cases):
            for memory, kind in _memories(device):
                for measure in (False, True):
                    with Trial(case, kind, memory=memory) as trial:
                        what = f"{executor.name}, {memory}{', measured' if measure else ''}"
                        result = _timed(executor, prepared, trial, measure=measure)
                        trial.expect(device, result, what)

    return check


for _name, _executor, _way in (
    ("general_sync", SYNC, "GENERAL, synchronous"),
    ("general_async", ASYNC, "GENERAL, in a thread of its own"),
    ("general_burst", BURST, "GENERAL, in a burst"),
    ("general_reusable", REUSABLE, "GENERAL, by a reusable execution"),
    ("general_reusable_async", REUSABLE_ASYNC, "GENERAL, by a reusable execution in a thread"),
    ("fenced_compute", FENCED, "FENCED_COMPUTE"),
):
    GENERATED.values(named(_general(_executor), _name, f"GeneratedTest: {_way}."))


@GENERATED.values
def check_dynamic_shape(device: hal.Device) -> None:
    """GeneratedTest: DYNAMIC_SHAPE. Outputs of unknown shape report their shapes.

    Tested with memory that is larger than needed, and with just enough.
    """
    for case, prepared in each_prepared(device, dynamic_cases(device)):
        for executor in EXECUTORS:
            if executor.fenced:
                continue
            for memory, kind in _memories(device):
                for spare in (0, 40):
                    sizes = [a.nbytes + spare for a in case.outputs]
                    with Trial(case, kind, capacities=sizes, memory=memory) as trial:
                        spared = f"{memory}, {spare} bytes to spare"
                        executor.expect(device, prepared, trial, spared)


@GENERATED.values
def check_dynamic_shape_insufficient(device: hal.Device) -> None:
    """GeneratedTest: DYNAMIC_SHAPE without enough memory.

    `OutputInsufficientSize` reports the true shape of every output. A run with that much memory
    succeeds.
    """
    for case, prepared in each_prepared(device, dynamic_cases(device)):
        for executor in EXECUTORS:
            if executor.fenced:
                continue
            sizes = [a.nbytes - 1 for a in case.outputs]
            with Trial(case, capacities=sizes) as trial:
                _insufficient(case, executor, prepared, trial)
            with Trial(case) as trial:
                executor.expect(device, prepared, trial, "once it has room")


@GENERATED.values
def check_infinite_loop_timeout(device: hal.Device) -> None:
    """GeneratedTest: INFINITE_LOOP_TIMEOUT. A WHILE that never ends is `MissedDeadlineTransient`
    after its timeout.

    A WHILE that ends gives the right answer.
    """
    endless, ending = replace(loop(), model=looping(step=0.0)), loop()
    if not is_supported(device, endless):
        raise NotCovered("it does not support WHILE")
    config = hal.ExecutionConfig(loop_timeout_ns=LOOP_TIMEOUT_NS)
    for executor in EXECUTORS:
        if executor.fenced and endless.is_dynamic:
            continue
        with (
            ready(device, endless) as (prepared, trial),
            refused(f"a loop that never ends, {executor.name}", errors.MissedDeadlineTransient),
        ):
            executor.execute(prepared, trial.request, config)
        with ready(device, ending) as (prepared, trial):
            executor.expect(device, prepared, trial, "a loop that ends")


@GENERATED.values
def check_quantization_coupling(device: hal.Device) -> None:
    """GeneratedTest: QUANTIZATION_COUPLING. Unsigned and signed quantisation give the same real
    values.

    The signed model's stored values are 128 lower.
    """
    unsigned, signed = case_named("add_uint8"), case_named("add_int8")
    both = [is_supported(device, case) for case in (unsigned, signed)]
    if not all(both):
        raise NotCovered("it does not support ADD of both uint8 and int8")
    with closing(prepare(device, unsigned)) as a, closing(prepare(device, signed)) as b:
        for executor in EXECUTORS:
            for seed in range(4):
                given = with_other_inputs(signed, seed)
                raised = tuple((array.astype(np.int16) + 128).astype(np.uint8) for array in given)
                with Trial(unsigned, inputs=raised) as one, Trial(signed, inputs=given) as two:
                    (first,) = one.outputs(executor.execute(a, one.request, PLAIN))
                    (second,) = two.outputs(executor.execute(b, two.request, PLAIN))
                lowered = [(first.astype(np.int16) - 128).astype(np.int8)]
                compare(device, signed, lowered, [second], f"unsigned and signed, {executor.name}")


@GENERATED.values
def check_every_way_reads_memory_that_is_there(device: hal.Device) -> None:
    """After memory is freed and its descriptor reused, the driver does not access it."""
    case = one_case(device)
    with closing(prepare(device, case)) as prepared, closing(prepared.configure_burst()) as burst:
        for seed in range(6):
            with Trial(case, inputs=with_other_inputs(case, seed)) as trial:
                wanted = trial.run(prepared)
                trial.fill()
                result = burst.execute(trial.request, PLAIN)
                trial.expect(device, result, "of a burst in new memory", wanted)


@GENERATED.check
def check_every_way_refuses_every_mutation(device: hal.Device) -> None:
    """VTS's ValidateRequest: `InvalidArgument`, raised or in the fence; nothing is written."""
    case = one_case(device)
    with closing(prepare(device, case)) as prepared:
        for executor in EXECUTORS:
            for kind, trial in each_kind(device, case):
                before = trial.snapshot()
                for name, request in request_mutations(trial):
                    with refused(f"{executor.name} ({kind}), {name}", errors.InvalidArgument):
                        executor.execute(prepared, request, PLAIN)
                wrote = f"a refused run wrote memory, {executor.name}"
                require(trial.snapshot() == before, wrote)


def _timed(
    executor: Executor, prepared: hal.PreparedModel, trial: Trial, *, measure: bool
) -> hal.ExecutionResult:
    began = time.perf_counter_ns()
    result = executor.execute(prepared, trial.request, hal.ExecutionConfig(measure=measure))
    elapsed = time.perf_counter_ns() - began
    require(
        isinstance(result, hal.ExecutionResult), f"{executor.name} answers {type(result).__name__}"
    )
    timing = result.timing
    spans = [t for t in (timing.on_device_ns, timing.in_driver_ns) if t is not None]
    require(
        all(0 <= span <= elapsed for span in spans) and spans == sorted(spans),
        f"{timing} of a call of {elapsed} ns, {executor.name}",
    )
    require(measure or not timing.operations, f"kernels are timed unasked, {executor.name}")
    return result


def _memories(device: hal.Device) -> list[tuple[str, Kind]]:
    """(kind of memory, kind of argument) for every memory that *device* accepts."""
    found: list[tuple[str, Kind]] = [(kind, "pool") for kind in memory_kinds(device)]
    if "host" in kinds(device):
        found.append(("host memory", "host"))
    return found


def _insufficient(
    case: Case, executor: Executor, prepared: hal.PreparedModel, trial: Trial
) -> None:
    what = f"{case.name}, {executor.name}: outputs without room"
    with refused(what, errors.OutputInsufficientSize):
        try:
            executor.execute(prepared, trial.request, PLAIN)
        except errors.OutputInsufficientSize as error:
            trial.check_memory()
            wanted = [a.shape for a in case.outputs]
            require(
                [shape for shape, _ in error.output_shapes] == wanted
                and not all(enough for _, enough in error.output_shapes),
                f"{what}: {error.output_shapes} reported",
            )
            raise


@QUALITY.values
def check_prepare_by_a_deadline(device: hal.Device) -> None:
    """QualityOfServiceTest: preparing misses its deadline with `MissedDeadline*`, or the result is
    right.

    With enough time it does not miss.
    """
    for case in static_cases(device)[:3]:
        for name, soon in SOON.items():
            with allowed(f"preparing by a deadline {name}", errors.MissedDeadline):
                config = hal.PrepareConfig(deadline_ns=soon())
                with closing(prepare(device, case, config)) as prepared:
                    check_run(device, case, prepared, f"prepared {name}")
        for name, late in LATE.items():
            with closing(prepare(device, case, hal.PrepareConfig(deadline_ns=late()))) as prepared:
                check_run(device, case, prepared, f"prepared {name}")


@QUALITY.values
def check_every_way_by_a_deadline(device: hal.Device) -> None:
    """QualityOfServiceTest: an execution misses its deadline with `MissedDeadline*`, or is right.

    With enough time it does not miss.
    """
    case = one_case(device)
    with closing(prepare(device, case)) as prepared:
        for executor in EXECUTORS:
            for name, soon in SOON.items():
                what = f"by a deadline {name}"
                with (
                    Trial(case) as trial,
                    allowed(f"{executor.name}, {what}", errors.MissedDeadline),
                ):
                    config = hal.ExecutionConfig(deadline_ns=soon())
                    executor.expect(device, prepared, trial, what, config)
            for name, late in LATE.items():
                with Trial(case) as trial:
                    config = hal.ExecutionConfig(deadline_ns=late())
                    executor.expect(device, prepared, trial, f"by a deadline {name}", config)


@QUALITY.values
def check_every_way_at_every_priority(device: hal.Device) -> None:
    """QualityOfServiceTest: priorities do not change answers."""
    case = one_case(device)
    for prepared_at in hal.PRIORITIES:
        with closing(prepare(device, case, hal.PrepareConfig(priority=prepared_at))) as prepared:
            for executor in EXECUTORS:
                for priority in hal.PRIORITIES:
                    what = f"priority {priority}, prepared at {prepared_at}"
                    with Trial(case) as trial:
                        config = hal.ExecutionConfig(priority=priority)
                        executor.expect(device, prepared, trial, what, config)


@QUALITY.check
def check_concurrency_is_a_count(device: hal.Device) -> None:
    """The number of concurrent executions is a whole number; 0 if the engine decides."""
    count: object = device.capabilities.concurrent_executions
    require(type(count) is int and count >= 0, f"{count!r} executions at a time")
