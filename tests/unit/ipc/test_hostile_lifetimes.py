"""What a client gives up, or leaves behind, while the host still uses it: nothing of it becomes
another client's.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np
import pytest

from penstock import errors, hal
from penstock.hal import (
    BufferDesc,
    BufferRole,
    EventFence,
    ExecutionConfig,
    ExecutionResult,
    HostMemory,
    PrepareConfig,
    Request,
    TokenArgument,
)
from penstock.hal.fence import fence_pair
from penstock.ipc import client_objects, dispatch, forms, wire
from penstock.ipc.client import RemoteDevice
from penstock.ipc.codec import Frame, Packer, decode_reply, decode_to_client, encode, error_of
from penstock.ipc.dispatch import Dispatcher
from penstock.ipc.host import serving
from penstock.ipc.host.waiting import ClientFence, Disconnection
from penstock.ipc.quotas import Lease
from penstock.ipc.transport import Connection, close_all
from penstock.ir import DType, Model
from penstock.memory import MemoryPool
from tests.support_local import LocalChannel
from tests.support_ring import ring_burst
from tests.unit.ipc.slow import SlowDevice, slow_model

SECONDS = 30.0
REQUEST = forms.RequestForm((hal.NoValue(),), (hal.NoValue(),), ())
PLAIN = ExecutionConfig()


class Buffer:
    """One that counts how often it is closed."""

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class Held:
    """A reusable execution that runs until it is let go."""

    def __init__(self, device: HeldDevice) -> None:
        self._device = device

    def execute(self, config: ExecutionConfig) -> ExecutionResult:
        self._device.running.set()
        assert self._device.go_on.wait(SECONDS)
        return hal.DONE

    def close(self) -> None:
        """Does not wait for a run."""


class HeldPreparedModel:
    def __init__(self, device: HeldDevice) -> None:
        self._device = device

    def execute_fenced(self, *_: object) -> EventFence:
        self._device.fences.append(fence := EventFence())
        return fence

    def create_reusable_execution(self, request: Request) -> Held:
        return Held(self._device)

    def configure_burst(self) -> Any:
        return SlowDevice().prepare_model(slow_model(), PrepareConfig()).configure_burst()

    def close(self) -> None:
        """Nothing to close."""


class HeldDevice(hal.DeviceBase):
    """Its runs end when the test says so; each buffer has the number of its allocation for a
    token.
    """

    name = "held"
    version = "1"

    def __init__(self) -> None:
        self.running, self.go_on = threading.Event(), threading.Event()
        self.fences: list[EventFence] = []
        self.buffers: list[Buffer] = []

    def supported_operations(self, model: Model) -> Sequence[hal.Support]:
        return [hal.SUPPORTED] * len(model.operations)

    def prepare_model(self, model: Model, config: PrepareConfig) -> Any:
        return HeldPreparedModel(self)

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> Any:
        self.buffers.append(buffer := Buffer())
        return len(self.buffers), buffer


class Local(LocalChannel):
    """A channel to a dispatcher of this process."""

    def __init__(self, device: hal.Device) -> None:
        super().__init__(Dispatcher(device))


@pytest.fixture
def held() -> Iterator[HeldDevice]:
    device = HeldDevice()
    yield device
    device.go_on.set()
    for fence in device.fences:
        fence.signal()


def soon(is_so: Callable[[], bool]) -> bool:
    end = time.monotonic() + SECONDS
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


def test_the_buffer_of_a_late_run_stays_open_when_its_client_leaves(held: HeldDevice) -> None:
    channel = Local(held)
    device = RemoteDevice(channel)
    prepared = device.prepare_model(slow_model(), PrepareConfig())
    token, _used = device.allocate(BufferDesc(), [BufferRole(prepared, "input", 0)])
    _, _unused = device.allocate(BufferDesc(), [BufferRole(prepared, "input", 0)])
    request = Request((TokenArgument(token),), (hal.NoValue(),))
    prepared.execute_fenced(request, [], ExecutionConfig())
    channel.dispatcher.objects.close()
    # Its token would be another client's, and the run would write there.
    assert [b.closed for b in held.buffers] == [0, 1]
    held.fences[0].signal()
    assert soon(lambda: held.buffers[0].closed == 1)


def test_memory_of_a_reusable_execution_outlives_its_runs(held: HeldDevice) -> None:
    channel, closed = Local(held), threading.Event()
    dispatcher = channel.dispatcher
    prepared = RemoteDevice(channel).prepare_model(slow_model(), PrepareConfig())
    make = wire.CreateReusableExecution(prepared.number, REQUEST)
    made = decode_reply(dispatcher.answer(Frame(encode(make)), Lease(closed.set)).data)
    assert isinstance(made, wire.Made)
    execute = Frame(encode(wire.Execute(made.target, None, PLAIN)))
    running = threading.Thread(target=dispatcher.answer, args=(execute,))
    running.start()
    assert held.running.wait(SECONDS)
    dispatcher.answer(Frame(encode(wire.Close(made.target))))
    # The numbers of its descriptors would be another client's memory.
    assert not closed.is_set()
    held.go_on.set()
    running.join(SECONDS)
    assert closed.is_set()


def test_memory_of_a_failed_reusable_execution_is_freed() -> None:
    class Nothing(HeldPreparedModel):
        def create_reusable_execution(self, request: Request) -> Any:
            return None

    class Empty(HeldDevice):
        def prepare_model(self, model: Model, config: PrepareConfig) -> Any:
            return Nothing(self)

    with Served(Empty()) as client:
        with pytest.raises(errors.GeneralFailure, match="there is no reusable execution"):
            client.ask(wire.CreateReusableExecution(client.prepared(), REQUEST), [client.spare])
        assert soon(lambda: client.host._descriptors == 0)


def test_memory_of_a_fenced_run_outlives_the_run(
    held: HeldDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(fence: object) -> None:
        raise OSError("no descriptor is left")

    closed: list[int] = []
    monkeypatch.setattr(serving, "as_descriptor", none_left)
    with Served(held) as client:
        spare = os.fstat(client.spare)

        def kept(descriptors: Iterable[int]) -> None:
            """Keeps that of this run; clients of other tests may leave meanwhile."""
            for fd in descriptors:
                if os.path.samestat(os.fstat(fd), spare):
                    closed.append(fd)
                else:
                    os.close(fd)

        monkeypatch.setattr(serving, "close_all", kept)
        target = client.prepared()
        call = wire.ExecuteFenced(target, REQUEST, (), PLAIN, None)
        with pytest.raises(errors.ResourceExhaustedTransient):
            client.ask(call, [client.spare])
        assert closed == []
        held.fences[0].signal()
        assert soon(lambda: len(closed) == 1)
        close_all(closed)


def test_a_fence_that_nobody_signals_keeps_no_run_of_a_client_that_left() -> None:
    readable, writable = os.pipe()
    with Served(SlowDevice()) as client:
        target = client.prepared()
        call = wire.ExecuteFenced(target, REQUEST, (0,), PLAIN, None)
        client.tell(call, [readable], [forms.FenceForm(0)])
        assert soon(lambda: bool(client.host._calls))
        assert client.host._threads
    # It would wait for ever, and with it all that the client has.
    assert soon(lambda: client.host._threads == 0)
    assert client.host._descriptors == 0
    close_all([readable, writable])


class Told(HeldPreparedModel):
    """What was loaded from a cache: it runs until it is told to stop."""

    def __init__(self, device: HeldDevice) -> None:
        super().__init__(device)
        self.configs: list[ExecutionConfig] = []

    def execute(self, _: Request, config: ExecutionConfig) -> ExecutionResult:
        self.configs.append(config)
        assert config.cancel is not None
        assert soon(config.cancel.is_set)
        config.cancel.check()
        return hal.DONE

    def execute_fenced(self, *given: Any) -> EventFence:
        self.configs.append(given[2])
        return super().execute_fenced(*given)


class Caching(HeldDevice):
    """Gives *prepared* for whatever lies in a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.prepared = Told(self)

    def prepare_model_from_cache(self, config: PrepareConfig) -> Any:
        return self.prepared


