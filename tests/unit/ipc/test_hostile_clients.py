"""What a host makes of clients that break the rules: they get a refusal or lose their connection,
others nothing of it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from penstock import hal
from penstock.errors import DeadObject, GeneralFailure, InvalidArgument, ResourceExhaustedTransient
from penstock.ipc import forms, wire
from penstock.ipc.channel import Session
from penstock.ipc.client import RemoteDevice
from penstock.ipc.codec import decode_reply, decode_to_client, encode
from penstock.ipc.host_sockets import Place
from penstock.ipc.remote import lend_pool
from penstock.ipc.starting import Started, connect
from penstock.ipc.transport import close_all
from penstock.ir import DType
from penstock.memory import MemoryPool
from tests import support_isolated as support
from tests.support_fuse import stuck_file, unable

PLACE: Final = Place("domains", "tests.support_isolated:domains")
MODEL: Final = support.add_one()
SIZE: Final = 64


class Raw:
    """A client that says what it likes."""

    def __init__(self) -> None:
        self.started: Started = connect(PLACE)
        self.connection = self.started.connection

    def send(self, message: wire.ToHost | bytes, descriptors: Sequence[int] = ()) -> None:
        data = message if isinstance(message, bytes) else encode(message)
        self.connection.send(data, descriptors, soon())

    def receive(self) -> wire.ToClient:
        received = self.connection.receive(soon())
        close_all(received.descriptors)
        return decode_to_client(received.data)

    def refusal(self, ask: wire.Ask, descriptors: Sequence[int] = ()) -> str:
        """The message of the failure that answers *ask*."""
        self.send(ask, descriptors)
        answer = self.receive()
        assert isinstance(answer, wire.Answer)
        assert answer.call == ask.call
        reply = decode_reply(answer.body)
        assert isinstance(reply, wire.Failure)
        assert answer.failed
        return reply.message

    def is_cut_off(self) -> bool:
        try:
            self.receive()
        except EOFError:
            return True
        return False

    def close(self) -> None:
        self.connection.close()
        close_all([self.started.page, self.started.output, self.started.pidfd])
        if self.started.child:
            os.waitpid(self.started.broker, 0)


def soon() -> int:
    return time.monotonic_ns() + 20_000_000_000


@contextmanager
def client() -> Iterator[tuple[RemoteDevice, Session]]:
    """One that keeps to the rules."""
    started = connect(PLACE)
    session = Session(started.connection)
    try:
        yield RemoteDevice(session.channel(0)), session
    finally:
        session.close()
        close_all([started.page, started.output, started.pidfd])


@pytest.fixture(scope="module", autouse=True)
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Raw]:
    """A client that keeps one host alive for all tests here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        keeper = Raw()
        assert keeper.started.child
        yield keeper
        keeper.close()


@pytest.fixture
def raw() -> Iterator[Raw]:
    made = Raw()
    assert not made.started.child
    yield made
    made.close()


@pytest.fixture(autouse=True)
def host_lives(host: Raw) -> Iterator[None]:
    yield
    host.send(wire.Ask(1, 0, encode(wire.Check())))
    answer = host.receive()
    assert isinstance(answer, wire.Answer)
    assert isinstance(decode_reply(answer.body), wire.Reason)


def run(*handles: forms.HandleForm, call: int = 1) -> wire.Ask:
    """A call that decodes its handles first, and is refused after that."""
    return wire.Ask(call, 0, encode(wire.Close(12345)), handles)


def array(memory: int, offset: int, shape: tuple[int, ...], dtype: DType = DType.FLOAT32) -> Any:
    return forms.ArrayForm(memory, offset, dtype, shape, writable=True)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"garbage",
        encode(wire.Check()),
        encode(wire.Hello(wire.WIRE_VERSION)),
        encode(wire.Done()),
    ],
)
def test_malformed_message_ends_the_connection(raw: Raw, data: bytes) -> None:
    raw.send(data)
    assert raw.is_cut_off()


def test_unexpected_descriptors_end_the_connection(raw: Raw) -> None:
    raw.send(wire.Cancel(1), [0])
    assert raw.is_cut_off()


