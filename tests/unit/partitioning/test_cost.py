"""Placement by predicted cost: optimal on chains, never behind the best single device, within the
policy.
"""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from penstock.errors import PlacementError
from penstock.hal import Preference
from penstock.ir import DType, Model, ModelBuilder, Operand
from penstock.partitioning import ExecutionPlan, Policy, place
from penstock.partitioning.arrangement import arrange_by_cost
from penstock.partitioning.dynamic import is_chain
from penstock.partitioning.greedy import partitions_of
from penstock.partitioning.prediction import STEP_NS, Judge, price
from penstock.partitioning.support import collect_support
from penstock.partitioning.work import OPERATION_NS, nbytes_of
from tests.support_devices import NumpyDevice, evaluate, run_plan
from tests.support_graphs import random_case
from tests.unit.partitioning.models import Net, chain

KINDS: Final = ("ADD", "RELU", "MUL", "NEG")


def wide(kinds: list[str], columns: list[int], outputs: set[int]) -> Model:
    """x -> kinds[0] -> kinds[1] -> ..., where value k has as many *columns*; some are outputs as
    well.
    """
    net = ModelBuilder()
    at = net.input(DType.FLOAT32, (4, columns[0]), "x")
    left = []
    for index, kind in enumerate(kinds):
        shape = (4, columns[index])
        if kind == "CONCATENATION":
            inputs = [at, net.constant(np.zeros((4, columns[index]), np.float32))]
        else:
            inputs = [at] if kind in {"RELU", "NEG"} else [at, at]
        operand = Operand(DType.FLOAT32, shape, name=f"v{index}")
        (at,) = net.operation(kind, inputs, [operand])
        if index in outputs:
            left.append(at)
    return net.build([*left, at] if at not in left else left)


def cost_of(model: Model, devices: list[NumpyDevice], energy: bool = False) -> Judge:
    return Judge(model, price(collect_support(model, devices, Policy()), energy=energy))


def predicted(plan: ExecutionPlan, devices: list[NumpyDevice], judge: Judge) -> float:
    """What the judge says of the plan's own assignment."""
    names = list(plan.devices)
    assignment = [names.index(p.device) for p in plan.operations]
    return judge.plan(partitions_of(plan.model, assignment, len(names)))


def least(model: Model, devices: list[NumpyDevice], judge: Judge) -> float:
    """The cheapest of all assignments."""
    table = collect_support(model, devices, Policy())
    takers = [table.takers(index) for index in range(len(model.operations))]
    return min(
        judge.plan(partitions_of(model, assignment, len(table.candidates)))
        for assignment in itertools.product(*takers)
    )


@st.composite
def chains(draw: st.DrawFn) -> tuple[Model, list[NumpyDevice]]:
    count = draw(st.integers(1, 7))
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=count, max_size=count))
    columns = [draw(st.sampled_from([1, 600, 20_000]))] * count
    outputs = draw(st.sets(st.integers(0, count - 1), max_size=2))
    devices = []
    for name in ("a", "b", "reference"):
        taken = set(KINDS) if name == "reference" else draw(st.sets(st.sampled_from(KINDS)))
        speed = draw(st.sampled_from([0.01, 0.3, 0.9, 1.0, 1.7]))
        power = draw(st.sampled_from([0.1, 0.8, 1.0, 3.0]))
        declared = draw(st.integers(0, 5)) > 0
        devices.append(
            NumpyDevice(
                name,
                frozenset(taken),
                other=(speed, power) if declared else None,
                dispatch_ns=draw(st.sampled_from([0, 2_000, 40_000])),
                shares_host_memory=draw(st.booleans()),
                accepts_host_memory=draw(st.booleans()),
                transfer_bytes_per_second=draw(st.sampled_from([1e8, 4e9, 1e11])),
            )
        )
    return wide(kinds, columns, outputs), devices


