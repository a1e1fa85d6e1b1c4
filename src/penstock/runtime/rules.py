"""The device names in a policy's rules, held against the devices that there are."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import InputError, PlacementError, Refusal, RefusalCode
from penstock.hal import Device
from penstock.partitioning.policy import Policy
from penstock.runtime.discovery import DeviceInfo, Manager


def check_rules(policy: Policy, chosen: Sequence[Device], manager: Manager) -> None:
    """Refuses rules about devices that do not exist: a misspelt name in `forbid` would forbid
    nothing.

    Known are the devices of the call, every device that *manager* finds, usable or not, and, where
    a driver as a whole cannot be used here, every name that begins with that driver's. Raises
    `InputError`, which names the known ones.
    """
    own = {device.name for device in chosen}
    for label, rules in (("require", policy.require), ("forbid", policy.forbid)):
        for key, value in rules.items():
            for name in (value,) if isinstance(value, str) else value:
                if name in own:
                    continue
                infos = manager.infos()
                if not any(_may_be(name, info) for info in infos):
                    known = ", ".join(sorted(own.union(info.name for info in infos)))
                    raise InputError(
                        f"policy {label}[{key!r}]: no device is named {name!r}; there are {known}"
                    )


def with_unusable(
    error: PlacementError, policy: Policy, manager: Manager, isolate: bool | None
) -> PlacementError:
    """*error*, with the reasons of devices that *policy* requires and that could not be placed on
    because they cannot be used.
    """
    required = {
        name
        for value in policy.require.values()
        for name in ((value,) if isinstance(value, str) else value)
    }
    refusals = dict(error.refusals)
    infos = [info for info in manager.infos(isolate) if not info.usable]
    for name in sorted(required - refusals.keys()):
        for info in infos:
            if _may_be(name, info):
                refusals.setdefault(name, Refusal(RefusalCode.UNUSABLE, info.reason))
    if len(refusals) == len(error.refusals):
        return error
    return PlacementError(error.message, refusals, error.where)


def _may_be(name: str, info: DeviceInfo) -> bool:
    whole_driver = not info.usable and info.name == info.driver
    return name == info.name or (whole_driver and name.startswith(f"{info.name}-"))
