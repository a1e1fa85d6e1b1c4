"""The distribution's name, which differs from the import name, and the origins of devices."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

DISTRIBUTION: Final = "penstock-nn"
"""The distribution on the package index, normalised. The index's `penstock` is another project."""

FOREIGN: Final = "penstock"
"""Another project's distribution with the same import name, which overwrites this one."""

BY_THE_PROGRAM: Final = "registered by the program"
"""The origin of a device that no entry point brought: an object that the program made itself."""

FALLBACK_DEVICE: Final = "reference"
"""The device of last resort, NNAPI's CPU path, which Penstock always brings."""


def install_command(extra: str) -> str:
    """The shell command that adds *extra*, an optional dependency group of pyproject.toml, to the
    Penstock that is installed.

    pip takes an installed distribution that satisfies the name for it, and asks the index for the
    packages of the group alone: the command works for an installation from a checkout too.
    """
    return f"pip install '{DISTRIBUTION}[{extra}]'"


_origin: ContextVar[str] = ContextVar("penstock_origin", default=BY_THE_PROGRAM)


def current_origin() -> str:
    """The origin of the devices that are being made in this context:
    `distribution:entry-point-name=value`, or `BY_THE_PROGRAM`.

    A device that makes its seal later than itself keeps this text, and makes the seal in a block of
    `made_by`.
    """
    return _origin.get()


@contextmanager
def made_by(origin: str) -> Iterator[None]:
    """Devices that are made in the block, and what they make, are of *origin*."""
    token = _origin.set(origin)
    try:
        yield
    finally:
        _origin.reset(token)


# By id: a foreign device may be equal to another, or not hashable.
_known: Final[dict[int, tuple[Callable[[], object], str]]] = {}


def remember_origin(device: object, origin: str) -> None:
    """Notes that *device* is of *origin*, as long as it lives."""
    key = id(device)
    try:
        found: Callable[[], object] = weakref.ref(device, lambda _: _known.pop(key, None))
    except TypeError:  # its class has slots, and none for that
        found = lambda: device  # noqa: E731
    _known[key] = found, origin


def origin_of(device: object) -> str:
    """The origin of *device*: `distribution:entry-point-name=value`, or `BY_THE_PROGRAM`."""
    found, origin = _known.get(id(device), (None, BY_THE_PROGRAM))
    return origin if found is not None and found() is device else BY_THE_PROGRAM
