"""NNAPI's generated tests: every way to execute, with and without measuring, from every kind of
memory (section 5.4).
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import Final

import numpy as np
from msgspec.structs import replace

from penstock.errors import InvalidArgument, MissedDeadlineTransient, OutputInsufficientSize
from penstock.hal import Device, ExecutionConfig, ExecutionResult, PreparedModel
from penstock.ir import NDArray
from penstock.testing.contract.cases import (
    Case,
    add_int8,
    add_uint8,
    dynamic_cases,
    is_supported,
    loop,
    looping,
    one_case,
    static_cases,
    supported_cases,
    with_other_inputs,
)
from penstock.testing.contract.executors import (
    ASYNC,
    BURST,
    EXECUTORS,
    FENCED,
    REUSABLE,
    REUSABLE_ASYNC,
    SYNC,
    Executor,
)
from penstock.testing.contract.mutations import request_mutations
from penstock.testing.contract.pools import memory_kinds
from penstock.testing.contract.promise import (
    Check,
    NotCovered,
    needs_values,
    refused,
    require,
)
from penstock.testing.contract.trial import PLAIN, Kind, Trial, compare, kinds, prepare

LOOP_TIMEOUT_NS: Final = 20_000_000


@needs_values
def check_general_sync(device: Device) -> None:
    """GeneratedTest: GENERAL, synchronous."""
    _general(device, SYNC)


@needs_values
def check_general_async(device: Device) -> None:
    """GeneratedTest: GENERAL, in a thread of its own."""
    _general(device, ASYNC)


@needs_values
def check_general_burst(device: Device) -> None:
    """GeneratedTest: GENERAL, in a burst."""
    _general(device, BURST)


@needs_values
def check_general_reusable(device: Device) -> None:
    """GeneratedTest: GENERAL, by a reusable execution."""
    _general(device, REUSABLE)


@needs_values
def check_general_reusable_async(device: Device) -> None:
    """GeneratedTest: GENERAL, by a reusable execution in a thread of its own."""
    _general(device, REUSABLE_ASYNC)


@needs_values
def check_fenced_compute(device: Device) -> None:
    """GeneratedTest: FENCED_COMPUTE."""
    _general(device, FENCED)


@needs_values
def check_dynamic_shape(device: Device) -> None:
    """GeneratedTest: DYNAMIC_SHAPE. Outputs of unknown shape, with room and with just enough of it:
    their shapes are reported.
    """
    for case in dynamic_cases(device):
        with closing(prepare(device, case)) as prepared:
            for executor in EXECUTORS:
                if executor.fenced:
                    continue
                for memory, kind in _memories(device):
                    for spare in (0, 40):
                        sizes = [a.nbytes + spare for a in case.outputs]
                        with Trial(case, kind, capacities=sizes, memory=memory) as trial:
                            result = executor.execute(prepared, trial.request, PLAIN)
                            trial.check_memory()
                            what = f"{executor.name}, {memory}, {spare} bytes to spare"
                            compare(device, case, trial.outputs(result), case.outputs, what)


@needs_values
def check_dynamic_shape_insufficient(device: Device) -> None:
    """GeneratedTest: DYNAMIC_SHAPE without room. `OutputInsufficientSize` with the true shape of
    every output, after which more memory is enough.
    """
    for case in dynamic_cases(device):
        with closing(prepare(device, case)) as prepared:
            for executor in EXECUTORS:
                if executor.fenced:
                    continue
                sizes = [a.nbytes - 1 for a in case.outputs]
                with Trial(case, capacities=sizes) as trial:
                    _insufficient(case, executor, prepared, trial)
                with Trial(case) as trial:
                    result = executor.execute(prepared, trial.request, PLAIN)
                    what = f"{executor.name}, once it has room"
                    compare(device, case, trial.outputs(result), case.outputs, what)


@needs_values
def check_infinite_loop_timeout(device: Device) -> None:
    """GeneratedTest: INFINITE_LOOP_TIMEOUT. A WHILE that never ends is `MissedDeadlineTransient`
    after its timeout, and one that ends is right.
    """
    endless, ending = replace(loop(), model=looping(step=0.0)), loop()
    if not is_supported(device, endless):
        raise NotCovered("it does not support WHILE")
    config = ExecutionConfig(loop_timeout_ns=LOOP_TIMEOUT_NS)
    for executor in EXECUTORS:
        if executor.fenced and endless.is_dynamic:
            continue
        with (
            closing(prepare(device, endless)) as prepared,
            Trial(endless) as trial,
            refused(f"a loop that never ends, {executor.name}", MissedDeadlineTransient),
        ):
            executor.execute(prepared, trial.request, config)
        with closing(prepare(device, ending)) as prepared, Trial(ending) as trial:
            found = trial.outputs(executor.execute(prepared, trial.request, PLAIN))
            compare(device, ending, found, ending.outputs, f"of a loop that ends, {executor.name}")


@needs_values
def check_quantization_coupling(device: Device) -> None:
    """GeneratedTest: QUANTIZATION_COUPLING. A model quantised unsigned, and the same one 128 lower
    and signed, give the same real values.
    """
    unsigned, signed = add_uint8(), add_int8()
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


@needs_values
def check_every_way_reads_memory_that_is_there(device: Device) -> None:
    """Memory that is gone, and other memory in its place, under the same descriptor: nothing old is
    read or written.
    """
    case = one_case(device)
    with (
        closing(prepare(device, case)) as prepared,
        closing(prepared.configure_burst()) as burst,
    ):
        for seed in range(6):
            inputs = with_other_inputs(case, seed)
            with Trial(case, inputs=inputs) as trial:
                wanted = trial.run(prepared)
                trial.fill()
                found = trial.outputs(burst.execute(trial.request, PLAIN))
                trial.check_memory()
                compare(device, case, found, wanted, "of a burst in new memory")


def check_every_way_refuses_every_mutation(device: Device) -> None:
    """VTS's ValidateRequest: `InvalidArgument`, raised or carried by the fence; nothing is written."""
    case = one_case(device)
    with closing(prepare(device, case)) as prepared:
        for executor in EXECUTORS:
            for kind in kinds(device):
                with Trial(case, kind) as trial:
                    before = trial.snapshot()
                    for name, request in request_mutations(trial):
                        with refused(f"{executor.name} ({kind}), {name}", InvalidArgument):
                            executor.execute(prepared, request, PLAIN)
                    require(
                        trial.snapshot() == before, f"a refused run wrote memory, {executor.name}"
                    )


