"""Control flow in plans, after NNAPI's ControlFlowPartitioningTest (NNAPI sections 4.3, 4.4,
4.10).
"""

from __future__ import annotations

import numpy as np
import pytest

from penstock.ir import DType, Model, ModelBuilder, NDArray, Operand, Shape
from penstock.partitioning import ExecutionPlan, Policy, place
from penstock.partitioning.control import MOST_DEPTH
from penstock.partitioning.policy import PlacementRule
from penstock.partitioning.split import extract
from tests.support_devices import NumpyDevice, evaluate, run_plan

FAST = {"float32": (0.01, 0.01), "bool": (0.01, 0.01), "int32": (0.01, 0.01)}
RULES: list[PlacementRule] = ["cost", "nnapi"]
SHAPE: Shape = (300, 200)
X = np.linspace(-2, 2, 60_000, dtype=np.float32).reshape(300, 200)


def floats(name: str, shape: Shape = SHAPE) -> Operand:
    return Operand(DType.FLOAT32, shape, name=name)


def chain(builder: ModelBuilder, kinds: list[str], label: str, shape: Shape = SHAPE) -> int:
    inner = builder.subgraph(label)
    at = inner.input(DType.FLOAT32, shape, f"{label}_x")
    for index, kind in enumerate(kinds):
        inputs = [at] if kind in {"RELU", "NEG"} else [at, at]
        (at,) = inner.operation(kind, inputs, [floats(f"{label}_{index}", shape)])
    return builder.add_subgraph(inner.finish([at]))


def branching(
    then: list[str], otherwise: list[str], constant: bool | None = None, shape: Shape = SHAPE
) -> Model:
    """RELU, then an IF of these, then NEG; the condition is an input, or a *constant*."""
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, shape, "x")
    if constant is None:
        condition = builder.input(DType.BOOL, (), "condition")
    else:
        condition = builder.constant(np.array(constant))
    indexes = {
        "then_subgraph_index": chain(builder, then, "then", shape),
        "else_subgraph_index": chain(builder, otherwise, "else", shape),
    }
    (a,) = builder.operation("RELU", [x], [floats("a", shape)])
    (b,) = builder.operation("IF", [condition, a], [floats("b", shape)], indexes)
    return builder.build(list(builder.operation("NEG", [b], [floats("y", shape)])))


def looping(turns: int = 3, shape: Shape = SHAPE) -> Model:
    """WHILE count < turns: count += 1, x = -(x + x) * w."""
    builder = ModelBuilder()
    count = builder.input(DType.INT32, (), "count")
    x = builder.input(DType.FLOAT32, shape, "x")
    condition, body = builder.subgraph("condition"), builder.subgraph("body")
    c = condition.input(DType.INT32, ())
    condition.input(DType.FLOAT32, shape)
    limit = condition.constant(np.array(turns, np.int32))
    (go,) = condition.operation("LESS", [c, limit], [Operand(DType.BOOL, (), name="go")])
    b, v = body.input(DType.INT32, ()), body.input(DType.FLOAT32, shape)
    one = body.constant(np.array(1, np.int32))
    (more,) = body.operation("ADD", [b, one], [Operand(DType.INT32, (), name="more")])
    (double,) = body.operation("ADD", [v, v], [floats("double", shape)])
    (after,) = body.operation("NEG", [double], [floats("after", shape)])
    attributes = {
        "cond_subgraph_index": builder.add_subgraph(condition.finish([go])),
        "body_subgraph_index": builder.add_subgraph(body.finish([more, after])),
    }
    operands = [Operand(DType.INT32, (), name="counted"), floats("y", shape)]
    outputs = builder.operation("WHILE", [count, x], operands, attributes)
    return builder.build(list(outputs))


def adder(*more: str) -> NumpyDevice:
    return NumpyDevice("adder", {"ADD", *more}, FAST, other=(0.5, 0.5))


def same(plan: ExecutionPlan, devices: list[NumpyDevice], *inputs: NDArray) -> bool:
    expected = evaluate(plan.model, [np.array(i) for i in inputs])
    outputs = run_plan(plan, devices, [np.array(i) for i in inputs])
    return [o.tobytes() for o in outputs] == [e.tobytes() for e in expected]