@pytest.mark.parametrize(
    ("form", "complaint"),
    [
        (array(7, 0, (4,)), "was not lent"),
        (forms.DescriptorForm(0), "descriptor 0 of 0"),
        (forms.DescriptorForm(-1), "descriptor -1 of 0"),
        (forms.ConstantsForm(3, 8), "descriptor 3 of 0"),
        (forms.FenceForm(0), "descriptor 0 of 0"),
    ],
)
def test_handles_that_are_not_there_are_refused(
    raw: Raw, form: forms.HandleForm, complaint: str
) -> None:
    assert complaint in raw.refusal(run(form))


@pytest.mark.parametrize(
    ("form", "complaint"),
    [
        (array(1, 0, (17,)), "68 bytes at 0 of 64"),
        (array(1, 64, (1,)), "at 64 of 64"),
        (array(1, -4, (1,)), "at -4"),
        (array(1, 2, (4,)), "at 2"),
        (array(1, 0, (2**62, 2**62)), "of 64"),
        (array(1, 0, (-1,)), r"shape (-1,)"),
        (array(1, 0, (1,) * 65), "shape"),
        (array(1, 0, (1,), DType.STRING), "string"),
        (array(1, 0, (1,), DType.RESOURCE), "resource"),
        (array(2, 0, (1,)), "was not lent"),
    ],
)
def test_places_outside_of_lent_memory_are_refused(
    raw: Raw, form: forms.HandleForm, complaint: str
) -> None:
    with MemoryPool.anonymous(SIZE) as pool:
        raw.send(wire.Lend(1, SIZE), [pool.memory.handle])
        assert complaint in raw.refusal(run(form))


def sealed() -> int:
    with MemoryPool.anonymous(SIZE) as pool:
        return os.dup(pool.memory.handle)


def unsealed() -> int:
    fd = os.memfd_create("may-shrink", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, SIZE)
    return fd


@pytest.mark.parametrize(
    ("make", "size", "complaint"),
    [
        (unsealed, SIZE, "may shrink"),
        (lambda: os.open("/dev/zero", os.O_RDWR), SIZE, "are lent of a memory that has 0"),
        (lambda: os.open("/etc/passwd", os.O_RDONLY), 1, "may shrink"),
        (sealed, SIZE + 1, "that has 64"),
        (sealed, 0, "0 bytes are lent"),
        (sealed, -1, "-1 bytes are lent"),
    ],
)
def test_memory_that_is_not_safe_to_read_is_not_mapped(
    raw: Raw, make: Callable[[], int], size: int, complaint: str
) -> None:
    fd = make()
    raw.send(wire.Lend(1, size), [fd])
    os.close(fd)
    assert complaint in raw.refusal(run(array(1, 0, (1,))))


@pytest.mark.parametrize("shape", [(0, 1 << 62, 1 << 62), (0, 1 << 63)])
def test_shapes_that_no_array_has_are_refused(raw: Raw, shape: tuple[int, ...]) -> None:
    with MemoryPool.anonymous(SIZE) as pool:
        raw.send(wire.Lend(1, pool.nbytes), (pool.memory.handle,))
        form = forms.ArrayForm(1, 0, DType.FLOAT32, shape, False)
        assert "shape" in raw.refusal(wire.Ask(7, 0, encode(wire.Check()), (form,)))


