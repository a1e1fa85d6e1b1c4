"""Executing prepared models: values, memory, shapes, rejected requests, and concurrent runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from msgspec.structs import replace

from penstock import errors, hal
from penstock.ir import DataLocation
from penstock.testing.contract import cases
from penstock.testing.contract.cases import Case, static_cases, supported_cases
from penstock.testing.contract.mutations import (
    mutated_cases,
    refuse_mutations,
    request_mutations,
)
from penstock.testing.contract.promise import NotCovered, Suite, allowed, refused, require
from penstock.testing.contract.trial import check_times, each_prepared, prepare, ready

SUITE: Final = Suite("execute", "executing", "PreparedModel.execute", shares=True)
THREADS: Final = 4
RUNS: Final = 24


@SUITE.values
def check_values(device: hal.Device) -> None:
    """The known answer of every supported case, from every kind of argument; inputs and the memory
    around outputs stay as they are. Each model is prepared anew: its first run must be right too.
    """
    _check_values(device, *supported_cases(device), anew=True)


@SUITE.values
def check_values_at_any_offset(device: hal.Device) -> None:
    """Arguments may start at any offset that aligns their elements."""
    for on in each_prepared(device, static_cases(device)):
        on.check("at an odd offset", skew=8)


@SUITE.values
def check_values_from_many_pools(device: hal.Device) -> None:
    """Every argument may be in a separate pool."""
    for case in static_cases(device):
        with ready(device, case) as trial:
            trial.check("from many pools", _spread(trial.request))


@SUITE.values
def check_inputs_may_share_memory(device: hal.Device) -> None:
    """Two inputs may share one location."""
    case = cases.first_case(device, _has_two_equal_inputs, "with two equal inputs")
    with ready(device, case) as trial:
        request = trial.with_argument(1, trial.request.inputs[0])
        with trial.on.trial(inputs=[trial.inputs[0]] * 2) as other:
            wanted = other.run(trial.on.prepared)
        trial.check("of inputs that share memory", request, wanted=wanted)


@SUITE.check
def check_overlapping_arguments_harm_nobody_else(device: hal.Device) -> None:
    """An output that overlaps an input or another output is rejected, or has undefined values.

    Nothing else is written.
    """
    for case in static_cases(device):
        with ready(device, case) as trial:
            first, request = len(trial.inputs), trial.request
            (target, *outputs) = _locations(request.outputs)
            for index, other in enumerate((*_locations(request.inputs), *outputs)):
                place = index if index < first else index + 1
                if other.length < target.length:
                    continue
                over = hal.PoolArgument(replace(other, length=target.length))
                what = f"{case.name}: an output over argument {place}"
                with allowed(what, errors.InvalidArgument):
                    trial.execute(trial.with_argument(first, over))
                trial.check_memory(spare=place)
                trial.fill()


@SUITE.values
def check_runs_do_not_depend_on_earlier_ones(device: hal.Device) -> None:
    """A prepared model keeps no values between runs: A, B, A gives A's answers again."""
    for on in each_prepared(device, supported_cases(device)):
        for seed in (0, 1, 0, 2, 0):
            found = on.answers(seed)
            if seed == 0:
                on.compare(found, "after other runs")


@SUITE.values
def check_concurrent_runs_equal_serial_ones(device: hal.Device) -> None:
    for on in each_prepared(device, supported_cases(device)):
        with on.trial() as trial:
            wanted = [trial.answers(seed) for seed in range(RUNS)]
        with ThreadPoolExecutor(THREADS) as pool:
            found = list(pool.map(on.answers, range(RUNS)))
        for a, b in zip(found, wanted, strict=True):
            on.compare(a, "of a concurrent run", b)


@SUITE.values
def check_two_prepared_models_do_not_meet(device: hal.Device) -> None:
    """Prepared models of one device, used alternately, do not affect each other."""
    everything = [prepare(device, case) for case in supported_cases(device)]
    for on in reversed(everything):
        on.check("beside other models")
        on.close()


