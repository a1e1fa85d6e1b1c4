"""`OpResolverType`: which kernels LiteRT takes, and which devices stand for them here."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

REFERENCE_DEVICE: Final = "reference"


@enum.unique
class OpResolverType(enum.Enum):
    """LiteRT's sets of kernels, with its names and numbers.

    AUTO, BUILTIN and BUILTIN_WITHOUT_DEFAULT_DELEGATES place on every usable device (no delegate is ever
    applied by default); BUILTIN_REF on the reference device alone.
    """

    AUTO = 0
    BUILTIN = 1
    BUILTIN_REF = 2
    BUILTIN_WITHOUT_DEFAULT_DELEGATES = 3


def devices_for(resolver: object) -> Sequence[str] | None:
    """The devices that *resolver* places on, None for all. Raises `ValueError` for anything else,
    `TypeError` for what does not hash.
    """
    hash(resolver)
    if not isinstance(resolver, enum.Enum) or not _is_ours_or_twin(resolver):
        raise ValueError(f"Unrecognized passed in op resolver type: {resolver}")
    return [REFERENCE_DEVICE] if resolver.name == OpResolverType.BUILTIN_REF.name else None


def _is_ours_or_twin(resolver: enum.Enum) -> bool:
    """Whether it is a member, or the member of that name of another package's enumeration."""
    known = type(resolver).__name__ == OpResolverType.__name__
    return known and resolver.name in OpResolverType.__members__
