"""Delegates as LiteRT's Python interpreter accepts and loads them. Imported on first use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock import delegates
from penstock.delegates.native import NativeDelegate, loaded
from penstock.errors import NotAvailable

FOREIGN: Final = (
    "a delegate that LiteRT loaded cannot be added; penstock.tflite.load_delegate loads the same "
    "library"
)
IS_NONE: Final = (
    "{} is no delegate; load_delegate gives one, and so does a class of penstock.delegates"
)


class Delegate(NativeDelegate):
    """A TFLite delegate in the shared library *library*, run by LiteRT.

    See `penstock.delegates.load_delegate`. Raises `DelegateNotLoaded`, a `ValueError` and an
    `OSError`, if the library cannot be loaded or LiteRT is not installed; `AttributeError` for a
    library without a delegate; `ValueError` with the library's message if it refuses to create one.
    """

    # LiteRT's words for a missing argument name its class.
    def __init__(self, library: str, options: Mapping[Any, Any] | None = None) -> None:
        super().__init__(library, options)


def load_delegate(library: str, options: Mapping[Any, Any] | None = None) -> Delegate:
    """The TFLite delegate in the shared library *library*, run by LiteRT. *options* are passed as
    text.

    Raises as `Delegate` does. A `ValueError` of the library names it, as in LiteRT.
    """
    return loaded(Delegate, library, options)


def every(given: object) -> list[delegates.Delegate]:
    """The delegates of a list. Raises as `checked`, and `TypeError` for no list."""
    try:
        listed: list[object] = list(given)  # type: ignore[call-overload]  # anything may be given
    except TypeError as error:
        remedy = "experimental_delegates must be a list of delegates"
        raise TypeError(f"{error}: {remedy}; for one, [delegate]") from None
    return [checked(delegate) for delegate in listed]


def checked(delegate: object) -> delegates.Delegate:
    """*delegate*, if it is one of ours. Raises `AttributeError` as LiteRT, or `NotAvailable`."""
    if isinstance(delegate, delegates.Delegate):
        return delegate
    if isinstance(delegate, type) and issubclass(delegate, delegates.Delegate):
        name = delegate.__name__
        text = f"{name} is a class; a delegate is an object of it: {name}()"
        raise AttributeError(text)  # noqa: TRY004  # as LiteRT
    try:
        # LiteRT identifies a delegate by this attribute.
        getattr(delegate, "_get_native_delegate_pointer")  # noqa: B009  # its own name
    except AttributeError as error:
        raise AttributeError(f"{error}: {IS_NONE.format(type(delegate).__name__)}") from None
    raise NotAvailable(FOREIGN)
