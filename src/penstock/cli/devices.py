"""`penstock devices`: every device, and why it cannot be used if it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import penstock
from penstock.cli.output import Output, shortened
from penstock.distribution import DISTRIBUTION

if TYPE_CHECKING:
    from penstock import DeviceInfo


def devices(output: Output) -> None:
    """List every device, and why it cannot be used if it cannot."""
    found = penstock.devices()
    show_devices(output, ("version", "driver"), found)
    output.json({"devices": [describe(d) for d in found]})


def show_devices(output: Output, about: Sequence[str], found: Sequence[DeviceInfo]) -> None:
    """Prints a table of devices with the columns *about* them."""
    rows = []
    for d in found:
        source, usable = d.source, "when named" if d.only_when_named else "yes"
        driver = d.driver
        if source.distribution not in {"", DISTRIBUTION}:
            driver += f" ({source.distribution} {source.version})".replace(" )", ")")
        if not d.usable:
            usable = f"no: {d.reason}"
        elif d.capabilities.simulated:
            usable += " (simulated)"
        cells = {
            "device": d.name,
            "type": d.type,
            "version": shortened(d.version),
            "driver": driver,
            "feature level": d.feature_level,
            "runs in": "a process of its own" if d.isolated else "this process",
            "usable": usable,
        }
        rows.append([cells[name] for name in ("device", "type", *about, "runs in", "usable")])
    output.table(("device", "type", *about, "runs in", "usable"), rows)


def describe(device: DeviceInfo) -> dict[str, Any]:
    """A device for `--json`."""
    import msgspec

    names = ("name", "type", "version", "usable", "reason", "only_when_named", "driver")
    return {
        **{name: getattr(device, name) for name in names},
        "distribution": device.source.distribution,
        "distribution_version": device.source.version,
        "entry_point": device.source.entry_point,
        "isolated": device.isolated,
        "feature_level": device.feature_level,
        "capabilities": msgspec.to_builtins(device.capabilities),
    }
