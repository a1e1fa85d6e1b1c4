"""Whole plans: boundaries, forwards, errors, temporaries, and the forms a plan is read in."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from penstock.errors import InputError, Place, PlacementError
from penstock.hal import Support
from penstock.ir import DType, Lifetime, Model, ModelBuilder, Operand
from penstock.partitioning import ExecutionPlan, Policy, place
from tests.support_devices import NumpyDevice, evaluate, run_plan
from tests.unit.partitioning.models import SHAPE, Net, chain

NNAPI = Policy(placement="nnapi")
X = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)


def adder_and_rest() -> list[NumpyDevice]:
    return [NumpyDevice("adder", {"ADD"}, {"float32": (0.5, 0.5)}), NumpyDevice("reference")]


def names(plan: ExecutionPlan, indexes: Sequence[int]) -> list[str]:
    return [plan.model.operands[i].name for i in indexes]


def same(plan: ExecutionPlan, devices: list[NumpyDevice], *inputs: np.ndarray) -> bool:
    given = [np.array(i) for i in inputs]
    expected = evaluate(plan.model, given)
    outputs = run_plan(plan, devices, given)
    return [o.tobytes() for o in outputs] == [e.tobytes() for e in expected]


def test_a_model_output_as_a_step_input() -> None:
    """NNAPI's ModelOutputAsStepModelInput."""
    net = Net()
    x = net.source("x")
    total = net.add("total", x, x)
    model = net.build([total, net.relu("positive", total)])
    plan = place(model, adder_and_rest())
    assert [(names(plan, s.inputs), names(plan, s.outputs)) for s in plan.steps] == [
        (["x"], ["total"]),
        (["total"], ["positive"]),
    ]
    assert dict(plan.temporaries.offsets) == {}
    assert same(plan, adder_and_rest(), X)


def test_one_value_feeds_several_steps() -> None:
    net = Net()
    x = net.source("x")
    shared = net.add("shared", x, x)
    a = net.relu("a", shared)
    b = net.add("b", a, shared)
    model = net.build([net.op("MUL", "y", b, shared)])
    plan = place(model, adder_and_rest(), NNAPI)
    assert [names(plan, s.inputs) for s in plan.steps] == [
        ["x"],
        ["shared"],
        ["shared", "a"],
        ["shared", "b"],
    ]
    assert same(plan, adder_and_rest(), X)


def test_a_step_without_inputs() -> None:
    """NNAPI's ZeroInputStepModel: constants only."""
    net = Net()
    x = net.source("x")
    c = net.constant(X, "c")
    model = net.build([net.relu("y", net.op("MUL", "m", net.add("doubled", c, c), x))])
    plan = place(model, adder_and_rest())
    assert [(s.device, names(plan, s.inputs)) for s in plan.steps] == [
        ("adder", []),
        ("reference", ["x", "doubled"]),
    ]
    assert same(plan, adder_and_rest(), X)


def test_a_step_that_nothing_is_read_of_is_left_out() -> None:
    """NNAPI's ZeroOutputStepModel; a step that only such a step reads of goes with it."""
    net = Net()
    x = net.source("x")
    y = net.relu("y", x)
    idle = net.add("idle", x, x)
    net.op("MUL", "idler", idle, idle)
    model = net.build([y])
    devices = [*adder_and_rest(), NumpyDevice("multiplier", {"MUL"}, {"float32": (0.4, 0.4)})]
    plan = place(model, devices)
    assert [(s.device, names(plan, s.outputs)) for s in plan.steps] == [("reference", ["y"])]
    assert [p.device for p in plan.operations] == ["reference", "adder", "multiplier"]
    assert "not run, because nothing reads the results: 1-2" in plan.show()
    assert same(plan, devices, X)


def test_outputs_that_no_operation_computes_are_forwarded() -> None:
    net = Net()
    x, c = net.source("x"), net.constant(X, "c")
    y = net.relu("y", x)
    model = net.build([x, y, c, y])
    plan = place(model, [NumpyDevice("reference")])
    assert plan.forwards == ((0, x), (2, c))
    (step,) = plan.steps
    assert step.model is not model
    assert names(plan, step.outputs) == ["y"]
    assert same(plan, [NumpyDevice("reference")], X)


