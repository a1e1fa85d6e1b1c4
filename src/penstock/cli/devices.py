"""`penstock devices`: every device that a driver offers, usable or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

import penstock
from penstock.cli.output import output_of, shortened
from penstock.distribution import DISTRIBUTION

if TYPE_CHECKING:
    from penstock import DeviceInfo


def devices(context: typer.Context) -> None:
    """List every device, and why it cannot be used where it cannot."""
    output = output_of(context)
    found = penstock.devices()
    output.table(
        ("device", "type", "version", "driver", "runs in", "usable"),
        [
            (d.name, d.type, shortened(d.version), brought_by(d), runs_in(d), usable(d))
            for d in found
        ],
    )
    output.json({"devices": [describe(d) for d in found]})


def usable(device: DeviceInfo) -> str:
    """`yes`, `when named`, either with `(simulated)`, or `no: ` and the reason."""
    if not device.usable:
        return f"no: {device.reason}"
    named = "when named" if device.only_when_named else "yes"
    return f"{named} (simulated)" if device.capabilities.simulated else named


def brought_by(device: DeviceInfo) -> str:
    """The device's driver, with the distribution that it is of where that is not Penstock."""
    source = device.source
    if source.distribution in {"", DISTRIBUTION}:
        return device.driver
    return f"{device.driver} ({source.distribution} {source.version})".replace(" )", ")")


def runs_in(device: DeviceInfo) -> str:
    """Which process the device's driver runs in."""
    return "a process of its own" if device.isolated else "this process"


def describe(device: DeviceInfo) -> dict[str, Any]:
    """What `--json` says about a device."""
    import msgspec

    return {
        "name": device.name,
        "type": device.type,
        "version": device.version,
        "usable": device.usable,
        "reason": device.reason,
        "only_when_named": device.only_when_named,
        "driver": device.driver,
        "distribution": device.source.distribution,
        "distribution_version": device.source.version,
        "entry_point": device.source.entry_point,
        "isolated": device.isolated,
        "feature_level": device.feature_level,
        "capabilities": msgspec.to_builtins(device.capabilities),
    }
