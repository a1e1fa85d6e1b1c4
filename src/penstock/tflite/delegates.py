"""Delegates as LiteRT's Python interpreter loads them: the names are here, the feature comes later."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from penstock.errors import NotAvailable

LATER = "delegates are not available yet; choose engines with devices= instead"


class DelegateNotLoaded(NotAvailable, ValueError, OSError):
    """A delegate's library cannot be loaded: a `ValueError`, as LiteRT documents it, and an `OSError`, which LiteRT
    raises for a missing one. Programs that catch either go on without a delegate.
    """


class Delegate:
    """A TFLite delegate in a shared library. Not available yet.

    Raises `DelegateNotLoaded` for a library that cannot be loaded, and for a delegate: it works on a graph of
    TFLite's own, which Penstock does not have. `AttributeError` for a library that makes no delegate.
    """

    def __init__(self, library: str, options: Mapping[Any, Any] | None = None) -> None:
        try:
            loaded = ctypes.PyDLL(library)
        except OSError as error:
            raise DelegateNotLoaded(f"{error}\nFailed to load delegate from {library}") from error
        _ = loaded.tflite_plugin_create_delegate
        raise DelegateNotLoaded(f"Failed to load delegate from {library}\n{LATER}")


def load_delegate(library: str, options: Mapping[Any, Any] | None = None) -> Delegate:
    """The delegate in the shared library *library*; errors as `Delegate`."""
    return Delegate(library, options)


def check(delegates: Iterable[Any]) -> None:
    """Raises `AttributeError` for what is no delegate, as LiteRT does, `NotAvailable` for what is one."""
    for delegate in delegates:
        _ = delegate._get_native_delegate_pointer  # noqa: SLF001  # how LiteRT tells a delegate
        refuse()


def refuse() -> NoReturn:
    """Raises the `NotAvailable` of everything that needs delegates."""
    raise NotAvailable(LATER)
