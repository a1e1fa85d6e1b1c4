"""What tests of the object model share."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest

from penstock.hal import Device as HalDevice
from penstock.ipc.starting import unavailable
from penstock.runtime.discovery import Manager
from tests.support_nnapi_drivers import hosted


@pytest.fixture
def nothing_left_open(no_descriptor_leaks: None) -> Iterator[None]:
    """Fails a test that leaves a descriptor open once nothing uses it: tracebacks of errors that
    were expected hold views of pools until they are collected.
    """
    yield
    gc.collect()


class Entry:
    """An entry point whose driver has one device."""

    def __init__(self, device: HalDevice) -> None:
        self.name, self._device = device.name, device

    def load(self) -> Callable[[], HalDevice]:
        return lambda: self._device


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes some devices the only ones there are."""

    def replace(*devices: HalDevice) -> None:
        found = Manager(lambda: tuple(map(Entry, devices)))
        for module in ("runtime.session", "nnapi.devices", "nnapi.compilation"):
            monkeypatch.setattr(f"penstock.{module}.manager", found)

    return replace


@pytest.fixture(scope="module")
def nnapi_host() -> Iterator[list[HalDevice]]:
    """The devices of `support_nnapi_drivers.create`, in one process of their own."""
    if (reason := unavailable()) is not None:
        pytest.skip(reason)
    yield from hosted()