@settings(max_examples=150, deadline=None)
@given(chains(), st.booleans())
def test_on_chains_no_assignment_is_cheaper(
    case: tuple[Model, list[NumpyDevice]], low_power: bool
) -> None:
    model, devices = case
    assert is_chain(model)
    judge = cost_of(model, devices, energy=low_power)
    plan = place(model, devices, preference="low_power" if low_power else "fast_single_answer")
    assert predicted(plan, devices, judge) == pytest.approx(least(model, devices, judge), rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(chains(), st.integers(1, 4))
def test_on_chains_no_assignment_of_so_few_partitions_is_cheaper(
    case: tuple[Model, list[NumpyDevice]], most: int
) -> None:
    model, devices = case
    judge = cost_of(model, devices)
    plan = place(model, devices, Policy(max_partitions=most))
    assert len(plan.steps) <= most
    table = collect_support(model, devices, Policy())
    takers = [table.takers(index) for index in range(len(model.operations))]
    drawn = (partitions_of(model, chosen, 3) for chosen in itertools.product(*takers))
    least_cost = min(judge.plan(partitions) for partitions in drawn if len(partitions) <= most)
    assert predicted(plan, devices, judge) == pytest.approx(least_cost, rel=1e-12)


@pytest.mark.parametrize("seed", range(2))
def test_on_a_chain_of_twelve_operations_and_three_devices(seed: int) -> None:
    """All 3^12 assignments, priced without the partitioner: on a chain a step is a run of one
    device.
    """
    rng = np.random.default_rng(seed)
    kinds = [str(k) for k in rng.choice(KINDS, 12)]
    model = wide(kinds, [5_000] * 12, {3})
    devices = [
        NumpyDevice(
            name,
            lambda *_: True,
            {"float32": (float(rng.uniform(0.2, 1.2)), 1.0)},
            dispatch_ns=int(rng.integers(0, 3_000)),
            shares_host_memory=name != "npu",
            transfer_bytes_per_second=2e10,
        )
        for name in ("gpu", "npu", "reference")
    ]
    judge = cost_of(model, devices)
    # One factor a device would put everything on one: each operation gets prices of its own.
    rows = rng.uniform(1_000, 30_000, (12, 3))
    judge = Judge(
        model,
        type(judge.prices)(
            tuple(map(tuple, rows.tolist())),
            judge.prices.steps,
            judge.prices.moving,
            judge.prices.nbytes,
        ),
    )
    table = collect_support(model, devices, Policy())
    found = judge.plan(arrange_by_cost(table, judge, Policy()).partitions)
    assignments = np.array(list(itertools.product(range(3), repeat=12)), np.int8)
    costs = rows[np.arange(12), assignments].sum(axis=1)
    steps, moving = np.array(judge.prices.steps), np.array(judge.prices.moving)
    nbytes = nbytes_of(model.operands[model.entry.inputs[0]])
    costs += steps[assignments[:, 0]] + moving[assignments[:, 0]] * nbytes
    costs += moving[assignments[:, -1]] * nbytes
    for at in range(1, 12):
        before, after = assignments[:, at - 1], assignments[:, at]
        apart = before != after
        costs += apart * (steps[after] + moving[after] * nbytes)
        costs += (moving[before] * nbytes) * (apart | (at - 1 == 3))
    assert found == pytest.approx(costs.min(), rel=1e-9)


def test_never_predicted_slower_than_the_best_single_device() -> None:
    spread = 0
    for seed in range(150):
        case = random_case(seed)
        preferences: tuple[Preference, ...] = ("fast_single_answer", "low_power")
        for preference in preferences:
            plan = place(case.model, case.devices, preference=preference)
            spread += len(plan.steps) > 1
            key = "predicted_energy" if preference == "low_power" else "predicted_ns"
            alone = [getattr(other, key) for other in plan.alternatives]
            mine = getattr(plan, key)
            assert mine is not None
            assert all(other is None or mine <= other for other in alone), plan.show()
    assert spread >= 100


def test_a_graph_of_parallel_branches_is_not_cut_at_every_branch() -> None:
    """Two branches, interleaved in the file, each cheap on a device of its own: two steps, not
    eight.
    """
    net = Net()
    x = net.source("x")
    left = right = x
    for turn in range(4):
        left = net.relu(f"l{turn}", left)
        right = net.add(f"r{turn}", right, right)
    model = net.build([net.op("MUL", "y", left, right)])
    devices = [
        NumpyDevice("r", {"RELU"}, other=(0.1, 0.1)),
        NumpyDevice("a", {"ADD", "MUL"}, other=(0.1, 0.1)),
        NumpyDevice("reference"),
    ]
    plan = place(model, devices)
    assert [(s.device, len(s.operations)) for s in plan.steps] == [("r", 4), ("a", 5)]


def test_a_small_gain_does_not_pay_for_two_boundaries() -> None:
    model = chain(["RELU", "ADD", "RELU"])
    near = NumpyDevice("adder", {"ADD"}, other=(0.5, 1.0), dispatch_ns=0)
    far = NumpyDevice("adder", {"ADD"}, other=(0.5, 1.0), dispatch_ns=100_000)
    reference = NumpyDevice("reference")
    assert [s.device for s in place(model, [far, reference]).steps] == ["reference"]
    assert [s.device for s in place(model, [near, reference]).steps] == ["reference"]
    assert [s.device for s in place(model, [near, reference], Policy(placement="nnapi")).steps] == [
        "reference",
        "adder",
        "reference",
    ]
    fast = NumpyDevice("adder", {"ADD"}, other=(0.001, 1.0))
    plan = place(model, [fast, reference])
    assert [s.device for s in plan.steps] == ["reference", "adder", "reference"]
    assert plan.predicted_ns == pytest.approx(sum(s.predicted_ns or 0 for s in plan.steps), abs=3)


def test_transfers_to_a_device_with_own_memory_cost_time() -> None:
    big = wide(["RELU", "ADD", "ADD", "RELU"], [200_000] * 4, set())
    shared = NumpyDevice("adder", {"ADD"}, other=(0.5, 0.5))
    private = NumpyDevice(
        "adder", {"ADD"}, other=(0.5, 0.5), shares_host_memory=False, transfer_bytes_per_second=1e9
    )
    reference = NumpyDevice("reference")
    near, far = place(big, [shared, reference]), place(big, [private, reference])
    assert [s.device for s in near.steps] == ["reference", "adder", "reference"]
    assert [s.device for s in far.steps] == ["reference"]
    # A value of 3.2 MB in and one out, 1 ns a byte for the way and 1/8 ns for the runtime's copy.
    forced = place(big, [private, reference], Policy(require={"ADD": "adder"}))
    extra = (forced.predicted_ns or 0) - (near.predicted_ns or 0)
    assert extra == pytest.approx(2 * 3.2e6 * 1.125, rel=1e-3)


def test_devices_that_share_host_memory_transfer_nothing() -> None:
    model = wide(["RELU", "ADD"], [200_000] * 2, set())
    judge = cost_of(model, [NumpyDevice("a", {"ADD"}), NumpyDevice("reference")])
    assert judge.prices.moving == (0.0, 0.0)


def test_one_value_that_feeds_several_operations_of_a_step_is_moved_once() -> None:
    net = Net()
    x = net.source("x")
    model = net.build([net.add("y", net.relu("a", x), net.relu("b", x))])
    judge = cost_of(model, [NumpyDevice("a", shares_host_memory=False)])
    assert judge.moved((0, 1, 2)) == 2 * 24
    assert judge.moved((0,)) == 2 * 24
    assert judge.moved((2,)) == 3 * 24


def test_a_slower_thriftier_device_wins_under_low_power() -> None:
    devices = [
        NumpyDevice("quick", other=(0.2, 2.0)),
        NumpyDevice("thrifty", other=(0.9, 0.1)),
        NumpyDevice("reference"),
    ]
    model = chain(["ADD", "RELU", "MUL", "ADD"])
    assert [s.device for s in place(model, devices).steps] == ["quick"]
    plan = place(model, devices, preference="low_power")
    assert [s.device for s in plan.steps] == ["thrifty"]
    assert plan.operations[0].reasons["quick"].startswith("predicted to take more energy: ")
    energies = {other.device: other.predicted_energy or 0 for other in plan.alternatives}
    assert plan.predicted_energy == energies["thrifty"] < energies["reference"] < energies["quick"]
    times = {other.device: other.predicted_ns or 0 for other in plan.alternatives}
    assert times["thrifty"] > times["quick"]
    assert place(model, devices, preference="sustained_speed").steps[0].device == "quick"


def test_a_type_without_performance_is_used_only_where_nothing_else_is() -> None:
    silent = NumpyDevice("silent", other=None)
    plan = place(chain(["ADD"]), [silent, NumpyDevice("slow", other=(1e9, 1.0))])
    assert [p.device for p in plan.operations] == ["slow"]
    expected = "declares no execution time for this element type; slow does"
    assert plan.operations[0].reasons["silent"] == expected
    alone = place(chain(["ADD"]), [silent])
    assert [p.device for p in alone.operations] == ["silent"]
    assert alone.predicted_ns is None
    assert alone.steps[0].predicted_ns is None


@pytest.mark.parametrize("value", [float("nan"), 0.0, -1.0, float("inf")])
def test_invalid_performance_counts_as_unknown(value: float) -> None:
    liar = NumpyDevice("liar", performance={"float32": (value, value)})
    plan = place(chain(["ADD"]), [liar, NumpyDevice("honest")])
    assert [p.device for p in plan.operations] == ["honest"]


@pytest.mark.parametrize("value", [1e16, 1e300, 1.7e308])
@pytest.mark.parametrize("kinds", [["ADD"], ["RELU", "ADD"], ["ADD", "RELU", "ADD"]])
def test_invalid_costs_keep_operations_on_devices_that_support_them(
    value: float, kinds: list[str]
) -> None:
    dear = NumpyDevice("dear", {"ADD"}, other=(value, value), dispatch_ns=10**400)
    plan = place(chain(kinds), [NumpyDevice("relu", {"RELU"}), dear])
    where = {"ADD": "dear", "RELU": "relu"}
    assert [p.device for p in plan.operations] == [where[kind] for kind in kinds]


def test_reference_precedes_devices_of_equal_cost() -> None:
    model = chain(["ADD", "RELU"])
    assert place(model, [NumpyDevice("a"), NumpyDevice("b")]).steps[0].device == "a"
    plan = place(model, [NumpyDevice("a"), NumpyDevice("reference")])
    assert [s.device for s in plan.steps] == ["reference"]
    assert plan.operations[0].reasons["a"].startswith("predicted ")


def test_plan_shows_predictions_of_alternatives() -> None:
    devices = [NumpyDevice("adder", {"ADD"}, other=(0.25, 1.0)), NumpyDevice("reference")]
    plan = place(chain(["ADD", "ADD", "RELU"]), devices)
    assert [(o.device, o.operations, o.steps) for o in plan.alternatives] == [
        ("adder", 2, 2),
        ("reference", 3, 1),
    ]
    assert plan.predicted_ns == plan.alternatives[0].predicted_ns
    assert plan.alternatives[1].predicted_ns == pytest.approx(3 * OPERATION_NS + STEP_NS, rel=0.02)
    assert [s.device for s in plan.steps] == ["adder", "reference"]
    assert plan.steps[1].predicted_ns == pytest.approx(OPERATION_NS + STEP_NS, rel=0.02)
    assert plan.predicted_energy is None


def test_reasons_compare_with_the_boundary() -> None:
    devices = [
        NumpyDevice("adder", {"ADD"}, other=(0.5, 1.0), dispatch_ns=97_000),
        NumpyDevice("reference"),
    ]
    plan = place(chain(["RELU", "ADD", "RELU"]), devices)
    assert plan.operations[0].reasons == {"adder": "adder has no RELU"}
    assert plan.operations[1].reasons == {
        "adder": "predicted slower: 107 us against 8.03 us on reference, boundary included"
    }


def test_coverage_moves_operations_off_the_reference() -> None:
    devices = [NumpyDevice("slow", other=(3.0, 1.0)), NumpyDevice("reference")]
    model = chain(["ADD"] * 6)
    assert [s.device for s in place(model, devices).steps] == ["reference"]
    plan = place(model, devices, Policy(min_coverage=0.5))
    assert sum(p.device == "slow" for p in plan.operations) >= 3
    stubborn = [NumpyDevice("none", other=None), NumpyDevice("reference")]
    plan = place(model, stubborn, Policy(min_coverage=1.0))
    assert {p.device for p in plan.operations} == {"none"}


@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_limits_are_kept_at_the_least_cost_found(most: int) -> None:
    kinds = ["ADD", "RELU"] * 6
    devices = [NumpyDevice("adder", {"ADD"}, other=(0.01, 1.0)), NumpyDevice("reference")]
    free = place(chain(kinds), devices)
    assert len(free.steps) > 5
    plan = place(chain(kinds), devices, Policy(max_partitions=most))
    assert len(plan.steps) <= most
    alone = min(o.predicted_ns or 0 for o in plan.alternatives if o.steps <= most)
    assert (plan.predicted_ns or 0) <= alone


def test_a_limit_is_used_up_where_that_pays() -> None:
    """Three islands of long chains: with three steps the largest gain is kept, and not everything
    given up.
    """
    kinds = ["ADD"] * 30 + ["RELU"] * 3 + ["ADD"] * 10 + ["RELU"] * 30 + ["ADD"] * 5
    devices = [NumpyDevice("adder", {"ADD"}, other=(0.01, 1.0)), NumpyDevice("reference")]
    model = chain(kinds)
    free = place(model, devices)
    assert [(s.device, len(s.operations)) for s in free.steps] == [
        ("adder", 30),
        ("reference", 3),
        ("adder", 10),
        ("reference", 30),
        ("adder", 5),
    ]
    costs = [place(model, devices, Policy(max_partitions=most)) for most in (1, 2, 3, 4, 5)]
    assert [len(plan.steps) for plan in costs] == [1, 2, 4 - 1, 4, 5]
    predicted_ns = [plan.predicted_ns or 0 for plan in costs]
    assert predicted_ns == sorted(predicted_ns, reverse=True)
    assert predicted_ns[-1] == free.predicted_ns
    larger = place(model, devices, Policy(min_partition_size=20))
    assert [(s.device, len(s.operations)) for s in larger.steps] == [
        ("adder", 30),
        ("reference", 48),
    ]


def test_limits_that_no_plan_meets() -> None:
    devices = [NumpyDevice("a", {"ADD"}), NumpyDevice("r", {"RELU"})]
    with pytest.raises(PlacementError, match="no single device may run everything"):
        place(chain(["ADD", "RELU", "ADD"]), devices, Policy(max_partitions=2))


def test_a_given_assignment_is_taken_where_it_is_allowed() -> None:
    devices = [NumpyDevice("adder", {"ADD"}, other=(3.0, 1.0)), NumpyDevice("reference")]
    model = chain(["ADD", "RELU", "ADD"])
    given = ("adder", "reference", "adder")
    plan = place(model, devices, assignment=given)
    assert tuple(p.device for p in plan.operations) == given
    x = np.arange(-3, 3, dtype=np.float32).reshape(2, 3)
    assert run_plan(plan, devices, [x])[0].tobytes() == evaluate(model, [x])[0].tobytes()
    for refused in (("adder",) * 3, ("nobody",) * 3, ("reference",)):
        plan = place(model, devices, assignment=refused)
        assert [s.device for s in plan.steps] == ["reference"]
    plan = place(model, devices, Policy(max_partitions=1), assignment=given)
    assert [s.device for s in plan.steps] == ["reference"]


def test_operations_that_share_handles_stay_together_however_cheap_it_is_elsewhere() -> None:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (2,), "x")
    (handle,) = builder.operation("VAR_HANDLE", [], [(DType.RESOURCE, ())], {"shared_name": "v"})
    (read,) = builder.operation("READ_VARIABLE", [handle], [(DType.FLOAT32, (2,))])
    model = builder.build(list(builder.operation("ADD", [read, x], [(DType.FLOAT32, (2,))])))
    everything = {"ADD", "VAR_HANDLE", "READ_VARIABLE"}
    maker = NumpyDevice("maker", {"VAR_HANDLE"}, other=(0.01, 0.1))
    plan = place(model, [maker, NumpyDevice("all", everything)])
    assert [p.device for p in plan.operations] == ["all"] * 3
