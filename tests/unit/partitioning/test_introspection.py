"""What runs where with the devices that a caller chose, after NNAPI's IntrospectionControlTest,
PartitioningTest and WhiteboxFeatureLevelTest (NNAPI section 4.10).
"""

from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import PlacementError
from penstock.ir import DType, Model, ModelBuilder, Operand
from penstock.ir.operations import OPERATIONS
from penstock.ir.types import PACKED
from penstock.partitioning import ExecutionPlan, Policy, place
from penstock.partitioning.policy import PlacementRule
from tests.support_devices import KERNELS, NumpyDevice, evaluate, run_plan
from tests.unit.partitioning.models import Net, chain

RULES: list[PlacementRule] = ["cost", "nnapi"]
X = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)


def where(plan: ExecutionPlan) -> list[str]:
    return [placement.device for placement in plan.operations]


def same(plan: ExecutionPlan, devices: list[NumpyDevice]) -> bool:
    expected = evaluate(plan.model, [X.copy()])
    return run_plan(plan, devices, [X.copy()])[0].tobytes() == expected[0].tobytes()


@pytest.mark.parametrize("rule", RULES)
class TestIntrospection:
    def test_simple_add_model(self, rule: PlacementRule) -> None:
        device = NumpyDevice("test-all")
        plan = place(chain(["ADD"]), [device], Policy(placement=rule))
        assert where(plan) == ["test-all"]
        assert same(plan, [device])

    @pytest.mark.parametrize("kinds", [["ADD", "MAXIMUM"], ["MAXIMUM", "ADD"]])
    def test_slicing(self, rule: PlacementRule, kinds: list[str]) -> None:
        """SlicingAddMax and SlicingMaxAdd: an old device is asked for what is old enough, and gets
        that.
        """
        level = OPERATIONS["MAXIMUM"].feature_level or 0
        assert level > 1
        old = NumpyDevice("old", level=level - 1, other=(0.01, 0.01))
        devices = [old, NumpyDevice("reference")]
        plan = place(chain(kinds), devices, Policy(placement=rule))
        assert where(plan) == ["old" if kind == "ADD" else "reference" for kind in kinds]
        assert [[o.type for o in model.operations] for model in old.asked[:1]] == [["ADD"]]
        assert f"feature level {level}" in plan.operations[kinds.index("MAXIMUM")].reasons["old"]
        assert same(plan, devices)

    def test_slicing_fully_supported(self, rule: PlacementRule) -> None:
        new = NumpyDevice("new", other=(0.01, 0.01))
        plan = place(
            chain(["ADD", "MAXIMUM"]), [new, NumpyDevice("reference")], Policy(placement=rule)
        )
        assert [s.device for s in plan.steps] == ["new"]

    @pytest.mark.parametrize("order", [1, -1])
    def test_partial_model_not_supported(self, rule: PlacementRule, order: int) -> None:
        """PartialModelNotSupported and its Order: whichever operation comes first."""
        device = NumpyDevice("test-all", {"ADD"})
        with pytest.raises(PlacementError) as caught:
            place(chain(["ADD", "MUL"][::order]), [device], Policy(placement=rule))
        assert caught.value.reasons == {"test-all": "test-all has no MUL"}

    @pytest.mark.parametrize("order", [1, -1])
    def test_model_needs_two_devices(self, rule: PlacementRule, order: int) -> None:
        devices = [NumpyDevice("add", {"ADD"}), NumpyDevice("mul", {"MUL"})][::order]
        plan = place(chain(["ADD", "MUL"]), devices, Policy(placement=rule))
        assert where(plan) == ["add", "mul"]
        assert same(plan, devices)
        for alone in devices:
            with pytest.raises(PlacementError):
                place(chain(["ADD", "MUL"]), [alone], Policy(placement=rule))

    def test_set_partitioning(self, rule: PlacementRule) -> None:
        """Mode 0 is the reference alone; 1 lets steps fall back; 2 does not."""
        device = NumpyDevice("device", other=(0.01, 0.01))
        reference = NumpyDevice("reference")
        model = chain(["ADD", "RELU"])
        assert where(place(model, [reference], Policy(placement=rule))) == ["reference"] * 2
        for allowed in (True, False):
            policy = Policy(placement=rule, allow_fallback=allowed)
            (step,) = place(model, [device, reference], policy).steps
            assert step.fallbacks == (("reference",) if allowed else ())

    def test_control_flow_not_supported(self, rule: PlacementRule) -> None:
        device = NumpyDevice("device", {"ADD", "LESS", "NEG"})
        with pytest.raises(PlacementError) as caught:
            place(conditional(), [device], Policy(placement=rule))
        assert caught.value.reasons == {"device": "device has no IF"}

    def test_control_flow_supported(self, rule: PlacementRule) -> None:
        device = NumpyDevice("device", {"ADD", "NEG", "IF"})
        plan = place(conditional(), [device], Policy(placement=rule))
        assert [s.device for s in plan.steps] == ["device"]

    def test_control_flow_that_failed_to_slice(self, rule: PlacementRule) -> None:
        """What stands in a branch is above the device's level: it says no to the whole IF, and is
        asked for it.
        """
        old = NumpyDevice(
            "old", lambda kind, _: "a branch is above level 1" if kind == "IF" else True
        )
        plan = place(conditional(), [old, NumpyDevice("reference")], Policy(placement=rule))
        assert plan.operations[0].device == "reference"
        assert plan.operations[0].reasons["old"] == "a branch is above level 1"
        assert len(old.asked[0].subgraphs) == 3


