"""The version of an engine that accuracy classes were derived with, beside the one that is
installed.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import penstock
from penstock.cli import doctor
from penstock.driverkit.installation import derived_with
from penstock.drivers.onnxruntime import installation as onnxruntime
from penstock.drivers.onnxruntime.device import OnnxRuntimeDevice
from penstock.drivers.openvino import installation as openvino
from penstock.drivers.openvino.device import OpenVinoDevice
from penstock.drivers.xnnpack import BuiltinDevice, XnnpackDevice, device as xnnpack
from penstock.hal import Capabilities, Device
from penstock.partitioning import place
from tests.support_devices import NumpyDevice
from tests.unit.partitioning.models import chain

PYPROJECT = Path(__file__).resolve().parents[3] / "pyproject.toml"


@pytest.mark.parametrize("installed", ["2.3", "2.3.0", "2.3.1.dev4", "2.3+local", ""])
def test_patch_release_or_missing_engine_raises_no_doubt(installed: str) -> None:
    found = derived_with(Capabilities(), "Engine", "2.3", installed)
    assert found.accuracy_basis.startswith("Engine 2.3: each operation compared")
    assert found.accuracy_doubt == ""


@pytest.mark.parametrize("installed", ["2.4.0", "2.30", "3.3", "2"])
def test_another_release_is_in_doubt_and_both_are_named(installed: str) -> None:
    doubt = derived_with(Capabilities(), "Engine", "2.3", installed).accuracy_doubt
    assert f"derived with Engine 2.3; {installed} is installed" in doubt


@pytest.mark.parametrize(
    "made",
    [
        lambda v: XnnpackDevice(xnnpack.Installation(v)),
        lambda v: BuiltinDevice(xnnpack.Installation(v)),
        lambda v: OpenVinoDevice(openvino.find_installation().plugins[0],
            openvino.Installation(v, ())),
        lambda v: OnnxRuntimeDevice(onnxruntime.CPU, onnxruntime.Installation(v, ())),
    ],
    ids=["xnnpack", "xnnpack-builtin", "openvino", "onnxruntime"],
)  # fmt: skip
def test_every_driver_of_an_engine_names_the_version_that_it_was_derived_with(made: Any) -> None:
    device: Device = made("99.9.9")
    assert device.capabilities.accuracy_basis
    assert "99.9.9 is installed" in device.capabilities.accuracy_doubt


@pytest.mark.parametrize(
    "found", [xnnpack, openvino, onnxruntime], ids=["xnnpack", "openvino", "onnxruntime"]
)
def test_the_locked_engines_are_those_that_classes_were_derived_with(found: Any) -> None:
    installed = found.find_installation().version
    if not installed:
        pytest.skip(f"the engine of {found.__name__} is not installed")
    assert not derived_with(Capabilities(), "", found.DERIVED_WITH, installed).accuracy_doubt


@pytest.mark.parametrize(
    ("found", "package"),
    [(xnnpack, "ai-edge-litert"), (openvino, "openvino"), (onnxruntime, "onnxruntime")],
    ids=["xnnpack", "openvino", "onnxruntime"],
)
def test_extras_install_no_release_that_classes_were_not_derived_with(
    found: Any, package: str
) -> None:
    project = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]
    asked = [
        line
        for lines in project["optional-dependencies"].values()
        for line in lines
        if re.match(rf"{package}\W", line)
    ]
    first, last = found.DERIVED_WITH.split(".")
    assert asked
    assert all(f",<{first}.{int(last) + 1}" in line.partition(";")[0] for line in asked)


def doubtful() -> NumpyDevice:
    device = NumpyDevice("quick", {"ADD"}, {"float32": (0.1, 0.1)})
    device.capabilities = replace(device.capabilities, accuracy_doubt="derived with another")
    return device


def test_the_plan_names_the_doubts_of_the_devices_that_it_uses() -> None:
    every = [doubtful(), NumpyDevice("reference")]
    used = place(chain(["ADD", "RELU"]), every)
    assert used.doubts == (("quick", "derived with another"),)
    assert "quick: derived with another" in used.show()
    assert '"doubts":{"quick":"derived with another"}' in used.to_json()
    unused = place(chain(["RELU"]), every)
    assert unused.doubts == ()
    assert "derived" not in unused.show()


def test_receipt_notes_doubtful_devices() -> None:
    with penstock.compile(
        chain(["ADD", "RELU"]), devices=[doubtful(), "reference"], cache=False
    ) as compiled:
        assert "quick: derived with another" in compiled.receipt.notes


def test_doctor_names_the_doubts_of_usable_devices() -> None:
    (info,) = [d for d in penstock.devices() if d.name == "reference"]
    known = replace(info, capabilities=replace(info.capabilities, accuracy_doubt="why not"))
    assert doctor.doubts([info, known]) == ["device reference: why not"]
    assert doctor.doubts([replace(known, usable=False)]) == []
