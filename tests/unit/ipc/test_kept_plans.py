"""Kept plans and drivers in host processes: a process is started if the plan needs its device, and
not to be asked for its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock import CompiledModel, Policy
from penstock.export import tflite
from penstock.runtime import isolation
from penstock.runtime.discovery import Manager
from penstock.runtime.entries import Entry
from tests import support_isolated as support

X = np.full(support.SHAPE, 3, np.float32)
ENTRIES = (
    Entry("misbehaving", support.ENTRY, "somebody-elses", "1.0"),
    Entry("reference", "penstock.drivers.reference:create", "penstock-nn", "1.0"),
)

Start = Callable[[str], CompiledModel]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Compiles as a program that starts: without devices and host processes of an earlier one. All
    operations go to the named device.
    """
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PENSTOCK_KEY_STORE", "file")
    # The hosts that other tests of this process have stay as they are.
    monkeypatch.setattr(isolation, "_supervisors", {})
    path = tmp_path / "model.tflite"
    path.write_bytes(tflite.write(support.add_one()))

    def compiled(device: str) -> CompiledModel:
        isolation.close_hosts()
        monkeypatch.setattr(isolation, "_supervisors", {})
        monkeypatch.setattr("penstock.runtime.session.manager", Manager(lambda: ENTRIES))
        policy = Policy(require={"*": device})
        return penstock.compile(path, policy=policy, cache=tmp_path / "cache")

    yield compiled
    isolation.close_hosts()


def told(model: CompiledModel) -> tuple[str, list[str], list[str], str]:
    """What the cache did for the plan, the devices that ran, the notes, and the plan as text."""
    with model:
        outputs = model(X)
        np.testing.assert_array_equal(outputs[0], X + 1)
        outcome = str(model.receipt.plan).partition(":")[0]
        devices = [step.device for step in outputs.receipt.steps]
        return outcome, devices, list(model.receipt.notes), model.plan.show()


def test_a_process_that_no_step_needs_is_not_started(start: Start) -> None:
    first = told(start("reference"))
    assert first[:2] == ("miss", ["reference"])
    assert len(isolation.supervisors()) == 1
    second = told(start("reference"))
    assert second == ("hit", *first[1:])
    assert isolation.supervisors() == []


def test_a_process_that_a_step_needs_is_started_once(start: Start) -> None:
    first = told(start("misbehaving"))
    assert first[:2] == ("miss", ["misbehaving"])
    second = told(start("misbehaving"))
    assert second == ("hit", *first[1:])
    (supervisor,) = isolation.supervisors()
    assert supervisor.starts == 1


def test_a_device_whose_version_changed_in_its_process_is_refused(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = support.telling(tmp_path, monkeypatch)
    assert told(start("misbehaving"))[0] == "miss"
    (directory / "version").write_text("another")
    with start("misbehaving") as model:
        text = "IngredientChanged: device misbehaving has another version"
        assert text in str(model.receipt.plan)
    assert told(start("misbehaving"))[0] == "hit"


def test_a_plan_whose_device_cannot_be_started_is_made_anew(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(start("misbehaving"))[0] == "miss"
    monkeypatch.setattr(isolation, "_unavailable", lambda _: "no host processes here")
    with start("misbehaving") as model:
        np.testing.assert_array_equal(model(X)[0], X + 1)
        assert "IngredientChanged: device misbehaving has another process" in str(
            model.receipt.plan
        )
