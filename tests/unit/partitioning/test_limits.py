"""Limits of the policy: sizes and numbers of partitions, coverage; and handles, which cannot
travel.
"""

from __future__ import annotations

import pytest

from penstock.errors import PlacementError
from penstock.ir import DType, Model, ModelBuilder, Operand
from penstock.partitioning import ExecutionPlan, Policy, place
from tests.checked import does_not_raise
from tests.support_devices import NumpyDevice
from tests.unit.partitioning.models import chain

FAST = {"float32": (0.5, 0.5)}
ISLAND = ["RELU", "ADD", "RELU", "RELU", "ADD", "ADD", "ADD", "RELU"]


def layout(plan: ExecutionPlan) -> list[tuple[str, int]]:
    return [(step.device, len(step.operations)) for step in plan.steps]


def dsp_and_reference() -> list[NumpyDevice]:
    return [NumpyDevice("dsp", {"ADD"}, FAST), NumpyDevice("reference")]


def test_small_partitions_go_to_the_reference() -> None:
    plan = place(
        chain(ISLAND), dsp_and_reference(), Policy(placement="nnapi", min_partition_size=2)
    )
    assert layout(plan) == [("reference", 4), ("dsp", 3), ("reference", 1)]
    moved = plan.operations[1]
    assert moved.device == "reference"
    expected = "its partition there would be smaller than min_partition_size=2"
    assert moved.reasons["dsp"] == expected


def test_small_partitions_join_a_neighbour_that_supports_them() -> None:
    devices = [
        NumpyDevice("dsp", {"ADD"}, FAST),
        NumpyDevice("npu", {"ADD", "RELU"}, {"float32": (0.7, 0.7)}),
        NumpyDevice("reference"),
    ]
    plan = place(chain(["RELU", "ADD", "RELU"]), devices, Policy(min_partition_size=2))
    assert layout(plan) == [("npu", 3)]


def test_surplus_partitions_go_to_the_reference_smallest_first() -> None:
    plan = place(chain(ISLAND), dsp_and_reference(), Policy(placement="nnapi", max_partitions=3))
    assert layout(plan) == [("reference", 4), ("dsp", 3), ("reference", 1)]
    expected = "its partition there is one more than max_partitions=3 allows"
    assert plan.operations[1].reasons["dsp"] == expected
    assert layout(
        place(chain(ISLAND), dsp_and_reference(), Policy(placement="nnapi", max_partitions=2))
    ) == [("reference", 8)]


@pytest.mark.parametrize("most", range(1, 12))
def test_no_plan_has_more_partitions_than_allowed(most: int) -> None:
    kinds = ["ADD" if (k * k) % 7 < 3 else "RELU" for k in range(40)]
    assert len(place(chain(kinds), dsp_and_reference(), Policy(max_partitions=most)).steps) <= most


def test_one_device_that_can_is_found_at_last() -> None:
    """Refusing partitions one by one would leave none that may move: all runs the MUL alone."""
    devices = [
        NumpyDevice("a", {"ADD", "RELU"}, FAST),
        NumpyDevice("all", {"ADD", "RELU", "MUL"}, {"float32": (0.9, 0.9)}),
    ]
    plan = place(chain(["ADD", "MUL", "RELU"]), devices, Policy(max_partitions=1))
    assert layout(plan) == [("all", 3)]
    plan = place(chain(["ADD", "MUL", "RELU"]), devices, Policy(min_partition_size=3))
    assert layout(plan) == [("all", 3)]


@pytest.mark.parametrize(
    ("policy", "complaint"),
    [
        (Policy(max_partitions=2), "the plan has 3 partitions, max_partitions=2"),
        (Policy(min_partition_size=2), "3 of 3 partitions are smaller than min_partition_size=2"),
    ],
)
def test_limits_that_cannot_be_met(policy: Policy, complaint: str) -> None:
    devices = [NumpyDevice("a", {"ADD"}), NumpyDevice("r", {"RELU"})]
    with pytest.raises(PlacementError) as caught:
        place(chain(["ADD", "RELU", "ADD"]), devices, policy)
    assert caught.value.message == f"{complaint}, and no single device may run everything"
    assert caught.value.reasons == {
        "a": "subgraph 0, operation 1 (RELU 'v1'): a has no RELU",
        "r": "subgraph 0, operation 0 (ADD 'v0'): r has no ADD",
    }


