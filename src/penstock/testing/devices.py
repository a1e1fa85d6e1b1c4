"""Finding the device to test: by the name of a driver's entry point, or of a function that makes it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from penstock.errors import PlacementError
from penstock.hal import Device

ENTRY_POINT_GROUP: Final = "penstock.drivers"


def find_devices(driver: str) -> list[Device]:
    """The devices of one driver: *driver* is an entry point of `penstock.drivers`, or `module:function`.

    Raises `PlacementError` when there is none of that name, or it cannot be loaded.
    """
    found = {e.name: e for e in entry_points(group=ENTRY_POINT_GROUP)}
    entry = found.get(driver)
    if entry is None and ":" in driver:
        entry = EntryPoint(driver, driver, ENTRY_POINT_GROUP)
    if entry is None:
        known = ", ".join(sorted(found)) or "none"
        raise PlacementError(f"no driver is named {driver!r}; installed: {known}")
    try:
        made: Any = entry.load()()
    except Exception as error:
        raise PlacementError(f"driver {driver!r} cannot be loaded: {error!r}") from error
    return list(made) if isinstance(made, Sequence) else [made]