def from_cache(client: Served) -> forms.ObjectId:
    made = client.ask(wire.PrepareFromCache(PrepareConfig()))
    assert isinstance(made, wire.Made)
    return made.target


def test_run_of_a_cached_model_stops_when_its_client_leaves() -> None:
    """Only its driver knows whether it has loops."""
    device = Caching()
    with Served(device) as client:
        client.tell(wire.Execute(from_cache(client), REQUEST, PLAIN))
        assert soon(lambda: bool(device.prepared.configs))
    assert soon(lambda: client.host._threads == 0)


def test_a_driver_says_that_what_it_loads_has_no_loops() -> None:
    device = Caching()
    device.prepared.loops = False  # type: ignore[attr-defined]  # as `PreparedModelBase` has it
    with Served(device) as client:
        client.ask(wire.ExecuteFenced(from_cache(client), REQUEST, (), PLAIN, None))
        device.fences[0].signal()
    assert device.prepared.configs[0].cancel is None


def test_fenced_run_is_cancelled_when_its_client_leaves_after_the_answer() -> None:
    device = Caching()
    with Served(device) as client:
        target = from_cache(client)
        for _ in range(2):
            client.ask(wire.ExecuteFenced(target, REQUEST, (), PLAIN, None))
        device.fences[0].signal()
        assert soon(lambda: len(client.host._tokens) == 1)
    over, going_on = (c.cancel for c in device.prepared.configs)
    assert over is not None
    assert going_on is not None
    assert soon(going_on.is_set)
    assert not over.is_set()
    device.fences[1].signal()
    assert soon(lambda: not client.host._tokens)


