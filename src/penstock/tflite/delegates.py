"""Delegates as LiteRT's Python interpreter loads them: the names are here, the feature comes later."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, NoReturn

from penstock.errors import NotAvailable

LATER = "delegates are not available yet; choose engines with devices= instead"


class DelegateNotLoaded(ValueError, OSError):
    """The library of a delegate cannot be loaded: a ValueError, as LiteRT documents it, and the OSError that
    LiteRT raises.
    """


class Delegate:
    """A TFLite delegate in a shared library. Not available yet.

    Raises `DelegateNotLoaded` (ValueError and OSError) for a library that cannot be loaded, else `NotAvailable`.
    """

    def __init__(self, library: str, options: Mapping[Any, Any] | None = None) -> None:
        try:
            ctypes.PyDLL(library)
        except OSError as error:
            raise DelegateNotLoaded(f"Failed to load delegate from {library}\n{error}") from error
        refuse()


def load_delegate(library: str, options: Mapping[Any, Any] | None = None) -> Delegate:
    """The delegate in the shared library *library*; errors as `Delegate`."""
    return Delegate(library, options)


def refuse() -> NoReturn:
    """Raises the `NotAvailable` of everything that needs delegates."""
    raise NotAvailable(LATER)
