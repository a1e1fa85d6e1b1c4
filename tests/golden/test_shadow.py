"""Real networks on real engines, verified in the shadow: roundings, however many, are no fault, and
a planted one is found.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.ir import NDArray, Operand
from penstock.partitioning.policy import Policy
from penstock.runtime.discovery import manager
from penstock.testing.doubles import WrongDevice

NETWORKS = (
    "blazeface_front_int8",
    "kws_dscnn_int8",
    "mobilenet_v1_0.25_128_uint8",
    "movenet_lightning_int8",
    "resnet8_cifar10_float",
)
ENGINES = ("xnnpack", "openvino-cpu", "onnxruntime-cpu")


@pytest.fixture(autouse=True)
def own_state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path / "state"))


def example(operand: Operand, seed: int) -> NDArray:
    rng = np.random.default_rng(seed)
    shape = tuple(1 if d is None else d for d in operand.shape or ())
    if operand.dtype.is_float:
        return rng.random(shape, np.float32).astype(operand.dtype.numpy)
    info = np.iinfo(operand.dtype.numpy)
    return rng.integers(max(info.min, -128), min(info.max, 255), shape).astype(operand.dtype.numpy)


def network(corpus: Path, name: str) -> Path:
    return corpus / "models" / "networks" / f"{name}.tflite"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", NETWORKS)
def test_an_engine_that_keeps_to_its_class_gets_no_verdict(
    corpus: Path, name: str, engine: str
) -> None:
    if manager.by_name(engine) is None:
        pytest.skip(f"needs {engine}")
    with penstock.compile(
        network(corpus, name), devices=[engine, "reference"], cache=None, policy=Policy(shadow=2)
    ) as compiled:
        assert compiled.shadow is not None
        for seed in range(2):
            compiled.run([example(o, seed) for o in compiled.inputs])
            assert compiled.shadow.wait(300)
        report = compiled.shadow.report()
    assert report.verdicts == ()
    assert report.departed == 0
    assert report.compared + report.skipped == 2


def test_a_fault_planted_in_an_engine_is_found_in_a_network(corpus: Path) -> None:
    engine = manager.by_name("xnnpack")
    if engine is None:
        pytest.skip("needs xnnpack")
    wrong = WrongDevice(engine, "SOFTMAX", name="wrong")
    path = network(corpus, "kws_dscnn_int8")
    with penstock.compile(path, devices=[wrong], cache=None, policy=Policy(shadow=1)) as compiled:
        compiled.run([example(o, 0) for o in compiled.inputs])
        assert compiled.shadow is not None
        assert compiled.shadow.wait(300)
        (verdict,) = compiled.shadow.report().verdicts
    assert verdict.types == ("SOFTMAX",)
    with penstock.compile(path, devices=[wrong, "reference"], cache=None) as compiled:
        (last,) = (p for p in compiled.plan.operations if p.type == "SOFTMAX")
    assert last.device == "reference"
    assert verdict.short in last.reasons["wrong"]
