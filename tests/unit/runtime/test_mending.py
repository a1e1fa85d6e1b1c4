"""Plans whose work is mostly on the reference device say so, and what mends it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest
from msgspec.structs import replace

import penstock
from penstock import hal
from penstock.errors import Refusal, RefusalCode
from penstock.export import tflite
from penstock.ir import DType, Model, ModelBuilder, Operand, infer_shapes
from penstock.partitioning import Policy, place
from penstock.partitioning.placements import Remedy, Slow
from penstock.partitioning.plan import ExecutionPlan
from penstock.partitioning.slow import products_by_operation, products_on_reference
from penstock.partitioning.work import DEPTHWISE_WEIGHT, work_of
from penstock.runtime import mending
from penstock.runtime.examination import examined
from tests.support_devices import NumpyDevice

DENSE: Final = frozenset({"FULLY_CONNECTED", "RELU"})
RELU: Final = frozenset({"RELU"})
QUICK: Final = (0.1, 0.1)


def dense(rows: int | None = 1, layers: Sequence[int] = (64,)) -> Model:
    """Fully connected layers of *layers* outputs, each after the other, and a RELU."""
    net = ModelBuilder()
    width, x = 4, net.input(DType.FLOAT32, (rows, 4), "x")
    for count in layers:
        weights = net.constant(np.ones((count, width), np.float32), f"w{count}")
        made = (DType.FLOAT32, (rows, count))
        (x,) = net.operation("FULLY_CONNECTED", [x, weights, None], [made])
        width = count
    return net.build(list(net.operation("RELU", [x], [(DType.FLOAT32, (rows, width))])))


class Missing(NumpyDevice):
    """A device that cannot be used."""

    def check(self) -> str:
        return "its engine is not installed: pip install it"


def judged(
    model: Model,
    devices: Sequence[NumpyDevice],
    others: Sequence[hal.Device] = (),
    policy: Policy | None = None,
    *,
    is_listed: bool = False,
) -> ExecutionPlan:
    """The plan on *devices* and the reference device, where *others* are Penstock's devices too."""
    policy = policy or Policy()
    reference = NumpyDevice("reference", DENSE)
    found = [examined(device, "driver") for device in (*devices, *others, reference)]
    manager: Any = SimpleNamespace(built_in=lambda _: found)
    plan = place(model, [*devices, reference], policy)
    return mending.judged(plan, policy, manager, is_listed=is_listed)


def test_class_that_admits_a_device_is_the_remedy_and_the_first_line_has_it() -> None:
    plan = judged(dense(), [NumpyDevice("rough", DENSE, accuracy="stepwise")])
    remedy = Remedy("accuracy", ("rough",), 1.0, accuracy="stepwise")
    assert plan.slow == Slow(1.0, ("FULLY_CONNECTED",), (remedy,))
    told = 'slow: 100% of the multiply-accumulates on reference (rough: accuracy="stepwise")'
    assert plan.summary().startswith(f"{told}; 1 step, 2 operations")
    assert told in repr(plan)
    first = " ".join(plan.show().partition("predicted")[0].split())
    assert first.startswith(f"plan: {told}; ")
    words = 'Policy(accuracy="stepwise") (--accuracy stepwise)'
    assert f"(FULLY_CONNECTED); rough would take 100%: {words}" in first
    assert "slow: 100%" in plan.to_svg()
    assert '"slow":{"share":1.0' in plan.to_json()


def test_most_of_the_work_on_a_device_is_no_alarm() -> None:
    half = frozenset({"RELU", "FULLY_CONNECTED"})

    def first_only(kind: str, name: str) -> bool:
        return kind in half and "second" not in name

    net = ModelBuilder()
    x = net.input(DType.FLOAT32, (1, 4), "x")
    for name, count, width in (("first", 64, 4), ("second", 4, 64)):
        weights = net.constant(np.ones((count, width), np.float32))
        made = Operand(DType.FLOAT32, (1, count), name=name)
        (x,) = net.operation("FULLY_CONNECTED", [x, weights, None], [made])
    plan = judged(net.build([x]), [NumpyDevice("a", first_only, other=QUICK)])
    slow, total = products_on_reference(plan)
    assert (sum(slow.values()), total) == (256, 512)
    assert plan.slow is None
    assert judged(dense(), [NumpyDevice("a", DENSE, other=QUICK)]).slow is None


