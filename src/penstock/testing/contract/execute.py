"""Executing prepared models: values, memory, shapes, rejected requests, and concurrent runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Final

from msgspec.structs import replace

from penstock import errors, hal
from penstock.ir import NDArray
from penstock.testing.contract.cases import (
    Case,
    counted,
    dynamic_cases,
    empty,
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
    NotCovered,
    Suite,
    Violation,
    allowed,
    describe,
    refused,
    require,
)
from penstock.testing.contract.trial import (
    PLAIN,
    Trial,
    check_run,
    compare,
    each_kind,
    each_prepared,
    prepare,
    ready,
)

SUITE: Final = Suite("execute", "executing", "PreparedModel.execute")
THREADS: Final = 4
RUNS: Final = 24


@SUITE.values
def check_values(device: hal.Device) -> None:
    """The known answer of every supported case, from every kind of argument; inputs and the memory
    around outputs stay as they are.
    """
    for case, prepared in each_prepared(device, supported_cases(device)):
        for kind, trial in each_kind(device, case):
            compare(device, case, trial.run(prepared), case.outputs, f"from {kind} memory")


@SUITE.values
def check_values_at_any_offset(device: hal.Device) -> None:
    """Arguments may start at any offset that aligns their elements."""
    for case, prepared in each_prepared(device, static_cases(device)):
        check_run(device, case, prepared, "at an odd offset", skew=8)


@SUITE.values
def check_values_from_many_pools(device: hal.Device) -> None:
    """Every argument may be in a separate pool."""
    for case in static_cases(device):
        with ready(device, case) as (prepared, trial):
            result = prepared.execute(_spread(trial.request), PLAIN)
            trial.expect(device, result, "from many pools")


@SUITE.values
def check_inputs_may_share_memory(device: hal.Device) -> None:
    """Two inputs may share one location."""
    case = _two_equal_inputs(device)
    with ready(device, case) as (prepared, trial):
        request = trial.with_argument(1, trial.request.inputs[0])
        result = prepared.execute(request, PLAIN)
        with Trial(case, inputs=[case.inputs[0]] * 2) as other:
            wanted = other.run(prepared)
        trial.expect(device, result, "of inputs that share memory", wanted)


@SUITE.check
def check_overlapping_arguments_harm_nobody_else(device: hal.Device) -> None:
    """An output that overlaps an input or another output is rejected, or has undefined values.

    Nothing else is written.
    """
    for case in static_cases(device):
        with ready(device, case) as (prepared, trial):
            first = len(trial.inputs)
            target = trial.request.outputs[0]
            for index, other in enumerate((*trial.request.inputs, *trial.request.outputs[1:])):
                place = index if index < first else index + 1
                if not (
                    isinstance(target, hal.PoolArgument) and isinstance(other, hal.PoolArgument)
                ):
                    continue
                if other.location.length < target.location.length:
                    continue
                over = hal.PoolArgument(replace(other.location, length=target.location.length))
                with allowed(
                    f"{case.name}: an output over argument {place}", errors.InvalidArgument
                ):
                    prepared.execute(trial.with_argument(first, over), PLAIN)
                trial.check_memory(spare=place)
                trial.fill()


@SUITE.values
def check_runs_do_not_depend_on_earlier_ones(device: hal.Device) -> None:
    """A prepared model keeps no values between runs: A, B, A gives A's answers again."""
    for case, prepared in each_prepared(device, supported_cases(device)):
        for seed in (0, 1, 0, 2, 0):
            found = _answers(case, prepared, seed)
            if seed == 0:
                compare(device, case, found, case.outputs, "after other runs")


@SUITE.values
def check_concurrent_runs_equal_serial_ones(device: hal.Device) -> None:
    for case, prepared in each_prepared(device, supported_cases(device)):
        wanted = [_answers(case, prepared, seed) for seed in range(RUNS)]
        with ThreadPoolExecutor(THREADS) as pool:
            found = list(pool.map(lambda s, c=case, p=prepared: _answers(c, p, s), range(RUNS)))
        for a, b in zip(found, wanted, strict=True):
            compare(device, case, a, b, "of a concurrent run")


@SUITE.values
def check_two_prepared_models_do_not_meet(device: hal.Device) -> None:
    """Prepared models of one device, used alternately, do not affect each other."""
    cases = supported_cases(device)
    everything = [prepare(device, case) for case in cases]
    for case, prepared in reversed(list(zip(cases, everything, strict=True))):
        check_run(device, case, prepared, "beside other models")
        prepared.close()


@SUITE.values
def check_unwanted_outputs_may_be_left_out(device: hal.Device) -> None:
    """An output with `NoValue` is dropped; the other outputs are unchanged."""
    covered = False
    for case in static_cases(device):
        for index in range(len(case.outputs)):
            with ready(device, case) as (prepared, trial):
                request = trial.with_argument(len(trial.inputs) + index, hal.NO_VALUE_ARGUMENT)
                result = prepared.execute(request, PLAIN)
                trial.check_memory()
                found, wanted = trial.outputs(result), list(case.outputs)
                del found[index], wanted[index]
                covered = covered or bool(wanted)
                compare(device, case, found, wanted, f"without output {index}")
    if not covered:
        raise NotCovered("it supports no model of this suite with two outputs")


