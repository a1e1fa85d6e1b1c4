"""Delegates as LiteRT's Python interpreter takes and loads them. What they need is imported when
one is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import NotAvailable

if TYPE_CHECKING:
    from penstock.delegates import Delegate as PythonDelegate
    from penstock.tflite.native import Delegate

FOREIGN: Final = (
    "a delegate that LiteRT loaded cannot be added; penstock.tflite.load_delegate loads the same "
    "library"
)


IS_NONE: Final = (
    "{} is no delegate; load_delegate gives one, and so does a class of penstock.delegates"
)


def every(given: object) -> list[PythonDelegate]:
    """The delegates of an interpreter's *experimental_delegates*. Raises as `checked`, and
    `TypeError` for another object than a list.
    """
    if not given:
        return []
    try:
        listed: list[object] = list(given)  # type: ignore[call-overload]  # anything may be given
    except TypeError as error:
        remedy = "experimental_delegates must be a list of delegates"
        raise TypeError(f"{error}: {remedy}; for one, [delegate]") from None
    return [checked(delegate) for delegate in listed]


def load_delegate(library: str, options: Mapping[Any, Any] | None = None) -> Delegate:
    """The TFLite delegate in the shared library *library*, which LiteRT runs. *options* reach it as
    text.

    Raises as `Delegate` does; a `ValueError` of the library's names it, as LiteRT's does.
    """
    from penstock.delegates.native import loaded
    from penstock.tflite.native import Delegate

    return loaded(Delegate, library, options)


def checked(delegate: object) -> PythonDelegate:
    """*delegate* if it is one of `penstock.delegates`. Raises `AttributeError` for another object,
    as LiteRT does, `NotAvailable` for another library's delegate.
    """
    from penstock import delegates

    if isinstance(delegate, delegates.Delegate):
        return delegate
    if isinstance(delegate, type) and issubclass(delegate, delegates.Delegate):
        name = delegate.__name__
        text = f"{name} is a class; a delegate is an object of it: {name}()"
        raise AttributeError(text)  # noqa: TRY004  # as LiteRT
    try:
        # This is how LiteRT recognises a delegate.
        getattr(delegate, "_get_native_delegate_pointer")  # noqa: B009  # its own name
    except AttributeError as error:
        raise AttributeError(f"{error}: {IS_NONE.format(type(delegate).__name__)}") from None
    raise NotAvailable(FOREIGN)
