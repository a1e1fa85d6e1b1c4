"""Every driver against every contract check, plain and in a process of its own; some with each HAL
message encoded.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Final, Self

import pytest
from _pytest.mark import ParameterSet

from penstock.hal import Device
from penstock.ipc.resilient import IsolatedDevice
from penstock.testing.contract import (
    SHARING,
    SUITES,
    VALUE_CHECKS,
    Check,
    NotCovered,
    SharedModels,
    Violation,
    computes,
)
from penstock.testing.contract.execute import check_values_at_any_offset
from penstock.testing.devices import ENTRY_POINT_GROUP
from penstock.testing.domains import DomainDevice
from penstock.testing.doubles import FaultyDevice
from penstock.testing.lab import LabDevice
from penstock.testing.loopback import LoopbackDevice, isolated_device
from tests.checked import count_contract_checks
from tests.support_llvm import needs_llvm
from tests.support_onnxruntime import needs_onnxruntime
from tests.support_openvino import needs_openvino
from tests.support_waiting import eventually
from tests.support_webgpu import needs_webgpu
from tests.support_xnnpack import needs_litert

GAPS: Final[dict[tuple[str, str], str]] = {}
"""(driver, check) -> why it fails; a gap that no longer fails is an error (strict xfail)."""

DRIVERS: Final[dict[str, Callable[[], Device]]] = {
    "null": lambda: only("null"),
    "sample": lambda: only("sample"),
    "reference": lambda: only("reference"),
    "domains": lambda: DomainDevice(only("sample"), "domains"),
    "lab": lambda: only("lab"),
    "lab, tiles": lambda: LabDevice(layout="tiles"),
    "lab, first run": lambda: LabDevice(mode="first_run"),
    "lab, staged": lambda: LabDevice(mode="staged", uses=2),
    "lab, data files only": lambda: LabDevice(files=(0, 3)),
    "faulty": lambda: FaultyDevice(LabDevice(files=(1, 0)), {"allocate": "always"}),
    "llvm": lambda: only("llvm"),
    "xnnpack": lambda: only("xnnpack", "xnnpack"),
    "xnnpack-builtin": lambda: only("xnnpack", "xnnpack-builtin"),
    "onnxruntime-cpu": lambda: only("onnxruntime", "onnxruntime-cpu"),
    "openvino-cpu": lambda: only("openvino", "openvino-cpu"),
    "webgpu-software": lambda: only("webgpu", "webgpu-software"),
}
ENGINES: Final[dict[str, pytest.MarkDecorator]] = {
    "llvm": needs_llvm,
    "xnnpack": needs_litert,
    "xnnpack-builtin": needs_litert,
    "onnxruntime-cpu": needs_onnxruntime,
    "openvino-cpu": needs_openvino,
    "webgpu-software": needs_webgpu,
}
ENCODED: Final = ("domains", "lab")
"""Driven with each message encoded in this process too, where no other process can be."""

COMPUTES_NOTHING: Final = ("null",)
CACHING: Final = ("caching", "caching_security", "lifetime")
SOME_SUITES: Final = {
    "xnnpack-builtin": ("support", "prepare", "execute", "generated", "quality", "lifetime"),
    "lab, tiles": ("memory", "memory_domains", "execute"),
    "lab, first run": CACHING,
    "lab, staged": CACHING,
    "lab, data files only": CACHING,
    "faulty": CACHING,
}
"""What differs of these from a driver above: all other suites would see the same."""

ISOLATED: Final = {
    "null": "penstock.drivers.null:create",
    "sample": "penstock.drivers.sample:create",
    "reference": "penstock.drivers.reference:create",
    "domains": "penstock.testing.loopback:domains",
    "lab": "penstock.testing.lab:create",
    "lab, tiles": "penstock.testing.loopback:lab_tiles",
    "lab, first run": "penstock.testing.loopback:lab_first_run",
    "lab, staged": "penstock.testing.loopback:lab_staged",
    "lab, data files only": "penstock.testing.loopback:lab_data_files",
    "faulty": "penstock.testing.loopback:faulty",
    "llvm": "penstock.drivers.llvm:create",
    "xnnpack": "penstock.drivers.xnnpack:create",
    "xnnpack-builtin": "penstock.drivers.xnnpack:create",
    "onnxruntime-cpu": "penstock.drivers.onnxruntime:create",
    "openvino-cpu": "penstock.drivers.openvino:create",
    "webgpu-software": "penstock.drivers.webgpu:create",
}
"""The entry points of the drivers in processes of their own, which make the same devices there."""


@contextmanager
def plain(driver: str) -> Iterator[Device]:
    with closing(DRIVERS[driver]()) as device:
        yield device


@contextmanager
def loopback(driver: str) -> Iterator[Device]:
    with closing(LoopbackDevice(DRIVERS[driver]())) as device:
        yield device


@contextmanager
def isolated(driver: str) -> Iterator[Device]:
    with isolated_device(driver, ISOLATED[driver], index_of(driver)) as device:
        yield device


@cache
def index_of(driver: str) -> int:
    """The place of the device among those of its driver."""
    if driver not in ENGINES:
        return 0
    return [device.name for device in devices_of(driver.partition("-")[0])].index(driver)


WRAPPERS: Final[dict[str, Callable[[str], AbstractContextManager[Device]]]] = {
    "plain": plain,
    "loopback": loopback,
    "isolated": isolated,
}


class OpenDevices:
    """An open device with its shared models for each wrapper and driver, until the block ends."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], tuple[Device, int | None, ExitStack]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for key in list(self._open):
            self._close(key)

    @contextmanager
    def lent(self, wrapper: str, driver: str) -> Iterator[Device]:
        """The open device. A test that fails is the last one to get it."""
        key = wrapper, driver
        if key in self._open and host_of(self._open[key][0]) != self._open[key][1]:
            self._close(key)
        if key not in self._open:
            stack = ExitStack()
            device = stack.enter_context(WRAPPERS[wrapper](driver))
            stack.enter_context(SharedModels(device))
            self._open[key] = device, host_of(device), stack
        try:
            yield self._open[key][0]
        except NotCovered:
            raise
        except BaseException:
            self._close(key)
            raise

    def _close(self, key: tuple[str, str]) -> None:
        *_, stack = self._open.pop(key)
        stack.close()


