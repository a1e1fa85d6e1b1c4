"""Every driver that is installed works behind the sandbox, cold and from its cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.ipc import sandbox
from penstock.runtime.isolation import supervisors
from penstock.testing.contract.cases import every_case

CASE = next(case for case in every_case() if case.name == "fully_connected")
DEVICES = ("reference", "sample", "llvm", "xnnpack", "onnxruntime-cpu", "openvino-cpu")


@pytest.mark.parametrize("name", DEVICES)
def test_a_driver_compiles_runs_and_caches_behind_it(name: str, tmp_path: Path) -> None:
    found = {device.name: device for device in penstock.devices()}
    if name not in found or found[name].reason:
        pytest.skip(f"{name} is not installed, or cannot work here")
    for turn in range(2):
        with penstock.compile(
            CASE.model,
            devices=[name],
            isolate=True,
            cache=tmp_path,
            policy=penstock.Policy(allow_fallback=False),
        ) as compiled:
            outcome = compiled.receipt.steps[0].cache.outcome
            assert outcome in {"off", "hit" if turn else "miss"}
            for values in (compiled.run(list(CASE.inputs)), compiled.run(list(CASE.inputs))):
                np.testing.assert_allclose(next(iter(values)), CASE.outputs[0], rtol=1e-5)
            with compiled.burst() as burst:
                values = burst.run(list(CASE.inputs))
                np.testing.assert_allclose(next(iter(values)), CASE.outputs[0], rtol=1e-5)
            offered = {m.name for m in sandbox.detect().measures if m.holds}
            told = [s.connection().sandbox for s in supervisors() if s.running is not None]
            assert told
            for lines in told:
                held = {measure for measure, said in lines if not said.startswith("missing")}
                assert offered <= held


def test_no_thread_of_a_host_is_outside(tmp_path: Path) -> None:
    with penstock.compile(CASE.model, devices=["reference"], isolate=True, cache=False):
        for supervisor in supervisors():
            said = dict(supervisor.connection().sandbox)
            assert "ran already" not in said["landlock"]
