"""Calls that take no driver long end, whatever a driver does in them, and its process with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pytest

import penstock
from penstock import Policy
from penstock.errors import DeadObject, MissedDeadlineTransient
from penstock.ipc.crash_records import last_crash
from penstock.ipc.deadlines import deadline_context
from penstock.ipc.host_sockets import Place
from penstock.ipc.resilient import IsolatedDevice
from penstock.ipc.supervision import Supervisor
from penstock.runtime import isolation
from penstock.runtime.discovery import Manager
from penstock.runtime.entries import Entry
from tests import support_isolated as support

PLACE: Final = Place("stuck", "tests.support_isolated:stuck")
MODEL: Final = support.add_one()
LIMIT_MS: Final = 1500

CALLS: Final[dict[str, Callable[[IsolatedDevice], object]]] = {
    "check": lambda device: device.check(),
    "cache_files_needed": lambda device: device.cache_files_needed(),
    "supported_operations": lambda device: device.supported_operations(MODEL),
}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PENSTOCK_DRIVER_TIMEOUT_MS", str(LIMIT_MS))
    support.telling(tmp_path, monkeypatch)


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    made = Supervisor(PLACE)
    yield made
    made.close()


def stick(call: str) -> None:
    (support.told_directory() / "stuck").write_text(call)


@pytest.mark.parametrize("call", CALLS)
def test_brief_call_that_does_not_return_ends_the_process(
    call: str, supervisor: Supervisor
) -> None:
    device = IsolatedDevice(supervisor, 0)
    CALLS[call](device)
    stick(call)
    first, began = device.pid, time.monotonic()
    with pytest.raises(DeadObject, match=f"{call} has not returned within 1.5 s, the knob"):
        CALLS[call](device)
    assert time.monotonic() - began < 15
    stick("")
    # The next call is made in another process, which is not stuck.
    CALLS[call](device)
    assert device.pid != first
    found = last_crash()
    assert found is not None
    assert found.how.startswith(f"was killed: device stuck: {call} has not returned")


@pytest.mark.parametrize("call", CALLS)
def test_half_of_a_compile_s_time_is_left_to_the_other_devices(
    call: str, supervisor: Supervisor
) -> None:
    device = IsolatedDevice(supervisor, 0)
    CALLS[call](device)
    stick(call)
    first, began = device.pid, time.monotonic()
    with (
        deadline_context(time.monotonic_ns() + 2_000_000_000),
        pytest.raises(MissedDeadlineTransient, match="before half of the time was over"),
    ):
        CALLS[call](device)
    assert time.monotonic() - began < 1.9
    assert device.pid == first


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("timeout", [None, 2.0])
def test_a_compile_goes_on_without_the_device(
    call: str, timeout: float | None, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is there already: a busy machine may take longer to start one than the time."""
    entries = (
        Entry("stuck", PLACE.value, "penstock-nn"),
        Entry("reference", "penstock.drivers.reference:create", "penstock-nn"),
    )
    manager = Manager(lambda: entries)
    monkeypatch.setattr("penstock.runtime.session.manager", manager)
    monkeypatch.setattr(isolation, "_supervisors", {})
    monkeypatch.setenv("PENSTOCK_ISOLATE", "stuck")
    CALLS[call](IsolatedDevice(supervisor, 0))
    stick(call)
    x = np.zeros(support.SHAPE, np.float32)
    try:
        with penstock.compile(MODEL, cache=False, timeout=timeout, policy=Policy()) as compiled:
            (found,) = compiled(x)
            used = [step.device for step in compiled.plan.steps]
    finally:
        isolation.close_hosts()
    np.testing.assert_array_equal(found, x + 1)
    if call != "cache_files_needed":
        assert used == ["reference"]