def _general(device: Device, executor: Executor) -> None:
    """The known answers, from every kind of memory, measured and not."""
    for case in static_cases(device) if executor.fenced else supported_cases(device):
        with closing(prepare(device, case)) as prepared:
            for memory, kind in _memories(device):
                for measure in (False, True):
                    with Trial(case, kind, memory=memory) as trial:
                        what = f"{executor.name}, {memory}{', measured' if measure else ''}"
                        found = _timed(executor, prepared, trial, measure=measure)
                        trial.check_memory()
                        compare(device, case, found, case.outputs, what)


def _timed(
    executor: Executor, prepared: PreparedModel, trial: Trial, *, measure: bool
) -> list[NDArray]:
    began = time.perf_counter_ns()
    result = executor.execute(prepared, trial.request, ExecutionConfig(measure=measure))
    elapsed = time.perf_counter_ns() - began
    require(isinstance(result, ExecutionResult), f"{executor.name} answers {type(result).__name__}")
    timing = result.timing
    spans = [t for t in (timing.on_device_ns, timing.in_driver_ns) if t is not None]
    require(
        all(0 <= span <= elapsed for span in spans) and spans == sorted(spans),
        f"{timing} of a call of {elapsed} ns, {executor.name}",
    )
    require(measure or not timing.operations, f"kernels are timed unasked, {executor.name}")
    return trial.outputs(result)


def _memories(device: Device) -> list[tuple[str, Kind]]:
    """(kind of memory, kind of argument) for every memory that *device* takes."""
    found: list[tuple[str, Kind]] = [(kind, "pool") for kind in memory_kinds(device)]
    if "host" in kinds(device):
        found.append(("host memory", "host"))
    return found


def _insufficient(case: Case, executor: Executor, prepared: PreparedModel, trial: Trial) -> None:
    what = f"{case.name}, {executor.name}: outputs without room"
    with refused(what, OutputInsufficientSize):
        try:
            executor.execute(prepared, trial.request, PLAIN)
        except OutputInsufficientSize as error:
            trial.check_memory()
            wanted = [a.shape for a in case.outputs]
            require(
                [shape for shape, _ in error.output_shapes] == wanted
                and not all(enough for _, enough in error.output_shapes),
                f"{what}: {error.output_shapes} reported",
            )
            raise


CHECKS: Final[tuple[Check, ...]] = (
    check_general_sync,
    check_general_async,
    check_general_burst,
    check_general_reusable,
    check_general_reusable_async,
    check_fenced_compute,
    check_dynamic_shape,
    check_dynamic_shape_insufficient,
    check_infinite_loop_timeout,
    check_quantization_coupling,
    check_every_way_reads_memory_that_is_there,
    check_every_way_refuses_every_mutation,
)
