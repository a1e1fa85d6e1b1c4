"""`penstock.devices()`."""

from __future__ import annotations

from penstock.runtime.discovery import DeviceInfo, manager


def devices() -> list[DeviceInfo]:
    """Every device of every installed driver, usable or not, each with its reason when not; the
    reference device last.
    """
    return manager.infos()