@pytest.mark.parametrize(
    ("coverage", "enough"), [(0.0, True), (0.5, True), (0.51, False), (1.0, False)]
)
def test_coverage_is_the_share_that_is_not_on_the_reference(coverage: float, enough: bool) -> None:
    policy = Policy(min_coverage=coverage)
    if enough:
        assert len(place(chain(ISLAND), dsp_and_reference(), policy).operations) == 8
        return
    with pytest.raises(PlacementError) as caught:
        place(chain(ISLAND), dsp_and_reference(), policy)
    expected = (
        "4 of 8 operations would run on reference: a coverage of 0.5, where "
        f"min_coverage={coverage:g}"
    )
    assert caught.value.message == expected
    assert caught.value.reasons == {"dsp": "RELU: dsp has no RELU (4)"}


def test_coverage_of_other_devices_and_of_nothing_is_whole() -> None:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (1,), "x")
    with does_not_raise():
        place(chain(["ADD"]), [NumpyDevice("cpu")], Policy(min_coverage=1.0))
        place(builder.build([x]), [], Policy(min_coverage=1.0, max_partitions=1))


def handles() -> Model:
    """x -> ADD -> VAR_HANDLE/ASSIGN/READ as handles: two operations that share a resource
    operand.
    """
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (2,), "x")
    (y,) = builder.operation("ADD", [x, x], [Operand(DType.FLOAT32, (2,), name="y")])
    (handle,) = builder.operation(
        "VAR_HANDLE", [], [Operand(DType.RESOURCE, (), name="handle")], {"shared_name": "v"}
    )
    (read,) = builder.operation(
        "READ_VARIABLE", [handle], [Operand(DType.FLOAT32, (2,), name="read")]
    )
    (z,) = builder.operation("ADD", [read, y], [Operand(DType.FLOAT32, (2,), name="z")])
    return builder.build([z])


def test_operations_that_share_handles_run_together() -> None:
    everything = {"ADD", "VAR_HANDLE", "READ_VARIABLE"}
    maker = NumpyDevice("maker", {"VAR_HANDLE"}, other=(0.1, 0.1))
    plan = place(handles(), [maker, NumpyDevice("all", everything)])
    assert layout(plan) == [("all", 4)]
    assert plan.operations[1].reasons["maker"] == "operations that share handles must run together"
    rest = NumpyDevice("rest", {"ADD", "READ_VARIABLE"})
    with pytest.raises(PlacementError) as caught:
        place(handles(), [maker, rest])
    assert caught.value.message == (
        "subgraph 0, operation 1 (VAR_HANDLE 'handle') and subgraph 0, operation 2 "
        "(READ_VARIABLE 'read') share handles and would run apart, and no single device may run "
        "everything"
    )


def test_operations_that_share_handles_may_move_together() -> None:
    plan = place(
        handles(),
        [NumpyDevice("variables", {"VAR_HANDLE", "READ_VARIABLE"}), NumpyDevice("a", {"ADD"})],
    )
    assert layout(plan) == [("variables", 2), ("a", 2)]


def test_operations_on_handles_keep_their_order() -> None:
    """Read, assign, read: no value says that the second read comes after the assignment."""
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (2,), "x")
    names = {"shared_name": "v"}
    (first,) = builder.operation("VAR_HANDLE", [], [(DType.RESOURCE, ())], names)
    (old,) = builder.operation("READ_VARIABLE", [first], [(DType.FLOAT32, (2,))])
    (more,) = builder.operation("ADD", [old, x], [(DType.FLOAT32, (2,))])
    builder.operation("ASSIGN_VARIABLE", [first, more], [])
    (again,) = builder.operation("VAR_HANDLE", [], [(DType.RESOURCE, ())], names)
    (new,) = builder.operation("READ_VARIABLE", [again], [(DType.FLOAT32, (2,))])
    (y,) = builder.operation("RELU", [new], [(DType.FLOAT32, (2,))])
    engine = NumpyDevice("e", {"ADD", "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE"})
    plan = place(builder.build([y]), [engine, NumpyDevice("r", {"RELU"})])
    assert [s.operations for s in plan.steps] == [(0, 1, 2, 3, 4, 5), (6,)]