def test_a_model_without_operations_has_no_steps() -> None:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, SHAPE, "x")
    plan = place(builder.build([x]), [NumpyDevice("a")])
    assert (plan.steps, plan.operations, plan.forwards) == ((), (), ((0, x),))
    assert plan.summary() == "0 steps, 0 operations"
    assert same(plan, [], X)
    assert place(builder.build([x]), []).devices == ()


def test_an_unchanged_state_is_forwarded() -> None:
    net = Net()
    x = net.source("x")
    variable = net.variable("v", DType.FLOAT32, SHAPE)
    state = net.operand(Operand(DType.FLOAT32, SHAPE, Lifetime.SUBGRAPH_INPUT, "state"))
    y = net.add("y", x, state)
    net.state(variable, state, state)
    plan = place(net.build([y]), [NumpyDevice("a")])
    assert plan.forwards == ((1, state),)
    assert same(plan, [NumpyDevice("a")], X, X)


def test_a_custom_operation_goes_where_it_is_known() -> None:
    """NNAPI's OemOperations."""
    net = Net()
    x = net.source("x")
    (y,) = net.operation("CUSTOM", [x], [net.value("y")], {"custom_code": "Vendor"})
    model = net.build([net.relu("z", y)])
    vendor = NumpyDevice("vendor", {"CUSTOM"}, other=(5.0, 5.0))
    plan = place(model, [vendor, NumpyDevice("reference")])
    assert [p.device for p in plan.operations] == ["vendor", "reference"]
    assert plan.operations[0].reasons == {"reference": "reference has no CUSTOM"}
    assert place(
        model, [vendor, NumpyDevice("b")], Policy(require={"CUSTOM:Vendor": "vendor"})
    ).steps
    with pytest.raises(PlacementError, match="the policy forbids it"):
        place(model, [vendor, NumpyDevice("b")], Policy(forbid={"CUSTOM:Vendor": "vendor"}))


def test_an_operation_without_a_device() -> None:
    """NNAPI's PartialModelNotSupported: the place, and each device's reason."""
    devices = [NumpyDevice("a", {"ADD"}), NumpyDevice("b", lambda *_: "out of order")]
    with pytest.raises(PlacementError) as caught:
        place(chain(["ADD", "RELU", "ADD", "MUL"]), devices)
    assert caught.value.where == Place(0, 1, type="RELU", name="v1")
    assert str(caught.value).startswith(
        "subgraph 0, operation 1 (RELU 'v1'): "
        "no device may run it (the first of 2 such operations)\n"
    )
    assert caught.value.reasons == {"a": "a has no RELU", "b": "out of order"}


def test_a_model_that_needs_two_devices() -> None:
    """NNAPI's ModelNeedTwoDevices: the pair works, each alone does not."""
    a, b = NumpyDevice("a", {"ADD"}), NumpyDevice("b", {"RELU"})
    model = chain(["ADD", "RELU"])
    assert [s.device for s in place(model, [a, b]).steps] == ["a", "b"]
    assert [s.device for s in place(model, [b, a]).steps] == ["a", "b"]
    for alone in (a, b):
        with pytest.raises(PlacementError):
            place(model, [alone])


def test_no_device_at_all() -> None:
    with pytest.raises(PlacementError, match="no device is given"):
        place(chain(["ADD"]), [])


@pytest.mark.parametrize("given", ["reference", 3, None])
def test_place_refuses_arguments_that_are_no_device(given: object) -> None:
    wanted = rf"^devices\[1\] is {given!r}, no device: .*penstock\.compile takes names"
    with pytest.raises(InputError, match=wanted):
        place(chain(["ADD"]), [NumpyDevice("a"), given])  # type: ignore[list-item]


