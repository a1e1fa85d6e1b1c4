"""What NNAPI's VTS leaves out: pools of every kind, buffers of unknown size, and buffers that many
use at once.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import numpy as np

from penstock.errors import InvalidArgument, PenstockError
from penstock.hal import Device, PoolArgument, Request, TokenArgument
from penstock.ir import DataLocation, NDArray
from penstock.memory import HardwareBuffer, MemoryPool
from penstock.testing.contract.memory_domains.bench import LIMIT, SHAPE, Bench, bench
from penstock.testing.contract.promise import Check, NotCovered, needs_values, refused, require
from penstock.testing.contract.trial import PLAIN

BLOBS_FROM_LEVEL: Final = 4


@needs_values
def check_buffers_copy_to_and_from_pools_of_every_kind(device: Device) -> None:
    """Of `ashmem`, `mmap_fd` and, from feature level 4 on, `hardware_buffer_blob`."""
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


@needs_values
def check_buffers_of_unknown_size_take_that_of_what_is_written(device: Device) -> None:
    """Outputs of different shapes in successive runs, smaller and larger; as an input it has the
    last shape written.
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


@needs_values
def check_buffers_that_many_use_at_once(device: Device) -> None:
    """Readers, and writers of different sizes, together: every call returns, and who reads what
    nobody writes is right.
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
                problems.append("who reads a buffer that nobody writes got another value")
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
    """What is read while others write may be of another shape, or not there: that is said, and
    nothing else happens.
    """

    def repeated() -> None:
        for at in range(times):
            with suppress(PenstockError):
                call(at)

    return repeated


def _all_at_once(calls: Sequence[Callable[[], None]], problems: list[str]) -> None:
    def guarded(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001  # told by the thread that waits
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
    """The sum of the buffer *u* (None: of *v*) and *v*, which goes into the buffer *total*, or is
    returned.
    """
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


CHECKS: Final[tuple[Check, ...]] = (
    check_buffers_copy_to_and_from_pools_of_every_kind,
    check_buffers_of_unknown_size_take_that_of_what_is_written,
    check_buffers_that_many_use_at_once,
)
