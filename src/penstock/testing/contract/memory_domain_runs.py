"""Memory domains in executions: NNAPI's VTS scenarios, by name, and some that they omit."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct

from penstock.errors import DriverError, GeneralFailure, InvalidArgument, PenstockError
from penstock.hal import BufferRole, Device, PoolArgument, Request, TokenArgument
from penstock.ir import DataLocation, NDArray
from penstock.memory import HardwareBuffer, MemoryPool
from penstock.testing.contract import memory_domains as domains
from penstock.testing.contract.executors import ASYNC, BURST, FENCED, REUSABLE, SYNC, Executor
from penstock.testing.contract.memory_domains import KINDS, SHAPE, SUM, Bench, U, V, bench
from penstock.testing.contract.promise import NotCovered, named, refused, require
from penstock.testing.contract.trial import PLAIN

SUITE: Final = domains.SUITE
EXECUTORS: Final = (SYNC, ASYNC, FENCED, BURST, REUSABLE)
BLOBS_FROM_LEVEL: Final = 4


class Way(Struct, frozen=True):
    """One way to execute the model of a bench; arguments are those of `Bench.request`."""

    on: Bench
    executor: Executor

    def run(self, *arguments: TokenArgument | int | None) -> None:
        """Executes; errors propagate."""
        with self.on.request(*arguments) as request:
            self.executor.execute(self.on.prepared, request, PLAIN)

    def refuses(
        self,
        what: str,
        *arguments: TokenArgument | int | None,
        error: type[DriverError] = InvalidArgument,
    ) -> None:
        """The execution must raise *error*."""
        with refused(f"{self.on.dtype.value}, {what}", error):
            self.run(*arguments)


Scenario: TypeAlias = Callable[[Way, Bench], None]


def _invalid_token(way: Way, on: Bench) -> None:
    token = on.allocate_written(U)
    for wrong in (0, -1, token + 1, 1 << 30):
        way.refuses(f"token {wrong}", wrong)
        way.refuses(f"token {wrong}", None, None, wrong)


def _invalid_prepared_model(way: Way, on: Bench) -> None:
    # A driver may share one prepared form between equal models, so this model differs.
    model = domains.adding(on.dtype, dict(KINDS)[on.dtype], on.shape, "MUL")
    with closing(domains.prepare(on.device, model)) as other:
        way.refuses("another model's buffer", on.allocate_written(BufferRole(other, *U)))
        token, _ = on.allocate(BufferRole(other, *SUM))
        way.refuses("another model's buffer", None, None, token)


def _invalid_io_index(way: Way, on: Bench) -> None:
    way.refuses("the buffer of input 0 as input 1", None, on.allocate_written(U))


def _invalid_io_type(way: Way, on: Bench) -> None:
    way.refuses("an output's buffer as an input", on.allocate_written(SUM))
    for_input, _ = on.allocate(U)
    way.refuses("an input's buffer as an output", None, None, for_input)


def _uninitialized_memory(way: Way, on: Bench) -> None:
    token, buffer = on.allocate(U)
    way.refuses("a buffer never written", token, error=GeneralFailure)
    on.write(buffer, on.values())
    way.run(token)


def _same_request_multiple_roles(way: Way, on: Bench) -> None:
    token, buffer = on.allocate(U, V, SUM)
    on.write(buffer, on.values())
    way.refuses("a buffer as input 0 and output", token, None, token)
    way.refuses("a buffer as input 1 and output", None, token, token)
    way.run(token, token)


def _invalid_dimensions(way: Way, on: Bench) -> None:
    token = on.allocate_written(U)
    other, _ = on.allocate(SUM)
    for dimensions in ((*on.shape[:-1], on.shape[-1] // 2), on.shape[1:]):
        way.refuses("other dimensions", TokenArgument(token, dimensions))
        way.refuses("other dimensions", None, None, TokenArgument(other, dimensions))
    way.run(TokenArgument(token, on.shape), None, TokenArgument(other, on.shape))


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
                SCENARIOS[name](Way(on, executor), on)
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
        _, buffer = on.allocate(U)
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
                view = pool.view(value.dtype, value.shape)
                view[...] = value + place
                buffer.copy_from(pool.memory, SHAPE)
                view[...] = 0
                buffer.copy_to(pool.memory)
                is_equal = np.array_equal(view, value + place)
                require(is_equal, f"a copy by {pool.memory.name} is wrong")


@SUITE.values
def check_buffers_of_unknown_size_take_that_of_what_is_written(device: Device) -> None:
    """Successive runs write outputs of different shapes, smaller and larger.

    As an input the buffer has the last written shape.
    """
    with bench(device, shape=(None, 3)) as on:
        first, one = on.allocate(U, SUM)
        second, other = on.allocate(U, SUM)
        for rows in (4, 2, 7, 1):
            shape = (rows, 3)
            value = on.values(shape)
            on.write(one, value)
            _add(on, first, value, second)
            is_sum = np.array_equal(on.read(other, shape), value + value)
            require(is_sum, f"a sum of {rows} rows is wrong in a buffer of unknown size")
            _add(on, second, value, first)
            is_sum = np.array_equal(on.read(one, shape), value + value + value)
            require(is_sum, f"a buffer of {rows} rows is read wrongly")
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
    shared, contested = on.allocate(U, SUM)
    quiet, calm = on.allocate(U)
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
    is_written = np.array_equal(on.read(contested, (6, 3)), value)
    require(is_written, "the buffer is not usable afterwards")


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
        thread.join(domains.LIMIT)
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
