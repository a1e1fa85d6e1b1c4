"""A call that sends each kind of message, and whether its answer is right."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from penstock import hal
from penstock.errors import Cancelled, DeadObject, PenstockError
from penstock.ipc.host_sockets import Place
from penstock.ipc.remote import Channel
from penstock.ipc.resilient import IsolatedDevice
from penstock.ipc.resilient_model import IsolatedPreparedModel
from penstock.ipc.ring_pool import Rings
from penstock.ipc.supervision import Supervisor
from penstock.memory import MemoryPool
from tests import support_isolated as support

PLACE: Final = Place("domains", "tests.support_isolated:domains")
MODEL: Final = support.add_one()
REFERENCE: Final[Any] = support.domains()
"""The same driver in this process."""


class Deadline:
    """Until when a call is to return."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.ns = time.monotonic_ns() + int(seconds * 1e9)

    @property
    def execution(self) -> hal.ExecutionConfig:
        return hal.ExecutionConfig(deadline_ns=self.ns)

    @property
    def preparation(self) -> hal.PrepareConfig:
        return hal.PrepareConfig(deadline_ns=self.ns)


class Rig:
    """A device, a prepared model on it, and a buffer."""

    def __init__(self) -> None:
        self.supervisor = Supervisor(PLACE)
        self.device = IsolatedDevice(self.supervisor, 0)
        prepared = self.device.prepare_model(MODEL, hal.PrepareConfig())
        assert isinstance(prepared, IsolatedPreparedModel)
        self.prepared = prepared
        self.pool = MemoryPool.anonymous(64)
        self._buffer: tuple[int, hal.Buffer] | None = None
        self._warm: set[tuple[int, str]] = set()
        self.used: list[Any] = []
        request, self.right = asked()
        REFERENCE.prepare_model(MODEL, hal.PrepareConfig()).execute(request, hal.ExecutionConfig())

    def warm_up(self, message: str) -> None:
        """What a driver keeps from a first call is no leak."""
        if message in {"CopyFrom", "CopyTo"}:
            self.buffer()
        pid = self.supervisor.connection().pid
        if (pid, message) not in self._warm:
            self._warm.add((pid, message))
            with suppress(Cancelled):
                CALLS[message](self, Deadline(60))

    @property
    def role(self) -> hal.BufferRole:
        return hal.BufferRole(self.prepared, "input", 0)

    def buffer(self) -> hal.Buffer:
        """One in the process that lives now, with ones in it."""
        pid = self.supervisor.connection().pid
        if self._buffer is None or self._buffer[0] != pid:
            made = self.device.allocate(hal.BufferDesc(), [self.role])[1]
            self.fill(1)
            made.copy_from(self.pool.memory, support.SHAPE)
            self._buffer = pid, made
        return self._buffer[1]

    def fill(self, value: float) -> None:
        self.pool.view(np.float32, support.SHAPE)[...] = value

    def holds(self, value: float) -> bool:
        return bool((self.pool.view(np.float32, support.SHAPE) == value).all())

    def check(self, out: Any) -> None:
        """Raises where *out* is not what the driver answers in this process."""
        np.testing.assert_array_equal(out, self.right)

    def run(self, deadline: Deadline) -> None:
        request, out = asked()
        self.prepared.execute(request, deadline.execution)
        self.check(out)

    def settle(self) -> Counter[str]:
        """Gives back what was used, and what is kept for the next calls; what the driver's process
        has now.
        """
        while self.used:
            self.used.pop().close()
        if (rings := self.prepared.current()._rings) is not None:
            rings.trim()
            # Who was short of room is asked for a ring again only some seconds later.
            rings._not_before = 0.0
        # A process that a fault has stopped is found hung by the first call that waits for it.
        with suppress(DeadObject):
            self.device.check()
        link = self.supervisor.connection()
        staging = link.session.staging
        free, staging._free = staging._free, []
        for kept in free:
            staging.discard(kept)
        free.clear()
        gc.collect()
        if self._buffer is not None and self._buffer[0] == link.pid:
            # A buffer holds memory once it has been written, and none after a copy to it has
            # failed.
            self.fill(1)
            try:
                self._buffer[1].copy_from(self.pool.memory, support.SHAPE)
            except DeadObject:
                self._buffer = None
        # Whoever is told is served in turn.
        self.device.check()
        return of_process(link.pid)

    def close(self) -> None:
        self._buffer = None
        self.prepared.close()
        self.supervisor.close()
        self.pool.close()


