"""Every public way to run tells of as many copies as the code makes, counted beside the runtime's
own books.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numpy as np
import pytest

import penstock
from penstock import hal, nnapi
from penstock.compilation.receipt import Receipt
from penstock.drivers.reference import ReferenceDevice
from penstock.errors import GeneralFailure
from penstock.ipc.channel import Session
from penstock.ipc.client import RemoteBuffer, RemoteDevice
from penstock.ipc.dispatch import Dispatcher
from penstock.ipc.host.serving import Client
from penstock.ipc.host_sockets import Place
from penstock.ipc.resilient import IsolatedDevice
from penstock.ipc.starting import unavailable
from penstock.ipc.supervision import Supervisor
from penstock.ipc.transport import Connection
from penstock.ir import DType, Model, ModelBuilder, NDArray, Operand
from penstock.memory import MemoryPool
from penstock.memory.copies import CopyReceipt
from penstock.memory.domain import ManagedBuffer
from penstock.testing import assert_no_copies
from penstock.testing.doubles import InterceptingDevice
from penstock.testing.lab import LabDevice
from tests import support_isolated
from tests.conftest import ROOT
from tests.support_copies import Counted, counted
from tests.unit.execution.fakes import NumpyDevice
from tests.unit.nnapi import building
from tests.unit.nnapi.building import MODES

T = TypeVar("T")

SOURCE: Final = ROOT / "src" / "penstock"
F32: Final = DType.FLOAT32
SHAPE: Final = (2, 3)
X: Final = np.arange(6, dtype=np.float32).reshape(SHAPE)

OTHERS: Final = {
    ("execution/inputs.py", "_same"),
    ("execution/inputs.py", "_parameters"),
    ("execution/inputs.py", "_import"),
    ("execution/state.py", "_initial_values"),
    ("ipc/ring.py", "pipes_take_no_wait"),
    ("ipc/ring.py", "Doorbell.ring"),
    ("ipc/ring.py", "Doorbell.silence"),
    ("memory/domain.py", "MemoryDomain.decode"),
    ("memory/domain.py", "MemoryDomain.encode"),
}
"""What copies no value of a run: comparisons, scales, doorbells; and devices, which are counted by
their calls.
"""


RUNTIME: Final = ("execution/*.py", "memory/*.py", "ipc/*.py", "nnapi/[mrv]*.py")


@pytest.fixture
def copies() -> Iterator[Counted]:
    with counted(SOURCE, RUNTIME, OTHERS) as found:
        yield found


def relu() -> Model:
    b = ModelBuilder()
    x = b.input(F32, SHAPE, "x")
    return b.build(b.operation("RELU", [x], [Operand(F32, SHAPE, name="y")]))


def private() -> NumpyDevice:
    """A device that has the copying of arrays done for it."""
    return NumpyDevice("private", capabilities=hal.Capabilities(shares_host_memory=False))


@pytest.fixture(scope="module", params=["private", "isolated", "lab"])
def device(request: pytest.FixtureRequest, isolated: hal.Device) -> hal.Device:
    made: dict[str, Any] = {"private": private(), "lab": LabDevice(), "isolated": isolated}
    return cast("hal.Device", made[request.param])


@pytest.fixture(scope="module")
def isolated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hal.Device]:
    """A device with memory domains in a process of its own."""
    if (reason := unavailable()) is not None:
        pytest.skip(reason)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        supervisor = Supervisor(Place("domains", "tests.support_isolated:domains"))
        yield cast("hal.Device", IsolatedDevice(supervisor, 0))
        supervisor.close()


def fenced(compiled: penstock.CompiledModel, x: Any, **more: Any) -> list[Receipt]:
    fence = hal.EventFence()
    run = compiled.start_fenced([x], [fence], **more)
    fence.signal()
    return [run.result(30).receipt]


def bursts(compiled: penstock.CompiledModel, x: Any, **more: Any) -> list[Receipt]:
    with compiled.burst() as one:
        return [one.run([x], **more).receipt for _ in range(3)]


def room() -> list[NDArray]:
    return [np.empty_like(X)]


WAYS: Final[dict[str, Callable[[penstock.CompiledModel, Any], list[Receipt]]]] = {
    "call": lambda c, x: [c(x).receipt],
    "run": lambda c, x: [c.run([x]).receipt],
    "run with out": lambda c, x: [c.run([x], out=room()).receipt],
    "submit": lambda c, x: [c.submit(x).result().receipt],
    "async": lambda c, x: [asyncio.run(c.run_async(x)).receipt],
    "burst": bursts,
    "burst with out": lambda c, x: bursts(c, x, out=room()),
    "fenced": fenced,
    "fenced with out": lambda c, x: fenced(c, x, out=room()),
    "fenced with a timeout": lambda c, x: fenced(c, x, out=room(), timeout=30),
}


def check(copies: Counted, told: Sequence[CopyReceipt]) -> None:
    """Starts counting anew."""
    places, copies.places = copies.places, []
    assert len(told) == len(places), (places, told)
    assert all(copy.nbytes == X.nbytes and copy.reason for copy in told)


@pytest.mark.parametrize("given", ["plain", "strided", "file"])
def test_receipt_of_a_run_has_every_copy(
    device: hal.Device, copies: Counted, given: str, tmp_path: Path
) -> None:
    (tmp_path / "x").write_bytes(X.tobytes())
    wide = np.zeros((2, 6), np.float32)
    x: Any = {"plain": X, "strided": wide[:, ::2], "file": MemoryPool.from_file(tmp_path / "x")}[
        given
    ]
    with penstock.compile(relu(), devices=[device], cache=None) as compiled:
        copies.places.clear()
        for run in WAYS.values():
            with assert_no_copies(allowed_bytes=1 << 20) as watched:
                told = [copy for receipt in run(compiled, x) for copy in receipt.copies]
            assert watched == told
            check(copies, told)


@pytest.mark.parametrize("mode", MODES)
def test_receipt_of_an_nnapi_execution_has_every_copy(
    device: hal.Device, copies: Counted, mode: str, tmp_path: Path
) -> None:
    path = tmp_path / "both"
    path.write_bytes(bytes(4) + X.tobytes() + bytes(4 + X.nbytes))
    with building.compiled(building.unary(), [device]) as compilation, path.open("r+b") as file:
        size = path.stat().st_size
        for offset in (None, 4, 1):
            execution = nnapi.Execution(compilation)
            execution.set_reusable(True)
            if offset is None:
                execution.set_input(0, X)
                execution.set_output(0, np.empty_like(X))
            else:
                memory = nnapi.Memory.create_from_fd(size, 3, file.fileno())
                execution.set_input_from_memory(0, memory, offset, X.nbytes)
                execution.set_output_from_memory(0, memory, offset + 28, X.nbytes)
            copies.places.clear()
            for _ in range(2):
                MODES[mode](execution)
                check(copies, execution.receipt.copies)
            execution.close()


class Buffers:
    """Two buffers of *device*, and what a driver copies to and from its own."""

    def __init__(self, device: hal.Device, copies: Counted, patch: pytest.MonkeyPatch) -> None:
        self.compiled = penstock.compile(relu(), devices=[device], cache=None)
        self.one = self.compiled.allocate(inputs=["x"], outputs=["y"])
        self.other = self.compiled.allocate(inputs=["x"])
        for kind in (ManagedBuffer, RemoteBuffer):
            for name in ("copy_to", "copy_from"):
                patch.setattr(kind, name, self._counting(getattr(kind, name), copies))

    @staticmethod
    def _counting(real: Callable[..., Any], copies: Counted) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            copies.add(real.__qualname__)
            return real(*arguments)

        return call


@pytest.mark.parametrize("where", ["isolated", "lab", "pool"])
def test_buffer_copy_reports_every_copy(
    where: str,
    isolated: hal.Device,
    copies: Counted,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = {"isolated": isolated, "lab": LabDevice(), "pool": private()}[where]
    buffers = Buffers(device, copies, monkeypatch)
    assert (buffers.one.device is None) == (where == "pool")
    (tmp_path / "x").write_bytes(X.tobytes())
    with MemoryPool.from_file(tmp_path / "x") as file, MemoryPool.anonymous(X.nbytes) as pool:
        copies.places.clear()
        for source in (
            X,
            X[:, ::1].copy(),
            np.zeros((2, 6), np.float32)[:, ::2],
            pool,
            file,
            pool.view(np.float32, SHAPE),
        ):
            with assert_no_copies(allowed_bytes=1 << 20) as watched:
                buffers.one.copy_from(source)
            check(copies, buffers.one.copies)
            assert tuple(watched) == buffers.one.copies
        for target in (np.empty_like(X), pool, file, pool.view(np.float32, SHAPE)):
            buffers.one.copy_to(target)
            check(copies, buffers.one.copies)
        buffers.one.numpy()
        check(copies, buffers.one.copies)
        buffers.other.copy_from(buffers.one)
        check(copies, buffers.other.copies)
        assert len(buffers.other.copies) >= 2
        for x, out in ((buffers.other, None), (X, [buffers.one])):
            check(copies, buffers.compiled.run([x], out=out).receipt.copies)
    buffers.compiled.close()


@pytest.mark.parametrize("where", ["lab", "pool"])
def test_bound_state_reports_every_copy(
    where: str, copies: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    device: Any = LabDevice() if where == "lab" else private()
    Buffers(device, copies, monkeypatch).compiled.close()
    b = ModelBuilder()
    x, before = b.input(F32, SHAPE, "x"), b.input(F32, SHAPE, "before")
    model = b.build(b.operation("ADD", [x, before], [Operand(F32, SHAPE, name="after")]))
    with penstock.compile(model, devices=[device], cache=None) as compiled:
        state = compiled.bind_state({"after": "before"})
        copies.places.clear()
        for _ in range(3):
            check(copies, compiled.run([X]).receipt.copies)
        state.write("before", X)
        check(copies, state.copies)
        np.testing.assert_array_equal(state.read("before"), X)
        check(copies, state.copies)
        check(copies, compiled.run([X]).receipt.copies)


def test_nnapi_memory_copy_reports_every_copy(copies: Counted, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(X.tobytes() * 2)
    with (tmp_path / "x").open("r+b") as file, MemoryPool.anonymous(X.nbytes) as pool:
        one = nnapi.Memory.create_from_fd(X.nbytes, 3, file.fileno())
        other = nnapi.Memory.create_from_fd(X.nbytes, 3, pool.memory.handle)
        copies.places.clear()
        one.copy(other)
        check(copies, one.copies)
        assert [c.reason for c in one.copies] == ["the caller copies one memory to another"]
        assert not other.copies


@contextmanager
def served(device: hal.Device) -> Iterator[tuple[RemoteDevice, Connection]]:
    """*device* behind a socket, and the host's end of that."""
    ours, theirs = map(Connection, socket.socketpair())
    over = threading.Event()
    Client(theirs, [Dispatcher(device, owns_device=False)], over.set).start()
    session = Session(ours)
    try:
        yield RemoteDevice(session.channel(0)), theirs
    finally:
        session.close()
        assert over.wait(30)


