"""What a client asks for that would take a host for ever, or all that it has: it is refused, or
ends with the client.
"""

from __future__ import annotations

import gc
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from msgspec.structs import replace

from penstock import errors, hal, ir
from penstock.driverkit.request_arrays import input_arrays
from penstock.drivers.reference import create
from penstock.drivers.sample import SampleDevice
from penstock.hal.validate import check_constants
from penstock.ipc import codec, forms, quotas, ring, wire
from penstock.ipc.channel import Session
from penstock.ipc.client import RemoteDevice
from penstock.ipc.codec import (
    Descriptor,
    Frame,
    Packer,
    decode_call,
    decode_reply,
    decode_to_host,
    encode,
    failure_of,
)
from penstock.ipc.dispatch import Dispatcher
from penstock.ipc.host.process import Guest, Host
from penstock.ipc.host.serving import Client, _Job
from penstock.ipc.quotas import MOST_THREADS, Account, Lease
from penstock.ipc.ring import Doorbell, Layout
from penstock.ipc.ring_server import LentPool, RingServer
from penstock.ipc.transport import Connection
from penstock.ir.operand import Lifetime, Operand
from penstock.ir.types import MAX_RANK
from penstock.ir.validate import _check_signature
from penstock.memory import MemoryPool
from tests import support_isolated as support
from tests.support_local import LocalChannel

MANY = (2**62,) * (MAX_RANK + 1)
SECONDS = 30.0


class Local(LocalChannel):
    """A channel to a dispatcher of this process, for the user *owner*."""

    def __init__(self, device: hal.Device, owner: bytes = b"") -> None:
        super().__init__(Dispatcher(device, owns_device=False, owner=owner))


@pytest.fixture
def memory() -> Iterator[int]:
    with MemoryPool.anonymous(64) as pool:
        yield pool.memory.handle


def of_any_rank() -> ir.Model:
    b = ir.ModelBuilder()
    return b.build(
        b.operation("NEG", [b.input(ir.DType.FLOAT32, None, "x")], [(ir.DType.FLOAT32, None)])
    )


def endless() -> ir.Model:
    """A WHILE whose condition is true."""
    true = Operand(ir.DType.BOOL, (1,), Lifetime.CONSTANT_COPY, value=b"\1")
    x = ir.Operand(ir.DType.FLOAT32, (1,), ir.Lifetime.SUBGRAPH_INPUT, "x")
    loop = ir.Operation(
        "WHILE", (0,), (1,), ir.Attributes(cond_subgraph_index=1, body_subgraph_index=2)
    )
    made = Operand(ir.DType.FLOAT32, (1,), Lifetime.SUBGRAPH_OUTPUT)
    return ir.Model(
        (
            ir.Subgraph((x, made), (loop,), (0,), (1,)),
            ir.Subgraph((x, true), (), (0,), (1,)),
            ir.Subgraph((x,), (), (0,), (0,)),
        )
    )


def test_more_dimensions_than_a_value_has_are_refused() -> None:
    """Their product is one step of the interpreter that takes hours, and holds every other
    thread.
    """
    device = RemoteDevice(Local(create()))
    prepared = device.prepare_model(of_any_rank(), hal.PrepareConfig())
    place = ir.DataLocation(0, 0, 4)
    with MemoryPool.anonymous(64) as pool:
        output = hal.PoolArgument(ir.DataLocation(0, 4, 4))
        request = hal.Request((hal.PoolArgument(place, MANY),), (output,), (pool.memory,))
        with pytest.raises(errors.InvalidArgument, match="length <= 32"):
            prepared.execute(request, hal.ExecutionConfig())
        role = hal.BufferRole(prepared, "input", 0)
        with pytest.raises(errors.InvalidArgument, match="length <= 32"):
            device.allocate(hal.BufferDesc(MANY), [role])
        _, buffer = device.allocate(hal.BufferDesc(), [role])
        with pytest.raises(errors.InvalidArgument, match="length <= 32"):
            buffer.copy_from(pool.memory, MANY)


def test_a_machine_is_not_asked_for_more_threads_than_it_has_processors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int | None] = []
    reference = create()
    prepare = reference.prepare_model

    def prepare_model(model: ir.Model, config: hal.PrepareConfig) -> Any:
        asked.append(config.num_threads)
        return prepare(model, config)

    monkeypatch.setattr(reference, "prepare_model", prepare_model)
    device = RemoteDevice(Local(reference))
    for threads in (None, 1, 100_000):
        device.prepare_model(support.add_one(), hal.PrepareConfig(num_threads=threads)).close()
    assert asked == [None, 1, MOST_THREADS]