@pytest.fixture(scope="module")
def open_devices() -> Iterator[OpenDevices]:
    with OpenDevices() as devices:
        yield devices


def host_of(device: Device) -> int | None:
    """The host process of an isolated device: other tests of this process may end it."""
    return device.pid if isinstance(device, IsolatedDevice) else None


def only(driver: str, name: str = "") -> Device:
    """The one device of a driver, or the one called *name*, found by its entry point."""
    (device,) = [device for device in devices_of(driver) if name in {"", device.name}]
    return device


def devices_of(driver: str) -> list[Device]:
    made = entry_point(driver).load()()
    return made if isinstance(made, list) else [made]


@cache
def entry_point(driver: str) -> EntryPoint:
    """Looked up once: a lookup reads the metadata of every distribution."""
    (found,) = entry_points(group=ENTRY_POINT_GROUP, name=driver)
    return found


def grid() -> list[ParameterSet]:
    """One test for every wrapper, driver and check; the checks of values only where some are
    computed.
    """
    made = []
    for wrapper, driver in itertools.product(WRAPPERS, DRIVERS):
        if wrapper == "loopback" and driver not in ENCODED:
            continue
        for suite in SOME_SUITES.get(driver, SUITES):
            for check in SUITES[suite]:
                if driver in COMPUTES_NOTHING and check.__name__ in VALUE_CHECKS:
                    continue
                gap = GAPS.get((driver, check.__name__))
                marks = [ENGINES[driver]] if driver in ENGINES else []
                if gap:
                    marks.append(pytest.mark.xfail(strict=True, reason=gap))
                name = f"{wrapper}-{driver}-{suite}-{check.__name__}"
                made.append(pytest.param(wrapper, driver, check, id=name, marks=marks))
    return made


count_contract_checks()


@pytest.mark.parametrize(("wrapper", "driver", "check"), grid())
def test_promise(wrapper: str, driver: str, check: Check, open_devices: OpenDevices) -> None:
    with (
        open_devices.lent(wrapper, driver)
        if check in SHARING
        else WRAPPERS[wrapper](driver) as device
    ):
        try:
            check(device)
        except NotCovered as reason:
            pytest.skip(str(reason))


def test_an_open_device_is_opened_again_after_its_host_process_ended() -> None:
    with OpenDevices() as devices:
        with devices.lent("isolated", "sample") as first:
            check_values_at_any_offset(first)
        with devices.lent("isolated", "sample") as again:
            assert again is first
        assert isinstance(first, IsolatedDevice)
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        assert eventually(lambda: first.pid is None)
        with devices.lent("isolated", "sample") as other:
            assert other is not first
            check_values_at_any_offset(other)


def test_an_open_device_is_opened_again_after_a_failure() -> None:
    with OpenDevices() as devices:
        with pytest.raises(Violation), devices.lent("plain", "sample") as first:
            raise Violation
        with devices.lent("plain", "sample") as other:
            assert other is not first


def test_gaps_name_drivers_and_checks_that_exist() -> None:
    names = {c.__name__ for checks in SUITES.values() for c in checks}
    assert all(driver in DRIVERS and check in names for driver, check in GAPS)


@pytest.mark.parametrize("driver", [d for d in DRIVERS if d not in ENGINES])
def test_only_devices_that_compute_nothing_claim_no_performance(driver: str) -> None:
    assert computes(DRIVERS[driver]()) is (driver not in COMPUTES_NOTHING)