def branch_devices(plan: ExecutionPlan) -> list[list[list[str]]]:
    """For each step taken apart, the devices of each branch's steps."""
    return [
        [[s.device for s in branch.steps] for branch in step.control.branches]
        for step in plan.steps
        if step.control is not None
    ]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("constant", [None, True, False])
def test_if_interpreted(rule: PlacementRule, constant: bool | None) -> None:
    devices = [adder(), NumpyDevice("reference")]
    model = branching(["ADD", "ADD"], ["NEG", "ADD"], constant)
    plan = place(model, devices, Policy(placement=rule))
    assert branch_devices(plan) == [[["adder"], ["reference", "adder"]]]
    (step,) = [s for s in plan.steps if s.control is not None]
    assert (step.device, step.operations) == ("reference", (1,))
    assert step.control is not None
    assert step.control.kind == "IF"
    for truth in (True, False) if constant is None else (constant,):
        given = [X] if constant is not None else [X, np.array(truth)]
        assert same(plan, devices, *given)


@pytest.mark.parametrize("rule", RULES)
def test_while_interpreted(rule: PlacementRule) -> None:
    devices = [adder(), NumpyDevice("reference")]
    plan = place(looping(), devices, Policy(placement=rule))
    assert len(plan.steps) == 1
    (parts,) = branch_devices(plan)
    assert parts[0] == ["reference"]
    assert set(parts[1]) == {"adder", "reference"}
    for turns in (0, 2, 5):
        assert same(plan, devices, np.array(3 - turns, np.int32), X)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", ["IF", "WHILE"])
def test_simple_plan(rule: PlacementRule, kind: str) -> None:
    """One device takes it all, subgraphs included: nothing is taken apart."""
    devices = [adder("IF", "WHILE", "NEG", "RELU", "LESS"), NumpyDevice("reference")]
    model = branching(["ADD"], ["NEG"]) if kind == "IF" else looping()
    plan = place(model, devices, Policy(placement=rule))
    assert [s.device for s in plan.steps] == ["adder"]
    assert plan.steps[0].control is None


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shape", [(None, 3), None])
@pytest.mark.parametrize("kind", ["IF", "WHILE"])
def test_unknown_size(rule: PlacementRule, shape: Shape, kind: str) -> None:
    """It runs whole on the reference."""
    devices = [adder(), NumpyDevice("reference")]
    model = branching(["ADD"], ["NEG"], shape=shape) if kind == "IF" else looping(shape=shape)
    plan = place(model, devices, Policy(placement=rule))
    assert branch_devices(plan) == []
    index = 1 if kind == "IF" else 0
    assert plan.operations[index].device == "reference"


@pytest.mark.parametrize("rule", RULES)
def test_control_flow_on_the_reference_alone_stays_whole(rule: PlacementRule) -> None:
    devices = [NumpyDevice("multiplier", {"MUL"}, FAST), NumpyDevice("reference")]
    plan = place(branching(["ADD"], ["NEG"]), devices, Policy(placement=rule))
    assert branch_devices(plan) == []
    assert [s.device for s in plan.steps] == ["reference"]


def test_control_flow_stays_whole_when_splitting_costs_more() -> None:
    devices = [adder(), NumpyDevice("reference")]
    small = branching(["ADD"], ["NEG"], shape=(2,))
    assert branch_devices(place(small, devices)) == []
    assert branch_devices(place(small, devices, Policy(placement="nnapi"))) != []


def test_control_flow_stays_whole_without_the_reference_or_with_limits() -> None:
    rest = NumpyDevice("rest", other=(1.0, 1.0))
    model = branching(["ADD", "ADD"], ["NEG", "ADD"])
    assert branch_devices(place(model, [adder(), rest])) == []
    devices = [adder(), NumpyDevice("reference")]
    for policy in (
        Policy(max_partitions=9),
        Policy(min_partition_size=2),
        Policy(forbid={"ADD": "adder"}),
    ):
        assert branch_devices(place(model, devices, policy)) == []


