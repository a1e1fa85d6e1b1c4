"""A host that dies, stops or goes mad before and after each kind of call: an answer or one named error, and the next call works."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np
import pytest

from penstock.errors import DriverError
from penstock.hal import (
    BufferDesc,
    BufferRole,
    CacheReport,
    EventFence,
    ExecutionConfig,
    HostMemory,
    PrepareConfig,
    Request,
)
from penstock.ipc import supervision, wire
from penstock.ipc.codec import decode_call, decode_to_host
from penstock.ipc.resilient import IsolatedDevice, IsolatedPreparedModel
from penstock.ipc.starting import Place
from penstock.ipc.supervision import Supervisor
from penstock.ipc.transport import Received
from penstock.memory import MemoryPool
from penstock.testing.resources import Resources
from tests import support_isolated as support

PLACE: Final = Place("domains", "tests.support_isolated:domains")
MODEL: Final = support.add_one()
LIMIT: Final = 25.0


class Rig:
    """A device, a prepared model on it, and a buffer."""

    def __init__(self, state: Path) -> None:
        self.supervisor = Supervisor(PLACE)
        self.device = IsolatedDevice(self.supervisor, 0)
        prepared = self.device.prepare_model(MODEL, PrepareConfig())
        assert isinstance(prepared, IsolatedPreparedModel)
        self.prepared = prepared
        self.role = BufferRole(prepared, "input", 0)
        self.token, self.buffer = self.device.allocate(BufferDesc(), [self.role])
        self.pool = MemoryPool.anonymous(64)

    def request(self) -> tuple[Request, Any]:
        out = np.zeros(support.SHAPE, np.float32)
        x = np.full(support.SHAPE, 2, np.float32)
        return Request((HostMemory(x),), (HostMemory(out),)), out

    def run(self) -> None:
        request, out = self.request()
        self.prepared.execute(request, ExecutionConfig())
        assert (out == 3).all()

    def fenced(self) -> None:
        request, out = self.request()
        ready = EventFence()
        ready.signal()
        fence = self.prepared.execute_fenced(request, [ready], ExecutionConfig())
        assert fence.wait(int(LIMIT * 1e9))
        if (error := fence.error()) is not None:
            raise error
        assert (out == 3).all()

    def burst(self) -> None:
        request, out = self.request()
        burst = self.prepared.configure_burst()
        burst.execute(request, ExecutionConfig())
        assert (out == 3).all()
        burst.close()

    def repeated(self) -> None:
        request, out = self.request()
        execution = self.prepared.create_reusable_execution(request)
        execution.execute(ExecutionConfig())
        assert (out == 3).all()
        execution.close()

    def close_one(self) -> None:
        self.device.prepare_model(MODEL, PrepareConfig()).close()

    def report(self) -> None:
        remote = self.prepared._remote
        remote._report = CacheReport(later=True)
        assert self.prepared.cache_report in (CacheReport(), CacheReport(later=True))

    def load(self) -> None:
        self.device.prepare_model_from_cache(PrepareConfig())

    def close(self) -> None:
        self.supervisor.close()
        self.pool.close()


CALLS: Final[dict[type[Any], Callable[[Rig], object]]] = {
    wire.Describe: lambda rig: IsolatedDevice(rig.supervisor, 0),
    wire.Check: lambda rig: rig.device.check(),
    wire.CacheFilesNeeded: lambda rig: rig.device.cache_files_needed(),
    wire.SupportedOperations: lambda rig: rig.device.supported_operations(MODEL),
    wire.Prepare: lambda rig: rig.device.prepare_model(MODEL, PrepareConfig()),
    wire.PrepareFromCache: lambda rig: rig.load(),
    wire.Allocate: lambda rig: rig.device.allocate(BufferDesc(), [rig.role]),
    wire.Execute: lambda rig: rig.run(),
    wire.ExecuteFenced: lambda rig: rig.fenced(),
    wire.CreateReusableExecution: lambda rig: rig.repeated(),
    wire.CopyFrom: lambda rig: rig.buffer.copy_from(rig.pool.memory, support.SHAPE),
    wire.CopyTo: lambda rig: rig.buffer.copy_to(rig.pool.memory),
    wire.Report: lambda rig: rig.report(),
    wire.Close: lambda rig: rig.close_one(),
    wire.OpenRing: lambda rig: rig.burst(),
    wire.LendPool: lambda rig: rig.burst(),
}
ONLY_WITHOUT_RINGS: Final = {wire.ConfigureBurst}
FAULTS: Final = ("killed before", "killed after", "garbage", "stopped after")


def test_every_call_has_its_chaos() -> None:
    assert set(get_args(wire.Call)) == set(CALLS) | ONLY_WITHOUT_RINGS


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PENSTOCK_DRIVER_TIMEOUT_MS", "2500")
    monkeypatch.setattr(supervision, "FIRST_PAUSE", 0.0)
    with Resources.unchanged("a device whose process died"):
        made = Rig(tmp_path)
        yield made
        made.close()
        del made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        pytest.param(kind, fault, id=f"{kind.__name__}-{fault}")
        for kind, fault in itertools.product(CALLS, FAULTS)
        if fault != "stopped after" or kind in {wire.Execute, wire.Prepare}
    ],
)
def test_a_fault_at_a_call(rig: Rig, kind: type[Any], fault: str) -> None:
    struck = strike(rig, kind, fault)
    began = time.monotonic()
    with suppress(DriverError):
        CALLS[kind](rig)
    assert struck() == 1, "the call was not made"
    assert time.monotonic() - began < LIMIT
    rig.run()


def strike(rig: Rig, kind: type[Any], fault: str) -> Callable[[], int]:
    """Brings the fault about once, at the first call of that kind; gives how often it did."""
    link = rig.supervisor.link()
    connection = link.session._connection
    send, receive = connection.send, connection.receive
    times: list[str] = []

    def sending(data: bytes, *rest: Any) -> None:
        message = decode_to_host(data)
        hit = isinstance(message, wire.Ask) and isinstance(decode_call(message.body), kind)
        if not hit or times:
            send(data, *rest)
            return
        times.append(fault)
        if fault == "killed before":
            os.kill(link.pid, signal.SIGKILL)
        send(data, *rest)
        if fault == "killed after":
            os.kill(link.pid, signal.SIGKILL)
        elif fault == "stopped after":
            os.kill(link.pid, signal.SIGSTOP)

    def receiving(*rest: Any) -> Received:
        received = receive(*rest)
        if times and fault == "garbage":
            return Received(b"\xff" * 40, received.descriptors)
        return received

    connection.send = sending  # type: ignore[assignment,method-assign]  # the point
    connection.receive = receiving  # type: ignore[assignment,method-assign]
    return lambda: len(times)
