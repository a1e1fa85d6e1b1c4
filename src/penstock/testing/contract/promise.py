"""How a contract check speaks: it returns, raises `Violation`, or raises `NotCovered`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias, TypeVar

from penstock.errors import PenstockError
from penstock.hal import Device

Check: TypeAlias = Callable[[Device], None]
"""A contract check: one promise of `penstock.hal`, tried on a device."""

C = TypeVar("C", bound=Callable[..., None])

VALUE_CHECKS: Final[set[str]] = set()
"""Names of the checks that look at computed values; a device that computes nothing is
spared them.
"""


class Violation(AssertionError):
    """The device breaks the promise; the message says how."""


class NotCovered(Exception):
    """The promise could not be tried on this device; the message says why."""


def needs_values(check: C) -> C:
    """Marks a check that compares computed values."""
    VALUE_CHECKS.add(check.__name__)
    return check


def rule_of(check: Check) -> str:
    """The promise that *check* tries: its name in words, and its docstring where it has one."""
    name = check.__name__.removeprefix("check_").replace("_", " ").capitalize()
    said = " ".join((check.__doc__ or "").split())
    return f"{name}: {said}" if said else f"{name}."


def require(condition: object, complaint: str) -> None:
    """Raises `Violation` with *complaint* unless *condition* holds."""
    if not condition:
        raise Violation(complaint)


@contextmanager
def refused(subject: str, *kinds: type[PenstockError]) -> Iterator[None]:
    """The block must raise one of *kinds*; anything else, and nothing, is a `Violation`."""
    wanted = " or ".join(k.__name__ for k in kinds)
    try:
        yield
    except kinds:
        return
    except Violation:
        raise
    except Exception as error:
        raise Violation(f"{subject}: {describe(error)} was raised, not {wanted}") from error
    raise Violation(f"{subject} was accepted; {wanted} is due")


@contextmanager
def allowed(subject: str, *kinds: type[PenstockError]) -> Iterator[list[PenstockError]]:
    """The block may raise one of *kinds*, which is then put into the list; other errors are a
    `Violation`.
    """
    raised: list[PenstockError] = []
    try:
        yield raised
    except kinds as error:
        raised.append(error)
    except (Violation, NotCovered):
        raise
    except Exception as error:
        raise Violation(f"{subject}: {describe(error)} was raised") from error


def describe(error: BaseException) -> str:
    """Class and message, for complaints."""
    return f"{type(error).__name__}({error})"


def describe_array(array: Any) -> str:
    """A short form of an array, for complaints."""
    return f"{array.dtype}{list(array.shape)} {array.reshape(-1)[:8].tolist()}"