@SUITE.values
def check_unwanted_outputs_may_be_left_out(device: hal.Device) -> None:
    """An output with `NoValue` is dropped; the other outputs are unchanged."""
    covered = False
    for case in static_cases(device):
        for index in range(len(case.outputs)):
            with ready(device, case) as trial:
                request = trial.with_argument(len(trial.inputs) + index, hal.NO_VALUE_ARGUMENT)
                result = trial.execute(request)
                trial.check_memory()
                found, wanted = trial.outputs(result), list(case.outputs)
                del found[index], wanted[index]
                covered = covered or bool(wanted)
                trial.on.compare(found, f"without output {index}", wanted)
    if not covered:
        raise NotCovered("it supports no model of this suite with two outputs")


@SUITE.values
def check_read_only_inputs(device: hal.Device) -> None:
    """Host memory of an input may be read-only."""
    if not device.capabilities.accepts_host_memory:
        raise NotCovered("it takes pools only")
    for case in supported_cases(device):
        with ready(device, case, "host") as trial:
            frozen = []
            for argument in trial.request.inputs:
                if isinstance(argument, hal.HostMemory):
                    array = argument.array.view()
                    array.flags.writeable = False
                    frozen.append(hal.HostMemory(array, argument.dimensions))
            trial.check("of read-only inputs", replace(trial.request, inputs=tuple(frozen)))


@SUITE.check
def check_host_memory_for_a_pools_only_device(device: hal.Device) -> None:
    """A device that accepts pools only rejects `HostMemory` by name."""
    if device.capabilities.accepts_host_memory:
        raise NotCovered("it takes host memory")
    with ready(device, None, "host") as trial, refused("host memory", errors.InvalidArgument):
        trial.execute()


@SUITE.values
def check_unknown_output_shapes_are_reported(device: hal.Device) -> None:
    """Memory may be larger than the answer; the rest of it stays unchanged."""
    for on in each_prepared(device, cases.dynamic_cases(device)):
        wanted = [a.shape for a in on.case.outputs]
        for trial in on.trials(capacities=[a.nbytes + 40 for a in on.case.outputs]):
            result = trial.execute()
            shapes = [s.dimensions for s in result.output_shapes]
            require(shapes == wanted, f"{on.case.name}: shapes {shapes} reported")
            trial.expect(result, "with room to spare")


@SUITE.values
def check_small_outputs_are_insufficient(device: hal.Device) -> None:
    """`OutputInsufficientSize` has the true shape of every output; no stray writes."""
    for on in each_prepared(device, cases.dynamic_cases(device)):
        outputs = on.case.outputs
        for small in range(len(outputs)):
            sizes = [a.nbytes - 4 * (i == small) for i, a in enumerate(outputs)]
            what = f"{on.case.name}: output {small} without room"
            wanted = [(a.shape, i != small) for i, a in enumerate(outputs)]
            for trial in on.trials(capacities=sizes):
                with refused(what, errors.OutputInsufficientSize) as refusals:
                    trial.execute()
                trial.check_memory()
                shapes = refusals[0].output_shapes
                require(list(shapes) == wanted, f"{what}: {shapes} reported")


@SUITE.check
def check_execute_refuses_every_mutation(device: hal.Device) -> None:
    """Each mutation of a valid request is `InvalidArgument`; nothing is written or crashes.

    Tried on models with every signature that matters to a mutation, see `mutated_cases`.
    """
    for on in each_prepared(device, mutated_cases(supported_cases(device))):
        for trial in on.trials():
            refuse_mutations(trial, on.prepared.execute, on.case.name)


@SUITE.values
def check_a_refused_request_leaves_the_model_usable(device: hal.Device) -> None:
    with ready(device) as trial:
        for _, request in request_mutations(trial):
            with refused("a mutated request", errors.InvalidArgument):
                trial.execute(request)
            trial.check("after a refused request")


@SUITE.values
def check_unknown_memory_is_a_general_failure(device: hal.Device) -> None:
    """A pool of an unknown kind, or with a handle that does not match its kind and size."""
    with ready(device) as trial:
        good = trial.request.pools[0]
        name, fd, size = good.name, good.handle, good.size
        for what, pool in (
            ("an unknown name", hal.Memory("no_such_memory", fd, size)),
            ("no name", hal.Memory("", fd, size)),
            ("no handle", hal.Memory(name, None, size)),
            ("a handle of another kind", hal.Memory("mmap_fd", fd, size)),
            ("a closed descriptor", hal.Memory(name, 2**20, size)),
            ("more bytes than there are", hal.Memory(name, fd, size + 1)),
        ):
            with refused(f"a pool with {what}", errors.GeneralFailure):
                trial.execute(replace(trial.request, pools=(pool,)))
        trial.check("after pools that are none")


