"""Memory domains in executions: NNAPI's VTS scenarios, by name, and some that they omit."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Final, TypeAlias

import numpy as np

from penstock.errors import DriverError, GeneralFailure, InvalidArgument, PenstockError
from penstock.hal import Device, PoolArgument, Request, RequestArgument, TokenArgument
from penstock.ir import DataLocation, NDArray
from penstock.memory import HardwareBuffer, MemoryPool
from penstock.testing.contract.executors import ASYNC, BURST, FENCED, REUSABLE, SYNC, Executor
from penstock.testing.contract.memory_domains import (
    KINDS,
    LIMIT,
    SHAPE,
    SUITE as DOMAINS,
    Bench,
    adding,
    bench,
    prepare,
)
from penstock.testing.contract.promise import NotCovered, named, refused, require
from penstock.testing.contract.trial import PLAIN

SUITE: Final = DOMAINS
EXECUTORS: Final = (SYNC, ASYNC, FENCED, BURST, REUSABLE)
BLOBS_FROM_LEVEL: Final = 4

Scenario: TypeAlias = Callable[[Bench, Callable[[Request], object]], None]


def _invalid_token(on: Bench, run: Callable[[Request], object]) -> None:
    token = on.allocate_written(on.input())
    for wrong in (0, -1, token + 1, 1 << 30):
        _refuse_run(on, run, f"token {wrong}", TokenArgument(wrong), None, None)
        _refuse_run(on, run, f"token {wrong}", None, None, TokenArgument(wrong))


def _invalid_prepared_model(on: Bench, run: Callable[[Request], object]) -> None:
    # A driver may share one prepared form between equal models, so this model differs.
    model = adding(on.dtype, dict(KINDS)[on.dtype], on.shape, "MUL")
    with closing(prepare(on.device, model)) as other:
        token = on.allocate_written((other, "input", 0))
        _refuse_run(on, run, "another model's buffer", TokenArgument(token), None, None)
        token, _ = on.allocate([(other, "output", 0)])
        _refuse_run(on, run, "another model's buffer", None, None, TokenArgument(token))


def _invalid_io_index(on: Bench, run: Callable[[Request], object]) -> None:
    token = on.allocate_written(on.input(0))
    _refuse_run(on, run, "the buffer of input 0 as input 1", None, TokenArgument(token), None)


def _invalid_io_type(on: Bench, run: Callable[[Request], object]) -> None:
    for_output = on.allocate_written(on.output)
    _refuse_run(on, run, "an output's buffer as an input", TokenArgument(for_output), None, None)
    for_input, _ = on.allocate([on.input()])
    _refuse_run(on, run, "an input's buffer as an output", None, None, TokenArgument(for_input))


def _uninitialized_memory(on: Bench, run: Callable[[Request], object]) -> None:
    token, buffer = on.allocate([on.input()])
    never = "a buffer never written"
    _refuse_run(on, run, never, TokenArgument(token), None, None, error=GeneralFailure)
    on.write(buffer, on.values())
    with on.request(TokenArgument(token), None, None) as request:
        run(request)


def _same_request_multiple_roles(on: Bench, run: Callable[[Request], object]) -> None:
    token, buffer = on.allocate([on.input(0), on.input(1), on.output])
    on.write(buffer, on.values())
    same = TokenArgument(token)
    _refuse_run(on, run, "a buffer as input 0 and output", same, None, same)
    _refuse_run(on, run, "a buffer as input 1 and output", None, same, same)
    with on.request(same, same, None) as request:
        run(request)


def _invalid_dimensions(on: Bench, run: Callable[[Request], object]) -> None:
    token = on.allocate_written(on.input())
    other, _ = on.allocate([on.output])
    for dimensions in ((*on.shape[:-1], on.shape[-1] // 2), on.shape[1:]):
        _refuse_run(on, run, "other dimensions", TokenArgument(token, dimensions), None, None)
        _refuse_run(on, run, "other dimensions", None, None, TokenArgument(other, dimensions))
    with on.request(
        TokenArgument(token, on.shape), None, TokenArgument(other, on.shape)
    ) as request:
        run(request)


def _refuse_run(
    on: Bench,
    run: Callable[[Request], object],
    what: str,
    *arguments: RequestArgument | None,
    error: type[DriverError] = InvalidArgument,
) -> None:
    with on.request(*arguments) as request, refused(f"{on.dtype.value}, {what}", error):
        run(request)


SCENARIOS: Final[dict[str, Scenario]] = {
    "invalid_token": _invalid_token,
    "invalid_prepared_model": _invalid_prepared_model,
    "invalid_io_index": _invalid_io_index,
    "invalid_io_type": _invalid_io_type,
    "uninitialized_memory": _uninitialized_memory,
    "same_request_multiple_roles": _same_request_multiple_roles,
    "invalid_dimensions": _invalid_dimensions,
}
"""The scenarios of VTS's MemoryDomainExecutionTest, by name."""


def _in_every_type(name: str, executor: Executor, device: Device) -> None:
    """Runs scenario *name* in each of `KINDS` that *device* supports; at least one is required."""
    reasons = []
    for kind in KINDS:
        try:
            with bench(device, kind) as on:
                run = partial(executor.execute, on.prepared)
                SCENARIOS[name](on, lambda request, run=run: run(request, PLAIN))  # type: ignore[misc]
        except NotCovered as why:
            reasons.append(why)
    if len(reasons) == len(KINDS):
        raise reasons[-1]


