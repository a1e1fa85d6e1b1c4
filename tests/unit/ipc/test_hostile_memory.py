"""Memory that is made shorter after it was lent: nobody dies of it, and honest callers with files
are served by copies.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import penstock
from penstock import hal
from penstock.errors import GeneralFailure, InvalidArgument, WireError
from penstock.ipc import forms, system
from penstock.ipc.channel import Session
from penstock.ipc.client import RemoteDevice
from penstock.ipc.codec import Frame
from penstock.ipc.host_sockets import Place
from penstock.ipc.remote import Channel
from penstock.ipc.starting import Started, connect
from penstock.ipc.system import SHRINK, check_cannot_shrink, filesystem_of, is_sealed
from penstock.ipc.transport import close_all
from penstock.ir import DataLocation
from penstock.memory import MappedFd, MemoryPool
from tests import support_isolated as support

PLACE: Final = Place("domains", "tests.support_isolated:domains")
MODEL: Final = support.add_one()
NBYTES: Final = 64
OUT: Final = 128
SIZE: Final = 256
PLAIN: Final = hal.ExecutionConfig()


class Rude(Channel):
    """A channel that sends what it is given."""

    def __init__(self, session: Session) -> None:
        self._channel = session.channel(0)

    def call(self, frame: Frame) -> Frame:
        return self._channel.call(frame)

    def drop(self, number: forms.ObjectId) -> None:
        self._channel.drop(number)


@contextmanager
def connected() -> Iterator[tuple[Session, Started]]:
    started = connect(PLACE)
    session = Session(started.connection)
    try:
        yield session, started
    finally:
        session.close()
        close_all([started.page, started.output, started.pidfd])
        if started.child:
            os.waitpid(started.broker, 0)


@pytest.fixture(scope="module", autouse=True)
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """A client that keeps one host alive for all tests here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        with connected() as (_, started):
            yield started


@pytest.fixture
def session(host: Started) -> Iterator[Session]:
    with connected() as (session, started):
        assert started.pid == host.pid
        yield session
    with connected() as (after, started):
        # The one that was there before.
        assert started.pid == host.pid
        assert RemoteDevice(after.channel(0)).check() is None


@pytest.fixture
def rude(session: Session) -> RemoteDevice:
    return RemoteDevice(Rude(session))


@pytest.fixture
def polite(session: Session) -> RemoteDevice:
    return RemoteDevice(session.channel(0))