@SUITE.values
def check_read_only_inputs(device: hal.Device) -> None:
    """Host memory of an input may be read-only."""
    if not device.capabilities.accepts_host_memory:
        raise NotCovered("it takes pools only")
    for case in supported_cases(device):
        with ready(device, case, "host") as (prepared, trial):
            frozen = []
            for argument in trial.request.inputs:
                if isinstance(argument, hal.HostMemory):
                    array = argument.array.view()
                    array.flags.writeable = False
                    frozen.append(hal.HostMemory(array, argument.dimensions))
            request = hal.Request(tuple(frozen), trial.request.outputs, trial.request.pools)
            trial.expect(device, prepared.execute(request, PLAIN), "of read-only inputs")


@SUITE.check
def check_host_memory_for_a_pools_only_device(device: hal.Device) -> None:
    """A device that accepts pools only rejects `HostMemory` by name."""
    if device.capabilities.accepts_host_memory:
        raise NotCovered("it takes host memory")
    with (
        ready(device, one_case(device), "host") as (prepared, trial),
        refused("host memory", errors.InvalidArgument),
    ):
        prepared.execute(trial.request, PLAIN)


@SUITE.values
def check_unknown_output_shapes_are_reported(device: hal.Device) -> None:
    """Memory may be larger than the answer; the rest of it stays unchanged."""
    for case, prepared in each_prepared(device, dynamic_cases(device)):
        sizes = [a.nbytes + 40 for a in case.outputs]
        for _, trial in each_kind(device, case, capacities=sizes):
            result = prepared.execute(trial.request, PLAIN)
            shapes = [s.dimensions for s in result.output_shapes]
            wanted = [a.shape for a in case.outputs]
            require(shapes == wanted, f"{case.name}: shapes {shapes} reported")
            trial.expect(device, result, "with room to spare")


@SUITE.values
def check_small_outputs_are_insufficient(device: hal.Device) -> None:
    """`OutputInsufficientSize` has the true shape of every output; no stray writes."""
    for case, prepared in each_prepared(device, dynamic_cases(device)):
        for small in range(len(case.outputs)):
            sizes = [a.nbytes - 4 * (i == small) for i, a in enumerate(case.outputs)]
            for _, trial in each_kind(device, case, capacities=sizes):
                _insufficient(case, prepared, trial, small)


@SUITE.check
def check_execute_refuses_every_mutation(device: hal.Device) -> None:
    """Each mutation of a valid request is `InvalidArgument`; nothing is written or crashes."""
    for case, prepared in each_prepared(device, supported_cases(device)):
        for kind, trial in each_kind(device, case):
            before = trial.snapshot()
            for name, request in request_mutations(trial):
                with refused(f"{case.name} ({kind}), {name}", errors.InvalidArgument):
                    prepared.execute(request, PLAIN)
            require(trial.snapshot() == before, f"{case.name}: a refused run wrote memory")


@SUITE.values
def check_a_refused_request_leaves_the_model_usable(device: hal.Device) -> None:
    case = one_case(device)
    with ready(device, case) as (prepared, trial):
        for _, request in request_mutations(trial):
            with refused("a mutated request", errors.InvalidArgument):
                prepared.execute(request, PLAIN)
            compare(device, case, trial.run(prepared), case.outputs, "after a refused request")


@SUITE.values
def check_unknown_memory_is_a_general_failure(device: hal.Device) -> None:
    """A pool of an unknown kind, or with a handle that does not match its kind and size."""
    case = one_case(device)
    with ready(device, case) as (prepared, trial):
        good = trial.request.pools[0]
        for what, pool in (
            ("an unknown name", hal.Memory("no_such_memory", good.handle, good.size)),
            ("no name", hal.Memory("", good.handle, good.size)),
            ("no handle", hal.Memory(good.name, None, good.size)),
            ("a handle of another kind", hal.Memory("mmap_fd", good.handle, good.size)),
            ("a closed descriptor", hal.Memory(good.name, 2**20, good.size)),
            ("more bytes than there are", hal.Memory(good.name, good.handle, good.size + 1)),
        ):
            with refused(f"a pool with {what}", errors.GeneralFailure):
                prepared.execute(replace(trial.request, pools=(pool,)), PLAIN)
        compare(device, case, trial.run(prepared), case.outputs, "after pools that are none")


@SUITE.values
def check_tokens_nobody_gave_are_refused(device: hal.Device) -> None:
    """A token that belongs to no live buffer of this device is `InvalidArgument`."""
    with ready(device, one_case(device)) as (prepared, trial):
        for index in range(len(trial.inputs) + len(trial.operands)):
            for token in (1, 2**31 - 1):
                request = trial.with_argument(index, hal.TokenArgument(token))
                with refused(f"token {token} for argument {index}", errors.InvalidArgument):
                    prepared.execute(request, PLAIN)


