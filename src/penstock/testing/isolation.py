"""Drivers in processes of their own for the contract suites: devices by entry point, and hosts that
tests share.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from penstock.hal import Device
from penstock.ipc.resilient import IsolatedDevice
from penstock.runtime.isolation import supervisor_of
from penstock.testing.devices import find_devices
from penstock.testing.domains import DomainDevice
from penstock.testing.doubles import FaultyDevice
from penstock.testing.lab import LabDevice


@contextmanager
def isolated_device(name: str, entry: str, index: int = 0) -> Iterator[IsolatedDevice]:
    """The device at *index* of the driver *name* = *entry*, in the host that this process has for
    it.

    The host goes on when the block ends, for the next one, and so does what others of this process
    have in it; `penstock.runtime.isolation.close_hosts` ends all.
    """
    with closing(IsolatedDevice(supervisor_of(name, entry), index)) as device:
        yield device


def domains() -> Device:
    """The sample driver's device with memory domains."""
    (device,) = find_devices("sample")
    return DomainDevice(device, "domains")


def lab_tiles() -> Device:
    """A device with a layout of its own."""
    return LabDevice(layout="tiles")


def lab_first_run() -> Device:
    """A device that compiles when it is first run."""
    return LabDevice(mode="first_run")


def lab_staged() -> Device:
    """A device that compiles better after some runs."""
    return LabDevice(mode="staged", uses=2)


def lab_data_files() -> Device:
    """A device that caches in data files only."""
    return LabDevice(files=(0, 3))


def faulty() -> Device:
    """A device that allocates nothing."""
    return FaultyDevice(LabDevice(files=(1, 0)), {"allocate": "always"})