@pytest.fixture
def fd() -> Iterator[int]:
    made = os.memfd_create("may-shrink", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.pwrite(made, np.full(SIZE // 4, 7, np.float32).tobytes(), 0)
    os.ftruncate(made, SIZE)
    yield made
    os.close(made)


def request_in(memory: hal.Memory, out: hal.Memory | None = None) -> hal.Request:
    """The input from byte 0, the output from byte `OUT` on."""
    given = hal.PoolArgument(DataLocation(0, 0, NBYTES), support.SHAPE)
    wanted = hal.PoolArgument(DataLocation(0 if out is None else 1, OUT, NBYTES), support.SHAPE)
    return hal.Request((given,), (wanted,), (memory,) if out is None else (memory, out))


def ways(device: RemoteDevice) -> dict[str, Callable[[hal.Memory], object]]:
    """Every way for memory into a host."""
    prepared = device.prepare_model(MODEL, hal.PrepareConfig())
    _, buffer = device.allocate(hal.BufferDesc(), [hal.BufferRole(prepared, "input", 0)])

    def reusable(memory: hal.Memory) -> hal.ExecutionResult:
        execution = prepared.create_reusable_execution(request_in(memory))
        execution.execute(PLAIN)
        return execution.execute(PLAIN)

    def burst(memory: hal.Memory) -> hal.ExecutionResult:
        made = prepared.configure_burst()
        made.execute(request_in(memory), PLAIN)
        return made.execute(request_in(memory), PLAIN)

    return {
        "execute": lambda memory: prepared.execute(request_in(memory), PLAIN),
        "reusable": reusable,
        "burst": burst,
        "fenced": lambda memory: prepared.execute_fenced(request_in(memory), [], PLAIN),
        "copy_from": lambda m: buffer.copy_from(
            hal.Memory(m.name, m.handle, NBYTES), support.SHAPE
        ),
        "copy_to": lambda m: buffer.copy_to(hal.Memory(m.name, m.handle, NBYTES)),
    }


WAYS: Final = ("execute", "reusable", "burst", "fenced", "copy_from", "copy_to")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["ashmem", "mmap_fd", "hardware_buffer_blob"])
def test_a_host_maps_no_memory_that_may_shrink(
    rude: RemoteDevice, fd: int, way: str, kind: str
) -> None:
    from penstock.memory import (
        HardwareBufferDescription,
        HardwareBufferFormat,
        HardwareBufferHandle,
    )

    blob = HardwareBufferDescription(HardwareBufferFormat.BLOB, SIZE)
    handles = {
        "ashmem": fd,
        "mmap_fd": MappedFd(fd),
        "hardware_buffer_blob": HardwareBufferHandle(fd, blob),
    }
    send = ways(rude)[way]
    if way == "copy_to":
        with MemoryPool.anonymous(NBYTES) as pool:
            ways(rude)["copy_from"](pool.memory)
    with pytest.raises(InvalidArgument, match=f"a {kind} memory that may shrink"):
        send(hal.Memory(kind, handles[kind], SIZE))


def test_a_pool_that_shrinks_between_runs_ends_no_host(rude: RemoteDevice, fd: int) -> None:
    from tests.support_ring import ring_burst

    prepared = rude.prepare_model(MODEL, hal.PrepareConfig())
    life, end = os.pipe()
    burst = ring_burst(prepared, life)
    request = request_in(hal.Memory("mmap_fd", MappedFd(fd), SIZE))
    try:
        with pytest.raises(InvalidArgument, match="may shrink"):
            burst.execute(request, PLAIN)
        os.ftruncate(fd, 0)
        with pytest.raises(InvalidArgument, match="may shrink"):
            burst.execute(request, PLAIN)
    finally:
        burst.close()
        os.close(end)


@pytest.mark.parametrize("way", ["execute", "reusable", "burst", "fenced"])
def test_pool_in_a_file_is_copied_and_reported(
    polite: RemoteDevice, tmp_path: Path, way: str
) -> None:
    file = tmp_path / "frames"
    before = np.full((3 + SIZE) // 4 + 8, 5, np.float32).tobytes()
    file.write_bytes(before)
    with MemoryPool.from_file(file, 3, SIZE) as pool:
        pool.view(np.float32, support.SHAPE)[...] = support.order(41)
        result = ways(polite)[way](pool.memory)
        if way == "fenced":
            fence: Any = result
            assert fence.wait(10**10)
            assert fence.error() is None
        else:
            assert isinstance(result, hal.RemoteResult)
            told = [(c.argument, c.out, c.nbytes) for c in result.copies]
            assert told == [(0, False, NBYTES), (0, True, NBYTES)]
        assert (pool.view(np.float32, support.SHAPE, OUT) == 42).all()
    after = file.read_bytes()
    written = range(3 + OUT, 3 + OUT + NBYTES)
    given = range(3, 3 + NBYTES)
    assert all(
        a == b
        for at, (a, b) in enumerate(zip(before, after, strict=True))
        if at not in written and at not in given
    )


def test_a_view_of_a_pool_in_a_file_is_copied(polite: RemoteDevice, tmp_path: Path) -> None:
    (tmp_path / "frames").write_bytes(bytes(SIZE))
    prepared = polite.prepare_model(MODEL, hal.PrepareConfig())
    with MemoryPool.from_file(tmp_path / "frames") as pool:
        x, y = pool.view(np.float32, support.SHAPE), pool.view(np.float32, support.SHAPE, OUT)
        burst = prepared.configure_burst()
        for run in (prepared.execute, burst.execute, burst.execute):
            y[...] = 0
            result = run(hal.Request((hal.HostMemory(x),), (hal.HostMemory(y),)), PLAIN)
            assert isinstance(result, hal.RemoteResult)
            assert len(result.copies) == 2
            assert (y == 1).all()


def test_memory_that_is_sealed_is_not_copied(polite: RemoteDevice, fd: int) -> None:
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SHRINK)
    with MemoryPool.from_file(fd) as pool:
        pool.view(np.float32, support.SHAPE)[...] = support.order(1)
        for way in ("execute", "reusable", "burst"):
            result = ways(polite)[way](pool.memory)
            assert not isinstance(result, hal.RemoteResult)
            assert (pool.view(np.float32, support.SHAPE, OUT) == 2).all()


def test_buffers_are_copied_to_and_from_files(polite: RemoteDevice, tmp_path: Path) -> None:
    prepared = polite.prepare_model(MODEL, hal.PrepareConfig())
    _, buffer = polite.allocate(hal.BufferDesc(), [hal.BufferRole(prepared, "input", 0)])
    (tmp_path / "a").write_bytes(support.order(9).tobytes())
    (tmp_path / "b").write_bytes(bytes(NBYTES))
    with MemoryPool.from_file(tmp_path / "a") as a, MemoryPool.from_file(tmp_path / "b") as b:
        buffer.copy_from(a.memory, support.SHAPE)
        buffer.copy_to(b.memory)
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()


def test_a_file_that_became_shorter_is_named(polite: RemoteDevice, fd: int) -> None:
    prepared = polite.prepare_model(MODEL, hal.PrepareConfig())
    memory = hal.Memory("mmap_fd", MappedFd(fd), SIZE)
    os.ftruncate(fd, 16)
    with pytest.raises((GeneralFailure, InvalidArgument)):
        prepared.execute(request_in(memory), PLAIN)


@pytest.mark.parametrize("handle", [MappedFd(10_000), MappedFd(-1), 10_000, None, "x"])
def test_a_memory_without_a_descriptor_fails_as_in_process(
    polite: RemoteDevice, handle: object
) -> None:
    prepared = polite.prepare_model(MODEL, hal.PrepareConfig())
    name = "mmap_fd" if isinstance(handle, MappedFd) else "ashmem"
    with pytest.raises((GeneralFailure, InvalidArgument)):
        prepared.execute(request_in(hal.Memory(name, handle, SIZE)), PLAIN)


@pytest.mark.parametrize(("offset", "protection"), [(-8, 3), (SIZE, 3), (0, 0), (0, 2), (0, 1)])
def test_a_window_that_makes_no_sense_fails_as_in_process(
    polite: RemoteDevice, fd: int, offset: int, protection: int
) -> None:
    prepared = polite.prepare_model(MODEL, hal.PrepareConfig())
    memory = hal.Memory("mmap_fd", MappedFd(fd, offset, protection), SIZE)
    content = os.pread(fd, SIZE, 0)
    with pytest.raises((GeneralFailure, InvalidArgument)):
        prepared.execute(request_in(memory), PLAIN)
    assert os.pread(fd, SIZE, 0) == content


def test_the_receipt_shows_the_copies_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(support.order(1).tobytes())
    compiled = penstock.compile(MODEL, devices=["reference"], isolate=True, cache=False)
    with compiled, MemoryPool.from_file(tmp_path / "x") as pool, MemoryPool.anonymous(64) as out:
        target = out.view(np.float32, support.SHAPE)
        receipt = compiled.run([pool], out=[target]).receipt
        assert (target == 2).all()
        (copy,) = receipt.copies
        assert copy.nbytes == NBYTES
        assert "another process" in copy.reason


def test_huge_pages_are_never_sealed_enough(fd: int) -> None:
    try:
        huge = os.memfd_create("huge", os.MFD_HUGETLB | os.MFD_ALLOW_SEALING)
    except OSError:
        pytest.skip("this system has no memory of huge pages")
    try:
        os.ftruncate(huge, 2 << 20)
        fcntl.fcntl(huge, fcntl.F_ADD_SEALS, SHRINK | fcntl.F_SEAL_GROW)
        assert not is_sealed(huge, SHRINK)
        with pytest.raises(WireError, match="may shrink"):
            check_cannot_shrink(hal.Memory("ashmem", huge, 1 << 20))
    finally:
        os.close(huge)


def test_a_dma_buf_is_known_by_what_only_the_kernel_says(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = os.eventfd(0)
    with Path(os.devnull).open("rb") as file:
        kinds = {filesystem_of(fd), filesystem_of(file.fileno()), filesystem_of(event)}
    os.close(event)
    assert not {0, system.DMA_BUF_MAGIC} & kinds
    assert filesystem_of(10_000) == filesystem_of(-1) == filesystem_of(1 << 40) == 0
    assert not system.cannot_shrink(fd)
    monkeypatch.setattr(system, "filesystem_of", lambda _: 0x444D4142)
    assert system.cannot_shrink(fd)
