"""What a capsule says of the machine."""

from __future__ import annotations

import functools
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from penstock import knobs
from penstock.capsules.manifest import DeviceRecord, Environment, ModelRecord, Text
from penstock.capsules.scrubbing import Scrubber
from penstock.distribution import DISTRIBUTION
from penstock.errors import InputError
from penstock.hal import Device
from penstock.ir import Model
from penstock.ir.digest import digest_structure

PACKAGES: Final = (
    *(DISTRIBUTION, "numpy", "ml-dtypes", "msgspec", "flatbuffers"),
    *("ai-edge-litert", "onnxruntime", "openvino", "llvmlite", "onnx"),
)
"""Whose versions count: what Penstock needs, and the engines."""

PLACES: Final = frozenset({"cache_dir", "state_dir"})
"""Knobs whose value is a path; a capsule says only that they are set. From other values paths are
taken out.
"""


def environment() -> Environment:
    """That of the process, without the name of the machine or of anybody."""
    return Environment(
        platform.python_version(),
        platform.python_implementation(),
        f"{platform.system()} {platform.release()}",
        platform.machine(),
        {name: found for name in PACKAGES if (found := _version(name))},
        _knobs(),
    )


def device_record(device: Device) -> DeviceRecord:
    """What *device* says of itself."""
    return DeviceRecord(device.name, device.version, device.type.value, device.feature_level)


def model_record(model: Model) -> ModelRecord:
    """Which model it is, told by digests alone. That of its constants is empty unless it is known
    already: hashing them takes long, and a caller may be waiting.
    """
    known = "digest" in vars(model)
    constants = model.digest.constants.hex() if known else ""
    structure = model.digest.structure if known else digest_structure(model)
    return ModelRecord(structure.hex(), constants, len(model.operations))


def penstock_version() -> Text:
    """The version of this Penstock."""
    # Not imported: the top package imports this one.
    found: str = sys.modules["penstock"].__version__
    return found


@functools.cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _knobs() -> dict[str, str]:
    scrubber = Scrubber()
    changed = {}
    for name, knob in knobs.KNOBS.items():
        try:
            value, source = knob.source()
        except InputError:
            continue
        if source != "default":
            changed[name] = "set" if name in PLACES else scrubber.text(str(value))
    return changed
