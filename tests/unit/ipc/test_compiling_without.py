"""Compiles while the process of an isolated driver is not there: it cannot be started, dies of the
compile, is quarantined.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import CompiledModel, Policy
from penstock.errors import DeadObject, InputError, PlacementError
from penstock.ipc import supervision
from penstock.ipc.client import RemoteDevice
from penstock.ipc.crash_records import last_crash
from penstock.runtime import discovery, isolation
from penstock.runtime.discovery import Manager
from penstock.runtime.entries import Entry
from tests import support_isolated as support

MODEL = support.add_one()
X = np.full(support.SHAPE, 3, np.float32)
ALONE = Policy(allow_fallback=False)

Tell = Callable[[str], Path]


@pytest.fixture(autouse=True)
def tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tell]:
    """Tells the driver in which call its process is to die; gives the file that says so."""
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PENSTOCK_KEY_STORE", "file")
    # Once it died twice in a row, no test waits for its process to be started again.
    monkeypatch.setattr(supervision, "FIRST_PAUSE", 60.0)
    entries = (
        Entry("fragile", "tests.support_isolated:fragile", "somebody-elses"),
        Entry("reference", "penstock.drivers.reference:create", "penstock-nn"),
    )
    monkeypatch.setattr("penstock.runtime.session.manager", Manager(lambda: entries))
    monkeypatch.setattr(isolation, "_supervisors", {})

    directory = support.telling(tmp_path, monkeypatch)

    def told(call: str) -> Path:
        place = directory / call
        place.touch()
        return place

    yield told
    isolation.close_hosts()


def compiled(devices: list[str] | None, policy: Policy | None = None, **more: Any) -> CompiledModel:
    return penstock.compile(MODEL, devices=devices, cache=False, policy=policy or Policy(), **more)


def fell_back(model: CompiledModel, why: str, error: str = "DeadObject: ") -> None:
    """The receipts of compile and run say that *model* is on the reference device, and why."""
    outputs = model(X)
    np.testing.assert_array_equal(outputs[0], X + 1)
    for receipt in (model.receipt, outputs.receipt):
        (step,) = receipt.steps
        assert (step.device, step.fallback_from) == ("reference", "fragile")
        assert step.error is not None
        assert step.error.startswith(error)
        assert why in step.error


def quarantine() -> None:
    """Has the driver's process die until it is left alone."""
    (supervisor,) = isolation.supervisors()
    for _ in range(supervision.MOST_DEATHS):
        supervisor._count("was ended by SIGKILL")
    link = supervisor.running
    assert link is not None
    os.kill(link.pid, signal.SIGKILL)
    link.settle()