def asked(dimensions: tuple[int, ...] | None = None, pool_of: int = 0) -> tuple[hal.Request, Any]:
    """A request for 2 + 1, and where the answer will be; different ones bind apart."""
    out = np.zeros(support.SHAPE, np.float32)
    x = np.full(support.SHAPE, 2, np.float32)
    if pool_of:
        pool = MemoryPool.anonymous(64)
        x = pool.view(np.float32, support.SHAPE)
        x[...] = 2
        pool.close()
    return hal.Request((hal.HostMemory(x, dimensions),), (hal.HostMemory(out),)), out


def same(answer: object, right: object) -> None:
    assert answer == right, f"{answer!r} is not {right!r}"


@contextmanager
def without_rings(rig: Rig) -> Iterator[None]:
    """In the block, executions in the process that lives now go by messages."""
    remote = rig.prepared.current()
    rings, remote._rings = remote._rings, Rings(Channel())
    try:
        yield
    finally:
        remote._rings = rings


def by_message(rig: Rig, deadline: Deadline) -> None:
    with without_rings(rig):
        rig.run(deadline)


def several(rig: Rig, deadline: Deadline) -> None:
    """Runs through a ring: plain ones, and those of a burst, which is made before, for that has no
    deadline.
    """
    made = held_burst(rig)
    rig.run(deadline)
    rig.run(deadline)
    execute(rig, made, deadline, 3)


def describe(rig: Rig, _: Deadline) -> None:
    again = IsolatedDevice(rig.supervisor, 0)
    for what in ("name", "version", "type", "feature_level", "capabilities"):
        same(getattr(again, what), getattr(REFERENCE, what))


def supported(rig: Rig, _: Deadline) -> None:
    same(list(rig.device.supported_operations(MODEL)), list(REFERENCE.supported_operations(MODEL)))


def printed(rig: Rig, deadline: Deadline) -> None:
    arguments = MODEL, deadline.preparation, "read"
    same(rig.device.dump(*arguments), REFERENCE.dump(*arguments))


def explained(rig: Rig, deadline: Deadline) -> None:
    arguments = MODEL, deadline.preparation
    same(list(rig.device.explain(*arguments)), REFERENCE.explain(*arguments))


def from_cache(rig: Rig, deadline: Deadline) -> None:
    """The driver refuses: without files there is nothing to load."""
    try:
        rig.device.prepare_model_from_cache(deadline.preparation)
    except PenstockError as error:
        if str(error) != refusal_of_nothing():
            raise


def refusal_of_nothing() -> str:
    try:
        REFERENCE.prepare_model_from_cache(hal.PrepareConfig())
    except PenstockError as error:
        return str(error)
    raise AssertionError("the driver loads from nothing")


def prepare(rig: Rig, deadline: Deadline) -> None:
    rig.used.append(rig.device.prepare_model(MODEL, deadline.preparation))


def close(rig: Rig, deadline: Deadline) -> None:
    rig.device.prepare_model(MODEL, deadline.preparation).close()


def allocate(rig: Rig, _: Deadline) -> None:
    token, buffer = rig.device.allocate(hal.BufferDesc(), [rig.role])
    assert token > 0
    del buffer


def fenced(rig: Rig, deadline: Deadline) -> None:
    request, out = asked()
    ready = hal.EventFence()
    ready.signal()
    fence = rig.prepared.execute_fenced(request, [ready], deadline.execution)
    assert fence.wait(deadline.ns - time.monotonic_ns()), "the fence has not signalled"
    if (error := fence.error()) is not None:
        raise error
    rig.check(out)


def plain_burst(rig: Rig, deadline: Deadline) -> None:
    """One without a ring."""
    remote = rig.prepared.current()
    channel: Any = remote.channel
    channel.exit_fd = lambda: None
    try:
        burst = remote.configure_burst()
    finally:
        del channel.exit_fd
    request, out = asked()
    rig.used.append(burst)
    burst.execute(request, deadline.execution)
    rig.check(out)


def repeated(rig: Rig, deadline: Deadline) -> None:
    request, out = asked()
    execution = rig.prepared.create_reusable_execution(request)
    rig.used.append(execution)
    execution.execute(deadline.execution)
    rig.check(out)