def test_no_engine_that_has_the_operations_is_no_remedy_and_they_are_named() -> None:
    plan = judged(dense(), [NumpyDevice("a", RELU)], [Missing("b", RELU)])
    assert plan.slow is not None
    assert plan.slow.remedies == ()
    assert str(plan.slow) == (
        "slow: 100% of the multiply-accumulates run on reference (FULLY_CONNECTED): no other "
        "device here has these operations"
    )
    assert plan.summary().startswith("slow: 100% of the multiply-accumulates on reference; 1 step")


class Graphics(Missing):
    """A device of other hardware."""

    def __init__(self, name: str) -> None:
        super().__init__(name, DENSE)
        self.type = hal.DeviceType.GPU


def processor(device: NumpyDevice) -> NumpyDevice:
    device.type = hal.DeviceType.CPU
    return device


def test_engines_that_are_not_installed_or_not_named_are_remedies() -> None:
    others = [
        processor(Missing("missing", DENSE)),
        processor(Missing("coarse", DENSE, accuracy="relaxed")),
        Graphics("graphics"),
        NumpyDevice("unlisted", DENSE),
        NumpyDevice("toy", DENSE, only_when_named=True),
    ]
    plan = judged(dense(), [NumpyDevice("a", RELU)], others, is_listed=True)
    assert plan.slow is not None
    install = "its engine is not installed: pip install it"
    assert plan.slow.remedies == (
        Remedy("install", ("missing",), 1.0, install),
        Remedy("install", ("coarse",), 1.0, install, "relaxed"),
        Remedy("devices", ("unlisted",), 1.0, "not named in devices= (--device)"),
    )
    assert str(plan.slow.remedies[1]) == (
        f'coarse would take 100%: {install}, and Policy(accuracy="relaxed") (--accuracy relaxed)'
    )
    assert "(missing: its engine is not installed: pip install it); 1 step, 2 op" in repr(plan)
    assert plan.slow.remedies[1].summary == f'coarse: {install}, accuracy="relaxed"'


def test_policy_and_placement_rule_are_remedies() -> None:
    a = NumpyDevice("a", DENSE)
    forbidden = judged(dense(), [a], policy=Policy(forbid={"FULLY_CONNECTED": "a"}))
    assert forbidden.slow is not None
    assert forbidden.slow.remedies == (Remedy("policy", ("a",), 1.0, "the policy forbids it"),)
    ruled = judged(dense(), [a], policy=Policy(placement="nnapi"))
    assert ruled.slow is not None
    (remedy,) = ruled.slow.remedies
    assert (remedy.kind, remedy.devices) == ("tune", ("a",))


def test_plan_that_was_measured_or_asked_for_is_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = judged(dense(), [NumpyDevice("a", DENSE)], policy=Policy(placement="nnapi"))
    measured = {"a": Refusal(RefusalCode.MEASURED, "measured slower")}
    operations = tuple(replace(p, refusals=measured) for p in plan.operations)
    assert products_on_reference(replace(plan, operations=operations))[0] == {}
    assert judged(dense(), [], is_listed=True).slow is None
    monkeypatch.setenv("PENSTOCK_DEVICES", "reference")
    knob = judged(dense(), [], [NumpyDevice("unlisted", DENSE)])
    assert knob.slow is not None
    alone = "the knob devices (PENSTOCK_DEVICES) names no other device"
    assert str(knob.slow).endswith(f"(FULLY_CONNECTED); {alone}")
    assert f" on reference ({alone}); " in knob.summary()


def test_shapes_that_come_with_runs_have_plans_of_their_own() -> None:
    still = NumpyDevice("still", DENSE, other=QUICK, dynamic_outputs=False)
    model = dense(None)
    assert judged(model, [still]).slow is None
    assert judged(infer_shapes(model, {0: (2, 4)}), [still]).slow is None
    assert judged(infer_shapes(model, {0: (2, 4)}), [NumpyDevice("a", RELU)]).slow is not None
    assert judged(model, [NumpyDevice("a", RELU)]).slow is not None
    missing = processor(Missing("missing", DENSE, dynamic_outputs=False))
    slow = judged(model, [NumpyDevice("a", RELU)], [missing]).slow
    assert slow is not None
    assert [remedy.devices for remedy in slow.remedies] == [("missing",)]