def test_long_error_text_is_cut() -> None:
    long = failure_of(errors.InvalidArgument("\0" * 10_000_000))
    assert len(long.message) < 20_000
    assert failure_of(errors.InvalidArgument("short")).message == "short"


@pytest.mark.parametrize("way", ["call", "ring"])
def test_a_loop_ends_when_its_client_leaves(way: str) -> None:
    """No call has a cancel token, and the loop has no end."""
    ours, theirs = map(Connection, socket.socketpair())
    served = Client(theirs, [Dispatcher(create(), owns_device=False)], lambda: None)
    served.start()
    session = Session(ours)
    device = RemoteDevice(session.channel(0))
    prepared = device.prepare_model(endless(), hal.PrepareConfig())
    runner: Any = prepared.configure_burst() if way == "ring" else prepared
    x, y = np.zeros(1, np.float32), np.zeros(1, np.float32)
    request = hal.Request((hal.HostMemory(x),), (hal.HostMemory(y),))
    before = threading.active_count()

    def run() -> None:
        with suppress(Exception):
            runner.execute(request, hal.ExecutionConfig())

    running = threading.Thread(target=run)
    running.start()
    time.sleep(0.2)
    ours.shut()
    running.join(SECONDS)
    end = time.monotonic() + SECONDS
    while served._threads and time.monotonic() < end:
        time.sleep(0.01)
    assert not served._threads
    assert threading.active_count() <= before
    session.close()


