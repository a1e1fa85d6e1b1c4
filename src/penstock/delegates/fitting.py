"""Which built-in delegates suit this machine, and why. Experimental until 1.0."""

from __future__ import annotations

from msgspec import Struct

from penstock.delegates.coreml import COREML, missing, this_host
from penstock.delegates.gpu import GPU
from penstock.delegates.hexagon import HEXAGON
from penstock.delegates.kinds import Kind, find_device, is_relaxed_alone
from penstock.distribution import FALLBACK_DEVICE
from penstock.errors import DeviceUnavailable
from penstock.runtime.discovery import manager


class Fit(Struct, frozen=True):
    """A built-in delegate: the *device* that it would use, whether it *fits*, and *why*."""

    delegate: str
    device: str
    fits: bool
    why: str


def fitting() -> list[Fit]:
    """Every built-in delegate, the most suitable first."""
    return [
        _of_kind("CoreMLDelegate", COREML),
        _of_kind("GpuDelegate", GPU),
        _of_kind("HexagonDelegate", HEXAGON),
        _runtime(),
    ]


def _of_kind(delegate: str, kind: Kind) -> Fit:
    try:
        device, info = find_device(kind)
    except DeviceUnavailable:
        known = [i for i in manager.infos() if not kind.mismatch(i)]
        reasons = "; ".join(f"{i.name} cannot be used: {i.reason}" for i in known)
        return Fit(delegate, "", False, reasons or "no installed driver has a device of this kind")
    if kind is COREML and (reason := missing(info, "neural_engine", 0, this_host())):
        return Fit(delegate, info.name, False, reason)
    if info.capabilities.simulated:
        return Fit(delegate, info.name, False, f"{info.name} only stands for such hardware")
    why = f"{info.name} ({info.driver}) is such a device"
    if is_relaxed_alone(device, info):
        why += (
            "; it computes in the accuracy class relaxed alone: give is_precision_loss_allowed=True"
        )
    return Fit(delegate, info.name, True, why)


def _runtime() -> Fit:
    names = [
        i.name
        for i in manager.infos()
        if i.usable and not i.only_when_named and i.name != FALLBACK_DEVICE
    ]
    if not names:
        why = "no device but the reference one is usable without being named"
        return Fit("NnapiDelegate", "", False, why)
    why = (
        f"it gives the whole runtime ({', '.join(names)}) what these support; an interpreter "
        "without any delegate uses them too"
    )
    return Fit("NnapiDelegate", ", ".join(names), True, why)