class Failing(InterceptingDevice):
    """Fails its executions, or ends the connection that they come by."""

    connection: Connection | None = None
    failing = False

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        if self.failing and method.endswith(("execute", "execute_fenced")):
            if self.connection is not None:
                self.connection.shut()
            raise GeneralFailure("so it was told")
        return proceed()


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("way", ["run", "burst", "fenced"])
def test_failed_run_reports_its_copies(copies: Counted, way: str, dies: bool) -> None:
    inner = Failing(ReferenceDevice(), "failing")
    with (
        served(inner) as (device, theirs),
        penstock.compile(relu(), devices=[device], cache=None) as compiled,
    ):
        inner.failing, inner.connection = True, theirs if dies else None
        copies.places.clear()
        if way == "burst":
            with compiled.burst() as burst:
                told = burst.run([X]).receipt
        else:
            told = WAYS[way](compiled, X)[0]
        assert told.steps[0].fallback_from == "failing"
        assert told.copies
        check(copies, told.copies)


class Uploading(InterceptingDevice):
    """Says that it copied its input, its output, and an input that it does not have."""

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        result: Any = proceed()
        if method.endswith("execute"):
            made = [(0, False), (0, True), (-9, False)]
            told = (hal.ArgumentCopy(at, out, 24, 5, 3, by_driver=True) for at, out in made)
            return cast("T", hal.ExecutionResult(result.output_shapes, copies=tuple(told)))
        return cast("T", result)


