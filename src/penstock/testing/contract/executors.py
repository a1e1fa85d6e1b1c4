"""Every way to execute a prepared model (NNAPI 5.4): generated tests, quality of service."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct

from penstock import errors, hal
from penstock.testing.contract import cases
from penstock.testing.contract.mutations import refuse_mutations
from penstock.testing.contract.promise import Check, Suite, allowed, named, refused, require
from penstock.testing.contract.trial import (
    PLAIN,
    Kind,
    PreparedCase,
    Trial,
    check_times,
    each_prepared,
    kinds,
    memory_kinds,
    prepare,
)

Execute: TypeAlias = Callable[
    [hal.PreparedModel, hal.Request, hal.ExecutionConfig], hal.ExecutionResult
]

GENERATED: Final = Suite("generated", "executing", "PreparedModel", shares=True)
QUALITY: Final = Suite("quality", "executing", "ExecutionConfig", shares=True)

LOOP_TIMEOUT_NS: Final = 20_000_000
PATIENCE_NS: Final = 60 * 10**9
"""Seconds after which a fence counts as never signalled, also on a loaded machine."""

DEADLINES: Final[tuple[tuple[str, int | None, bool], ...]] = (
    ("now", 0, True),
    ("in 5 ms", 5_000_000, True),
    ("never", None, False),
    ("in 10 min", 600 * 10**9, False),
)
"""Deadlines: a name, nanoseconds from now, and whether it is so short that it may be missed."""


class Executor(Struct, frozen=True):
    """One way to execute; *execute* raises the driver's error.

    *fenced* ways accept no outputs of unknown shape, and report no times.
    """

    name: str
    execute: Execute
    fenced: bool = False

    def check(self, trial: Trial, what: str, config: hal.ExecutionConfig = PLAIN) -> None:
        """Executes *trial* this way; its answer must be right."""
        result = self.execute(trial.on.prepared, trial.request, config)
        trial.expect(result, f"{self.name}, {what}")


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
UNFENCED: Final = tuple(e for e in EXECUTORS if not e.fenced)


def _general(executor: Executor) -> Check:
    """The known answers, from every kind of memory, with and without timing.

    Of each case, `execute` runs every memory both ways. The other executors take turns, so that
    each case and each memory runs both ways.
    """

    def check(device: hal.Device) -> None:
        some = cases.static_cases if executor.fenced else cases.supported_cases
        for index, on in enumerate(each_prepared(device, some(device))):
            for place, (memory, kind) in enumerate(_memories(device)):
                turn = (index + place) % 2 == 1
                for measure in (False, True) if executor is SYNC else (turn,):
                    with on.trial(kind, memory=memory) as trial:
                        result = _timed(executor, trial, measure=measure)
                        how = f"{executor.name}, {memory}{', measured' if measure else ''}"
                        trial.expect(result, how)

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
    for on, executor in _each_way(device):
        for memory, kind in _memories(device):
            for spare in (0, 40):
                sizes = [a.nbytes + spare for a in on.case.outputs]
                with on.trial(kind, capacities=sizes, memory=memory) as trial:
                    executor.check(trial, f"{memory}, {spare} bytes to spare")


@GENERATED.values
def check_dynamic_shape_insufficient(device: hal.Device) -> None:
    """GeneratedTest: DYNAMIC_SHAPE without enough memory.

    `OutputInsufficientSize` reports the true shape of every output. A run with that much memory
    succeeds.
    """
    for on, executor in _each_way(device):
        wanted = [(a.shape, False) for a in on.case.outputs]
        what = f"{on.case.name}, {executor.name}: outputs without room"
        with on.trial(capacities=[a.nbytes - 1 for a in on.case.outputs]) as trial:
            with refused(what, errors.OutputInsufficientSize) as refusals:
                executor.execute(on.prepared, trial.request, PLAIN)
            trial.check_memory()
            shapes = refusals[0].output_shapes
            require(list(shapes) == wanted, f"{what}: {shapes} reported")
        with on.trial() as trial:
            executor.check(trial, "once it has room")


@GENERATED.values
def check_infinite_loop_timeout(device: hal.Device) -> None:
    """GeneratedTest: INFINITE_LOOP_TIMEOUT. A WHILE that never ends is `MissedDeadlineTransient`
    after its timeout.

    A WHILE that ends gives the right answer.
    """
    endless = cases.if_supported(device, cases.endless(), "WHILE")
    config = hal.ExecutionConfig(loop_timeout_ns=LOOP_TIMEOUT_NS)
    with prepare(device, endless) as never, prepare(device, cases.case_named("loop")) as loop:
        for executor in UNFENCED if endless.is_dynamic else EXECUTORS:
            what = f"a loop that never ends, {executor.name}"
            with never.trial() as trial, refused(what, errors.MissedDeadlineTransient):
                executor.execute(never.prepared, trial.request, config)
            with loop.trial() as trial:
                executor.check(trial, "a loop that ends")


@GENERATED.values
def check_quantization_coupling(device: hal.Device) -> None:
    """GeneratedTest: QUANTIZATION_COUPLING. Unsigned and signed quantisation give the same real
    values.

    The signed model's stored values are 128 lower.
    """
    unsigned, signed = (
        cases.if_supported(device, cases.case_named(name), "ADD of both uint8 and int8")
        for name in ("add_uint8", "add_int8")
    )
    with prepare(device, unsigned) as a, prepare(device, signed) as b:
        for executor in EXECUTORS:
            for seed in range(4):
                given = cases.with_other_inputs(signed, seed)
                raised = tuple((array.astype(np.int16) + 128).astype(np.uint8) for array in given)
                with a.trial(inputs=raised) as one, b.trial(inputs=given) as two:
                    (first,) = one.outputs(executor.execute(a.prepared, one.request, PLAIN))
                    second = two.outputs(executor.execute(b.prepared, two.request, PLAIN))
                lowered = [(first.astype(np.int16) - 128).astype(np.int8)]
                b.compare(lowered, f"unsigned and signed, {executor.name}", second)


@GENERATED.values
def check_every_way_reads_memory_that_is_there(device: hal.Device) -> None:
    """After memory is freed and its descriptor reused, the driver does not access it."""
    with prepare(device) as on, closing(on.prepared.configure_burst()) as burst:
        for seed in range(6):
            wanted = on.answers(seed)
            with on.trial() as trial:
                trial.fill(seed)
                result = burst.execute(trial.request, PLAIN)
                trial.expect(result, "of a burst in new memory", wanted)


@GENERATED.check
def check_every_way_refuses_every_mutation(device: hal.Device) -> None:
    """VTS's ValidateRequest: `InvalidArgument`, raised or in the fence; nothing is written."""
    with prepare(device) as on:
        for executor in EXECUTORS:
            for trial in on.trials():
                refuse_mutations(trial, partial(executor.execute, on.prepared), executor.name)


