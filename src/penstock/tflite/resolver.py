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
    # A member of another package's enumeration of that name is as good.
    if type(resolver).__name__ != OpResolverType.__name__ or not (
        isinstance(resolver, enum.Enum) and resolver.name in OpResolverType.__members__
    ):
        raise ValueError(f"Unrecognized passed in op resolver type: {resolver}")
    if resolver.name == OpResolverType.BUILTIN_REF.name:
        return Placed((FALLBACK_DEVICE,), Policy(accuracy="exact"))
    if resolver.name != OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES.name:
        return Placed()
    if manager.by_name(BUILTIN_DEVICE) is not None:
        # NNAPI's rule gives the device all operations that it supports, even if the reference is
        # faster.
        return Placed((BUILTIN_DEVICE, FALLBACK_DEVICE), Policy(placement="nnapi"))
    reasons = [info.reason for info in manager.infos() if info.name == BUILTIN_DEVICE]
    reason = reasons[0] if reasons else f"there is no device {BUILTIN_DEVICE!r}"
    note = texts.NO_BUILTIN_KERNELS.format(reason=reason)
    return Placed((FALLBACK_DEVICE,), Policy(accuracy="exact"), note)
