"""Which steps the policy lets the reference device repeat."""

from __future__ import annotations

import pytest

from penstock.ir import ModelBuilder
from penstock.partitioning import Policy, place
from tests.support_devices import NumpyDevice
from tests.unit.partitioning.models import chain

FAST = {"float32": (0.5, 0.5)}
KINDS = ("ADD", "RELU", "RELU", "ADD", "ADD", "ADD")
"""A step of one ADD, one of two RELU, one of three ADD; v0 to v5 are their names."""


def flags(policy: Policy, *more: NumpyDevice) -> list[bool]:
    """Of the three steps, on "adder", "relu" and "adder" again."""
    devices = [NumpyDevice("adder", {"ADD"}, FAST), NumpyDevice("relu", {"RELU"}, FAST), *more]
    plan = place(chain(KINDS), devices, policy)
    assert [step.device for step in plan.steps] == ["adder", "relu", "adder"]
    return ["reference" in step.fallbacks for step in plan.steps]


def test_a_policy_without_demands_lets_every_step() -> None:
    assert flags(Policy()) == [True, True, True]
    assert flags(Policy(), NumpyDevice("reference")) == [True, True, True]


@pytest.mark.parametrize("candidate", [False, True])
@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Policy(forbid={"*": "reference"}), [False, False, False]),
        (Policy(forbid={"RELU": ("gpu", "reference")}), [True, False, True]),
        (Policy(forbid={"v2": "reference"}), [True, False, True]),
        (Policy(forbid={"v0": "reference"}), [False, True, True]),
        (Policy(forbid={"*": "gpu"}), [True, True, True]),
        (Policy(require={"RELU": "relu"}), [True, False, True]),
        (Policy(require={"RELU": ("relu", "reference")}), [True, True, True]),
        (Policy(require={"*": ("adder", "relu")}), [False, False, False]),
        (Policy(require={"v5": "adder"}), [True, True, False]),
    ],
)
def test_forbid_and_require_hold_for_the_fallback(
    policy: Policy, expected: list[bool], candidate: bool
) -> None:
    assert flags(policy, *[NumpyDevice("reference")] * candidate) == expected


@pytest.mark.parametrize(
    ("coverage", "expected"),
    [
        (1.0, [False, False, False]),
        (5.5 / 6, [False, False, False]),
        (5 / 6, [True, False, False]),
        (4 / 6, [True, False, False]),
        (3 / 6, [True, True, False]),
        (1e-9, [True, True, False]),
        (0.0, [True, True, True]),
    ],
)
def test_the_coverage_holds_with_every_step_fallen_back_that_may(
    coverage: float, expected: list[bool]
) -> None:
    assert flags(Policy(min_coverage=coverage)) == expected


def test_the_smallest_steps_are_let_first_wherever_they_are() -> None:
    devices = [NumpyDevice("adder", {"ADD"}, FAST), NumpyDevice("relu", {"RELU"}, FAST)]
    model = chain(["ADD", "ADD", "ADD", "RELU", "RELU", "ADD"])
    plan = place(model, devices, Policy(min_coverage=3 / 6))
    assert ["reference" in step.fallbacks for step in plan.steps] == [False, True, True]
    assert "min_coverage of 0.5 needs it" in plan.steps[0].no_fallback


def test_steps_that_may_not_for_another_reason_use_up_no_coverage() -> None:
    policy = Policy(min_coverage=0.5, forbid={"v0": "reference", "RELU": "reference"})
    assert flags(policy) == [False, False, True]


def test_operations_on_the_reference_device_already_count() -> None:
    devices = [NumpyDevice("adder", {"ADD"}, FAST), NumpyDevice("reference")]
    plan = place(chain(KINDS), devices, Policy(min_coverage=0.5))
    assert [(s.device, "reference" in s.fallbacks) for s in plan.steps] == [
        ("adder", True),
        ("reference", False),
        ("adder", False),
    ]


def test_a_reference_device_that_is_asked_must_have_said_yes() -> None:
    assert flags(Policy(), NumpyDevice("reference", {"RELU"})) == [False, True, False]


def test_a_reference_device_below_the_accuracy_asked_for_repeats_nothing() -> None:
    exact = [
        NumpyDevice("adder", {"ADD"}, FAST, accuracy="exact"),
        NumpyDevice("reference", accuracy="faithful"),
    ]
    plan = place(chain(["ADD"]), exact, Policy(accuracy="exact"))
    assert [(s.device, "reference" in s.fallbacks) for s in plan.steps] == [("adder", False)]


def test_a_model_without_operations() -> None:
    builder = ModelBuilder()
    assert place(builder.build([]), [], Policy(min_coverage=1)).steps == ()