def test_policy_reaches_into_branches_by_type_and_by_name() -> None:
    devices = [adder("NEG"), NumpyDevice("reference")]
    model = branching(["ADD", "NEG"], ["NEG", "ADD"])
    plan = place(model, devices, Policy(forbid={"NEG": "adder"}))
    assert branch_devices(plan) == [[["adder", "reference"], ["reference", "adder"]]]
    plan = place(model, devices, Policy(forbid={"then_1": "adder", "y": "adder"}))
    assert branch_devices(plan) == [[["adder", "reference"], ["adder"]]]


def test_nested_control_flow_is_split() -> None:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, SHAPE, "x")
    outer_condition = builder.input(DType.BOOL, (), "outer")
    indexes = {
        "then_subgraph_index": chain(builder, ["ADD", "ADD"], "then"),
        "else_subgraph_index": chain(builder, ["NEG"], "else"),
    }
    nest = builder.subgraph("nest")
    inner_x = nest.input(DType.FLOAT32, SHAPE, "inner_x")
    truth = nest.constant(np.array(True))
    (a,) = nest.operation("ADD", [inner_x, inner_x], [floats("nest_a")])
    (b,) = nest.operation("IF", [truth, a], [floats("nest_b")], indexes)
    outer = {
        "then_subgraph_index": builder.add_subgraph(nest.finish([b])),
        "else_subgraph_index": chain(builder, ["NEG", "ADD"], "other"),
    }
    outputs = builder.operation("IF", [outer_condition, x], [floats("y")], outer)
    devices = [adder(), NumpyDevice("reference")]
    for rule in RULES:
        plan = place(builder.build(list(outputs)), devices, Policy(placement=rule))
        control = plan.steps[0].control
        assert control is not None
        assert branch_devices(control.branches[0]) == [[["adder"], ["reference"]]]
        for truth_value in (True, False):
            assert same(plan, devices, X, np.array(truth_value))


def test_the_prediction_counts_the_branches() -> None:
    devices = [adder(), NumpyDevice("reference")]
    plan = place(branching(["ADD", "ADD"], ["NEG", "ADD"]), devices)
    (step,) = [s for s in plan.steps if s.control is not None]
    assert step.control is not None
    inside = sum((b.predicted_ns or 0) for b in step.control.branches) / 2
    assert inside < (step.predicted_ns or 0) < inside + 20_000
    alone = {other.device: other.predicted_ns or 0 for other in plan.alternatives}
    assert (plan.predicted_ns or 0) <= min(alone.values())


def test_a_subgraph_as_a_model_keeps_its_boundary() -> None:
    model = looping()
    (operation,) = model.operations
    condition = extract(model, operation.attributes.integer("cond_subgraph_index"))
    assert [len(condition.inputs), len(condition.outputs), len(condition.subgraphs)] == [2, 1, 1]
    assert evaluate(condition, [np.array(2, np.int32), X])[0].item() is True


def depth_of(plan: ExecutionPlan) -> int:
    """How many operations around each other are taken apart."""
    inner = [b for s in plan.steps if s.control is not None for b in s.control.branches]
    return 1 + max(map(depth_of, inner)) if inner else 0


@pytest.mark.parametrize(("nested", "taken"), [(2, 2), (MOST_DEPTH, MOST_DEPTH), (6, MOST_DEPTH)])
def test_control_flow_nested_beyond_the_bound_stays_whole(nested: int, taken: int) -> None:
    builder = ModelBuilder()
    innermost = otherwise = chain(builder, ["ADD", "ADD"], "innermost")
    for level in range(nested - 1):
        around = builder.subgraph(f"level{level}")
        x = around.input(DType.FLOAT32, SHAPE)
        truth = around.constant(np.array(True))
        indexes = {"then_subgraph_index": innermost, "else_subgraph_index": otherwise}
        (y,) = around.operation("IF", [truth, x], [floats(f"y{level}")], indexes)
        innermost = builder.add_subgraph(around.finish([y]))
    x = builder.input(DType.FLOAT32, SHAPE, "x")
    truth = builder.constant(np.array(True))
    indexes = {"then_subgraph_index": innermost, "else_subgraph_index": otherwise}
    model = builder.build(list(builder.operation("IF", [truth, x], [floats("y")], indexes)))
    devices = [adder(), NumpyDevice("reference")]
    plan = place(model, devices, Policy(placement="nnapi"))
    assert depth_of(plan) == taken
    assert same(plan, devices, X)