def _each_way(device: hal.Device) -> Iterator[tuple[PreparedCase, Executor]]:
    """Every case with outputs of unknown shape, prepared, and each way to execute it."""
    for on in each_prepared(device, cases.dynamic_cases(device)):
        for executor in UNFENCED:
            yield on, executor


def _timed(executor: Executor, trial: Trial, *, measure: bool) -> hal.ExecutionResult:
    began = time.perf_counter_ns()
    config = hal.ExecutionConfig(measure=measure)
    result = executor.execute(trial.on.prepared, trial.request, config)
    elapsed = time.perf_counter_ns() - began
    what = f"{executor.name} answers {type(result).__name__}"
    require(isinstance(result, hal.ExecutionResult), what)
    check_times(result.timing, elapsed, executor.name)
    kernels = result.timing.operations
    require(measure or not kernels, f"kernels are timed unasked, {executor.name}")
    return result


def _memories(device: hal.Device) -> list[tuple[str, Kind]]:
    """(kind of memory, kind of argument) for every memory that *device* accepts."""
    found: list[tuple[str, Kind]] = [(kind, "pool") for kind in memory_kinds(device)]
    if "host" in kinds(device):
        found.append(("host memory", "host"))
    return found


@QUALITY.values
def check_prepare_by_a_deadline(device: hal.Device) -> None:
    """QualityOfServiceTest: preparing misses its deadline with `MissedDeadline*`, or the result is
    right.

    With enough time it does not miss.
    """
    for case in cases.static_cases(device)[:3]:
        for name, deadline_ns, missed in _deadlines("preparing"):
            config = hal.PrepareConfig(deadline_ns=deadline_ns)
            with missed, prepare(device, case, config) as on:
                on.check(f"prepared {name}")


@QUALITY.values
def check_every_way_by_a_deadline(device: hal.Device) -> None:
    """QualityOfServiceTest: an execution misses its deadline with `MissedDeadline*`, or is right.

    With enough time it does not miss.
    """
    with prepare(device) as on:
        for executor in EXECUTORS:
            for name, deadline_ns, missed in _deadlines(executor.name):
                config = hal.ExecutionConfig(deadline_ns=deadline_ns)
                with on.trial() as trial, missed:
                    executor.check(trial, f"by a deadline {name}", config)


def _deadlines(what: str) -> Iterator[tuple[str, int | None, AbstractContextManager[object]]]:
    """The name and time of each deadline, made when it is needed, and a block that may miss it."""
    for name, ns, is_short in DEADLINES:
        missed = allowed(f"{what} by a deadline {name}", errors.MissedDeadline)
        deadline_ns = None if ns is None else time.monotonic_ns() + ns
        yield name, deadline_ns, missed if is_short else nullcontext()


@QUALITY.values
def check_every_way_at_every_priority(device: hal.Device) -> None:
    """QualityOfServiceTest: priorities do not change answers."""
    for prepared_at in hal.PRIORITIES:
        with prepare(device, None, hal.PrepareConfig(priority=prepared_at)) as on:
            for executor in EXECUTORS:
                for priority in hal.PRIORITIES:
                    what = f"priority {priority}, prepared at {prepared_at}"
                    with on.trial() as trial:
                        executor.check(trial, what, hal.ExecutionConfig(priority=priority))


@QUALITY.check
def check_concurrency_is_a_count(device: hal.Device) -> None:
    """The number of concurrent executions is a whole number; 0 if the engine decides."""
    count: object = device.capabilities.concurrent_executions
    require(type(count) is int and count >= 0, f"{count!r} executions at a time")