def test_branches_that_are_taken_apart_count_half() -> None:
    builder = ModelBuilder()
    shape = (1, 256)
    weights = np.ones((256, 256), np.float32)

    def branch(name: str) -> int:
        inner = builder.subgraph(name)
        x = inner.input(DType.FLOAT32, shape, f"{name}_x")
        made = Operand(DType.FLOAT32, shape, name=name)
        return builder.add_subgraph(
            inner.finish(
                inner.operation("FULLY_CONNECTED", [x, inner.constant(weights), None], [made])
            )
        )

    indexes = {"then_subgraph_index": branch("then"), "else_subgraph_index": branch("else")}
    condition, x = builder.input(DType.BOOL, (), "c"), builder.input(DType.FLOAT32, shape, "x")
    made = Operand(DType.FLOAT32, shape, name="y")
    model = builder.build(list(builder.operation("IF", [condition, x], [made], indexes)))
    only_then = NumpyDevice("a", lambda kind, name: kind != "IF" and name == "then", other=QUICK)
    plan = place(model, [only_then, NumpyDevice("reference", DENSE | {"IF"})], Policy())
    assert plan.steps[0].control is not None
    assert products_on_reference(plan) == ({0: 128 * 256}, 256 * 256)
    whole = place(model, [NumpyDevice("reference", DENSE | {"IF"})], Policy())
    assert whole.steps[0].control is None
    assert products_on_reference(whole) == ({0: 256 * 256}, 256 * 256)


def test_multiply_accumulates_are_counted_without_weights() -> None:
    net = ModelBuilder()
    x = net.input(DType.FLOAT32, (1, 4, 4, 2), "x")
    weights = net.constant(np.ones((1, 3, 3, 2), np.float32), "w")
    (y,) = net.operation(
        "DEPTHWISE_CONV_2D",
        [x, weights, None],
        [(DType.FLOAT32, (1, 4, 4, 2))],
        {"stride_w": 1, "stride_h": 1, "depth_multiplier": 1},
    )
    model = net.build(list(net.operation("RELU", [y], [(DType.FLOAT32, (1, 4, 4, 2))])))
    assert products_by_operation(model) == [4 * 4 * 2 * 9, 0]
    assert work_of(model.entry, model.operations[0]).macs == 4 * 4 * 2 * 9 * DEPTHWISE_WEIGHT


def test_second_start_says_it_without_asking_anybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "dense.tflite"
    path.write_bytes(tflite.write(dense()))
    policy = Policy(forbid={"FULLY_CONNECTED": "sample"})

    def start() -> tuple[str, Slow | None, tuple[str, ...]]:
        with penstock.compile(
            path, devices=["sample", "reference"], policy=policy, cache=tmp_path / "c"
        ) as compiled:
            outcome = compiled.receipt.plan
            assert outcome is not None
            return outcome.outcome, compiled.plan.slow, compiled.receipt.notes

    outcome, slow, notes = start()
    assert outcome == "miss"
    (note,) = notes
    assert note == str(slow)
    assert "sample would take 100%: the policy forbids it" in note

    def never(*_: object, **__: object) -> None:
        raise AssertionError("called")

    monkeypatch.setattr("penstock.runtime.discovery.Manager.built_in", never)
    assert start() == ("hit", slow, notes)


def test_second_start_knows_which_class_admits_a_device(tmp_path: Path) -> None:
    path = tmp_path / "dense.tflite"
    path.write_bytes(tflite.write(dense()))

    def start() -> tuple[str, ...]:
        policy = Policy(accuracy="exact")
        with penstock.compile(
            path, devices=["sample", "reference"], policy=policy, cache=tmp_path / "c"
        ) as compiled:
            return compiled.receipt.notes

    (note,) = start()
    assert 'sample would take 100%: Policy(accuracy="faithful")' in note
    assert start() == (note,)


class Failing(NumpyDevice):
    """Supports everything and compiles nothing."""

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> Any:
        raise penstock.errors.GeneralFailure("out of order")


def test_step_that_fell_back_at_the_compile_counts() -> None:
    devices: list[Any] = [Failing("broken", DENSE, other=QUICK), "reference"]
    with penstock.compile(dense(), devices, cache=None) as compiled:
        slow = compiled.plan.slow
        assert slow is not None
        assert compiled.receipt.notes == (str(slow),)
        failures = [remedy for remedy in slow.remedies if remedy.kind == "failure"]
        assert [remedy.devices for remedy in failures] == [("broken",)]
        assert "out of order" in failures[0].fix