for _name in SCENARIOS:
    for _executor in EXECUTORS:
        _upstream = "".join(word.capitalize() for word in _name.split("_")).replace("Io", "IO")
        _rule = f"MemoryDomainExecutionTest.{_upstream} ({_executor.name}), in every element type."
        _check = partial(_in_every_type, _name, _executor)
        SUITE.check(named(_check, f"execution_{_name}_{_executor.name}", _rule))


@SUITE.values
def check_buffers_copy_to_and_from_pools_of_every_kind(device: Device) -> None:
    """Memory of `ashmem`, `mmap_fd` and, from feature level 4 on, `hardware_buffer_blob`."""
    with bench(device) as on, tempfile.TemporaryFile() as file:
        _, buffer = on.allocate([on.input()])
        value = on.values()
        file.write(bytes(value.nbytes + 40))
        file.flush()
        pools = [
            MemoryPool.anonymous(value.nbytes),
            MemoryPool.from_file(file.fileno(), 40, value.nbytes),
        ]
        if device.feature_level >= BLOBS_FROM_LEVEL:
            with HardwareBuffer.allocate(value.nbytes) as blob:
                pools.append(MemoryPool.from_hardware_buffer(blob))
        for place, pool in enumerate(pools):
            with pool:
                there = pool.view(value.dtype, value.shape)
                there[...] = value + place
                buffer.copy_from(pool.memory, SHAPE)
                there[...] = 0
                buffer.copy_to(pool.memory)
                require(
                    np.array_equal(there, value + place), f"a copy by {pool.memory.name} is wrong"
                )


@SUITE.values
def check_buffers_of_unknown_size_take_that_of_what_is_written(device: Device) -> None:
    """Successive runs write outputs of different shapes, smaller and larger.

    As an input the buffer has the last written shape.
    """
    with bench(device, shape=(None, 3)) as on:
        roles = [on.input(0), on.output]
        first, one = on.allocate(roles)
        second, other = on.allocate(roles)
        for rows in (4, 2, 7, 1):
            value = on.values((rows, 3))
            on.write(one, value)
            _add(on, first, value, second)
            require(
                np.array_equal(on.read(other, (rows, 3)), value + value),
                f"a sum of {rows} rows is wrong in a buffer of unknown size",
            )
            _add(on, second, value, first)
            require(
                np.array_equal(on.read(one, (rows, 3)), value + value + value),
                f"a buffer of {rows} rows is read wrongly",
            )
        with refused("an input of other dimensions than the last written", InvalidArgument):
            _add(on, first, on.values((1, 3)), second, (4, 3))


@SUITE.values
def check_buffers_that_many_use_at_once(device: Device) -> None:
    """Concurrent readers and writers of different sizes. Every call returns.

    A buffer without a writer keeps its value.
    """
    try:
        with bench(device, shape=(None, 3)) as on:
            _compete(on, [(rows, 3) for rows in (1, 6, 3)])
    except NotCovered:
        with bench(device, shape=(6, 3)) as on:
            _compete(on, [(6, 3)])


def _compete(on: Bench, shapes: Sequence[tuple[int, ...]]) -> None:
    shared, contested = on.allocate([on.input(0), on.output])
    quiet, calm = on.allocate([on.input(0)])
    value = on.values((6, 3))
    on.write(calm, value)
    on.write(contested, on.values(shapes[0]))
    problems: list[str] = []

    def read_quiet() -> None:
        for _ in range(40):
            if not np.array_equal(_add(on, quiet, value, None), value + value):
                problems.append("a run read another value from a buffer that nobody writes")
            if not np.array_equal(on.read(calm, (6, 3)), value):
                problems.append("a buffer that nobody writes has another value")

    def write(at: int) -> None:
        on.write(contested, on.values(shapes[at % len(shapes)]))

    def run_into(at: int) -> None:
        _add(on, None, on.values(shapes[at % len(shapes)]), shared)

    def run_from(at: int) -> None:
        _add(on, shared, on.values(shapes[at % len(shapes)]), None)

    competing = [_tolerant(call, 40) for call in (write, run_into, run_from)]
    _all_at_once([read_quiet, read_quiet, *competing], problems)
    on.write(contested, value)
    require(
        np.array_equal(on.read(contested, (6, 3)), value), "the buffer is not usable afterwards"
    )


def _tolerant(call: Callable[[int], None], times: int) -> Callable[[], None]:
    """While others write, *call* may find another shape or no value, or raise a HAL error."""

    def repeated() -> None:
        for at in range(times):
            with suppress(PenstockError):
                call(at)

    return repeated


def _all_at_once(calls: Sequence[Callable[[], None]], problems: list[str]) -> None:
    def guarded(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001  # raised by the waiting thread
            problems.append(f"{type(error).__name__} was raised: {error}")

    threads = [threading.Thread(target=guarded, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    require(not any(t.is_alive() for t in threads), "a call on a contested buffer does not return")
    require(not problems, "; ".join(sorted(set(problems))))


def _add(
    on: Bench, u: int | None, v: NDArray, total: int | None, dimensions: tuple[int, ...] = ()
) -> NDArray:
    """Adds buffer *u* (None: *v*) and *v* into the buffer *total* (None: returns the sum)."""
    with MemoryPool.anonymous(2 * v.nbytes) as pool:
        pool.view(v.dtype, v.shape)[...] = v
        given = PoolArgument(DataLocation(0, 0, v.nbytes), v.shape)
        wanted = PoolArgument(DataLocation(0, v.nbytes, v.nbytes))
        request = Request(
            (given if u is None else TokenArgument(u, dimensions), given),
            (wanted if total is None else TokenArgument(total),),
            (pool.memory,),
        )
        on.prepared.execute(request, PLAIN)
        return pool.view(v.dtype, v.shape, v.nbytes).copy()