def test_a_host_without_descriptors_answers_every_call(raw: Raw) -> None:
    import resource

    prepared = RemoteDevice(Session(raw.connection).channel(0)).prepare_model(
        MODEL, hal.PrepareConfig()
    )
    ready = hal.EventFence()
    ready.signal()
    pid = raw.started.pid
    _, hard = before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    taken = sorted(int(n.name) for n in Path(f"/proc/{pid}/fd").iterdir())
    try:
        for room in range(6):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (taken[-1] + 1 + room, hard))
            out = np.zeros(support.SHAPE, np.float32)
            request = hal.Request((hal.HostMemory(support.order(1)),), (hal.HostMemory(out),))
            config = hal.ExecutionConfig(deadline_ns=soon())
            began = time.monotonic()
            with suppress(ResourceExhaustedTransient, InvalidArgument, GeneralFailure):
                assert prepared.execute_fenced(request, [ready], config).wait(10**10)
            assert time.monotonic() - began < 15
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("name", ["ashmem", "no_such_memory"])
def test_a_number_names_no_descriptor_of_the_host(raw: Raw, name: str) -> None:
    """Another client's memory among them: a memory is what came with the message, or none."""
    body = encode(wire.LendPool(forms.MemoryForm(name, 0, SIZE)))
    ask = wire.Ask(1, 0, body, (forms.ValueForm(),))
    with (
        client() as (device, _),
        MemoryPool.anonymous(SIZE) as pool,
        closing(lend_pool(device.channel, pool.memory)),
    ):
        assert "without a descriptor" in raw.refusal(ask)
        plain = msgspec.msgpack.decode(encode(ask))
        plain[-1] = [[*plain[-1][0], 7]]
        raw.send(msgspec.msgpack.encode(plain))
        assert raw.is_cut_off()


def test_memory_lent_twice_ends_the_connection(raw: Raw) -> None:
    with MemoryPool.anonymous(SIZE) as pool:
        for _ in range(2):
            raw.send(wire.Lend(1, SIZE), [pool.memory.handle])
        assert raw.is_cut_off()


def test_released_memory_is_unavailable(raw: Raw) -> None:
    with MemoryPool.anonymous(SIZE) as pool:
        raw.send(wire.Lend(1, SIZE), [pool.memory.handle])
        raw.send(wire.Release(1))
        assert "was not lent" in raw.refusal(run(array(1, 0, (1,))))


@pytest.mark.parametrize("device", [-1, 1, 2**31])
def test_devices_that_are_not_there_are_refused(raw: Raw, device: int) -> None:
    assert "no device" in raw.refusal(wire.Ask(1, device, encode(wire.Check())))


def test_constants_that_can_be_changed_are_copied(raw: Raw) -> None:
    fd = unsealed()
    assert "is no prepared model" in raw.refusal(
        wire.Ask(1, 0, encode(wire.ConfigureBurst(9)), (forms.ConstantsForm(0, SIZE),)), [fd]
    )
    assert "65 bytes of constants" in raw.refusal(
        wire.Ask(2, 0, encode(wire.Check()), (forms.ConstantsForm(0, SIZE + 1),)), [fd]
    )
    for offset in (-1, SIZE, 2**40):
        assert f"from byte {offset} on in a file of {SIZE}" in raw.refusal(
            wire.Ask(3, 0, encode(wire.Check()), (forms.ConstantsForm(0, 1, "", offset),)), [fd]
        )
    os.close(fd)


def test_another_version_is_refused() -> None:
    from penstock.ipc.host_sockets import socket_directory
    from penstock.ipc.starting import address_of, environment
    from penstock.ipc.transport import Connection

    with socket_directory() as found:
        assert found is not None
        sock = found.connect(address_of(PLACE, environment()), 10)
    assert sock is not None
    connection = Connection(sock)
    connection.send(encode(wire.Hello(wire.WIRE_VERSION + 1)))
    answer = decode_to_client(connection.receive(soon()).data)
    assert isinstance(answer, wire.Refused)
    assert "wire version" in answer.reason
    connection.close()


def test_objects_and_tokens_of_another_client_are_refused() -> None:
    with client() as (mine, _), client() as (other, _):
        prepared = other.prepare_model(MODEL, hal.PrepareConfig())
        token, buffer = other.allocate(hal.BufferDesc(), [hal.BufferRole(prepared, "input", 0)])
        with MemoryPool.anonymous(4 * 16) as pool:
            buffer.copy_from(pool.memory, support.SHAPE)
        own = mine.prepare_model(MODEL, hal.PrepareConfig())
        out = hal.HostMemory(np.zeros(support.SHAPE, np.float32))
        request = hal.Request((hal.TokenArgument(token),), (out,))
        prepared.execute(request, hal.ExecutionConfig())
        for run_mine in (
            lambda: own.execute(request, hal.ExecutionConfig()),
            lambda: own.create_reusable_execution(request),
            lambda: own.execute_fenced(request, [], hal.ExecutionConfig()),
            lambda: own.configure_burst().execute(request, hal.ExecutionConfig()),
        ):
            with pytest.raises(InvalidArgument, match="no token of a buffer of this client"):
                run_mine()
        own._number = 40
        with pytest.raises(InvalidArgument, match="object 40 is no prepared model"):
            own.configure_burst()
        prepared.execute(request, hal.ExecutionConfig())


