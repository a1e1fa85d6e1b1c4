"""Answers about support are kept beside cached models, sealed, for devices that say what they
depend on.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.cache import Cache
from penstock.cache.naming import ANSWERS
from penstock.drivers.llvm import LlvmDevice, device
from penstock.drivers.reference import driver
from penstock.drivers.reference.driver import ReferenceDevice
from penstock.ir import ConstantPool, DType, Model, ModelBuilder
from penstock.runtime.remembering import RememberingDevice
from tests.support_devices import NumpyDevice
from tests.unit.partitioning.models import chain

X = np.ones((2, 3), np.float32)


def adder(basis: str = "rules 1") -> NumpyDevice:
    """A device that adds, and names its reason for everything else."""
    return NumpyDevice("adder", frozenset({"ADD"}), other=(0.01, 0.01), support_basis=basis)


def asked(one: NumpyDevice, directory: Path | None, model: Model | None = None) -> int:
    """How often the device is asked by a compile of a model in that cache."""
    one.asked.clear()
    model = model or chain(("ADD", "RELU"))
    devices = [one, NumpyDevice("other")]
    with penstock.compile(model, devices=devices, cache=directory or False) as compiled:
        first, second = compiled.plan.operations
        assert (first.device, second.device) == ("adder", "other")
        assert str(second.refusals["adder"]) == "adder has no RELU"
        compiled.run([X] * len(compiled.inputs))
    return len(one.asked)


def kept(directory: Path) -> list[Path]:
    return sorted((directory / ANSWERS).glob("*.json"))


def test_a_device_is_asked_once_about_a_model(tmp_path: Path) -> None:
    assert asked(adder(), tmp_path) > asked(adder(), tmp_path)
    assert len(kept(tmp_path)) == 1


def test_kept_answers_give_the_same_plan(tmp_path: Path) -> None:
    with penstock.compile(chain(("ADD", "RELU")), devices=["reference"], cache=tmp_path) as first:
        pass
    assert len(kept(tmp_path)) == 1
    with penstock.compile(chain(("ADD", "RELU")), devices=["reference"], cache=tmp_path) as second:
        assert second.plan == first.plan


@pytest.mark.parametrize("basis", ["rules 2", ""])
def test_another_basis_is_asked_again(tmp_path: Path, basis: str) -> None:
    first = asked(adder(), tmp_path)
    assert asked(adder(basis), tmp_path) == first


def test_another_version_or_model_is_asked_again(tmp_path: Path) -> None:
    first = asked(adder(), tmp_path)
    newer = adder()
    newer.version = "2"
    assert asked(newer, tmp_path) == first
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (2, 3), "x")
    y = builder.constant(X * 3, "y")
    (z,) = builder.operation("ADD", [x, y], [(DType.FLOAT32, (2, 3))])
    other = builder.build(builder.operation("RELU", [z], [(DType.FLOAT32, (2, 3))]))
    assert asked(adder(), tmp_path, other) == first


@pytest.mark.parametrize("at", [20, -20], ids=["record", "seal"])
def test_altered_answers_are_not_trusted(tmp_path: Path, at: int) -> None:
    first = asked(adder(), tmp_path)
    (file,) = kept(tmp_path)
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)
    assert asked(adder(), tmp_path) == first


def test_nothing_is_kept_without_a_cache_or_a_basis(tmp_path: Path) -> None:
    assert asked(adder(), None) == asked(adder(), None) > 0
    assert asked(adder(""), tmp_path) == asked(adder(""), tmp_path) > 0
    assert kept(tmp_path) == []


def test_answers_about_constants_out_of_reach_are_not_kept(tmp_path: Path) -> None:
    remembering = RememberingDevice(ReferenceDevice(), str(tmp_path))
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (8, 8), "x")
    pool = ConstantPool(memoryview(bytes(256)), None, "bogus")
    w = builder.located(pool, 0, DType.FLOAT32, (8, 8), "w")
    model = builder.build(builder.operation("ADD", [x, w], [(DType.FLOAT32, (8, 8))]))
    (answer,) = remembering.supported_operations(model)
    assert "'w' lies in bogus memory" in answer.reason
    assert kept(tmp_path) == []


def test_clearing_a_cache_removes_kept_answers(tmp_path: Path) -> None:
    first = asked(adder(), tmp_path)
    Cache(tmp_path).clear()
    assert kept(tmp_path) == []
    assert asked(adder(), tmp_path) == first


@pytest.mark.parametrize("kind", [LlvmDevice, ReferenceDevice])
def test_a_derived_device_declares_no_basis(kind: type) -> None:
    assert kind().capabilities.support_basis
    assert not type("Derived", (kind,), {})().capabilities.support_basis


@pytest.mark.parametrize(
    ("rules", "folder"),
    [
        (device.RULES, "compiler"),
        (device.RULES, "drivers/llvm"),
        (driver.RULES, "drivers/reference"),
    ],
)
def test_the_basis_counts_every_folder_of_the_rules(rules: tuple[str, ...], folder: str) -> None:
    root = Path(penstock.__file__).parent
    code = {file.parent for file in (root / folder).rglob("*.py")}
    # What makes and runs code decides nothing about support.
    code = {c for c in code if folder != "drivers/llvm" or c == root / folder}
    assert code <= {root / rule for rule in rules}
