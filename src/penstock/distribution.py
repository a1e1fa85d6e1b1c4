"""The distribution's name, which differs from the import name, and the origins of devices."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

DISTRIBUTION: Final = "penstock-nn"
"""The distribution's normalised name on the package index. `penstock` there is another project."""

FOREIGN: Final = "penstock"
"""Another project's distribution with the same import name, which overwrites this one."""

BY_THE_PROGRAM: Final = "registered by the program"
"""The origin of a device object that the program made, without an entry point."""

FALLBACK_DEVICE: Final = "reference"
"""The device of last resort, which is part of Penstock (NNAPI's CPU path)."""

WITH_SHADERS: Final = frozenset({"webgpu"})
"""Drivers of Penstock for whose engines the system keeps compiled shaders in files."""

LAST_RESORT: Final = f"{FALLBACK_DEVICE} (this process)"
"""Name of the reference device in the caller's process, used after an isolated one."""


def install_command(extra: str) -> str:
    """The shell command that installs *extra*, an optional dependency group of pyproject.toml.

    pip accepts the installed distribution as satisfying the name, and gets only the group's
    packages from the index. So the command also works for an installation from a checkout.
    """
    return f"pip install '{DISTRIBUTION}[{extra}]'"


_origin: ContextVar[str] = ContextVar("penstock_origin", default=BY_THE_PROGRAM)


def current_origin() -> str:
    """The origin of devices made in this context.

    It is `distribution:entry-point-name=value`, or `BY_THE_PROGRAM`. A device that makes its seal
    later stores this text, and makes the seal in a block of `made_by`.
    """
    return _origin.get()


@contextmanager
def made_by(origin: str) -> Iterator[None]:
    """Within the block, devices and what they make have the origin *origin*."""
    token = _origin.set(origin)
    try:
        yield
    finally:
        _origin.reset(token)


# Keyed by id, because a foreign device may be unhashable or equal to another.
_known: Final[dict[int, tuple[Callable[[], object], str]]] = {}


def remember_origin(device: object, origin: str) -> None:
    """Records *origin* for *device*, as long as the device lives."""
    key = id(device)
    try:
        found: Callable[[], object] = weakref.ref(device, lambda _: _known.pop(key, None))
    except TypeError:  # its class has slots and no slot for weak references
        found = lambda: device  # noqa: E731
    _known[key] = found, origin


def origin_of(device: object) -> str:
    """The origin of *device*: `distribution:entry-point-name=value`, or `BY_THE_PROGRAM`."""
    found, origin = _known.get(id(device), (None, BY_THE_PROGRAM))
    return origin if found is not None and found() is device else BY_THE_PROGRAM