class Stubborn:
    """A burst that runs until it is cancelled."""

    def __init__(self) -> None:
        self.running, self.stopped = threading.Event(), threading.Event()

    def execute(self, _: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        self.running.set()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            if config.cancel is not None and config.cancel.is_set():
                self.stopped.set()
                raise errors.Cancelled("it was")
            time.sleep(0.002)
        return hal.ExecutionResult()

    def close(self) -> None:
        """Nothing to release."""


class Ring:
    """A ring of *burst*, whose one request binds *form*."""

    def __init__(
        self,
        burst: Any,
        form: wire.RingRequest,
        find: Any = None,
        *,
        loops: bool = False,
        **options: Any,
    ) -> None:
        layout = Layout(4, 1024)
        self._fd = ring.create_region(layout)
        self.region = ring.Region(self._fd, layout)
        self._bells = bells = Doorbell.create(), Doorbell.create()
        self.server = RingServer(
            lambda _: (burst.execute, loops),
            find,
            self._fd,
            bells[0].listen_fd,
            bells[1].ring_fd,
            layout,
            **options,
        )
        payload = encode(form)
        at = layout.request_at(1)
        ring.REQUEST.pack_into(self.region.data, at, 1, ring.BIND, 0, 0, 2**62, 0, len(payload))
        self.region.data[at + ring.REQUEST.size :][: len(payload)] = payload
        self.region.words[ring.REQUESTED] = 1
        bells[0].ring()

    def answer(self) -> wire.Reply:
        """The reply, once it is there."""
        end = time.monotonic() + SECONDS
        while self.region.words[ring.ANSWERED] < 1:
            assert time.monotonic() < end
            time.sleep(0.001)
        layout = self.region.layout
        at = layout.request_at(1) + layout.slot_bytes
        _, kind, *_, nbytes = ring.ANSWER.unpack_from(self.region.data, at)
        assert kind == ring.REPLY
        return decode_reply(self.region.payload(at + ring.ANSWER.size, nbytes))

    def close(self) -> None:
        self.server.close()
        assert self.server._ended.wait(SECONDS)
        for bell in self._bells:
            bell.close()
        self.region.close()
        os.close(self._fd)


def test_a_loop_in_a_ring_ends_with_the_ring() -> None:
    burst = Stubborn()
    served = Ring(burst, wire.RingRequest(1, (), (), ()), loops=True)
    assert burst.running.wait(SECONDS)
    served.close()
    assert burst.stopped.wait(SECONDS)


def test_a_ring_maps_one_pool_no_more_often_than_it_may(
    memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "MAX_MAPPED", 4)
    mine = Account(1 << 30, "one connection")
    lent = LentPool(hal.Memory("ashmem", memory, 64))
    place = hal.PoolArgument(ir.DataLocation(0, 0, 64))
    form = wire.RingRequest(1, (place,), (place,), (1,) * 5)
    served = Ring(Stubborn(), form, lambda _: lent, charge=mine.charge)
    reply = served.answer()
    assert isinstance(reply, wire.Failure)
    assert "map 4 memories" in reply.message
    served.close()
    assert mine.used == mine.mapped == 0


def test_a_greeting_is_short() -> None:
    """Who is not taken on yet is counted nowhere."""
    ours, theirs = socket.socketpair()
    guest = Guest(theirs, 0, lambda _: None)
    with ours:
        ours.sendall(struct.pack("<IQ", 0, 2 << 20))
        with pytest.raises(errors.WireError, match="before `Welcome`"):
            guest.connection.receive(time.monotonic_ns() + 10**9)
        guest.connection.close()


def test_flood_of_leaving_clients_blocks_no_client() -> None:
    given, guests = socket.socketpair()
    host = Host(("none", "none:none", "none"), guests, (os.getpid(), os.getppid()))
    guest = cast("Guest", type("Gone", (), {"is_admitted": False}))

    def flood() -> None:
        for _ in range(1 << 17):
            host._left(guest)

    thread = threading.Thread(target=flood, daemon=True)
    thread.start()
    thread.join(4 * SECONDS)
    assert not thread.is_alive()
    for fd in (host._wake, host._woken, host._output, host._page, host._heartbeat.fd):
        os.close(fd)
    given.close()
    guests.close()


def test_mappings_of_one_memory_are_bounded(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MAX_MAPPED", 4)
    mine = Account(1 << 30, "one connection")
    held = [mine.memory(memory, 64) for _ in range(4)]
    with pytest.raises(errors.ResourceExhaustedTransient, match="map 4 memories"):
        mine.memory(memory, 64)
    held.pop().release()
    held.append(mine.memory(memory, 64))
    for charge in held:
        charge.release()
    assert mine.used == mine.mapped == 0


def test_a_request_names_one_memory_no_more_often_than_it_may_be_mapped(
    memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "MAX_MAPPED", 64)
    mine = Account(1 << 30, "one connection")
    dispatcher = Dispatcher(create(), owns_device=False)
    model = support.add_one()
    pack = Packer()
    prepare = wire.Prepare(pack.model(model), hal.PrepareConfig())
    made = decode_reply(dispatcher.answer(pack.frame(prepare)).data)
    assert isinstance(made, wire.Made)
    place = hal.PoolArgument(ir.DataLocation(0, 0, 64))
    form = forms.RequestForm((place,), (place,), (forms.MemoryForm("ashmem", 0, 64),) * 65)
    plain = hal.ExecutionConfig(loop_timeout_ns=0)
    body = encode(wire.Execute(made.target, form, plain))
    lease = Lease(account=mine)
    reply = decode_reply(dispatcher.answer(Frame(body, (Descriptor(memory),)), lease).data)
    assert isinstance(reply, wire.Failure)
    assert "map 64 memories" in reply.message
    lease.close()
    assert mine.used == mine.mapped == 0


def test_a_descriptor_is_one_fence_however_often_it_is_named() -> None:
    ours, theirs = map(Connection, socket.socketpair())
    served = Client(theirs, [], lambda: None)
    fence = hal.as_descriptor(hal.EventFence())
    job = _Job(
        wire.Ask(1, 0, b""), [fence.fileno()], hal.CancelToken(), quotas.NOTHING, {}
    )  # fmt: skip
    assert served._handle(forms.FenceForm(0), job) is served._handle(forms.FenceForm(0), job)
    ours.close()
    theirs.close()


def test_more_handles_than_travel_are_no_message() -> None:
    """Nothing is made of them: so many take the interpreter seconds, in which no other thread
    runs.
    """
    few, many = ((forms.ReportForm(),) * n for n in (forms.MAX_HANDLES, forms.MAX_HANDLES + 1))
    assert isinstance(decode_to_host(encode(wire.Ask(1, 0, b"", few))), wire.Ask)
    with pytest.raises(errors.WireError, match="length <= 4096"):
        decode_to_host(encode(wire.Ask(1, 0, b"", many)))


def test_long_messages_are_read_one_at_a_time_without_collections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[bool, int]] = []
    reading = 0

    def decode(_: object, data: bytes) -> bytes:
        nonlocal reading
        reading += 1
        time.sleep(0.01)
        seen.append((gc.isenabled(), reading))
        reading -= 1
        return data

    monkeypatch.setattr(codec, "_decode", decode)
    long = bytes(codec.LARGE + 1)
    threads = [
        threading.Thread(target=each, args=(long,)) for each in (decode_to_host, decode_call) * 3
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [(False, 1)] * 6
    assert gc.isenabled()
    decode_call(b"short")
    assert seen[-1] == (True, 1)


def test_a_user_seals_nothing_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Token and binding are the client's word, and known to whoever has the same model."""
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PENSTOCK_KEY_STORE", "file")
    service = SampleDevice()
    fds = [os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in ("model", "data")]
    config = hal.PrepareConfig(
        token=b"t" * 32,
        binding=b"b" * 32,
        model_cache=(hal.CacheHandle(fds[0]),),
        data_cache=(hal.CacheHandle(fds[1]),),
    )
    one, other = (RemoteDevice(Local(service, owner)) for owner in (b"1001", b"1002"))
    assert one.prepare_model(support.add_one(), config).cache_report.save == "saved"
    one.prepare_model_from_cache(config).close()
    with pytest.raises(errors.GeneralFailure, match="TokenCollision"):
        other.prepare_model_from_cache(config)
    for fd in fds:
        os.close(fd)


@pytest.mark.parametrize("kind", [ir.DType.BOOL, ir.DType.INT32, ir.DType.UINT8, ir.DType.FLOAT32])
def test_indexes_in_shared_memory_are_read_once(kind: ir.DType) -> None:
    """NumPy checks indices, and counts what a mask has, before it goes by them: who lent them
    changes them in between.
    """
    lent = np.zeros(4, kind.numpy)
    request = hal.Request((hal.HostMemory(lent),), ())
    (bound,) = input_arrays(
        request, [ir.Operand(kind, (4,), ir.Lifetime.SUBGRAPH_INPUT, "x")], [], copy_integers=True
    )
    assert np.shares_memory(bound, lent) == kind.is_float


@pytest.mark.parametrize("pools", [1, 1000])
def test_constants_are_looked_at_as_often_however_many_pools_there_are(pools: int) -> None:
    looked = 0

    class Looked(tuple[Operand, ...]):
        __slots__ = ()

        def __getitem__(self, at: Any) -> Any:
            nonlocal looked
            looked += 1
            return super().__getitem__(at)

    b = ir.ModelBuilder()
    x = b.input(ir.DType.FLOAT32, (64,), "x")
    for number in range(pools):
        there = ir.ConstantPool(memoryview(bytes(256)), None, "of nobody")
        k = b.located(there, 0, ir.DType.FLOAT32, (64,), f"k{number}")
        (x,) = b.operation("ADD", [x, k], [(ir.DType.FLOAT32, (64,))])
    model = b.build([x])
    graph = replace(model.entry, operands=Looked(model.operands))
    given: Any = SimpleNamespace(
        pools=model.pools, subgraphs=(graph,), entry=graph, operations=graph.operations, main=0
    )
    with pytest.raises(errors.GeneralFailure, match="'k0' lies in of nobody memory"):
        check_constants(given, ())
    assert looked <= 6 * pools


def test_a_subgraph_is_looked_at_once_however_many_signatures_it_has() -> None:
    looked = 0

    class Looked(tuple[int, ...]):
        __slots__ = ()

        def __iter__(self) -> Iterator[int]:
            nonlocal looked
            looked += 1
            return super().__iter__()

    model = support.add_one()
    graph = SimpleNamespace(ordinary_inputs=Looked((0,)), ordinary_outputs=Looked((1,)))
    ports: Any = {}
    signature = ir.Signature(0, (("x", 0),), (("y", 1),))
    for _ in range(3):
        _check_signature(cast("ir.Model", SimpleNamespace(subgraphs=(graph,))), signature, ports)
    assert looked == 2
    wrong = ir.Signature(0, (("x", 7),), ())
    with pytest.raises(errors.InvalidSignature, match="operand 7"):
        replace(model, signatures={"good": ir.Signature(0, (), ()), "bad": wrong})


@pytest.mark.parametrize("driver", ["onnxruntime", "openvino", "xnnpack"])
def test_engines_begin_no_more_threads_than_there_are_processors(driver: str) -> None:
    """For one prepared model and a run of it, beside what the engine keeps for all."""
    made = pytest.importorskip(f"penstock.drivers.{driver}").create()
    engine = made[0] if isinstance(made, list | tuple) else made
    if (reason := engine.check()) is not None:
        pytest.skip(reason)
    device = RemoteDevice(Local(engine))

    def threads_of(config: hal.PrepareConfig) -> int:
        prepared = device.prepare_model(support.add_one(), config)
        x, y = (hal.HostMemory(np.zeros(support.SHAPE, np.float32)) for _ in range(2))
        prepared.execute(hal.Request((x,), (y,)), hal.ExecutionConfig())
        count = len(list(Path("/proc/self/task").iterdir()))
        prepared.close()
        return count

    threads_of(hal.PrepareConfig(num_threads=1))
    before = threads_of(hal.PrepareConfig(num_threads=1))
    assert threads_of(hal.PrepareConfig(num_threads=100_000)) <= before + MOST_THREADS