def conditional() -> Model:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (2, 3), "x")
    truth = builder.constant(np.array(True))
    indexes = []
    for kind in ("ADD", "NEG"):
        inner = builder.subgraph(kind)
        at = inner.input(DType.FLOAT32, (2, 3), "at")
        inputs = [at, at] if kind == "ADD" else [at]
        (y,) = inner.operation(kind, inputs, [Operand(DType.FLOAT32, (2, 3), name=f"{kind}_y")])
        indexes.append(builder.add_subgraph(inner.finish([y])))
    attributes = {"then_subgraph_index": indexes[0], "else_subgraph_index": indexes[1]}
    operand = Operand(DType.FLOAT32, (2, 3), name="y")
    return builder.build(list(builder.operation("IF", [truth, x], [operand], attributes)))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("level", range(1, 9))
def test_feature_levels(rule: PlacementRule, level: int) -> None:
    """WhiteboxFeatureLevelTest: every device level against operations of every level."""
    device = NumpyDevice("device", level=level, other=(0.01, 0.01))
    for kind in ("ADD", "RELU", "SUB", "MAXIMUM", "LESS", "NEG"):
        needed = OPERATIONS[kind].feature_level or 0
        dtype = DType.BOOL if kind == "LESS" else DType.FLOAT32
        net = Net()
        x = net.source("x")
        inputs = (x,) if kind in {"RELU", "NEG"} else (x, x)
        model = net.build([net.op(kind, "y", *inputs, dtype=dtype)])
        plan = place(model, [device, NumpyDevice("reference")], Policy(placement=rule))
        assert where(plan) == ["device" if needed <= level else "reference"], kind


LOOKED_UP = [
    d for d in DType if d not in {DType.STRING, DType.RESOURCE, DType.VARIANT} and d not in PACKED
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", LOOKED_UP)
def test_perf(rule: PlacementRule, dtype: DType) -> None:
    """PartitioningTest Perf: each element type by itself decides between two devices and the
    reference.
    """
    net = ModelBuilder()
    x = net.input(dtype, (2, 3), "x")
    shape = net.constant(np.array([6], np.int32))
    operand = Operand(dtype, (6,), name="y")
    model = net.build(list(net.operation("RESHAPE", [x, shape], [operand])))
    good = NumpyDevice("good", lambda *_: True, {dtype.value: (0.25, 0.25)}, other=(9.0, 9.0))
    bad = NumpyDevice("bad", lambda *_: True, {dtype.value: (9.0, 9.0)}, other=(0.25, 0.25))
    policy = Policy(placement=rule)
    reference = NumpyDevice("reference", lambda *_: True)
    assert where(place(model, [bad, good, reference], policy)) == ["good"]
    assert where(place(model, [bad, reference], policy)) == ["reference"]
    assert where(place(model, [bad, reference], policy, "low_power")) == ["reference"]
    assert where(place(model, [bad, good, reference], policy, "low_power")) == ["good"]


def test_relaxed_computation_is_the_policys_accuracy() -> None:
    """PartitioningTest RelaxedFP: a device of relaxed arithmetic gets work only where that is asked
    for.
    """
    kinds = list(KERNELS)[:3]
    devices = [
        NumpyDevice("relaxed", accuracy="relaxed", other=(0.01, 0.01)),
        NumpyDevice("reference", accuracy="exact"),
    ]
    model = chain([kind for kind in kinds if kind in {"ADD", "SUB", "MUL"}])
    assert set(where(place(model, devices))) == {"reference"}
    assert set(where(place(model, devices, Policy(accuracy="relaxed")))) == {"relaxed"}
