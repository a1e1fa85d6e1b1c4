"""Plans in `stepwise`: measured beside the others, and taken only where their outputs prove to be faithful as a whole."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from msgspec.structs import replace

import penstock
from penstock.errors import Cancelled, PlacementError
from penstock.hal import AccuracyClass, PrepareConfig, ProgressEvent
from penstock.ir import DType, Model, ModelBuilder, NDArray, Operand, Quantization
from penstock.partitioning import Policy
from penstock.partitioning.fallback import NOT_PROVED, held_to_proof
from penstock.partitioning.placement import candidates
from penstock.partitioning.plan import Control, ExecutionPlan, Tuned
from penstock.runtime.examples import example, examples
from penstock.runtime.explain import explain_model
from penstock.runtime.planning import with_fallbacks
from penstock.runtime.proving import BUDGET_NS, LEAST_EXAMPLES, MOST_EXAMPLES, prove
from penstock.runtime.trial import Occasion, Proof, placed
from penstock.runtime.tuning import _keep as keep, stored_plan, tuned_plan
from tests.support_devices import NumpyDevice, NumpyPrepared
from tests.unit.runtime.test_tuning import Clock, TimedDevice, occasion

GRID: Final = Quantization((0.5,), (0,))
MS: Final = 1_000_000
SHAPE: Final = (4, 5)


def steps(dtype: DType = DType.INT8, quantization: Quantization | None = GRID) -> Model:
    """max(x, x) over quantised values."""
    b = ModelBuilder()
    x = b.input(dtype, SHAPE, "x", quantization)
    out = Operand(dtype, SHAPE, quantization=quantization)
    return b.build(b.operation("MAXIMUM", [x, x], [out]))


class Brief(TimedDevice):
    """Takes a quarter of the time where only `stepwise` is asked, and is *off* by so many steps there."""

    def __init__(self, clock: Clock, off: int, name: str = "brief") -> None:
        super().__init__(name, clock, {"MAXIMUM": 8 * MS}, rounds_for_class=True)
        self.off = off
        self.asked_for: list[AccuracyClass] = []

    def prepare_model(self, model: Model, config: PrepareConfig) -> NumpyPrepared:
        self.asked_for.append(config.accuracy)
        made = super().prepare_model(model, config)
        if config.accuracy != "stepwise":
            return made
        device, off = self, self.off

        class Off(NumpyPrepared):
            def execute(self, request: Any, config: Any) -> Any:
                device.clock.now += 2 * MS
                result = super().execute(request, config)
                for argument in request.outputs:
                    array = argument.array
                    array[...] = np.where(array > 0, array - off, array)
                return result

        return Off(model)


def devices(off: int) -> list[TimedDevice]:
    clock = Clock()
    return [
        Brief(clock, off),
        TimedDevice("usual", clock, {"MAXIMUM": 5 * MS}),
        TimedDevice("reference", clock, {"MAXIMUM": 50 * MS}, accuracy="exact"),
    ]


def tuned(model: Model, every: Sequence[TimedDevice], **more: Any) -> tuple[ExecutionPlan, Tuned]:
    plan = tuned_plan(occasion(model, every, **more))
    assert plan.tuned is not None
    return plan, plan.tuned


def test_a_faster_stepwise_plan_wins_where_it_is_proved() -> None:
    plan, told = tuned(steps(), devices(1))
    assert (plan.accuracy, told.accuracy, told.winner) == (
        "stepwise",
        "stepwise",
        "brief, stepwise",
    )
    assert [step.device for step in plan.steps] == ["brief"]
    assert plan.summary() == "1 step, 1 operation (brief 1), stepwise"
    assert told.reason.startswith("is faster than usual by 3 ms, noise 0 ns; on 6 drawn inputs")
    assert told.reason.endswith("outputs lie up to 1 from the reference's, 1 allowed")


def test_it_is_out_where_its_outputs_lie_farther_and_the_plan_says_so() -> None:
    plan, told = tuned(steps(), devices(2))
    assert (plan.accuracy, told.accuracy, told.winner) == ("faithful", None, "usual")
    (error,) = [m.error for m in told.candidates if m.name == "brief, stepwise"]
    assert error is not None
    assert error.startswith(
        "within a step in each operation, but not proved as a whole: on 6 drawn"
    )
    assert "up to 2 from the reference's, 1 allowed" in error
    shown = plan.show()
    assert "brief, stepwise out" in " ".join(shown.split())
    assert f"'brief, stepwise' is out: {error}" in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 80
    assert plan.summary() == "1 step, 1 operation (usual 1)"


@pytest.mark.parametrize("policy", [Policy(accuracy="relaxed"), Policy(accuracy="exact")])
def test_other_classes_are_not_asked_for_it(policy: Policy) -> None:
    every = devices(0)
    for device in every:
        device._accuracy = "exact"
    _, told = tuned(steps(), every, policy=policy)
    assert [m.name for m in told.candidates] == ["brief", "usual", "reference"]


def test_neither_are_models_without_quantised_values() -> None:
    _, told = tuned(steps(DType.FLOAT32, None), devices(0))
    assert "brief, stepwise" not in {m.name for m in told.candidates}


@pytest.mark.parametrize(
    ("dtype", "quantization", "is_proved"),
    [(DType.INT8, GRID, True), (DType.INT16, GRID, True), (DType.INT32, GRID, False)],
)
def test_neither_are_models_all_of_whose_examples_are_zeros(
    dtype: DType, quantization: Quantization, is_proved: bool
) -> None:
    _, told = tuned(steps(dtype, quantization), devices(0))
    assert ("brief, stepwise" in {m.name for m in told.candidates}) is is_proved


def test_the_verdict_keeps_the_class(tmp_path: Path) -> None:
    every = devices(1)
    first = tuned_plan(occasion(steps(), every, tmp_path))
    again = stored_plan(occasion(steps(), every, tmp_path))
    assert again is not None
    assert again.accuracy == first.accuracy == "stepwise"
    assert replace(again, tuned=None) == replace(first, tuned=None)


def test_what_is_compiled_then_is_asked_for_in_that_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = devices(1)
    kept = tuned_plan(occasion(steps(), every, tmp_path))
    monkeypatch.setattr("penstock.runtime.session.plan_model", lambda *_, **__: kept)
    brief = every[0]
    assert isinstance(brief, Brief)
    brief.asked_for.clear()
    with penstock.compile(steps(), devices=every, cache=False) as compiled:
        assert brief.asked_for == ["stepwise"]
        (got,) = compiled.run([np.full(SHAPE, 9, np.int8)])
    assert got.tolist() == np.full(SHAPE, 8).tolist()


def test_only_the_reference_repeats_its_steps() -> None:
    plan, _ = tuned(steps(), devices(1))
    assert [step.fallbacks for step in plan.steps] == [("reference",)]
    policy = Policy(forbid={"MAXIMUM": ("reference",)})
    plan, _ = tuned(steps(), devices(0), policy=policy)
    assert plan.accuracy == "stepwise"
    assert [(step.fallbacks, step.no_fallback) for step in plan.steps] == [((), NOT_PROVED)]
    # Asked for by the policy, the class is that of everybody.
    plan = tuned_plan(occasion(steps(), devices(0), policy=Policy(accuracy="stepwise")))
    assert [step.fallbacks for step in plan.steps] == [("usual", "reference")]


def test_so_in_branches_and_where_fall_backs_are_looked_for_anew() -> None:
    plan, _ = tuned(steps(), devices(1))
    inner = replace(plan, steps=tuple(replace(s, fallbacks=("usual",)) for s in plan.steps))
    control = Control("IF", (inner, inner))
    outer = replace(plan, steps=(replace(inner.steps[0], control=control),))
    (held,) = held_to_proof(outer).steps
    assert held.control is not None
    assert [s.fallbacks for branch in held.control.branches for s in branch.steps] == [(), ()]
    (step,) = with_fallbacks(inner, devices(1), Policy()).steps
    assert step.fallbacks == ("reference",)


@pytest.mark.parametrize(
    ("wanted", "said"), [("exact", "stepwise"), ("faithful", "relaxed"), ("stepwise", "faithful")]
)
def test_a_verdict_of_any_other_class_is_none(
    wanted: AccuracyClass, said: AccuracyClass, tmp_path: Path
) -> None:
    every = devices(0)
    for device in every:
        device._accuracy = "exact"
    policy = Policy(accuracy=wanted)
    given = occasion(steps(), every, tmp_path, policy=policy)
    told = Tuned((), "brief, stepwise", "", accuracy=said)
    keep(given, replace(placed(given), tuned=told))
    assert stored_plan(given) is None
    keep(given, replace(placed(given), tuned=replace(told, accuracy=None)))
    assert stored_plan(given) is not None


def test_the_cache_is_asked_for_what_was_compiled_in_that_class(tmp_path: Path) -> None:
    every = devices(1)
    kept = tuned_plan(occasion(steps(), every, tmp_path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.runtime.explain.plan_model", lambda *_, **__: kept)
        _, (step,) = explain_model(steps(), tmp_path, every)
    assert step.explanation.ingredients["accuracy"] == "stepwise"


def test_what_it_compiles_is_counted_and_how_far_it_is_told() -> None:
    every = devices(1)
    events: list[ProgressEvent] = []
    _, told = tuned(steps(), every, config=PrepareConfig(progress=events.append))
    assert told.compiles == sum(device.compiles for device in every)
    proving = [event for event in events if event.stage == "prove"]
    assert [event.done for event in proving] == list(range(3 * MOST_EXAMPLES))
    assert {(event.subject, event.total) for event in proving} == {
        ("brief, stepwise", 3 * MOST_EXAMPLES)
    }


def test_a_deadline_reaches_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    every = devices(1)
    deadlines: list[int | None] = []

    def prepare(model: Model, config: PrepareConfig, real: Any = every[0].prepare_model) -> Any:
        made = real(model, config)
        execute = made.execute

        def noted(request: Any, config: Any) -> Any:
            deadlines.append(config.deadline_ns)
            return execute(request, config)

        made.execute = noted
        return made

    monkeypatch.setattr(every[0], "prepare_model", prepare)
    deadline = time.monotonic_ns() + 10**12
    tuned(steps(), every, config=PrepareConfig(deadline_ns=deadline))
    assert deadlines.count(deadline) == MOST_EXAMPLES


def test_a_policy_may_ask_for_it() -> None:
    every = devices(0)
    policy = Policy(accuracy="stepwise")
    with penstock.compile(steps(), devices=every[:1], cache=False, policy=policy) as compiled:
        assert compiled.plan.accuracy == "stepwise"
    brief = every[0]
    assert isinstance(brief, Brief)
    assert brief.asked_for == ["stepwise"]


def test_a_class_in_which_nothing_can_be_placed_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def found(model: Model, devices: Any, policy: Policy, *more: Any) -> Any:
        if policy.accuracy == "stepwise":
            raise PlacementError("too many steps", {})
        return candidates(model, devices, policy, *more)

    monkeypatch.setattr("penstock.runtime.trial.candidates", found)
    _, told = tuned(steps(), devices(0))
    assert (told.winner, "brief, stepwise" in {m.name for m in told.candidates}) == ("usual", False)


def test_it_is_out_where_nothing_usual_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    every = devices(0)
    every[1].fails = every[2].fails = True

    def prepare(model: Model, config: PrepareConfig, real: Any = every[0].prepare_model) -> Any:
        if config.accuracy != "stepwise":
            raise penstock.errors.GeneralFailure("no")
        return real(model, config)

    monkeypatch.setattr(every[0], "prepare_model", prepare)
    _, told = tuned(steps(), every)
    assert told.winner == "predicted"
    (error,) = [m.error for m in told.candidates if m.name == "brief, stepwise"]
    assert error is not None
    assert "no other placement could be measured" in error


def proof(
    model: Model, plan: Any, usual: Any = lambda x: x, exact: Any = lambda x: x, **more: Any
) -> Proof:
    def run(function: Any) -> Any:
        return lambda inputs: [function(inputs[0])]

    return Proof(*prove(model, run(plan), run(usual), run(exact), **more))


def moved(by: int, every: int = 1) -> Any:
    """Values from zero down to -100 are raised by *by*, each *every*-th element."""

    def function(x: NDArray) -> NDArray:
        flat = x.astype(np.int32).ravel()
        flat[::every] += by
        return np.clip(flat, -128, 127).astype(np.int8).reshape(x.shape)

    return function


class TestTheBound:
    def test_is_a_step_beyond_the_usual_plans_largest(self) -> None:
        assert proof(steps(), moved(3), moved(2), moved(0)).holds is False
        # The same number of equal differences, one step larger in a single place.
        usual, rare = moved(2), moved(3, 20)
        assert proof(steps(), lambda x: np.where(x == rare(x), usual(x), rare(x)), usual).holds

    def test_holds_within_a_step_whatever_the_usual_plans(self) -> None:
        assert proof(steps(), moved(1)).holds
        assert not proof(steps(), moved(2)).holds

    def test_is_also_of_the_root_mean_square(self) -> None:
        found = proof(steps(), moved(2), moved(2, 4))
        assert not found.holds
        assert re.search(r", RMS (2\.0|1\.9)\d of the usual plan's, 1\.2 allowed$", found.told)

    def test_leaves_no_room_where_the_usual_plan_gives_another_answer(self) -> None:
        def turned(x: NDArray) -> NDArray:
            return x[::-1]

        def more(x: NDArray) -> NDArray:
            mixed = x.copy()
            mixed[0], mixed[-1] = x[-1], x[0]
            return mixed

        assert proof(steps(), turned, turned).holds
        assert proof(steps(), more, turned).holds
        found = proof(steps(), turned, more)
        assert not found.holds
        assert found.told.endswith("1.0 allowed")

    def test_floats_may_differ_by_what_float32_rounds_away(self) -> None:
        model = steps(DType.FLOAT32, None)
        assert proof(model, lambda x: x * np.float32(1 + 1e-4)).holds
        assert not proof(model, lambda x: x * np.float32(1 + 1e-3)).holds

    def test_a_dequantised_output_has_its_steps(self) -> None:
        b = ModelBuilder()
        x = b.input(DType.INT8, SHAPE, "x", GRID)
        model = b.build(b.operation("DEQUANTIZE", [x], [(DType.FLOAT32, SHAPE)]))
        for off, holds in ((0.5, True), (0.6, False)):
            found = proof(
                model,
                lambda q, off=off: q * np.float32(0.5) + np.float32(off),
                lambda q: q * np.float32(0.5),
                lambda q: q * np.float32(0.5),
            )
            assert found.holds is holds

    def test_whole_numbers_must_be_equal(self) -> None:
        model = steps(DType.INT32, None)
        assert proof(model, lambda x: x).holds
        assert not proof(model, lambda x: x + 1).holds

    def test_shapes_and_what_is_no_number_must_be_equal(self) -> None:
        model = steps(DType.FLOAT32, None)
        assert not proof(model, lambda x: x[:1]).holds
        assert not proof(model, lambda x: x, exact=lambda x: np.where(x > 0.5, np.nan, x)).holds

        # A usual plan that is no better proves nothing, and lets nothing pass.
        def lost(x: NDArray) -> NDArray:
            return np.full_like(x, np.inf)

        assert not proof(model, lost, lost).holds
        assert not proof(model, lambda x: x + 1, lost).holds
        assert not proof(steps(), moved(2), lambda x: x[:1]).holds
        assert proof(model, lambda x: x, lost).holds


def test_a_proof_takes_the_least_number_of_inputs_where_time_is_short() -> None:
    moments = iter(range(0, 10**12, BUDGET_NS))
    assert (
        f"on {LEAST_EXAMPLES} drawn inputs"
        in proof(steps(), moved(0), clock=lambda: next(moments)).told
    )
    assert f"on {MOST_EXAMPLES} drawn inputs" in proof(steps(), moved(0)).told


def test_a_proof_can_be_cancelled() -> None:
    def cancelled(_: int) -> None:
        raise Cancelled("it is over")

    with pytest.raises(Cancelled):
        proof(steps(), moved(0), check=cancelled)


def test_drawn_inputs_differ_and_are_the_same_again() -> None:
    picture = Operand(DType.UINT8, (1, 40, 50, 3), quantization=GRID)
    drawn = [example(picture, number) for number in range(MOST_EXAMPLES)]
    assert len({array.tobytes() for array in drawn}) == MOST_EXAMPLES
    assert all(np.array_equal(a, example(picture, k)) for k, a in enumerate(drawn))
    assert all(a.shape == (1, 40, 50, 3) and a.dtype == np.uint8 for a in drawn)
    # Noise, then blocks of one colour.
    alike = [np.mean(a[:, 1:] == a[:, :-1]) for a in drawn]
    assert max(alike[:2]) < 0.1
    assert min(alike[2:]) > 0.8
    floats = Operand(DType.FLOAT32, (1000,))
    assert [round(float(example(floats, k).min())) for k in range(2)] == [0, -1]
    assert [a.dtype for a in examples(steps())] == [np.int8]


def test_the_occasion_needs_a_reference() -> None:
    every = devices(0)[:2]
    given: Occasion = occasion(steps(), every)
    told = tuned_plan(given).tuned
    assert told is not None
    assert "brief, stepwise" not in {m.name for m in told.candidates}


def test_a_device_that_cannot_be_asked_is_left_out() -> None:
    class Mute(NumpyDevice):
        @property
        def capabilities(self) -> Any:
            raise OSError("gone")

        @capabilities.setter
        def capabilities(self, value: Any) -> None: ...

    every = devices(1)
    mute: Any = Mute("mute")
    given = occasion(steps(), every)
    given = replace(given, devices=[*every, mute], named={**given.named, "mute": mute})
    plan = tuned_plan(given)
    assert plan.accuracy == "stepwise"


@pytest.mark.parametrize("dtype", [DType.UINT8, DType.INT32])
def test_whole_numbers_in_the_shape_of_a_picture_are_drawn_as_its_colours(dtype: DType) -> None:
    drawn = example(Operand(dtype, (1, 40, 50, 3)))
    assert (drawn.dtype, drawn.min(), drawn.max()) == (dtype.numpy, 0, 255)
    assert not example(Operand(dtype, (1, 40, 50, 7))).any()
    assert not example(Operand(dtype, (1, 40))).any()