@pytest.mark.parametrize("remote", [False, True])
def test_receipt_has_the_copies_that_a_driver_reports(remote: bool) -> None:
    inner = Uploading(ReferenceDevice(), "uploading")
    with ExitStack() as held:
        device: hal.Device = held.enter_context(served(inner))[0] if remote else inner
        compiled = held.enter_context(penstock.compile(relu(), devices=[device], cache=None))
        with compiled.burst() as burst:
            for receipt in (compiled.run([X]).receipt, burst.run([X]).receipt):
                why = "device uploading has memory of its own"
                told = [copy for copy in receipt.copies if copy.reason == why]
                assert [(c.source, c.destination, c.operand) for c in told] == [
                    ("host", "uploading", 0),
                    ("uploading", "host", 1),
                    ("host", "uploading", None),
                ]
                assert {(c.nbytes, c.start_ns, c.wall_ns, c.step) for c in told} == {(24, 5, 3, 0)}
                assert len(receipt.copies) == (5 if remote else 3)


def test_reusable_execution_reports_copies_of_its_creation(copies: Counted) -> None:
    with served(ReferenceDevice()) as (device, _):
        prepared = device.prepare_model(relu(), hal.PrepareConfig())
        out = np.empty_like(X)
        copies.places.clear()
        execution = prepared.create_reusable_execution(
            hal.Request((hal.HostMemory(X),), (hal.HostMemory(out),))
        )
        told: list[Any] = []
        for _ in range(2):
            result = execution.execute(hal.ExecutionConfig())
            assert isinstance(result, hal.RemoteResult)
            told += result.copies
        assert len(told) == len(copies), copies.places


def test_repeated_run_reports_copies_of_both_attempts(
    copies: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (reason := unavailable()) is not None:
        pytest.skip(reason)
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path))
    supervisor = Supervisor(Place("misbehaving", support_isolated.ENTRY))
    device = cast("hal.Device", IsolatedDevice(supervisor, 0))
    with penstock.compile(support_isolated.add_one(), devices=[device], cache=None) as compiled:
        copies.places.clear()
        receipt = compiled(support_isolated.order(support_isolated.ONCE)).receipt
    assert any("repeated" in note for note in receipt.notes)
    assert len(receipt.copies) == 3
    assert len(copies) == 3
    supervisor.close()
