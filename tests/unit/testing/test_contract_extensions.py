"""The suite of extensions catches what it promises to catch: each broken driver fails the check of
its fault.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import pytest

from penstock import hal
from penstock.driverkit import Site
from penstock.errors import GeneralFailure, InvalidArgument
from penstock.ir import Model, NDArray
from penstock.testing.contract import SUITES, run_check
from penstock.testing.doubles import InterceptingDevice, LyingDevice, ScribblingDevice
from penstock.testing.loopback import LoopbackDevice
from tests.support_extensions import EXTENSION, NAME, OTHER, Fibonacci

T = TypeVar("T")

COUNTER: Final = itertools.count()
CHECKS: Final = SUITES["extensions"]


class Restless(Fibonacci):
    """Its answers follow who asks how often."""

    def supported_operations(self, model: Model) -> Sequence[hal.Support]:
        found = list(super().supported_operations(model))
        return found if next(COUNTER) % 2 else found[::-1]


class Changing(InterceptingDevice):
    """Offers another extension each time."""

    @property
    def capabilities(self) -> hal.Capabilities:
        return hal.Capabilities(extensions=(hal.Extension(f"com.example.e{next(COUNTER)}"),))


class Generous(Fibonacci):
    """Says yes to every operation of an extension, of its own or not."""

    def supported_operations(self, model: Model) -> Sequence[hal.Support]:
        answers = super().supported_operations(model)
        return [
            hal.Support(supported=True) if o.type == "EXTENSION" else a
            for o, a in zip(model.operations, answers, strict=True)
        ]


class Strict(Fibonacci):
    """Refuses attributes in compiles."""

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> Any:
        if config.attributes:
            raise GeneralFailure("attributes that nobody knows")
        return super().prepare_model(model, config)


class Lax(Fibonacci):
    """Looks at no attribute."""

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> Any:
        return super().prepare_model(model, hal.PrepareConfig())


class Unsteady(Fibonacci):
    """Gives other numbers each time."""

    def compute(self, site: Site, inputs: Sequence[NDArray | None]) -> list[NDArray]:
        return [a + a.dtype.type(next(COUNTER) % 100) for a in super().compute(site, inputs)]


class FailingEveryOther(Fibonacci):
    """Fails at every second operation."""

    def compute(self, site: Site, inputs: Sequence[NDArray | None]) -> list[NDArray]:
        if next(COUNTER) % 2:
            raise GeneralFailure("as told")
        return super().compute(site, inputs)


class StrictRuns(InterceptingDevice):
    """Refuses attributes in runs."""

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        config = arguments[-1] if arguments else None
        if isinstance(config, hal.ExecutionConfig) and config.attributes:
            raise InvalidArgument("attributes that nobody knows")
        return proceed()


def outcome(device: hal.Device, name: str) -> str:
    (check,) = [c for c in CHECKS if c.__name__ == name]
    result = run_check(device, check)
    assert result.message or result.outcome == "passed"
    return result.outcome


@pytest.mark.parametrize("wrap", [lambda d: d, LoopbackDevice], ids=["plain", "encoded"])
def test_an_honest_driver_passes_every_check(wrap: Callable[[hal.Device], hal.Device]) -> None:
    device = wrap(Fibonacci())
    assert {outcome(device, check.__name__) for check in CHECKS} == {"passed"}


def test_a_driver_without_extensions_is_not_covered() -> None:
    from penstock.drivers.sample import create

    assert {outcome(create(), check.__name__) for check in CHECKS} == {"not_covered"}


def test_a_driver_whose_operations_nobody_finds_is_not_covered() -> None:
    device = Fibonacci(extensions=[hal.Extension(OTHER)])
    assert outcome(device, "check_supported_extension_operations_run") == "not_covered"


@pytest.mark.parametrize(("device", "check"), [
    (Fibonacci(extensions=[hal.Extension("word")]), "check_extensions_are_well_formed"),
    (Fibonacci(extensions=[EXTENSION, EXTENSION]), "check_extensions_are_well_formed"),
    (
        Fibonacci(extensions=[hal.Extension(NAME, (hal.ExtensionOperandType(0, 0),))]),
        "check_extensions_are_well_formed",
    ),
    (Changing(Fibonacci()), "check_extensions_are_well_formed"),
    (Restless(), "check_extension_support_is_pure"),
    (LyingDevice(Fibonacci(), "support_length"), "check_extension_support_is_pure"),
    (Generous(), "check_other_extensions_are_refused"),
    (Generous(), "check_supported_extension_operations_run"),
    (Unsteady(), "check_supported_extension_operations_run"),
    (FailingEveryOther(), "check_supported_extension_operations_run"),
    (ScribblingDevice(Fibonacci(), "inputs"), "check_supported_extension_operations_run"),
    (ScribblingDevice(Fibonacci(), "behind"), "check_supported_extension_operations_run"),
    (Strict(), "check_attributes_are_checked"),
    (StrictRuns(Fibonacci()), "check_attributes_are_checked"),
    (Lax(), "check_attributes_are_checked"),
    (Restless(), "check_extensions_are_the_same_through_messages"),
    (Changing(Fibonacci()), "check_extensions_are_the_same_through_messages"),
], ids=lambda v: v if isinstance(v, str) else type(v).__name__)  # fmt: skip
def test_a_broken_driver_fails_the_check_of_its_fault(device: hal.Device, check: str) -> None:
    assert outcome(device, check) == "failed"


def test_a_driver_that_refuses_all_made_up_values_is_not_covered() -> None:
    class Refusing(Fibonacci):
        def compute(self, site: Site, inputs: Sequence[NDArray | None]) -> list[NDArray]:
            raise GeneralFailure("as told")

    assert outcome(Refusing(), "check_supported_extension_operations_run") == "not_covered"
