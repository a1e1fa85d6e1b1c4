"""How much memory clients may have a host map and keep: refused before it is mapped, and counted
back.
"""

from __future__ import annotations

import fcntl
import gc
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from penstock import hal, knobs
from penstock.errors import DeadObject, ResourceExhaustedTransient, WireError
from penstock.ipc import wire
from penstock.ipc.channel import Session
from penstock.ipc.client import RemoteDevice
from penstock.ipc.client_objects import ClientObjects
from penstock.ipc.codec import decode_to_client, encode
from penstock.ipc.dispatch import Dispatcher, refusal
from penstock.ipc.host import process, serving
from penstock.ipc.host.process import Guest, Host
from penstock.ipc.host_sockets import Place
from penstock.ipc.quotas import PAGE_TABLE_SHARE, Account, Accounts, Charge
from penstock.ipc.starting import connect
from penstock.ipc.system import check_cannot_shrink
from penstock.ipc.transport import CHUNK, Connection, close_all
from penstock.ir import DataLocation, DType, Model, ModelBuilder
from penstock.memory import MemoryPool
from penstock.memory.limits import MIB, available_memory, of_cgroup
from tests import support_isolated as support
from tests.support_ring import ring_burst

if sys.platform != "linux":
    pytest.skip("drivers have processes of their own on Linux", allow_module_level=True)

LIMIT: Final = MIB
MODEL: Final = support.add_one()
NBYTES: Final = 64
PLAIN: Final = hal.ExecutionConfig()
PATIENCE: Final = 20.0


@pytest.fixture
def memory() -> Iterator[int]:
    made = os.memfd_create("counted", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(made, 8 * LIMIT)
    fcntl.fcntl(made, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    yield made
    os.close(made)


def soon() -> int:
    return time.monotonic_ns() + int(PATIENCE * 1e9)


def is_mapped() -> bool:
    """Whether this process maps any of the memory of the tests."""
    gc.collect()
    return "memfd:counted" in Path("/proc/self/maps").read_text()


def test_bytes_beyond_the_limit_are_refused_by_name() -> None:
    account = Account(100, "one connection")
    first = account.own(60)
    with pytest.raises(
        ResourceExhaustedTransient,
        match=r"41 bytes more than the 60 that one connection .*of 100.*lent_limit_mib",
    ):
        account.own(41)
    second = account.own(40)
    assert account.used == 100
    for charge in (first, second, first):
        charge.release()
    assert account.used == 0


def test_accounts_of_connections_share_a_total() -> None:
    around = Account(150, "all connections")
    one, two = (Account(100, "one connection", around) for _ in range(2))
    kept = one.own(100)
    two.own(50)
    with pytest.raises(ResourceExhaustedTransient, match="all connections"):
        two.own(1)
    kept.release()
    two.own(50)
    assert (one.used, two.used, around.used) == (0, 100, 100)


def test_memory_counts_once_and_its_further_mappings_as_page_tables(memory: int) -> None:
    around = Account(4 * LIMIT, "all connections")
    one, two = (Account(4 * LIMIT, "one connection", around) for _ in range(2))
    first = one.memory(memory, LIMIT)
    again = os.dup(memory)
    second = two.memory(again, LIMIT)
    os.close(again)
    tables = LIMIT // PAGE_TABLE_SHARE
    assert (one.used, two.used) == (LIMIT, tables)
    longer = two.memory(memory, 2 * LIMIT)
    assert two.used == LIMIT + 3 * tables
    first.release()
    # It is still there, and who brought it pays.
    assert one.used == LIMIT
    second.release()
    longer.release()
    assert (one.used, two.used, around.used) == (0, 0, 0)


def test_growing_memory_counts_with_its_claimed_size() -> None:
    """It is mapped later than it is counted."""
    account = Account(16 * LIMIT, "one connection")
    fd = os.memfd_create("grows", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    account.memory(fd, 8 * LIMIT)
    assert account.used == 8 * LIMIT
    with pytest.raises(ResourceExhaustedTransient):
        account.memory(fd, 1 << 60)
    os.close(fd)


def test_no_more_counts_than_there_is(memory: int) -> None:
    account = Account(16 * LIMIT, "one connection")
    account.memory(memory, 1 << 60)
    assert account.used == 8 * LIMIT
    account.memory(-1, LIMIT).release()
    account.charge(hal.Memory("ashmem", None, LIMIT)).release()
    assert account.used == 8 * LIMIT


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3 * LIMIT), st.booleans()), max_size=30)
)
@settings(max_examples=30, deadline=None)
def test_released_memory_counts_no_more(steps: list[tuple[int, int, bool]]) -> None:
    total = Account(6 * LIMIT, "all connections")
    accounts = [Account(4 * LIMIT, "one connection", total) for _ in range(2)]
    fds = [os.memfd_create("counted") for _ in range(2)]
    for fd in fds:
        os.ftruncate(fd, 2 * LIMIT)
    held: list[Charge] = []
    for which, nbytes, release in steps:
        if release and held:
            held.pop(nbytes % len(held)).release()
            continue
        account = accounts[nbytes % 2]
        try:
            held.append(account.own(nbytes) if which == 2 else account.memory(fds[which], nbytes))
        except ResourceExhaustedTransient:
            assert nbytes
        assert total.used == sum(a.used for a in accounts) <= 6 * LIMIT
        assert all(a.used <= 4 * LIMIT for a in accounts)
    for charge in held:
        charge.release()
    assert total.used == 0
    for fd in fds:
        os.close(fd)


