"""However a model is spread over devices, the result is the same, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final
from zlib import crc32

import numpy as np
import pytest
from msgspec.structs import replace

from penstock.drivers.reference.driver import ReferenceDevice
from penstock.errors import PlacementError
from penstock.hal import Capabilities, PerformanceInfo, Support
from penstock.ir import Model, Operation
from penstock.loaders import load
from penstock.partitioning import ExecutionPlan, Policy, place
from penstock.partitioning.policy import PlacementRule
from penstock.runtime import compile_model
from tests.support_devices import NumpyDevice, evaluate, run_plan
from tests.support_graphs import Case, random_case

GRAPHS: Final = 720
BATCHES: Final = 12
COMPILED_SHARE: Final = 3
POLICIES: Final = (Policy(placement="cost"), Policy(placement="nnapi"))


@pytest.mark.parametrize("batch", range(BATCHES))
def test_partitioned_equals_unpartitioned(batch: int) -> None:
    """On one to four reference devices, each with a support table of its own; and NumPy says the
    same.
    """
    reference = ReferenceDevice()
    for seed in range(batch, GRAPHS, BATCHES):
        case = random_case(seed)
        arrays = case.graph.arrays
        expected = run_plan(case.whole(), [NumpyDevice("all")], arrays, reference)
        for one, other in zip(expected, evaluate(case.model, arrays), strict=True):
            # The sign of a zero is each one's own.
            assert np.array_equal(one, other, equal_nan=one.dtype.kind == "f"), f"seed {seed}"
        for plan in (case.plan, case.replaced("cost" if seed % 2 else "nnapi")):
            outputs = run_plan(plan, case.devices, arrays, reference)
            assert len(outputs) == len(expected)
            for position, (one, other) in enumerate(zip(outputs, expected, strict=True)):
                same = (one.dtype, one.shape) == (other.dtype, other.shape)
                same = same and one.tobytes() == other.tobytes()
                assert same, f"seed {seed}, output {position}\n{plan.show()}"


@pytest.mark.parametrize("batch", range(BATCHES))
def test_compiled_model_equals_unpartitioned(batch: int) -> None:
    """The outputs of two runs through `penstock.compile`, the second on the first one's state."""
    for seed in range(batch, GRAPHS // COMPILED_SHARE, BATCHES):
        case = random_case(seed)
        entry = case.model.entry
        count = len(entry.ordinary_inputs)
        given, state = (
            case.graph.arrays[:count],
            [np.zeros_like(a) for a in case.graph.arrays[count:]],
        )
        policy = POLICIES[seed % 3 % 2]
        with compile_model(case.model, devices=case.devices, policy=policy) as compiled:
            for run in range(2):
                expected = evaluate(case.model, [*given, *state])
                outputs = compiled.run(given)
                ordinary = expected[: len(entry.ordinary_outputs)]
                state = expected[len(entry.ordinary_outputs) :]
                assert len(outputs) == len(ordinary)
                for one, other in zip(outputs, ordinary, strict=True):
                    same = (one.dtype, one.shape) == (other.dtype, other.shape)
                    same = same and one.tobytes() == other.tobytes()
                    assert same, f"seed {seed}, run {run}\n{compiled.plan.show()}"


class Share(ReferenceDevice):
    """The reference driver as one of *count* devices that split the operations among them; with
    *several*, some operations are taken by more than one.
    """

    def __init__(self, number: int, count: int, several: bool = False) -> None:
        self.name, self._number, self._count = f"share{number}", number, count
        self._several = several
        self.capabilities = Capabilities(
            default_performance=PerformanceInfo(0.5 + number / 8, 0.5), dispatch_ns=0
        )

    def supported_operations(self, model: Model) -> Sequence[Support]:
        return [
            answer
            if self._mine(model.entry.operation_name(index))
            else Support(supported=False, reason="not mine")
            for index, answer in enumerate(super().supported_operations(model))
        ]

    def _mine(self, name: str) -> bool:
        drawn = crc32(name.encode())
        also = self._several and bool(drawn >> (8 + self._number) & 1)
        return drawn % self._count == self._number or also


@pytest.mark.parametrize("batch", range(BATCHES))
def test_reference_drivers_that_share_the_operations_equal_one(batch: int) -> None:
    for turn, seed in enumerate(range(batch, GRAPHS // COMPILED_SHARE, BATCHES)):
        case = random_case(seed)
        given = case.graph.arrays[: len(case.model.entry.ordinary_inputs)]
        count = 1 + seed % 4
        shares = [Share(number, count, bool(turn % 2)) for number in range(count)]
        with (
            compile_model(case.model, devices=[ReferenceDevice()]) as whole,
            compile_model(case.model, devices=shares, policy=POLICIES[seed % 3 % 2]) as parted,
        ):
            for _ in range(2):
                pairs = zip(whole.run(given), parted.run(given), strict=True)
                assert all(one.tobytes() == other.tobytes() for one, other in pairs), (
                    f"seed {seed}\n{parted.plan.show()}"
                )


@pytest.mark.parametrize(
    "name",
    [
        "hair_segmentation_float",
        "face_landmark_float",
        "if_add_mul",
        "mobilenet_v1_0.25_128_uint8",
        "resnet8_cifar10_int8",
        "yunet_dynamic_range",
    ],
)
def test_real_networks_in_three_shares(corpus: Path, name: str) -> None:
    model = load(corpus / "models" / "networks" / f"{name}.tflite")
    rng = np.random.default_rng(0)
    with (
        compile_model(model, devices=[ReferenceDevice()]) as whole,
        compile_model(model, devices=[Share(number, 3) for number in range(3)]) as parted,
    ):
        given = [
            rng.integers(0, 100, [d or 1 for d in operand.shape or ()]).astype(operand.dtype.numpy)
            for operand in whole.inputs
        ]
        pairs = list(zip(whole.run(given), parted.run(given), strict=True))
        assert pairs
        assert all(one.tobytes() == other.tobytes() for one, other in pairs)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_limits_are_kept_and_stay_invisible(batch: int) -> None:
    """On every other graph a device that takes everything is there as well, for work to move to."""
    kept = moved = refused = 0
    for turn, seed in enumerate(range(batch, GRAPHS // COMPILED_SHARE, BATCHES)):
        case = random_case(seed)
        size, most = 1 + turn % 4, 1 + turn % 7
        slow = [NumpyDevice("slow", other=(9.0, 9.0))] * (turn % 2)
        devices = [*case.devices, *slow]
        rule: PlacementRule = "cost" if seed % 3 else "nnapi"
        limits = Policy(placement=rule, min_partition_size=size, max_partitions=most)
        free = place(case.model, devices, Policy(placement=rule))
        try:
            plan = place(case.model, devices, limits)
        except PlacementError:
            refused += 1
            continue
        kept += 1
        moved += plan.steps != free.steps
        assert len(plan.steps) <= most
        sizes = [len(step.operations) for step in plan.steps if step.device != "reference"]
        assert all(length >= size for length in sizes), plan.show()
        expected = evaluate(case.model, case.graph.arrays)
        outputs = run_plan(plan, devices, case.graph.arrays)
        assert [o.tobytes() for o in outputs] == [e.tobytes() for e in expected], plan.show()
    assert kept >= 8
    assert moved >= 2
    assert refused >= 2


def test_a_device_that_takes_nothing_changes_nothing() -> None:
    for seed in range(0, GRAPHS, 8):
        case = random_case(seed)
        idle = NumpyDevice("idle", lambda *_: "out of order")
        plan = place(case.model, [idle, *case.devices])
        without = place(case.model, case.devices)
        assert (_layout(plan), plan.temporaries) == (_layout(without), without.temporaries)
        assert all(placement.reasons["idle"] == "out of order" for placement in plan.operations)


def _layout(plan: ExecutionPlan) -> list[object]:
    """The steps, those of branches too, without what is told of every device: why it may not repeat
    a step.
    """
    return [
        (
            replace(step, no_fallback="", control=None),
            [] if step.control is None else list(map(_layout, step.control.branches)),
        )
        for step in plan.steps
    ]


def test_the_graphs_are_hard_enough() -> None:
    """At least half of 500 graphs and more have it all at once: three steps or more on two devices
    or more, an operation of several outputs, an output that is read inside too. The other traits
    that partitioning can get wrong are common.
    """
    cases = [random_case(seed) for seed in range(GRAPHS)]
    hard = [
        case for case in cases if _is_spread(case) and _several_outputs(case) and _read_inside(case)
    ]
    assert len(cases) >= 500
    assert 2 * len(hard) >= len(cases)
    assert {len(c.devices) for c in hard} == {2, 3, 4}
    assert sum(bool(c.plan.forwards) for c in cases) >= GRAPHS // 20
    assert sum(bool(c.plan.temporaries.dynamic) for c in hard) >= GRAPHS // 20
    assert sum(bool(c.model.entry.states) for c in hard) >= GRAPHS // 20
    assert sum(len(c.model.subgraphs) > 1 for c in hard) >= GRAPHS // 20
    assert sum(len(_run(c)) < len(c.model.operations) for c in cases) >= GRAPHS // 20
    assert sum(len(c.plan.steps) == 1 for c in cases) >= GRAPHS // 20


def _is_spread(case: Case) -> bool:
    return len(case.plan.steps) >= 3 and len({step.device for step in case.plan.steps}) >= 2


def _run(case: Case) -> list[Operation]:
    """The operations that a step runs; the rest is dead."""
    return [case.model.operations[i] for step in case.plan.steps for i in step.operations]


def _several_outputs(case: Case) -> bool:
    return any(len(operation.outputs) > 1 for operation in _run(case))


def _read_inside(case: Case) -> bool:
    computed = {o for operation in _run(case) for o in operation.outputs}
    read = {i for operation in _run(case) for i in operation.inputs}
    return not computed.isdisjoint(read.intersection(case.model.entry.outputs))
