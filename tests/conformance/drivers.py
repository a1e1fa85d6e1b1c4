"""The drivers that compute, in this process and in one of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import cache
from typing import Final

from penstock.hal import Device
from penstock.testing.devices import find_devices
from penstock.testing.loopback import isolated_device

DRIVERS: Final = {
    "reference": "reference",
    "llvm": "llvm",
    "xnnpack": "xnnpack",
    "onnxruntime-cpu": "onnxruntime",
    "openvino-cpu": "openvino",
    "webgpu-software": "webgpu",
}
"""The driver of each device."""

QUICK: Final = [device for device in DRIVERS if device != "webgpu-software"]
"""Devices that prepare a case quickly. The shaders of the other one take long to compile:
`test_nnapi_vectors_on_webgpu.py` runs a part of the cases on it.
"""


@cache
def unusable(device: str) -> str | None:
    """Why the device cannot be used here; None where it can."""
    found = [d for d in find_devices(DRIVERS[device]) if d.name == device]
    return found[0].check() if found else f"driver {DRIVERS[device]} has no device {device} here"


@contextmanager
def plain(device: str) -> Iterator[Device]:
    (found,) = [d for d in find_devices(DRIVERS[device]) if d.name == device]
    with closing(found):
        yield found


@contextmanager
def isolated(device: str) -> Iterator[Device]:
    driver = DRIVERS[device]
    names = [found.name for found in find_devices(driver)]
    entry = f"penstock.drivers.{driver}:create"
    with isolated_device(device, entry, names.index(device)) as found:
        yield found


WRAPPERS: Final[dict[str, Callable[[str], AbstractContextManager[Device]]]] = {
    "plain": plain,
    "isolated": isolated,
}