def test_missing_required_device_is_refused() -> None:
    with pytest.raises(PlacementError) as caught:
        place(chain(["ADD"]), [NumpyDevice("reference")], Policy(require={"*": "gpu"}))
    assert caught.value.reasons == {"reference": "the policy requires gpu"}


def test_a_preference_that_does_not_exist() -> None:
    with pytest.raises(InputError, match="preference must be one of low_power"):
        place(chain(["ADD"]), [NumpyDevice("a")], preference="fast")  # type: ignore[arg-type]


def test_accuracy_of_the_chosen_device_is_on_record() -> None:
    devices = [
        NumpyDevice("fast", accuracy="relaxed", other=(0.1, 0.1)),
        NumpyDevice("good", accuracy="exact"),
    ]
    assert [p.accuracy for p in place(chain(["ADD"]), devices).operations] == ["exact"]
    relaxed = place(chain(["ADD"]), devices, Policy(accuracy="relaxed"))
    assert [(p.device, p.accuracy) for p in relaxed.operations] == [("fast", "relaxed")]


def test_temporaries_are_laid_out_over_the_steps() -> None:
    model = chain(["ADD", "RELU", "ADD", "RELU", "ADD"])
    devices = [
        NumpyDevice("adder", {"ADD"}, {"float32": (0.5, 0.5)}, alignment=256),
        NumpyDevice("reference", padding=128),
    ]
    plan = place(model, devices, NNAPI)
    assert names(plan, tuple(plan.temporaries.offsets)) == ["v0", "v1", "v2", "v3"]
    assert list(plan.temporaries.offsets.values()) == [(0, 24), (256, 24), (0, 24), (256, 24)]
    assert (plan.temporaries.alignment, plan.temporaries.nbytes) == (256, 384)
    assert same(plan, devices, X)


def with_unknown(model: Model, name: str) -> Model:
    operands = tuple(replace(o, shape=None) if o.name == name else o for o in model.operands)
    return replace(model, subgraphs=(replace(model.entry, operands=operands),))


def test_a_temporary_of_unknown_size_is_dynamic() -> None:
    """NNAPI's DynamicTemporaries: only where the device that writes it takes such outputs."""
    model = with_unknown(chain(["ADD", "RELU"]), "v0")
    plan = place(model, adder_and_rest())
    assert names(plan, plan.temporaries.dynamic) == ["v0"]
    assert same(plan, adder_and_rest(), X)
    devices = adder_and_rest()
    devices[0] = NumpyDevice("adder", {"ADD"}, {"float32": (0.5, 0.5)}, dynamic_outputs=False)
    plan = place(model, devices)
    assert [s.device for s in plan.steps] == ["reference"]


def test_placing_twice_gives_the_same_plan_and_asks_nothing_else() -> None:
    model, devices = chain(["ADD", "RELU", "ADD"]), adder_and_rest()
    assert place(model, devices) == place(model, devices)
    assert all(not device.prepared for device in devices)


def test_a_plan_is_a_value() -> None:
    plan = place(chain(["ADD", "RELU"]), adder_and_rest())
    assert pickle.loads(pickle.dumps(plan)) == plan  # noqa: TID251  # plans are stored
    assert len({plan, place(plan.model, adder_and_rest())}) == 1
    with pytest.raises(TypeError):
        plan.operations[0].reasons["x"] = "y"  # type: ignore[index]  # that is the point


def test_an_unknown_shape_that_keeps_devices_away_names_the_input() -> None:
    class Static(NumpyDevice):
        def supported_operations(self, model: Model) -> list[Support]:
            known = super().supported_operations(model)
            reason = "the shape of output 0 is known only when it runs"
            return [replace(answer, supported=False, reason=reason) for answer in known]

    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (None, 3), "x")
    model = b.build(b.operation("RELU", [x], [(DType.FLOAT32, (None, 3))]))
    with pytest.raises(PlacementError) as caught:
        place(model, [Static("static")])
    assert "shapes={name: shape} makes shapes known: 'x': (None, 3)" in str(caught.value)