def test_closing_the_device_closes_what_is_ones_own() -> None:
    with client() as (mine, _), client() as (other, _):
        kept = other.prepare_model(MODEL, hal.PrepareConfig())
        mine.prepare_model(MODEL, hal.PrepareConfig())
        mine.close()
        x = hal.HostMemory(np.zeros(support.SHAPE, np.float32))
        out = hal.HostMemory(np.zeros(support.SHAPE, np.float32))
        kept.execute(hal.Request((x,), (out,)), hal.ExecutionConfig())
        assert (out.array == 1).all()


def test_an_answer_for_no_call_ends_the_session() -> None:
    with client() as (device, session):
        # The call is not sent.
        session._connection.send = lambda *_: None  # type: ignore[method-assign]
        ours = session._connection
        received = iter([encode(wire.Answer(99, encode(wire.Done())))])
        ours.receive = lambda *_: _received(next(received))  # type: ignore[method-assign]
        with pytest.raises(DeadObject, match="no call of this client"):
            device.check()


def _received(data: bytes) -> Any:
    from penstock.ipc.transport import Received

    return Received(data, [])


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=200), st.integers(0, 3))
def test_random_bodies_and_messages(data: bytes, kind: int) -> None:
    made = Raw()
    try:
        if kind:
            made.send(wire.Ask(1, 0, data))
            answer = made.receive()
            assert isinstance(answer, wire.Answer)
        else:
            made.send(data)
            with suppress(EOFError):
                made.send(wire.Ask(2, 0, encode(wire.Check())))
                made.receive()
    finally:
        made.close()


CLIENT: Final = """
import sys, time
from penstock.ipc.host_sockets import Place
from penstock.ipc.starting import connect
started = connect(Place("lonely", "penstock.drivers.null:create"))
print(started.pid, flush=True)
time.sleep(600)
"""


def test_a_host_ends_when_its_last_client_is_killed() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
    )
    with process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        os.kill(pid, 0)
        process.send_signal(signal.SIGKILL)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
            if _is_zombie(pid):
                return
        except ProcessLookupError:
            return
        time.sleep(0.02)
    pytest.fail("the host lives on without a client")


def _is_zombie(pid: int) -> bool:
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text("ascii")
    except OSError:
        return True


def test_host_refuses_requests_as_drivers_do() -> None:
    with client() as (device, _):
        prepared = device.prepare_model(MODEL, hal.PrepareConfig())
        strided = np.zeros((8, 4), np.float32)[::2]
        out = hal.HostMemory(np.zeros(support.SHAPE, np.float32))
        with pytest.raises(InvalidArgument, match="not C-contiguous"):
            prepared.execute(hal.Request((hal.HostMemory(strided),), (out,)), hal.ExecutionConfig())
        wrong = hal.HostMemory(np.zeros((2, 2), np.float32))
        with pytest.raises((InvalidArgument, GeneralFailure)):
            prepared.execute(hal.Request((wrong,), (out,)), hal.ExecutionConfig())


@pytest.mark.skipif(unable() is not None, reason=str(unable()))
def test_a_file_whose_program_never_answers_holds_no_host(raw: Raw, tmp_path: Path) -> None:
    with stuck_file(tmp_path / "file") as stuck:
        assert "FUSE" in raw.refusal(run(forms.FenceForm(0)), [stuck])
        raw.send(wire.Lend(1, 8), [stuck])
        assert "FUSE" in raw.refusal(run(array(1, 0, (1,)), call=2))
