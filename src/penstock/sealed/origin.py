"""Where a driver's code comes from: what no driver can say of itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_origin: Final[ContextVar[str]] = ContextVar("penstock.sealed.origin", default="")


def current_origin() -> str:
    """The distribution and entry point whose devices are being made in this context, as
    `distribution:entry-point-name=value`; empty for devices that the program itself made.
    """
    return _origin.get()


@contextmanager
def made_by(origin: str) -> Iterator[None]:
    """In this block, and thread, devices are made for *origin*."""
    token = _origin.set(origin)
    try:
        yield
    finally:
        _origin.reset(token)
