"""A server whose driver's process is killed while clients ask."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from penstock.export import tflite
from penstock.runtime import isolation
from penstock.serve import CompileSettings, Settings
from penstock.serve.receipts import summary_of
from penstock.testing.loopback import isolated_device
from tests import support_isolated as support
from tests.support_serving import Asker, request_for
from tests.unit.serve.test_service import service_of

KILLS = 3
ASKED = 4


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # The hosts that other tests of this process have stay as they are.
    monkeypatch.setattr(isolation, "_supervisors", {})
    yield
    isolation.close_hosts()


def test_every_request_is_answered_although_the_driver_is_killed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with isolated_device("misbehaving", support.ENTRY) as device:
        settings = Settings(CompileSettings((device,), cache=False))
        service = service_of(tmp_path, settings, tflite.write(support.add_one()), "add")
        (supervisor,) = isolation.supervisors()
        notes: list[str] = []
        for _ in range(KILLS):
            os.kill(supervisor.connection().pid, signal.SIGKILL)
            values = [np.full(support.SHAPE, number, np.float32) for number in range(ASKED)]
            askers = [Asker(service.infer, request_for(value, "add")) for value in values]
            for value, asker in zip(values, askers, strict=True):
                answer = asker.answer()
                (output,) = answer.outputs.values()
                np.testing.assert_array_equal(output, value + 1)
                notes += [*summary_of(answer).notes, *summary_of(answer).fallbacks]
        metrics = service.metrics.exposition()[0].decode()
        service.close()
    assert sum("SIGKILL" in note for note in notes) >= KILLS
    warnings = [r for r in caplog.records if r.name == "penstock.serve"]
    assert len(warnings) == sum(1 for note in notes if "started again" in note) >= KILLS
    for record in warnings:
        assert record.levelname == "WARNING"
        assert record.getMessage().startswith(f"model 'add': device {device.name}: ")
        assert "SIGKILL" in record.getMessage()
    counted = f'penstock_restarts_total{{device="{device.name}",model="add"}} {len(warnings)}.0'
    assert counted in metrics