def test_the_default_is_half_of_what_the_process_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    assert Accounts().connection(0)._limit == available_memory() // 2
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64 * MIB, resource.RLIM_INFINITY))
    limited = Accounts()
    assert limited.connection(0)._limit == 32 * MIB
    assert limited.total._limit == 48 * MIB
    with knobs.override(lent_limit_mib=5):
        assert Accounts().connection(0)._limit == 5 * MIB


def test_a_user_of_a_service_has_no_more_by_several_connections() -> None:
    with knobs.override(lent_limit_mib=1):
        accounts = Accounts(service=True)
    one, two, other = accounts.connection(1), accounts.connection(1), accounts.connection(2)
    one.own(MIB // 2)
    two.own(MIB // 2)
    with pytest.raises(ResourceExhaustedTransient, match="connections of one user"):
        two.own(1)
    other.own(MIB // 2)
    with pytest.raises(ResourceExhaustedTransient, match="all connections"):
        other.own(1)


@pytest.mark.parametrize(
    ("lines", "files", "limit"),
    [
        ("0::/a/b\n", {"memory.max": "max", "a/memory.max": "700", "a/b/memory.max": "900"}, 700),
        ("0::/\n", {"memory.max": "500"}, 500),
        ("4:memory:/x\n0::/\n", {"memory/memory.limit_in_bytes": "800",
            "memory/x/memory.limit_in_bytes": "600"}, 600),
        ("4:cpu:/x\nnonsense\n", {"cpu/x/memory.max": "1", "memory.max": "1"}, sys.maxsize),
        ("0::/a\n", {"a/memory.max": "many"}, sys.maxsize),
    ],
)  # fmt: skip
def test_a_cgroup_says_how_much_memory_there_is(
    tmp_path: Path, lines: str, files: dict[str, str], limit: int
) -> None:
    for name, content in files.items():
        (tmp_path / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / name).write_text(content + "\n")
    (tmp_path / "own").write_text(lines)
    assert of_cgroup(f"{tmp_path}/fs", f"{tmp_path}/own") == limit
    assert of_cgroup(f"{tmp_path}/fs", f"{tmp_path}/none") == sys.maxsize


class Served:
    """Clients of one host in this process, whose memory counts in *total*."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.total = Account(limit * 3 // 2, "all connections")
        self.limit = limit
        self.device = support.domains()

    @contextmanager
    def client(self) -> Iterator[tuple[RemoteDevice, Account]]:
        ours, theirs = socket.socketpair()
        over = threading.Event()
        account = Account(self.limit, "one connection", self.total)
        dispatcher = Dispatcher(self.device, owns_device=False, admit=check_cannot_shrink)
        serving.Client(Connection(theirs), [dispatcher], over.set, account).start()
        session = Session(Connection(ours))
        try:
            yield RemoteDevice(session.channel(0)), account
        finally:
            session.close()
            assert over.wait(PATIENCE)

    def is_empty(self) -> bool:
        """Whether all was given back, before long."""
        end = time.monotonic() + PATIENCE
        while self.total.used:
            if time.monotonic() > end:
                return False
            gc.collect()
            time.sleep(0.002)
        return True


def lent(fd: int, nbytes: int) -> hal.Request:
    memory = hal.Memory("ashmem", fd, nbytes)
    arguments = [
        hal.PoolArgument(DataLocation(0, at, NBYTES), support.SHAPE) for at in (0, 2 * NBYTES)
    ]
    return hal.Request((arguments[0],), (arguments[1],), (memory,))


def large_model(nbytes: int) -> Model:
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (nbytes // 4,), "x")
    c = b.constant(np.ones(nbytes // 4, np.float32), "c")
    return b.build(b.operation("ADD", [x, c], [(DType.FLOAT32, (nbytes // 4,))]))


def ways(device: RemoteDevice, fd: int, nbytes: int) -> dict[str, Callable[[], Any]]:
    """Every way for that many bytes into a host."""
    prepared = device.prepare_model(MODEL, hal.PrepareConfig())
    request = lent(fd, nbytes)

    def ring() -> None:
        life, end = os.pipe()
        burst = ring_burst(prepared, life)
        try:
            burst.execute(request, PLAIN)
        finally:
            burst.close()
            os.close(end)

    def fenced() -> None:
        fence = prepared.execute_fenced(request, [], PLAIN)
        assert fence.wait(int(PATIENCE * 1e9))

    def copied() -> None:
        _, buffer = device.allocate(hal.BufferDesc(), [hal.BufferRole(prepared, "input", 0)])
        buffer.copy_from(hal.Memory("ashmem", fd, NBYTES), support.SHAPE)
        buffer.copy_to(request.pools[0])

    return {
        "execute": lambda: prepared.execute(request, PLAIN),
        "reusable": lambda: prepared.create_reusable_execution(request),
        "fenced": fenced,
        "ring": ring,
        "copied": copied,
        "model": lambda: device.prepare_model(large_model(nbytes), hal.PrepareConfig()),
    }


WAYS: Final = ("execute", "reusable", "fenced", "ring", "copied", "model")


@pytest.mark.parametrize("way", WAYS)
def test_memory_beyond_the_limit_is_refused_unmapped(memory: int, way: str) -> None:
    served = Served()
    with served.client() as (device, account):
        before = account.used
        with pytest.raises(ResourceExhaustedTransient, match="lent_limit_mib"):
            ways(device, memory, LIMIT + 4096)[way]()
        assert not is_mapped()
        assert account.used - before < LIMIT // 4
        # The next call works.
        ways(device, memory, 4096)["execute"]()
    assert served.is_empty()


@pytest.mark.parametrize("way", [way for way in WAYS if way != "copied"])
def test_lent_memory_counts_until_its_release(memory: int, way: str) -> None:
    served = Served()
    with served.client() as (device, _):
        for _ in range(3):
            # More than half each time: that of the time before is given back.
            made = ways(device, memory, LIMIT * 5 // 8)[way]()
            if way in {"reusable", "model"}:
                assert served.total.used >= LIMIT * 5 // 8
            if hasattr(made, "close"):
                made.close()
            del made
            gc.collect()
    assert served.is_empty()


def test_two_connections_together_have_a_limit(memory: int) -> None:
    served = Served()
    other = os.memfd_create("counted", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(other, LIMIT)
    fcntl.fcntl(other, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    with served.client() as (one, _), served.client() as (two, _):
        ways(one, memory, LIMIT)["reusable"]()
        with pytest.raises(ResourceExhaustedTransient, match="all connections"):
            ways(two, other, LIMIT)["reusable"]()
        # The same memory is there once.
        ways(two, memory, LIMIT)["reusable"]()
    assert served.is_empty()
    os.close(other)


def test_lent_memory_is_given_back_when_it_is_released_or_its_owner_hangs_up(memory: int) -> None:
    served = Served()
    prepared = large_model(LIMIT // 4)
    for release in (True, False):
        with served.client() as (device, account):
            with MemoryPool.anonymous(LIMIT // 2) as pool:
                view = pool.view(np.float32, (LIMIT // 16,))
                made = device.prepare_model(prepared, hal.PrepareConfig())
                request = hal.Request((hal.HostMemory(view),), (hal.HostMemory(view),))
                made.execute(request, PLAIN)
                assert account.used >= LIMIT * 3 // 4
                if release:
                    del request, view
                    gc.collect()
            if release:
                # Told with the next message.
                device.check()
                assert account.used < LIMIT // 2
        assert served.is_empty()


def test_a_message_that_is_too_long_ends_the_connection_before_memory_is_taken() -> None:
    account, over = Account(LIMIT, "one connection"), threading.Event()
    ours, theirs = socket.socketpair()
    client = serving.Client(Connection(theirs), [], over.set, account)
    client.start()
    sender = Connection(ours)
    with suppress(EOFError):
        sender.send(bytes(CHUNK * 2), (), soon())
    assert over.wait(PATIENCE)
    sender.close()
    assert account.used == 0


def test_messages_count_while_their_calls_are_under_way() -> None:
    account, over = Account(20_000, "one connection"), threading.Event()
    go = threading.Event()

    class Slow:
        objects = ClientObjects()

        def answer(self, *_: object) -> Any:
            assert go.wait(PATIENCE)
            return refusal(DeadObject("done"))

    ours, theirs = socket.socketpair()
    serving.Client(Connection(theirs), [Slow()], over.set, account).start()  # type: ignore[list-item]
    connection = Connection(ours)
    said = []
    for call in (1, 2):
        connection.send(encode(wire.Ask(call, 0, bytes(12_000))))
    for _ in range(2):
        received = decode_to_client(connection.receive(soon()).data)
        assert isinstance(received, wire.Answer)
        said.append((received.call, b"lent_limit_mib" in received.body))
        go.set()
    assert said == [(2, True), (1, False)]
    connection.close()
    assert over.wait(PATIENCE)
    # Its thread gives it back when it has told the answer.
    end = time.monotonic() + PATIENCE
    while account.used and time.monotonic() < end:
        time.sleep(0.001)
    assert account.used == 0


@pytest.mark.parametrize("service", [False, True])
def test_connections_beyond_the_limit_get_the_reason(
    monkeypatch: pytest.MonkeyPatch, service: bool
) -> None:
    monkeypatch.setattr(process, "MAX_CLIENTS", 3)
    monkeypatch.setattr(process, "MAX_CLIENTS_OF_USER", 2)
    woken, wake = os.pipe()
    host: Any = Host.__new__(Host)
    host._lock, host._clients, host._clients_of = threading.Lock(), 0, Counter()
    host._service, host._wake, host._woken = service, woken, wake
    pairs = [socket.socketpair() for _ in range(4)]
    guests = [Guest(theirs, 7, host._left) for _, theirs in pairs]

    def told(guest: Guest) -> str:
        host._clients += 1
        try:
            host._admit(guest)
        except WireError:
            guest.refuse()
            data = Connection(pairs[guests.index(guest)][0]).receive(soon()).data
            refused = decode_to_client(data)
            assert isinstance(refused, wire.Refused)
            return refused.reason
        return ""

    assert [told(guest) for guest in guests[:2]] == ["", ""]
    if service:
        assert told(guests[2]) == "one user may have 2 connections to a service at a time"
        assert host._clients == 2
        guests[0].leave()
        assert host._clients_of[7] == 1
    else:
        assert told(guests[2]) == ""
        assert told(guests[3]) == "a driver's process has 3 connections at a time"
        assert host._clients == 3
    for guest in guests:
        guest.connection.close()
    for ours, _ in pairs:
        ours.close()
    os.close(wake)
    os.close(woken)


def test_a_host_refuses_what_its_settings_do_not_allow_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_LENT_LIMIT_MIB", "1")
    started = connect(Place("domains", "tests.support_isolated:domains"))
    session = Session(started.connection)
    try:
        prepared = RemoteDevice(session.channel(0)).prepare_model(MODEL, hal.PrepareConfig())
        with MemoryPool.anonymous(2 * MIB) as large, MemoryPool.anonymous(4096) as small:
            for pool in (large, small, large):
                view = pool.view(np.float32, support.SHAPE)
                request = hal.Request((hal.HostMemory(view),), (hal.HostMemory(view),))
                if pool is small:
                    prepared.execute(request, PLAIN)
                    assert (view == 1).all()
                else:
                    with pytest.raises(ResourceExhaustedTransient, match="lent_limit_mib"):
                        prepared.execute(request, PLAIN)
    finally:
        session.close()
        close_all([started.page, started.output, started.pidfd])
        os.waitpid(started.broker, 0)
