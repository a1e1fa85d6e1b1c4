"""Operations of which nothing is read in the end are neither priced nor run, and count in no
limit.
"""

from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import PlacementError
from penstock.ir import Model
from penstock.partitioning import Policy, place
from penstock.partitioning.placement import NOT_READ
from penstock.partitioning.policy import PlacementRule
from tests.support_devices import NumpyDevice, evaluate, run_plan
from tests.unit.partitioning.models import Net

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
RULES: list[PlacementRule] = ["cost", "nnapi"]


def network(*, dead: bool) -> Model:
    """RELU, ADD, RELU; with *dead* each followed by what nobody reads, of every type."""
    net = Net()
    at = net.source("x")
    for index, kind in enumerate(("RELU", "ADD", "RELU")):
        at = net.op(kind, f"v{index}", *([at] if kind == "RELU" else [at, at]))
        if dead and index < 2:
            unread = net.op("ADD", f"unread{index}", at, at)
            net.op("RELU", f"unread_too{index}", unread)
    return net.build([at])


def devices() -> list[NumpyDevice]:
    fast = {"float32": (0.01, 0.01)}
    return [NumpyDevice("adder", {"ADD"}, fast), NumpyDevice("reference")]


@pytest.mark.parametrize("rule", RULES)
def test_unread_operations_are_neither_priced_nor_run(rule: PlacementRule) -> None:
    policy = Policy(placement=rule)
    plan, without = (place(network(dead=dead), devices(), policy) for dead in (True, False))
    assert [s.operations for s in without.steps] == [(0,), (1,), (2,)]
    assert [s.operations for s in plan.steps] == [(0,), (3,), (6,)]
    assert [s.model.digest for s in plan.steps] == [s.model.digest for s in without.steps]
    assert plan.predicted_ns == without.predicted_ns
    assert plan.alternatives == without.alternatives
    assert run_plan(plan, devices(), [X])[0].tobytes() == evaluate(plan.model, [X])[0].tobytes()


@pytest.mark.parametrize("rule", RULES)
def test_plan_shows_unread_operations(rule: PlacementRule) -> None:
    plan = place(network(dead=True), devices(), Policy(placement=rule))
    assert [p.index for p in plan.operations] == list(range(7))
    assert [plan.operations[i].device for i in (1, 2)] == ["adder", "reference"]
    assert plan.operations[1].refusals == {"reference": NOT_READ}
    assert dict(plan.operations[2].reasons).keys() == {"adder"}
    assert "not run, because nothing reads the results: 1-2, 4-5" in plan.show()


@pytest.mark.parametrize("rule", RULES)
def test_single_device_runs_no_unread_operation(rule: PlacementRule) -> None:
    plan = place(network(dead=True), [NumpyDevice("reference")], Policy(placement=rule))
    assert [s.operations for s in plan.steps] == [(0, 3, 6)]
    assert plan.steps[0].model.digest == network(dead=False).digest


def test_unread_operations_need_no_device() -> None:
    net = Net()
    x = net.source("x")
    y = net.relu("y", x)
    net.op("MUL", "unread", y, y)
    only = [NumpyDevice("a", {"RELU"})]
    plan = place(net.build([y]), only)
    assert [s.operations for s in plan.steps] == [(0,)]
    (_, unread) = plan.operations
    assert unread.device == "a"
    assert np.array_equal(run_plan(plan, only, [X])[0], np.maximum(X, 0))


def test_model_without_read_operations_has_no_step() -> None:
    net = Net()
    x = net.source("x")
    net.relu("unread", x)
    for given in (devices(), [NumpyDevice("reference")]):
        plan = place(net.build([x]), given)
        assert (plan.steps, plan.predicted_ns) == ((), 0)
        assert [p.device for p in plan.operations] == ["reference"]


def test_limits_ignore_unread_operations() -> None:
    """One operation of three runs off the reference; with the unread ones it would be three of
    seven.
    """
    plan = place(network(dead=True), devices(), Policy(placement="nnapi", min_coverage=1 / 3))
    assert [s.device for s in plan.steps] == ["reference", "adder", "reference"]
    with pytest.raises(PlacementError, match="2 of 3 operations"):
        place(network(dead=True), devices(), Policy(placement="nnapi", min_coverage=0.4))


def test_given_assignment_includes_unread_operations() -> None:
    model = network(dead=True)
    given = ["reference"] * 7
    plan = place(model, devices(), assignment=given)
    assert [s.operations for s in plan.steps] == [(0, 3, 6)]
    assert [s.device for s in plan.steps] == ["reference"]
    spread = ["reference", "reference", "reference", "adder", "adder", "reference", "reference"]
    assert [s.device for s in place(model, devices(), assignment=spread).steps] == [
        "reference", "adder", "reference",
    ]  # fmt: skip


def test_an_error_names_the_operation_by_its_own_index() -> None:
    net = Net()
    x = net.source("x")
    net.relu("unread", x)
    y = net.op("MUL", "y", x, x)
    with pytest.raises(PlacementError, match=r"operation 1 \(MUL 'y'\): no device"):
        place(net.build([y]), [NumpyDevice("a", {"RELU"})])


def test_a_fall_back_of_the_whole_model_leaves_them_out() -> None:
    from penstock.partitioning.fallback import whole_step

    assert whole_step(network(dead=True)).operations == (0, 3, 6)