@SUITE.values
def check_execute_past_its_deadline(device: hal.Device) -> None:
    """A run with a deadline is right or raises `MissedDeadline*`; the next run is unaffected."""
    case = one_case(device)
    with closing(prepare(device, case)) as prepared:
        config = hal.ExecutionConfig(deadline_ns=time.monotonic_ns() - 1)
        with allowed("a deadline in the past", errors.MissedDeadline):
            check_run(device, case, prepared, "past its deadline", config)
        check_run(device, case, prepared, "after a missed deadline")


@SUITE.values
def check_execute_before_a_far_deadline(device: hal.Device) -> None:
    case = one_case(device)
    with closing(prepare(device, case)) as prepared:
        config = hal.ExecutionConfig(deadline_ns=time.monotonic_ns() + 600 * 10**9)
        check_run(device, case, prepared, "before its deadline", config)


@SUITE.values
def check_execute_cancelled(device: hal.Device) -> None:
    """A cancelled run raises `Cancelled`, or finishes. The next run is unaffected."""
    case = one_case(device)
    token = hal.CancelToken()
    token.set()
    with closing(prepare(device, case)) as prepared:
        with allowed("a cancelled run", errors.Cancelled):
            check_run(
                device, case, prepared, "with its token set", hal.ExecutionConfig(cancel=token)
            )
        check_run(device, case, prepared, "after a cancelled run")


@SUITE.values
def check_endless_loops_end(device: hal.Device) -> None:
    """An endless WHILE is `MissedDeadlineTransient` after the timeout (NNAPI section 7.3)."""
    endless = replace(loop(), model=looping(step=0.0))
    if not is_supported(device, endless):
        raise NotCovered("it does not support WHILE")
    config = hal.ExecutionConfig(loop_timeout_ns=20_000_000)
    with (
        ready(device, endless) as (prepared, trial),
        refused("a loop that never ends", errors.MissedDeadlineTransient),
    ):
        prepared.execute(trial.request, config)


@SUITE.values
def check_loops_of_known_rounds(device: hal.Device) -> None:
    """A WHILE with a static number of iterations gives the right answer."""
    _check_where_supported(device, counted, "WHILE of known rounds")


@SUITE.values
def check_empty_tensors(device: hal.Device) -> None:
    """Dimensions of 0 are valid: the device accepts them and computes nothing."""
    _check_where_supported(device, empty, "operands without elements")


def _check_where_supported(device: hal.Device, make: Callable[[], Case], what: str) -> None:
    case = make()
    if not is_supported(device, case):
        raise NotCovered(f"it does not support {what}")
    with closing(prepare(device, case)) as prepared:
        for kind, trial in each_kind(device, case):
            compare(device, case, trial.run(prepared), case.outputs, f"from {kind} memory")


@SUITE.check
def check_timing_is_plausible(device: hal.Device) -> None:
    """Time on the device <= time in the driver <= duration of the call."""
    with ready(device, one_case(device)) as (prepared, trial):
        for measure in (True, False):
            began = time.perf_counter_ns()
            timing = prepared.execute(trial.request, hal.ExecutionConfig(measure=measure)).timing
            elapsed = time.perf_counter_ns() - began
            spans = [t for t in (timing.on_device_ns, timing.in_driver_ns) if t is not None]
            require(all(0 <= s <= elapsed for s in spans), f"{timing} of a call of {elapsed} ns")
            require(spans == sorted(spans), f"{timing}: more on the device than in the driver")


def _insufficient(case: Case, prepared: hal.PreparedModel, trial: Trial, small: int) -> None:
    what = f"{case.name}: output {small} without room"
    try:
        prepared.execute(trial.request, PLAIN)
    except errors.OutputInsufficientSize as error:
        trial.check_memory()
        wanted = [(a.shape, i != small) for i, a in enumerate(case.outputs)]
        require(list(error.output_shapes) == wanted, f"{what}: {error.output_shapes} reported")
    except Exception as error:
        raise Violation(f"{what}: {describe(error)}") from error
    else:
        raise Violation(f"{what}: accepted")


def _answers(case: Case, prepared: hal.PreparedModel, seed: int) -> list[NDArray]:
    with Trial(case, inputs=with_other_inputs(case, seed)) as trial:
        return trial.run(prepared)


def _two_equal_inputs(device: hal.Device) -> Case:
    for case in static_cases(device):
        shapes = [(a.shape, a.dtype) for a in case.inputs]
        if len(shapes) == 2 and shapes[0] == shapes[1]:
            return case
    raise NotCovered("it supports no model of this suite with two equal inputs")


def _spread(request: hal.Request) -> hal.Request:
    pool, arguments = request.pools[0], [*request.inputs, *request.outputs]
    moved = [
        replace(a, location=replace(a.location, pool=i)) if isinstance(a, hal.PoolArgument) else a
        for i, a in enumerate(arguments)
    ]
    count = len(request.inputs)
    return hal.Request(tuple(moved[:count]), tuple(moved[count:]), (pool,) * len(arguments))
