"""The greedy rule, after NNAPI's PartitioningTest and PerfTest (NNAPI sections 4.3, 4.4, 4.10)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from penstock.hal import PerformanceInfo, Preference
from penstock.ir import DType, Model, ModelBuilder
from penstock.partitioning import ExecutionPlan, Policy, place as place_by
from tests.support_devices import NumpyDevice, evaluate, run_plan
from tests.unit.partitioning.models import SHAPE, Net, chain

# NNAPI's sample drivers: execution time and power usage of each.
FLOAT_FAST = {"float32": (0.8, 1.2)}
FLOAT_SLOW = {"float32": (1.3, 0.7)}
MINIMAL = {"float32": (0.4, 0.5)}


NNAPI = Policy(placement="nnapi")


def place(
    model: Model,
    devices: Sequence[NumpyDevice],
    policy: Policy = NNAPI,
    preference: Preference = "fast_single_answer",
) -> ExecutionPlan:
    return place_by(model, devices, policy, preference)


def where(plan: ExecutionPlan) -> list[str]:
    return [placement.device for placement in plan.operations]


def steps(plan: ExecutionPlan) -> list[tuple[str, list[str]]]:
    entry = plan.model.entry
    return [(s.device, [entry.operation_name(i) for i in s.operations]) for s in plan.steps]


def samples() -> list[NumpyDevice]:
    return [
        NumpyDevice("float_fast", performance=FLOAT_FAST),
        NumpyDevice("float_slow", performance=FLOAT_SLOW),
        NumpyDevice("minimal", {"ADD", "CONCATENATION"}, MINIMAL),
        NumpyDevice("reference"),
    ]


def test_one_device_for_everything_gets_the_model_itself() -> None:
    model = chain(["ADD", "RELU", "MUL"])
    plan = place(model, [NumpyDevice("a"), NumpyDevice("b", performance={"float32": (0.5, 1.0)})])
    (step,) = plan.steps
    assert step.device == "b"
    assert step.model is model
    assert (step.inputs, step.outputs) == (model.entry.inputs, model.entry.outputs)
    assert step.operations == (0, 1, 2)


@pytest.mark.parametrize(
    ("preference", "expected"),
    [
        ("fast_single_answer", ["minimal", "float_fast", "float_fast", "minimal"]),
        ("sustained_speed", ["minimal", "float_fast", "float_fast", "minimal"]),
        ("low_power", ["minimal", "float_slow", "float_slow", "minimal"]),
    ],
)
def test_each_operation_goes_to_its_cheapest_device(
    preference: Preference, expected: list[str]
) -> None:
    plan = place(chain(["ADD", "RELU", "MUL", "ADD"]), samples(), preference=preference)
    assert where(plan) == expected
    assert [s.device for s in plan.steps] == [expected[0], expected[1], expected[3]]


def test_reasons_name_every_other_device() -> None:
    plan = place(chain(["ADD", "RELU"]), samples())
    assert plan.devices == ("float_fast", "float_slow", "minimal", "reference")
    assert dict(plan.operations[0].reasons) == {
        "float_fast": "execution time 0.8, on minimal 0.4",
        "float_slow": "execution time 1.3, on minimal 0.4",
        "reference": "execution time 1, on minimal 0.4",
    }
    assert dict(plan.operations[1].reasons) == {
        "float_slow": "execution time 1.3, on float_fast 0.8",
        "minimal": "minimal has no RELU",
        "reference": "execution time 1, on float_fast 0.8",
    }


def test_equal_costs_stay_with_the_first_device() -> None:
    plan = place(chain(["ADD"]), [NumpyDevice("a"), NumpyDevice("b")])
    assert where(plan) == ["a"]
    assert plan.operations[0].reasons["b"] == "execution time no better than on a, which goes first"


@pytest.mark.parametrize("order", [0, 1])
def test_the_reference_device_wins_equal_costs_and_stands_last(order: int) -> None:
    devices = [NumpyDevice("a"), NumpyDevice("reference")]
    plan = place(chain(["ADD"]), devices if order else devices[::-1])
    assert where(plan) == ["reference"]
    assert plan.devices == ("a", "reference")


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT32, DType.FLOAT16, DType.INT8])
def test_performance_is_looked_up_by_the_type_of_the_first_input(dtype: DType) -> None:
    net = Net()
    x = net.source("x", dtype)
    model = net.build([net.op("ADD", "y", x, x, dtype=dtype)])
    fast = NumpyDevice("fast", performance={dtype.value: (0.5, 0.5)}, other=(9.0, 9.0))
    assert where(place(model, [NumpyDevice("even"), fast])) == ["fast"]
    slow = NumpyDevice("slow", performance={dtype.value: (9.0, 9.0)}, other=(0.5, 0.5))
    assert where(place(model, [slow, NumpyDevice("even")])) == ["even"]


def test_a_type_without_performance_costs_more_than_any_other() -> None:
    silent = NumpyDevice("silent", other=None)
    plan = place(chain(["ADD"]), [silent, NumpyDevice("slow", other=(1e30, 1.0))])
    assert where(plan) == ["slow"]
    expected = "declares no execution time for this element type; slow does"
    assert plan.operations[0].reasons["silent"] == expected
    assert where(place(chain(["ADD"]), [silent])) == ["silent"]


def test_invalid_performance_counts_as_unknown() -> None:
    for value in (float("nan"), 0.0, -1.0):
        liar = NumpyDevice("liar", performance={"float32": (value, value)})
        assert where(place(chain(["ADD"]), [liar, NumpyDevice("honest")])) == ["honest"]


def test_sandwich() -> None:
    """NNAPI's PartitioningTest Cpu: what only the reference has lies between two device
    partitions.
    """
    model = chain(["ADD", "ADD", "RELU", "RELU", "ADD", "ADD"])
    devices = [NumpyDevice("dsp", {"ADD"}, MINIMAL), NumpyDevice("reference")]
    plan = place(model, devices)
    assert steps(plan) == [
        ("dsp", ["v0", "v1"]),
        ("reference", ["v2", "v3"]),
        ("dsp", ["v4", "v5"]),
    ]
    x = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
    assert run_plan(plan, devices, [x])[0].tobytes() == evaluate(model, [x])[0].tobytes()


def test_ready_operations_are_gathered() -> None:
    """Two chains a -> b side by side: one partition of each device, not two."""
    net = Net()
    x = net.source("x")
    left, right = net.relu("left", x), net.relu("right", x)
    model = net.build([net.add("sum_left", left, left), net.add("sum_right", right, right)])
    plan = place(model, [NumpyDevice("r", {"RELU"}), NumpyDevice("a", {"ADD"})])
    assert steps(plan) == [("r", ["left", "right"]), ("a", ["sum_left", "sum_right"])]


def test_the_last_device_with_ready_operations_runs_first() -> None:
    """So that earlier devices gather inputs; the reference counts as last."""
    net = Net()
    x = net.source("x")
    early, late = net.add("early", x, x), net.relu("late", x)
    model = net.build([net.add("end", early, late)])
    plan = place(model, [NumpyDevice("reference", {"RELU"}), NumpyDevice("a", {"ADD"})])
    assert steps(plan) == [("reference", ["late"]), ("a", ["early", "end"])]


def test_a_value_read_twice_by_one_operation_makes_it_ready_once() -> None:
    devices = [NumpyDevice("r", {"RELU"}), NumpyDevice("a", {"ADD"})]
    plan = place(chain(["RELU", "ADD", "RELU"]), devices)
    assert steps(plan) == [("r", ["v0"]), ("a", ["v1"]), ("r", ["v2"])]


def branches() -> Model:
    """An IF whose branches are 1 and 3 operations, after an ADD."""
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, SHAPE, "x")
    truth = builder.constant(np.array(True))
    indexes = []
    for count in (1, 3):
        inner = builder.subgraph()
        y = inner.input(DType.FLOAT32, SHAPE)
        for _ in range(count):
            (y,) = inner.operation("RELU", [y], [(DType.FLOAT32, SHAPE)])
        indexes.append(builder.add_subgraph(inner.finish([y])))
    (y,) = builder.operation(
        "IF",
        [truth, x],
        [(DType.FLOAT32, SHAPE)],
        {"then_subgraph_index": indexes[0], "else_subgraph_index": indexes[1]},
    )
    return builder.build([y])


@pytest.mark.parametrize(("cost", "winner"), [(1.4, "a"), (1.6, "b")])
def test_an_if_costs_its_own_and_half_of_both_branches(cost: float, winner: str) -> None:
    """On b 1 + 0.5 x (1 + 3) x 1 = 3; on a 0.1 + 0.5 x (1 + 3) x cost = 2.9 or 3.3."""
    a = NumpyDevice("a", performance={"float32": (cost, 1.0)}, if_performance=PerformanceInfo(0.1))
    b = NumpyDevice("b")
    assert where(place(branches(), [a, b])) == [winner]


def test_a_while_costs_its_own_condition_and_body() -> None:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (), "x")
    condition, body = builder.subgraph(), builder.subgraph()
    c = condition.input(DType.FLOAT32, ())
    limit = condition.constant(np.array(100, np.float32))
    (less,) = condition.operation("LESS", [c, limit], [(DType.BOOL, ())])
    b = body.input(DType.FLOAT32, ())
    (double,) = body.operation("ADD", [b, b], [(DType.FLOAT32, ())])
    attributes = {
        "cond_subgraph_index": builder.add_subgraph(condition.finish([less])),
        "body_subgraph_index": builder.add_subgraph(body.finish([double])),
    }
    (y,) = builder.operation("WHILE", [x], [(DType.FLOAT32, ())], attributes)
    model = builder.build([y])
    # 0.5 + 2 x 1.2 = 2.9 against 1 + 2 x 1 = 3.
    quick = NumpyDevice(
        "quick", performance={"float32": (1.2, 1.0)}, while_performance=PerformanceInfo(0.5)
    )
    assert where(place(model, [NumpyDevice("plain"), quick])) == ["quick"]
    start = np.array(3, np.float32)
    assert run_plan(place(model, [quick]), [quick], [start])[0] == 192