@SUITE.values
def check_tokens_nobody_gave_are_refused(device: hal.Device) -> None:
    """A token that belongs to no live buffer of this device is `InvalidArgument`."""
    with ready(device) as trial:
        for index in range(len(trial.inputs) + len(trial.operands)):
            for token in (1, 2**31 - 1):
                request = trial.with_argument(index, hal.TokenArgument(token))
                with refused(f"token {token} for argument {index}", errors.InvalidArgument):
                    trial.execute(request)


@SUITE.values
def check_execute_past_its_deadline(device: hal.Device) -> None:
    """A run with a deadline is right or raises `MissedDeadline*`; the next run is unaffected."""
    with prepare(device) as on:
        config = hal.ExecutionConfig(deadline_ns=time.monotonic_ns() - 1)
        with allowed("a deadline in the past", errors.MissedDeadline):
            on.check("past its deadline", config)
        on.check("after a missed deadline")


@SUITE.values
def check_execute_before_a_far_deadline(device: hal.Device) -> None:
    with prepare(device) as on:
        config = hal.ExecutionConfig(deadline_ns=time.monotonic_ns() + 600 * 10**9)
        on.check("before its deadline", config)


@SUITE.values
def check_execute_cancelled(device: hal.Device) -> None:
    """A cancelled run raises `Cancelled`, or finishes. The next run is unaffected."""
    token = hal.CancelToken()
    token.set()
    with prepare(device) as on:
        with allowed("a cancelled run", errors.Cancelled):
            on.check("with its token set", hal.ExecutionConfig(cancel=token))
        on.check("after a cancelled run")


@SUITE.values
def check_endless_loops_end(device: hal.Device) -> None:
    """An endless WHILE is `MissedDeadlineTransient` after the timeout (NNAPI section 7.3)."""
    config = hal.ExecutionConfig(loop_timeout_ns=20_000_000)
    endless = cases.if_supported(device, cases.endless(), "WHILE")
    never_ends = refused("a loop that never ends", errors.MissedDeadlineTransient)
    with ready(device, endless) as trial, never_ends:
        trial.execute(config=config)


@SUITE.values
def check_loops_of_known_rounds(device: hal.Device) -> None:
    """A WHILE with a static number of iterations gives the right answer."""
    _check_values(device, cases.if_supported(device, cases.counted(), "WHILE of known rounds"))


@SUITE.values
def check_empty_tensors(device: hal.Device) -> None:
    """Dimensions of 0 are valid: the device accepts them and computes nothing."""
    _check_values(device, cases.if_supported(device, cases.empty(), "operands without elements"))


@SUITE.check
def check_timing_is_plausible(device: hal.Device) -> None:
    """Time on the device <= time in the driver <= duration of the call."""
    with ready(device) as trial:
        for measure in (True, False):
            began = time.perf_counter_ns()
            result = trial.execute(config=hal.ExecutionConfig(measure=measure))
            check_times(result.timing, time.perf_counter_ns() - began)


def _check_values(device: hal.Device, *chosen: Case, anew: bool = False) -> None:
    for on in each_prepared(device, chosen, anew=anew):
        for trial in on.trials():
            trial.check(f"from {trial.kind} memory")


def _locations(arguments: Sequence[hal.RequestArgument]) -> list[DataLocation]:
    return [a.location for a in arguments if isinstance(a, hal.PoolArgument)]


def _has_two_equal_inputs(case: Case) -> bool:
    shapes = [(a.shape, a.dtype) for a in case.inputs]
    return len(shapes) == 2 and shapes[0] == shapes[1]


def _spread(request: hal.Request) -> hal.Request:
    pool, arguments = request.pools[0], [*request.inputs, *request.outputs]
    moved = [
        replace(a, location=replace(a.location, pool=i)) if isinstance(a, hal.PoolArgument) else a
        for i, a in enumerate(arguments)
    ]
    count = len(request.inputs)
    return hal.Request(tuple(moved[:count]), tuple(moved[count:]), (pool,) * len(arguments))
