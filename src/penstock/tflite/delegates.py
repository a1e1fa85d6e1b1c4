"""Delegates as LiteRT's Python interpreter takes and loads them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.errors import NotAvailable

if TYPE_CHECKING:
    from penstock.delegates import Delegate as PythonDelegate

LATER = "native delegates are not available yet; write one with penstock.delegates, or choose engines with devices="


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


def checked(delegate: object) -> PythonDelegate:
    """*delegate*, where it is one of `penstock.delegates`. Raises `AttributeError` for what is no delegate, as LiteRT does,
    `NotAvailable` for another library's.
    """
    from penstock import delegates

    if isinstance(delegate, delegates.Delegate):
        return delegate
    _ = delegate._get_native_delegate_pointer  # type: ignore[attr-defined]  # noqa: SLF001  # how LiteRT tells a delegate
    raise NotAvailable(LATER)