def test_preparation_is_cancelled_when_its_client_leaves() -> None:
    class Slow(HeldDevice):
        stopped = False

        def prepare_model(self, model: Model, config: PrepareConfig) -> Any:
            self.running.set()
            assert config.cancel is not None
            self.stopped = soon(config.cancel.is_set)
            config.cancel.check()

    device = Slow()
    with Served(device) as client:
        packer = Packer()
        model, config = packer.model(slow_model()), PrepareConfig()
        client.tell(wire.Prepare(model, config))
        assert device.running.wait(SECONDS)
    assert soon(lambda: client.host._threads == 0)
    assert device.stopped


def test_memories_of_a_client_have_a_limit_that_ends_no_connection(
    held: HeldDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MAX_MEMORIES", 2)

    def use(number: int) -> str:
        form = forms.ArrayForm(number, 0, DType.FLOAT32, (4,), False)
        try:
            client.ask(wire.Check(), (), [form])
        except errors.ResourceExhaustedTransient as error:
            return str(error)
        return ""

    with Served(held) as client, MemoryPool.anonymous(64) as pool:
        for number in (1, 2, 3):
            client.connection.send(encode(wire.Lend(number, 64)), [pool.memory.handle])
        assert [use(number) for number in (1, 2)] == ["", ""]
        assert "beyond the 2 at a time" in use(3)
        client.connection.send(encode(wire.Release(1)))
        client.connection.send(encode(wire.Lend(4, 64)), [pool.memory.handle])
        assert not use(4)


def test_fence_of_a_client_carries_its_outcome() -> None:
    leaving = Disconnection()
    signal, theirs = fence_pair()
    failing, failed = fence_pair()
    good, bad = (ClientFence(f.fileno(), leaving) for f in (theirs, failed))
    gone, orphan = fence_pair()
    gone.close()
    lost = ClientFence(orphan.fileno(), leaving)
    waits = [f.wait(0) for f in (good, bad, lost)]
    assert waits == [False, False, True]
    assert isinstance(lost.error(), errors.DeadObject)
    assert good.error() is None
    failing.signal(errors.GeneralFailure("broken"))
    assert bad.wait()
    assert "broken" in str(bad.error())
    assert not good.wait(1_000_000)
    far = threading.Timer(0.02, leaving.record)
    far.start()
    assert good.wait(10**17)
    far.join()
    leaving.record()
    assert good.wait()
    assert "has left" in str(good.error())
    signal.signal()
    assert good.error() is None
    _waiting, asked = fence_pair()
    late = ClientFence(asked.fileno(), told := Disconnection())
    told.record()
    assert late.wait()


def test_fenced_runs_of_a_client_have_a_limit(
    held: HeldDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "MAX_FENCES", 3)
    device = RemoteDevice(Local(held))
    prepared = device.prepare_model(slow_model(), PrepareConfig())
    request = Request((hal.NoValue(),), (hal.NoValue(),))

    refusals: list[str] = []

    def launch() -> bool:
        try:
            prepared.execute_fenced(request, [], ExecutionConfig())
        except errors.ResourceExhaustedTransient as error:
            refusals.append(str(error))
            return False
        return True

    assert [launch() for _ in range(4)] == [True, True, True, False]
    held.fences[1].signal()
    assert soon(launch)
    assert not launch()
    assert "3 fenced executions under way at a time" in refusals[-1]


def test_rings_of_a_client_have_a_limit(held: HeldDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.ipc.ring_pool import RingBurst

    monkeypatch.setattr(dispatch, "MAX_RINGS", 2)
    channel = Local(held)
    prepared = RemoteDevice(channel).prepare_model(slow_model(), PrepareConfig())
    life, end = os.pipe()

    def open_ring() -> RingBurst:
        return ring_burst(prepared, os.dup(life))

    bursts = [open_ring() for _ in range(2)]
    with pytest.raises(errors.ResourceExhaustedTransient, match="2 rings at a time"):
        open_ring()
    bursts.pop().close()
    bursts.append(open_ring())
    for burst in bursts:
        burst.close()
    close_all([life, end])
    assert channel.dispatcher._rings.acquire(timeout=SECONDS)
    assert channel.dispatcher._rings.acquire(timeout=SECONDS)


def test_beyond_the_limits_a_burst_goes_by_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MAX_RINGS", 1)
    monkeypatch.setattr(dispatch, "MAX_LENT_POOLS", 0)
    life, end = os.pipe()

    class Elsewhere(Local):
        def exit_fd(self) -> int:
            return os.dup(life)

    prepared = RemoteDevice(Elsewhere(SlowDevice())).prepare_model(slow_model(), PrepareConfig())
    bursts = [prepared.configure_burst() for _ in range(2)]
    for burst in bursts:
        x, y = np.zeros(4, np.float32), np.full(4, 9, np.float32)
        burst.execute(Request((HostMemory(x),), (HostMemory(y),)), ExecutionConfig())
        assert (y == 0).all()
        burst.close()
    close_all([life, end])


def test_pools_lent_to_rings_have_a_limit(
    held: HeldDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.ipc.remote import lend_pool

    monkeypatch.setattr(dispatch, "MAX_LENT_POOLS", 2)
    channel = Local(held)
    with MemoryPool.anonymous(16) as pool:
        lent = [lend_pool(channel, pool.memory) for _ in range(2)]
        with pytest.raises(errors.ResourceExhaustedTransient, match="2 pools lent at a time"):
            lend_pool(channel, pool.memory)
        lent.pop().close()
        lend_pool(channel, pool.memory).close()
        lent.pop().close()


def test_closing_objects_count_towards_the_limit(
    held: HeldDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_objects, "MAX_OBJECTS", 2)
    channel = Local(held)
    device = RemoteDevice(channel)
    dropped = device.prepare_model(slow_model(), PrepareConfig())
    close = channel.dispatcher.objects.detach(dropped.number)
    assert close is not None
    assert channel.dispatcher.objects.detach(dropped.number) is None
    _second = device.prepare_model(slow_model(), PrepareConfig())
    with pytest.raises(errors.ResourceExhaustedPersistent):
        device.prepare_model(slow_model(), PrepareConfig())
    close()
    device.prepare_model(slow_model(), PrepareConfig())


def test_descriptors_that_a_client_leaves_with_its_calls_have_a_limit(
    held: HeldDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MAX_DESCRIPTORS", 3)
    with Served(held) as client:
        made = [
            client.ask(wire.CreateReusableExecution(client.prepared(), REQUEST), [client.spare])
        ]
        call = wire.CreateReusableExecution(client.prepared(), REQUEST)
        made.append(client.ask(call, [client.spare] * 2))
        with pytest.raises(
            errors.ResourceExhaustedTransient, match="3 descriptors in calls at a time"
        ):
            client.ask(call, [client.spare])
        client.ask(wire.Close(made[0].target))
        client.ask(call, [client.spare])


def test_progress_that_a_client_does_not_read_holds_no_driver(held: HeldDevice) -> None:
    with Served(held) as client:
        event = hal.ProgressEvent("compile", "x" * 1000, 1, 2)

        def tell() -> None:
            for _ in range(2000):
                client.host._report(1, event)

        telling = threading.Thread(target=tell, daemon=True)
        telling.start()
        telling.join(SECONDS)
        assert not telling.is_alive()


class Served:
    """A client of a host in this process, over a socket."""

    def __init__(self, device: hal.Device) -> None:
        self.device = device

    def __enter__(self) -> Self:
        ours, theirs = socket.socketpair()
        self.connection, self.over = Connection(ours), threading.Event()
        self.host = serving.Client(
            Connection(theirs), [Dispatcher(self.device, owns_device=False)], self.over.set
        )
        self.host.start()
        self.spare = os.open(os.devnull, os.O_RDONLY)
        self.calls = 0
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()
        os.close(self.spare)
        assert self.over.wait(SECONDS)

    def tell(
        self,
        call: wire.Call,
        descriptors: Sequence[int] = (),
        handles: Sequence[forms.HandleForm] = (),
    ) -> int:
        """Sends a call, and gives by when it is to be answered."""
        self.calls += 1
        deadline = time.monotonic_ns() + int(SECONDS * 1e9)
        ask = encode(wire.Ask(self.calls, 0, encode(call), tuple(handles)))
        self.connection.send(ask, descriptors, deadline)
        return deadline

    def ask(
        self,
        call: wire.Call,
        descriptors: Sequence[int] = (),
        handles: Sequence[forms.HandleForm] = (),
    ) -> Any:
        deadline = self.tell(call, descriptors, handles)
        received = self.connection.receive(deadline)
        close_all(received.descriptors)
        answer = decode_to_client(received.data)
        assert isinstance(answer, wire.Answer)
        reply = decode_reply(answer.body)
        if isinstance(reply, wire.Failure):
            raise error_of(reply)
        return reply

    def prepared(self) -> forms.ObjectId:
        packer = Packer()
        model, config = packer.model(slow_model()), PrepareConfig()
        assert not packer.handles
        made = self.ask(wire.Prepare(model, config))
        assert isinstance(made, wire.Made)
        return made.target
