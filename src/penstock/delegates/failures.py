"""Calls into an author's code: whatever it raises becomes a `DelegateError` that names the delegate
and the stage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.delegates.api import Delegate
from penstock.errors import FOREIGN, DelegateError
from penstock.logs import Log

log = Log(__name__)


def name_of(delegate: Delegate) -> str:
    """What errors call *delegate*."""
    name = getattr(delegate, "name", "")
    return name if isinstance(name, str) and name else type(delegate).__name__


def call(delegate: Delegate, stage: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of *function*. What another delegate's code has raised inside it stays that
    delegate's.
    """
    try:
        return function(*arguments)
    except DelegateError:
        raise
    except FOREIGN as error:
        raise DelegateError(name_of(delegate), stage, described(error)) from error


def release(delegate: Delegate, stage: str, function: Callable[..., Any], *arguments: Any) -> None:
    """Likewise where nobody could do anything about a failure: it is logged."""
    try:
        function(*arguments)
    except FOREIGN as error:  # an author may raise anything
        log.warning("delegate %s failed in %s: %s", name_of(delegate), stage, described(error))


def overrides(delegate: Delegate, method: str) -> bool:
    """Whether *delegate* has a method of its own in the place of the base's."""
    found = getattr(delegate, method)
    return getattr(found, "__func__", None) is not getattr(Delegate, method)


def described(error: BaseException) -> str:
    """An error's class and text in one line."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