def copy_from(rig: Rig, _: Deadline) -> None:
    buffer = rig.buffer()
    rig.fill(1)
    buffer.copy_from(rig.pool.memory, support.SHAPE)


def copy_to(rig: Rig, _: Deadline) -> None:
    buffer = rig.buffer()
    rig.fill(9)
    buffer.copy_to(rig.pool.memory)
    assert rig.holds(1)


def report(rig: Rig, _: Deadline) -> None:
    rig.prepared.current()._report = hal.CacheReport(later=True)
    assert rig.prepared.cache_report in (hal.CacheReport(), hal.CacheReport(later=True))


def burst(rig: Rig, deadline: Deadline) -> None:
    execute(rig, held_burst(rig), deadline, 1)


def held_burst(rig: Rig) -> hal.Burst:
    made = rig.prepared.configure_burst()
    rig.used.append(made)
    return made


def execute(rig: Rig, made: hal.Burst, deadline: Deadline, times: int) -> None:
    request, out = asked()
    for _ in range(times):
        out[...] = 0
        made.execute(request, deadline.execution)
        rig.check(out)


def ping(rig: Rig, _: Deadline) -> None:
    made: Any = rig.prepared.current().configure_burst()
    rig.used.append(made)
    made.ping()


def greet(rig: Rig, deadline: Deadline) -> None:
    another = Supervisor(PLACE)
    rig.used.append(another)
    assert another.connection(deadline.ns).devices == 1


def cancel(rig: Rig, deadline: Deadline) -> None:
    token = hal.CancelToken()
    token.set()
    with without_rings(rig):
        rig.prepared.execute(asked()[0], hal.ExecutionConfig(deadline_ns=deadline.ns, cancel=token))


def drop(rig: Rig, deadline: Deadline) -> None:
    made: Any = rig.device.prepare_model(MODEL, deadline.preparation)
    del made
    gc.collect()
    # With the next message it is told.
    by_message(rig, deadline)


def from_pool(rig: Rig, deadline: Deadline) -> None:
    with MemoryPool.anonymous(128) as pool:
        x = pool.view(np.float32, support.SHAPE)
        out = pool.view(np.float32, support.SHAPE, 64)
        x[...] = 2
        request = hal.Request((hal.HostMemory(x),), (hal.HostMemory(out),))
        rig.prepared.execute(request, deadline.execution)
        rig.check(out)
        del x, out, request
    gc.collect()
    # With the next message it is told.
    by_message(rig, deadline)


CALLS: Final[dict[str, Callable[[Rig, Deadline], object]]] = {
    "Describe": describe,
    "Check": lambda rig, _: same(rig.device.check(), REFERENCE.check()),
    "CacheFilesNeeded": lambda rig, _: same(
        rig.device.cache_files_needed(), REFERENCE.cache_files_needed()
    ),
    "SupportedOperations": supported,
    "Dump": printed,
    "Explain": explained,
    "Prepare": prepare,
    "PrepareFromCache": from_cache,
    "Allocate": allocate,
    "Execute": by_message,
    "ExecuteFenced": fenced,
    "ConfigureBurst": plain_burst,
    "CreateReusableExecution": repeated,
    "CopyFrom": copy_from,
    "CopyTo": copy_to,
    "Report": report,
    "OpenRing": Rig.run,
    "LendPool": Rig.run,
    "Close": close,
    "Hello": greet,
    "Cancel": cancel,
    "Drop": drop,
    "Lend": from_pool,
    "Release": from_pool,
    "EMPTY": ping,
    "BIND": burst,
    "RUN": several,
}
"""What makes a message of each type, by its name in `wire`, or that of the kind of request in a
ring.
"""

CHECKED_BY: Final = {
    "Prepare",
    "PrepareFromCache",
    "Execute",
    "ExecuteFenced",
    "LendPool",
    "Hello",
    "Cancel",
    "Drop",
    "Lend",
    "Release",
    "BIND",
    "RUN",
}
"""Those whose calls have a deadline in the interface. The others return when the process is known
to be gone or hung.
"""


def of_process(pid: int) -> Counter[str]:
    """How many descriptors of each kind a process has, and mappings of shared memory."""
    found: Counter[str] = Counter()
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            found[link.readlink().name.partition("[")[0].partition(" ")[0]] += 1
        maps = Path(f"/proc/{pid}/maps").read_text("utf-8", "replace")
        found["shared mappings"] = maps.count("/memfd:penstock")
    return found