@pytest.mark.parametrize("call", ["create", "supported_operations", "prepare_model"])
def test_a_driver_that_dies_of_a_compile_leaves_it_to_the_fall_back(
    tell: Tell, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    tell(call)
    with caplog.at_level(logging.WARNING), compiled(["fragile"]) as model:
        fell_back(model, "process")
    told = [r for r in caplog.records if r.name.startswith(("penstock.execution", "penstock.comp"))]
    assert len(told) == 1
    crash = last_crash()
    assert crash is not None
    assert crash.driver == "fragile"


@pytest.mark.parametrize("call", ["create", "supported_operations", "prepare_model"])
def test_without_a_fall_back_one_error_says_how_it_died(tell: Tell, call: str) -> None:
    tell(call)
    policies = [ALONE]
    if call == "supported_operations":
        policies.append(Policy(forbid={"*": "reference"}))
    for policy in policies:
        with pytest.raises((PlacementError, DeadObject)) as caught:
            compiled(["fragile"], policy)
        text = str(caught.value)
        assert "fragile" in text
        assert "ended" in text
        assert text.count("penstock doctor --last-crash") == 1
        assert isinstance(caught.value, DeadObject) is (call == "prepare_model")


def test_a_quarantined_driver_leaves_compiles_to_the_fall_back() -> None:
    with compiled(["fragile"]):
        quarantine()
    with compiled(["fragile"]) as model:
        fell_back(model, "quarantined in this program")
    with compiled(["fragile", "reference"]) as model:
        fell_back(model, "quarantined in this program")
    for devices in (["fragile"], ["fragile", "reference"]):
        with pytest.raises(PlacementError, match="quarantined in this program") as caught:
            compiled(devices, ALONE)
        assert list(caught.value.reasons) == ["fragile"]
        assert str(caught.value).count("penstock doctor --last-crash") == 1


@pytest.mark.parametrize("how", ["raise", "exit"])
def test_a_driver_that_cannot_be_loaded_cannot_be_started(
    tell: Tell, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    tell(how)
    with caplog.at_level(logging.WARNING), compiled(["fragile"]) as model:
        fell_back(model, "no licence")
    assert any("no licence" in record.getMessage() for record in caplog.records)
    with compiled(["fragile", "reference"]) as model:
        fell_back(model, "no licence")
    for devices in (["fragile"], ["fragile", "reference"]):
        with pytest.raises(PlacementError, match="no licence") as caught:
            compiled(devices, ALONE)
        assert list(caught.value.reasons) == ["fragile"]
    with compiled(None) as model:
        (note,) = model.receipt.notes
        assert note.startswith("driver fragile is unavailable: ")
        assert "no licence" in note


def test_a_driver_that_cannot_be_loaded_again_is_tried_later(
    tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "FIRST_PAUSE", 0.1)
    with compiled(["fragile"]) as model:
        assert model(X).receipt.steps[0].device == "fragile"
        down = tell("raise")
        (supervisor,) = isolation.supervisors()
        link = supervisor.running
        assert link is not None
        os.kill(link.pid, signal.SIGKILL)
        link.settle()
        for _ in range(2):
            step = model(X).receipt.steps[0]
            assert (step.device, step.fallback_from) == ("reference", "fragile")
            assert "RuntimeError('no licence')" in str(step.error)
        down.unlink()
        patience = time.monotonic() + 20
        while model(X).receipt.steps[0].device != "fragile":
            assert time.monotonic() < patience
            time.sleep(0.01)


@pytest.mark.parametrize("how", ["run", "burst"])
def test_a_model_goes_back_to_the_driver_that_is_there_again(
    tell: Tell, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.execution.availability.CHECK_SECONDS", 0.01)
    monkeypatch.setattr(discovery, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(discovery, "LOOK_SHARE", 0.0)
    monkeypatch.setattr(supervision, "FIRST_PAUSE", 0.1)
    down = tell("create")
    with compiled(["fragile"]) as model:
        fell_back(model, "process")
        burst = model.burst()
        run = burst.run if how == "burst" else model
        another = model.burst()
        for known in (run, another.run):
            known(X)
        down.unlink()
        patience = time.monotonic() + 20
        while (step := run(X).receipt.steps[0]).device != "fragile":
            assert time.monotonic() < patience
            time.sleep(0.01)
        assert (step.fallback_from, step.error) == (None, None)
        np.testing.assert_array_equal(run(X)[0], X + 1)
        assert another.run(X).receipt.steps[0].device == "fragile"


def test_a_driver_that_nobody_named_is_left_out_and_noted(
    tell: Tell, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(discovery, "LOOK_SHARE", 0.0)
    down = tell("create")
    with caplog.at_level(logging.WARNING), compiled(None) as model:
        np.testing.assert_array_equal(model(X)[0], X + 1)
        (note,) = model.receipt.notes
        assert note.startswith("driver fragile is unavailable: ")
    assert len([r for r in caplog.records if "fragile is unavailable" in r.message]) == 1
    down.unlink()
    with compiled(None) as model:
        assert "fragile" in model.plan.devices
        assert model.receipt.notes == ()


@pytest.mark.parametrize("call", ["find", "compile"])
def test_a_process_that_does_not_answer_in_time_is_not_waited_for(
    tell: Tell, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if call == "compile":
        compiled(["fragile"]).close()
    else:
        entry = ("fragile", "tests.support_isolated:fragile")
        isolation.supervisor_of(*entry, f"somebody-elses:{'='.join(entry)}").connection()
    (supervisor,) = isolation.supervisors()
    link = supervisor.running
    assert link is not None
    support.stop(link.pid)
    try:
        began = time.monotonic()
        with compiled(["fragile"], timeout=8) as model:
            assert time.monotonic() - began < 8
            fell_back(model, "", "MissedDeadlineTransient: ")
        late = r"did not answer before the deadline|before half of the time was over"
        with pytest.raises(PlacementError, match=late):
            compiled(["fragile"], ALONE, timeout=0.4)
        assert time.monotonic() - began < 30
    finally:
        os.kill(link.pid, signal.SIGKILL)


def test_a_process_that_stops_as_it_prepares_leaves_the_other_half_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled(["fragile"]).close()
    (supervisor,) = isolation.supervisors()
    link = supervisor.running
    assert link is not None
    prepare = RemoteDevice.prepare_model

    def stopping(*arguments: Any) -> Any:
        support.stop(link.pid)
        return prepare(*arguments)

    monkeypatch.setattr(RemoteDevice, "prepare_model", stopping)
    try:
        began = time.monotonic()
        with compiled(["fragile"], timeout=6) as model:
            assert time.monotonic() - began < 6
            fell_back(model, "is stopped, and does not answer before the deadline")
        # A pause is no death: it goes on, and so does the driver.
        os.kill(link.pid, signal.SIGCONT)
        monkeypatch.setattr(RemoteDevice, "prepare_model", prepare)
        with compiled(["fragile"], timeout=20) as model:
            assert model(X).receipt.steps[0].device == "fragile"
        assert supervisor.running is link
    finally:
        os.kill(link.pid, signal.SIGKILL)


def test_a_process_that_does_not_start_in_time_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Link:
        def __init__(self, *_: object) -> None:
            time.sleep(1)
            raise DeadObject("too late")

    monkeypatch.setattr(supervision, "HostConnection", Link)
    with compiled(["fragile"], timeout=0.6) as model:
        fell_back(model, "still being started")


@pytest.mark.parametrize("devices", [None, ["fragile"], ["reference"]])
@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("driver_timeout_ms", "abc"),
        ("driver_start_ms", "0"),
        ("ring_spin_us", "-1"),
        ("isolate", "fragile=perhaps"),
        ("services", "fragile"),
    ],
)
def test_a_knob_that_makes_no_sense_is_no_driver_that_is_not_there(
    knob: str, value: str, devices: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"PENSTOCK_{knob.upper()}", value)
    with pytest.raises(InputError, match=f"knob {knob} ") as caught:
        compiled(devices)
    assert value in str(caught.value)
    assert isolation.supervisors() == []


@pytest.mark.parametrize(
    ("call", "how", "wrote"),
    [
        ("exit", "ended with exit status 3", "no licence"),
        ("create", "was ended by SIGKILL", ""),
        ("raise", "failed to load: RuntimeError('no licence')", 'raise RuntimeError("no licence")'),
    ],
)
def test_a_crash_before_the_first_client_is_recorded(
    tell: Tell, call: str, how: str, wrote: str
) -> None:
    tell(call)
    with pytest.raises(PlacementError, match=re.escape(how)):
        compiled(["fragile"], ALONE)
    crash = last_crash()
    assert crash is not None
    assert how in crash.how
    assert wrote in crash.output
    assert bool(wrote) == bool(crash.output)


def test_unknown_name_to_isolate_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PENSTOCK_ISOLATE", "reference-2, fragil, other=no, fragile")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            compiled(["reference"]).close()
    told = [record.getMessage() for record in caplog.records if "knob isolate" in record.message]
    assert len(told) == 2
    assert "'reference-2'" in told[0]
    assert told[0].endswith("is 'reference' meant?")
    assert "'fragil'" in told[1]
    assert told[1].endswith("is 'fragile' meant?")


@pytest.mark.parametrize("how", ["raise", "exit"])
def test_a_device_that_is_required_and_cannot_be_used_says_why(tell: Tell, how: str) -> None:
    tell(how)
    with pytest.raises(PlacementError, match="the policy requires fragile") as caught:
        compiled(None, Policy(require={"ADD": "fragile"}))
    assert "no licence" in caught.value.reasons["fragile"]


def test_a_driver_that_takes_too_long_to_load_is_killed_and_the_limit_named(
    tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell("sleep")
    monkeypatch.setenv("PENSTOCK_DRIVER_START_MS", "300")
    began = time.monotonic()
    with compiled(["fragile"]) as model:
        fell_back(model, "within 0.3 s")
        fell_back(model, "the limit for loading a driver (knob driver_start_ms)")
    assert time.monotonic() - began < 20


def test_a_process_that_is_interrupted_as_it_leaves_its_hosts_ends_quietly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupted:
        def close(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(isolation, "_supervisors", {"x": Interrupted()})
    isolation.leave_hosts()
    assert isolation.supervisors() == []
