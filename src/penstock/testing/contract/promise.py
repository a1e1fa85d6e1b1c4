"""Contract checks: a check returns, or raises `Violation` or `NotCovered`; its outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Generic, Literal, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from penstock.errors import FOREIGN, PenstockError
from penstock.hal import Device
from penstock.testing.contract.sharing import sharing

Check: TypeAlias = Callable[[Device], None]
"""A contract check: tests one promise of `penstock.hal` on a device."""

Outcome: TypeAlias = Literal["passed", "failed", "not_covered"]

PAGE: Final = "docs/writing-a-driver.md"

VALUE_CHECKS: Final[set[str]] = set()
"""Names of the checks that compare computed values. They skip devices that compute nothing."""


E = TypeVar("E", bound=PenstockError)


class Violation(AssertionError):
    """The device breaks the promise; the message says how."""


class NotCovered(Exception):
    """The device cannot show the promise; the message says why."""


class Suite:
    """The checks of one part of the contract, in the order in which `check` and `values` add them.

    *section* of `PAGE` explains the rules; *rule* is the name in `penstock.hal` whose docstring
    states them. With *shares* its checks only execute, and use the `SharedModels` of their device.
    """

    def __init__(self, name: str, section: str, rule: str, *, shares: bool = False) -> None:
        self.name, self.shares, self._checks = name, shares, list[Check]()
        self.reading = f"{PAGE}#{section}, help(penstock.hal.{rule})"

    @property
    def checks(self) -> tuple[Check, ...]:
        return tuple(self._checks)

    def check(self, check: Check) -> Check:
        """Adds *check*, as a decorator."""
        if self.shares:
            check = sharing(check)
        self._checks.append(check)
        return check

    def values(self, check: Check) -> Check:
        """Adds a check that compares computed values."""
        VALUE_CHECKS.add(check.__name__)
        return self.check(check)


def named(check: Check, name: str, rule: str) -> Check:
    """Registers the generated *check* under its own name and docstring."""
    check.__name__ = check.__qualname__ = f"check_{name}"
    check.__doc__ = rule
    return check


def rule_of(check: Check) -> str:
    """The promise that *check* tests: its name in words, and its docstring if it has one."""
    name = check.__name__.removeprefix("check_").replace("_", " ").capitalize()
    rule = " ".join((check.__doc__ or "").split())
    return f"{name}: {rule}" if rule else f"{name}."


def require(condition: object, complaint: str) -> None:
    """Raises `Violation` with *complaint* unless *condition* holds."""
    if not condition:
        raise Violation(complaint)


@contextmanager
def allowed(subject: str, *kinds: type[E]) -> Iterator[list[E]]:
    """The block may raise one of *kinds*, which the list gets; other errors are a `Violation`."""
    raised: list[E] = []
    try:
        yield raised
    except kinds as error:
        raised.append(error)
    except (Violation, NotCovered):
        raise
    except Exception as error:
        due = f", not {_either(kinds)}" if kinds else ""
        raise Violation(f"{subject}: {describe(error)} was raised{due}") from error


@contextmanager
def refused(subject: str, *kinds: type[E]) -> Iterator[list[E]]:
    """The block must raise one of *kinds*; any other error, and no error, is a `Violation`."""
    with allowed(subject, *kinds) as raised:
        yield raised
    require(raised, f"{subject} was accepted; {_either(kinds)} is due")


def _either(kinds: Sequence[type[PenstockError]]) -> str:
    return " or ".join(k.__name__ for k in kinds)


def judge(act: Callable[[], object]) -> tuple[Outcome, str]:
    """Calls *act*. Returns its outcome and, unless it passed, the reason; raises nothing."""
    try:
        act()
    except NotCovered as reason:
        return "not_covered", str(reason)
    except AssertionError as violation:
        return "failed", str(violation)
    except FOREIGN as error:  # a driver may raise anything
        return "failed", f"unexpected {describe(error)}"
    return "passed", ""


def describe(error: BaseException) -> str:
    """Class and message, for complaints."""
    return f"{type(error).__name__}({error})"


def describe_array(array: Any) -> str:
    """A short form of an array, for complaints."""
    return f"{array.dtype}{list(array.shape)} {array.reshape(-1)[:8].tolist()}"


class Verdict(Protocol):
    """The result of one check or scenario.

    If it failed, *message* says what was seen, *rule* is the promise in a sentence, and *read* says
    where it is explained.
    """

    @property
    def outcome(self) -> Outcome: ...
    @property
    def message(self) -> str: ...
    @property
    def seconds(self) -> float: ...
    @property
    def rule(self) -> str: ...
    @property
    def read(self) -> str: ...


V = TypeVar("V", bound=Verdict)


class Report(Struct, Generic[V], frozen=True):
    """Counts by outcome, the failures by name, and how often each reason kept a check from being
    covered, most frequent first.
    """

    passed: int
    failed: int
    not_covered: int
    failures: tuple[V, ...]
    not_covered_reasons: dict[str, int]

    @classmethod
    def of(cls, results: Sequence[V]) -> Report[V]:
        """The counts of *results*."""
        outcomes = [r.outcome for r in results]
        failures = tuple(r for r in results if r.outcome == "failed")
        reasons = Counter(r.message for r in results if r.outcome == "not_covered")
        counts = outcomes.count("passed"), len(failures), outcomes.count("not_covered")
        return cls(*counts, failures, dict(reasons.most_common()))

    def reasons(self) -> list[str]:
        """Lines of a table: the reasons why checks are not covered, each with its count."""
        found = self.not_covered_reasons
        return ["not covered:", *(f"{n:5}  {why}" for why, n in found.items())] if found else []

    def summary(self, driver: str) -> str:
        """The last line of a table."""
        counts = f"{self.passed} passed, {self.failed} failed, {self.not_covered} not covered"
        return f"{driver}: {counts}"


def show(label: str, result: Verdict) -> str:
    """The lines of *result* in a table; for a failure also rule, observation, where to read."""
    word = {"passed": "ok", "failed": "FAILED", "not_covered": "-"}[result.outcome]
    line = f"{label} {word:7} {result.seconds * 1e3:8.1f} ms"
    if result.outcome != "failed":
        return f"{line}  {result.message}".rstrip()
    about = (("rule", result.rule), ("seen", result.message), ("read", result.read))
    return "\n".join([line, *(f"    {label}: {text}" for label, text in about if text)])
