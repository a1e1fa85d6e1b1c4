"""`OpResolverType`: LiteRT's choice of kernels, and the corresponding devices."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from penstock.distribution import FALLBACK_DEVICE
from penstock.partitioning.policy import Policy
from penstock.runtime.discovery import manager
from penstock.tflite import texts

BUILTIN_DEVICE: Final = "xnnpack-builtin"


@enum.unique
class OpResolverType(enum.Enum):
    """LiteRT's sets of kernels, with its names and numbers.

    AUTO and BUILTIN use every usable device, BUILTIN_REF the reference device alone.
    BUILTIN_WITHOUT_DEFAULT_DELEGATES uses LiteRT's optimised kernels without XNNPACK, and the
    reference device for the rest.
    """

    AUTO = 0
    BUILTIN = 1
    BUILTIN_REF = 2
    BUILTIN_WITHOUT_DEFAULT_DELEGATES = 3


class Placed(msgspec.Struct, frozen=True):
    """*devices* (None: all), *policy*, and a *note* if another device replaces LiteRT's."""

    devices: tuple[str, ...] | None = None
    policy: Policy | None = None
    note: str = ""


def placed_by(resolver: object) -> Placed:
    """The placement of *resolver*. Raises `ValueError`, or `TypeError` if it has no hash."""
    hash(resolver)
    if not isinstance(resolver, enum.Enum) or not _is_ours_or_twin(resolver):
        raise ValueError(f"Unrecognized passed in op resolver type: {resolver}")
    if resolver.name == OpResolverType.BUILTIN_REF.name:
        return Placed((FALLBACK_DEVICE,), Policy(accuracy="exact"))
    if resolver.name != OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES.name:
        return Placed()
    if (reason := _unusable(BUILTIN_DEVICE)) is not None:
        told = texts.NO_BUILTIN_KERNELS.format(reason=reason)
        return Placed((FALLBACK_DEVICE,), Policy(accuracy="exact"), told)
    # NNAPI's rule gives the device all operations that it supports, even if the reference is
    # faster.
    return Placed((BUILTIN_DEVICE, FALLBACK_DEVICE), Policy(placement="nnapi"))


def _unusable(device: str) -> str | None:
    """Why no device of that name is usable here; None if one is."""
    if manager.by_name(device) is not None:
        return None
    reasons = [info.reason for info in manager.infos() if info.name == device]
    return reasons[0] if reasons else f"there is no device {device!r}"


def _is_ours_or_twin(resolver: enum.Enum) -> bool:
    """Whether it is a member, or the member of that name in another package's enumeration."""
    known = type(resolver).__name__ == OpResolverType.__name__
    return known and resolver.name in OpResolverType.__members__
