"""Measured placement: who wins, what is kept, and what a later start does with it."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from msgspec.structs import replace

import penstock
from penstock import hal
from penstock.cache.verdicts import Verdict, Verdicts
from penstock.errors import (
    Cancelled,
    GeneralFailure,
    InputError,
    MissedDeadline,
    MissedDeadlinePersistent,
    MissedDeadlineTransient,
)
from penstock.ir import DType, Model, ModelBuilder, infer_shapes
from penstock.partitioning import Policy
from penstock.partitioning.plan import ExecutionPlan
from penstock.partitioning.show import duration
from penstock.runtime.compile_arguments import Occasion
from penstock.runtime.explain import explain_model
from penstock.runtime.tuning import NO_COUNTER, TOO_LATE, stored_plan, tuned_plan
from tests.support_devices import NumpyDevice, NumpyPrepared
from tests.unit.partitioning.models import chain


class Clock:
    """Moves only as devices say; energy moves with it, times the power of who works."""

    def __init__(self) -> None:
        self.now, self.energy = 0, 0.0
        self.events: list[str] = []

    def __call__(self) -> int:
        return self.now

    def read(self) -> int:
        return int(self.energy)


class TimedDevice(NumpyDevice):
    """Takes *costs* nanoseconds of *clock* for each operation, by its type and by that of its first
    input, and up to *jitter* more for each execution.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        costs: dict[str, int],
        *,
        jitter: int = 0,
        power: float = 1.0,
        fails: bool = False,
        **more: Any,
    ) -> None:
        super().__init__(name, frozenset(costs), **more)
        self.clock, self.costs, self.power, self.fails = clock, costs, power, fails
        self.jitter, self.rng = jitter, np.random.default_rng(0)
        self.compiles = 0

    def happens(self, what: str) -> None:
        event = f"{self.name} {what}"
        if self.clock.events[-1:] != [event]:
            self.clock.events.append(event)

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> NumpyPrepared:
        self.compiles += 1
        if self.fails:
            raise GeneralFailure("out of order")
        made = super().prepare_model(model, config)
        return _Timed(made.model, self)


class _Timed(NumpyPrepared):
    def __init__(self, model: Model, device: TimedDevice) -> None:
        super().__init__(model)
        self.device = device

    def close(self) -> None:
        self.device.happens("closed")

    def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        device = self.device
        device.happens("ran")
        took = int(device.rng.integers(0, device.jitter + 1))
        for operation in self.model.operations:
            dtype = self.model.operands[operation.inputs[0]].dtype.value
            took += device.costs[operation.type] + device.costs.get(dtype, 0)
        device.clock.now += took
        device.clock.energy += took * device.power / 100
        return super().execute(request, config)


def occasion(
    model: Model, devices: Sequence[TimedDevice], directory: Path | None = None, **more: Any
) -> Occasion:
    """A compile whose clock is the devices' own."""
    clock = devices[0].clock
    settings: dict[str, Any] = {"policy": Policy(), "config": hal.PrepareConfig(), **more}
    return Occasion(
        model,
        infer_shapes(model),
        {},
        devices,
        {device.name: device for device in devices},
        directory=None if directory is None else str(directory),
        counter=lambda: clock,
        clock=clock,
        **settings,
    )


KINDS = ["ADD", "RELU", "MUL"]
MS = 1_000_000


def liars(**more: Any) -> list[TimedDevice]:
    """Device a says that it is quick and is slow; b is what it says."""
    clock = Clock()
    costs = dict.fromkeys(KINDS, 5 * MS)
    return [
        TimedDevice("a", clock, costs, other=(0.01, 0.01), **more),
        TimedDevice("b", clock, dict.fromkeys(KINDS, MS), other=(0.9, 0.9)),
    ]


def test_measured_costs_replace_declared_costs() -> None:
    plan = tuned_plan(occasion(chain(KINDS), liars()))
    assert [s.device for s in plan.steps] == ["b"]
    assert plan.tuned is not None
    assert plan.tuned.winner == "b"
    assert not plan.tuned.stored
    medians = {m.name: m.median_ns for m in plan.tuned.candidates}
    assert medians["a"] == 15 * MS
    assert medians["b"] == 3 * MS
    assert plan.tuned.compiles == len(plan.tuned.candidates) >= 2


def test_tuning_closes_measured_and_rejected_candidates() -> None:
    devices = liars()
    devices[0].costs = dict.fromkeys(KINDS, 2_000 * MS)
    tuned_plan(occasion(chain(KINDS), devices))
    assert devices[0].clock.events == ["a ran", "b ran", "a closed", "b ran", "b closed"]


def two_types() -> Model:
    """Four operations on floats, then four on integers."""
    net = ModelBuilder()
    x = net.input(DType.FLOAT32, (4,), "x")
    for _ in range(3):
        (x,) = net.operation("ADD", [x, x], [(DType.FLOAT32, (4,))])
    k = net.constant(np.array(4, np.int32))
    _, at = net.operation("TOPK_V2", [x, k], [(DType.FLOAT32, (4,)), (DType.INT32, (4,))])
    for _ in range(4):
        (at,) = net.operation("ADD", [at, at], [(DType.INT32, (4,))])
    return net.build([at])


def specialists(floats: int, integers: int, jitter: int = 0) -> list[TimedDevice]:
    """Each takes everything, and says that it is quick at one type; how long that really takes is
    given.
    """
    clock = Clock()
    performance = {"float32": (0.01, 0.5), "int32": (0.9, 0.9)}
    turned = {"float32": (0.9, 0.9), "int32": (0.01, 0.5)}
    kinds = {"ADD": 0, "TOPK_V2": 0}
    return [
        TimedDevice(
            "floats",
            clock,
            {"float32": floats, "int32": 10 * MS, **kinds},
            performance=performance,
            jitter=jitter,
        ),
        TimedDevice(
            "integers", clock, {"float32": 10 * MS, "int32": integers, **kinds}, performance=turned
        ),
    ]


def test_a_cut_wins_where_it_beats_every_device_alone() -> None:
    plan = tuned_plan(occasion(two_types(), specialists(MS, MS)))
    assert [(s.device, len(s.operations)) for s in plan.steps] == [("floats", 4), ("integers", 4)]
    assert plan.tuned is not None
    assert plan.tuned.winner == "predicted"
    assert {m.name: m.median_ns for m in plan.tuned.candidates} == {
        "floats": 44 * MS,
        "integers": 44 * MS,
        "predicted": 8 * MS,
    }
    assert plan.tuned.reason == "is faster than floats by 36 ms, noise 0 ns"


def test_a_cut_that_gains_less_than_the_noise_is_not_kept() -> None:
    plan = tuned_plan(occasion(two_types(), specialists(int(9.9 * MS), 10 * MS, jitter=4 * MS)))
    assert len(plan.steps) == 1
    assert plan.tuned is not None
    assert plan.tuned.winner != "predicted"


@pytest.mark.parametrize(("each", "winner"), [(6 * MS, "engine"), (3 * MS, "reference")])
def test_the_reference_wins_only_beyond_the_noise(each: int, winner: str) -> None:
    """Either takes up to 8 ms more in each run: what it gains at 6 ms an operation, as long as the
    engine's, is chance.
    """
    clock = Clock()
    devices = [
        TimedDevice(
            "reference", clock, dict.fromkeys(KINDS, each), jitter=8 * MS, other=(0.9, 0.9)
        ),
        TimedDevice("engine", clock, dict.fromkeys(KINDS, 6 * MS), jitter=8 * MS, other=(0.1, 0.1)),
    ]
    devices[0].rng = np.random.default_rng(1)
    plan = tuned_plan(occasion(chain(KINDS), devices))
    assert [s.device for s in plan.steps] == [winner]
    assert plan.tuned is not None
    beaten = "is faster than engine by " in plan.tuned.reason
    assert beaten == (winner == "reference")


def test_the_reference_wins_where_no_engine_runs() -> None:
    clock = Clock()
    costs = dict.fromkeys(KINDS, MS)
    devices = [
        TimedDevice("engine", clock, costs, other=(0.01, 0.01), fails=True),
        TimedDevice("reference", clock, costs, other=(0.9, 0.9)),
    ]
    plan = tuned_plan(occasion(chain(KINDS), devices))
    assert [s.device for s in plan.steps] == ["reference"]
    assert plan.tuned is not None
    assert plan.tuned.reason == "no placement is faster than this one device"


@pytest.mark.parametrize("kind", [MissedDeadlinePersistent, MissedDeadlineTransient])
def test_deadline_passed_during_tuning_names_the_whole_compile(kind: type[MissedDeadline]) -> None:
    devices = liars()

    def prepare(*_: object) -> NumpyPrepared:
        raise kind("the deadline had passed before the work began")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices[0], "prepare_model", prepare)
        with pytest.raises(kind) as caught:
            tuned_plan(occasion(chain(KINDS), devices))
    assert str(caught.value) == TOO_LATE
    assert "before the work began" in str(caught.value.__cause__)


def test_a_verdict_is_kept_and_measures_nothing_the_next_time(tmp_path: Path) -> None:
    devices = liars()
    model = chain(KINDS)
    first = tuned_plan(occasion(model, devices, tmp_path))
    before = [d.compiles for d in devices]
    found = stored_plan(occasion(model, devices, tmp_path))
    assert found is not None
    assert found.tuned is not None
    assert found.tuned.stored
    assert replace(found.tuned, stored=False) == first.tuned
    assert replace(found, tuned=None) == replace(first, tuned=None)
    assert [d.compiles for d in devices] == before
    assert [v.model for v in Verdicts(tmp_path).every()] == [model.digest.hex()]


def test_a_verdict_is_of_one_model_and_of_these_devices_in_these_versions(tmp_path: Path) -> None:
    devices = liars()
    model = chain(KINDS)
    tuned_plan(occasion(model, devices, tmp_path))

    def known(**changes: Any) -> bool:
        given: dict[str, Any] = {"model": model, "devices": devices, **changes}
        return (
            stored_plan(occasion(given.pop("model"), given.pop("devices"), tmp_path, **given))
            is not None
        )

    assert known()
    assert not known(model=chain(["ADD", "RELU", "ADD"]))
    assert not known(devices=devices[:1])
    assert not known(devices=[*devices, TimedDevice("c", devices[0].clock, {"ADD": 1})])
    assert not known(config=hal.PrepareConfig(num_threads=3))
    assert not known(config=hal.PrepareConfig(preference="low_power"))
    assert not known(policy=Policy(accuracy="exact"))
    assert not known(policy=Policy(forbid={"ADD": "nobody"}))
    assert known(policy=Policy(allow_fallback=False))
    newer = liars()
    newer[0].version = "2"
    assert not known(devices=newer)
    shaped = occasion(model, devices, tmp_path)
    assert stored_plan(replace(shaped, shapes={0: (2, 3)})) is not None  # as the model has it
    other = infer_shapes(model, {0: (4, 3)})
    assert stored_plan(replace(shaped, model=other, shapes={0: (4, 3)})) is None


def test_a_verdict_that_the_devices_no_longer_allow_is_left(tmp_path: Path) -> None:
    devices = liars()
    model = chain(KINDS)
    tuned_plan(occasion(model, devices, tmp_path))
    refusing = liars()
    refusing[1]._wish = frozenset({"ADD"})
    assert stored_plan(occasion(model, refusing, tmp_path)) is None


class AskedDevice(TimedDevice):
    """Remembers the accuracy class of each compile."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.asked_for: set[hal.AccuracyClass] = set()

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> NumpyPrepared:
        self.asked_for.add(config.accuracy)
        return super().prepare_model(model, config)


def with_a_quick_one(declared: hal.AccuracyClass) -> list[TimedDevice]:
    """One that is ten times as fast and declares a class of its own, and the reference."""
    clock = Clock()
    quick = AskedDevice("quick", clock, dict.fromkeys(KINDS, MS), accuracy=declared)
    slow = dict.fromkeys(KINDS, 10 * MS)
    return [quick, TimedDevice("reference", clock, slow, accuracy="exact")]


@pytest.mark.parametrize("wanted", get_args(hal.AccuracyClass))
@pytest.mark.parametrize("declared", get_args(hal.AccuracyClass))
def test_tuning_stays_within_the_accuracy_class(
    wanted: hal.AccuracyClass, declared: hal.AccuracyClass, tmp_path: Path
) -> None:
    devices = with_a_quick_one(declared)
    config, policy = hal.PrepareConfig(accuracy=wanted), Policy(accuracy=wanted)
    given = occasion(chain(KINDS), devices, tmp_path, config=config, policy=policy)
    plan = tuned_plan(given)
    is_met = hal.ACCURACY_RANK[declared] >= hal.ACCURACY_RANK[wanted]
    assert [step.device for step in plan.steps] == ["quick" if is_met else "reference"]
    assert isinstance(devices[0], AskedDevice)
    assert devices[0].asked_for == ({wanted} if is_met else set())
    assert plan.accuracy == wanted


@pytest.mark.parametrize("wanted", get_args(hal.AccuracyClass))
def test_a_verdict_of_another_accuracy_class_is_never_used(
    wanted: hal.AccuracyClass, tmp_path: Path
) -> None:
    given = occasion(
        chain(KINDS), with_a_quick_one("exact"), tmp_path, policy=Policy(accuracy=wanted)
    )
    tuned_plan(given)
    store = Verdicts(tmp_path)
    (kept,) = store.every()
    assert kept.accuracy == wanted
    for said in get_args(hal.AccuracyClass):
        store.save(replace(kept, accuracy=said))
        assert (stored_plan(given) is not None) == (said == wanted)


def test_a_device_whose_declaration_becomes_lesser_invalidates_the_verdict(tmp_path: Path) -> None:
    tuned_plan(occasion(chain(KINDS), with_a_quick_one("faithful"), tmp_path))
    assert stored_plan(occasion(chain(KINDS), with_a_quick_one("faithful"), tmp_path)) is not None
    assert stored_plan(occasion(chain(KINDS), with_a_quick_one("stepwise"), tmp_path)) is None


def test_a_candidate_that_fails_is_out() -> None:
    clock = Clock()
    costs = dict.fromkeys(KINDS, MS)
    devices = [
        TimedDevice("broken", clock, costs, other=(0.01, 0.01), fails=True),
        TimedDevice("whole", clock, costs, other=(0.9, 0.9)),
    ]
    plan = tuned_plan(occasion(chain(KINDS), devices))
    assert [s.device for s in plan.steps] == ["whole"]
    assert plan.tuned is not None
    errors = {m.name: m.error for m in plan.tuned.candidates}
    assert errors["broken"] == "GeneralFailure: out of order"


def test_low_power_goes_by_measured_energy() -> None:
    clock = Clock()
    devices = [
        TimedDevice("quick", clock, dict.fromkeys(KINDS, MS), power=9.0, other=(0.1, 0.1)),
        TimedDevice("thrifty", clock, dict.fromkeys(KINDS, 2 * MS), power=1.0, other=(0.9, 0.9)),
    ]
    config = hal.PrepareConfig(preference="low_power")
    plan = tuned_plan(occasion(chain(KINDS), devices, config=config))
    assert [s.device for s in plan.steps] == ["thrifty"]
    assert plan.tuned is not None
    assert all(m.energy_uj for m in plan.tuned.candidates)
    blind = replace(occasion(chain(KINDS), devices, config=config), counter=lambda: None)
    plan = tuned_plan(blind)
    assert [s.device for s in plan.steps] == ["quick"]
    assert plan.tuned is not None
    assert plan.tuned.reason == NO_COUNTER
    assert plan.tuned.candidates == ()


def test_the_reasons_after_a_verdict_are_what_was_measured(tmp_path: Path) -> None:
    devices = liars()
    model = chain(KINDS)
    first = tuned_plan(occasion(model, devices, tmp_path))
    again = stored_plan(occasion(model, devices, tmp_path))
    assert again is not None
    assert first.tuned is not None
    loser = next(m for m in first.tuned.candidates if m.name == "a")
    for plan in (first, again):
        reasons = [p.reasons["a"] for p in plan.operations]
        medians = f"{duration(loser.median_ns)} against "
        assert all(r.startswith(f"measured slower: {medians}") for r in reasons)
    assert first.tuned.created is not None
    shown = " ".join(again.show().split())
    moment = datetime.fromtimestamp(first.tuned.created, UTC)
    assert f"measured on {moment:%Y-%m-%d %H:%M} UTC: b: " in shown
    assert f"medians: a {duration(loser.median_ns)}, b " in shown
    assert "until 'penstock cache clear'" in shown
    assert "cache clear" not in first.show()


def relu(*shape: int | None) -> Model:
    net = ModelBuilder()
    x = net.input(DType.FLOAT32, shape, "x")
    return net.build(list(net.operation("RELU", [x], [(DType.FLOAT32, shape)])))


def test_unknown_batch_is_measured_as_one_and_its_verdict_is_of_that_shape(tmp_path: Path) -> None:
    plan = tuned_plan(occasion(relu(None, 3), liars(), tmp_path))
    assert plan.model.inputs[0].shape == (None, 3)
    assert [step.device for step in plan.steps] == ["b"]
    assert plan.tuned is not None
    assert (plan.tuned.winner, plan.tuned.shapes) == ("b", "'x' 1x3")
    shown = " ".join(plan.show().split())
    assert "measured with 'x' 1x3 on " in shown
    assert "; runs with known shapes have plans of their own" in shown
    again = stored_plan(occasion(relu(None, 3), liars(), tmp_path))
    assert again is not None
    assert again.tuned is not None
    assert again.tuned.shapes == "'x' 1x3"

    def of_shape(*shape: int) -> ExecutionPlan | None:
        open_batch = occasion(relu(None, 3), liars(), tmp_path)
        model = infer_shapes(open_batch.source, {0: shape})
        return stored_plan(replace(open_batch, model=model, shapes={0: shape}))

    assert of_shape(2, 3) is None
    known = of_shape(1, 3)
    assert known is not None
    assert known.tuned is not None
    assert (known.tuned.winner, known.tuned.shapes) == ("b", "")


class StaticOnly(TimedDevice):
    """Runs only what has known shapes."""

    def supported_operations(self, model: Model) -> list[hal.Support]:
        known = all(o.shape is not None and None not in o.shape for o in model.inputs)
        given = super().supported_operations(model)
        return given if known else [hal.Support(False, "unknown shape") for _ in given]


def test_verdict_on_an_unknown_batch_holds_where_the_winner_runs_known_shapes_alone() -> None:
    slow, _ = liars()
    fast = StaticOnly("b", slow.clock, dict.fromkeys(KINDS, MS), other=(0.9, 0.9))
    verdicts: dict[str, Verdict] = {}
    open_batch = replace(occasion(relu(None, 3), [slow, fast]), verdicts=verdicts)
    plan = tuned_plan(open_batch)
    assert [step.device for step in plan.steps] == ["a"]
    assert plan.tuned is not None
    assert plan.tuned.winner == "b"
    known = replace(open_batch, model=infer_shapes(relu(None, 3), {0: (1, 3)}), shapes={0: (1, 3)})
    found = stored_plan(known)
    assert found is not None
    assert [step.device for step in found.steps] == ["b"]


def test_model_of_unknown_shape_beyond_the_batch_is_not_tuned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "penstock"):
        plan = tuned_plan(occasion(relu(2, None), liars()))
    assert plan.tuned is not None
    reason = (
        "the shape of input 'x' is known only in a run: the first run with other shapes measures, "
        "or give shapes"
    )
    assert plan.tuned.reason == reason
    assert plan.tuned.candidates == ()
    assert f"not measured: {reason}" in " ".join(plan.show().split())
    (told,) = [r.getMessage() for r in caplog.records]
    assert told == f"tune: nothing was measured, the placement is the predicted one: {reason}"
    only = tuned_plan(occasion(chain(KINDS), liars()[:1]))
    assert only.tuned is not None
    assert only.tuned.reason == "there is no other placement"


def test_batch_of_one_that_the_model_cannot_run_is_not_measured() -> None:
    net = ModelBuilder()
    x = net.input(DType.FLOAT32, (None, 4), "x")
    y = net.input(DType.FLOAT32, (2, 4), "y")
    model = net.build(list(net.operation("ADD", [x, y], [(DType.FLOAT32, (2, 4))])))
    assert tuned_plan(occasion(model, liars())).tuned is not None
    shape = net.constant(np.array([2, 4], np.int32), "shape")
    (z,) = net.operation("RESHAPE", [x, shape], [(DType.FLOAT32, (2, 4))])
    clock = Clock()
    devices = [TimedDevice(name, clock, {"RESHAPE": MS}) for name in "ab"]
    tuned = tuned_plan(occasion(net.build([z]), devices)).tuned
    assert tuned is not None
    assert tuned.reason.startswith("the model does not run with 'x' 1x4: ")
    assert tuned.outcome == "unmeasured"


@pytest.mark.usefixtures("briefly")
def test_shapes_that_come_with_runs_are_measured_in_their_first_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.runtime.session.MOST_LATER", 2)
    monkeypatch.setattr("penstock.runtime.measuring.LEAST_ROUNDS", 2)
    monkeypatch.setattr("penstock.runtime.measuring.LONGEST_NS", 1)
    devices = [NumpyDevice("one"), NumpyDevice("two")]

    def prepared() -> int:
        return sum(len(device.prepared) for device in devices)

    with penstock.compile(relu(None, 3), devices, cache=None, tune=True) as compiled:
        (note,) = compiled.receipt.notes
        assert note == ("tune: measured with 'x' 1x3; other shapes are measured in their first run")
        before = prepared()
        one = np.zeros((1, 3), np.float32)
        assert compiled(one).receipt.notes == ()
        assert prepared() == before + 1  # measured at the compile
        before = prepared()
        two = np.zeros((2, 3), np.float32)
        (note,) = compiled(two).receipt.notes
        assert note.startswith("tune: measured for these shapes: ")
        assert prepared() > before + 1
        assert compiled(two).receipt.notes == ()
        (note,) = compiled.run([np.zeros((3, 3), np.float32)], timeout=60).receipt.notes
        assert note == (
            "tune: nothing was measured for these shapes: the run has a timeout: give shapes"
        )
        told = [compiled(np.zeros((n, 3), np.float32)).receipt.notes[0] for n in range(4, 6)]
        assert [note.startswith("tune: measured") for note in told] == [True, False]
        assert told[-1].endswith("2 sets of shapes have been measured: give shapes")
    with penstock.compile(relu(None, 3), devices, cache=None) as compiled:
        assert compiled.receipt.notes == compiled(two).receipt.notes == ()
    given = {"x": (2, 3)}
    with penstock.compile(relu(None, 3), devices, cache=None, tune=True, shapes=given) as compiled:
        assert compiled.receipt.notes == ()


def test_a_cancelled_compile_measures_no_further() -> None:
    token = hal.CancelToken()
    token.set()
    with pytest.raises(Cancelled):
        tuned_plan(occasion(chain(KINDS), liars(), config=hal.PrepareConfig(cancel=token)))


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured under the machine's clock takes a moment."""
    for name in ("measuring.BUDGET_NS", "measuring.WARM_NS", "measuring.SAMPLE_NS"):
        monkeypatch.setattr(f"penstock.runtime.{name}", 1)
    monkeypatch.setattr("penstock.runtime.measuring.WINDOW_NS", 1)


class Sleepy(NumpyDevice):
    """Really takes 3 ms a run."""

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> NumpyPrepared:
        class Slow(NumpyPrepared):
            def execute(
                self, request: hal.Request, config: hal.ExecutionConfig
            ) -> hal.ExecutionResult:
                time.sleep(0.003)
                return super().execute(request, config)

        super().prepare_model(model, config)
        return Slow(model)


@pytest.mark.usefixtures("briefly")
def test_compile_measures_once_and_remembers(tmp_path: Path) -> None:
    model = chain(KINDS)
    devices = [Sleepy("sleepy", other=(0.01, 0.01)), NumpyDevice("brisk", other=(0.9, 0.9))]
    x = np.ones((2, 3), np.float32)
    with penstock.compile(model, devices=devices, cache=tmp_path) as compiled:
        assert compiled.plan.steps[0].device == "sleepy"
        assert compiled.plan.tuned is None
    events: list[hal.ProgressEvent] = []
    with penstock.compile(
        model, devices=devices, cache=tmp_path, tune=True, progress=events.append
    ) as compiled:
        told = [(e.subject, e.done, e.total) for e in events if e.stage == "tune"]
        assert told == [("sleepy", 0, 2), ("brisk", 1, 2)]
        assert compiled.plan.steps[0].device == "brisk"
        assert compiled.plan.tuned is not None
        assert not compiled.plan.tuned.stored
        compiled.run([x])
    prepared = len(devices[1].prepared)
    for tune in (False, True):
        with penstock.compile(model, devices=devices, cache=tmp_path, tune=tune) as compiled:
            assert compiled.plan.steps[0].device == "brisk"
            assert compiled.plan.tuned is not None
            assert compiled.plan.tuned.stored
    assert len(devices[1].prepared) == prepared + 2
    nnapi = Policy(placement="nnapi")
    with penstock.compile(model, devices=devices, cache=tmp_path, policy=nnapi) as compiled:
        assert compiled.plan.steps[0].device == "sleepy"
    with penstock.compile(model, devices=devices, cache=False) as compiled:
        assert compiled.plan.steps[0].device == "sleepy"


@pytest.mark.usefixtures("briefly")
def test_explain_uses_the_tuned_placement(tmp_path: Path) -> None:
    model = chain(KINDS)
    devices = [Sleepy("sleepy", other=(0.01, 0.01)), NumpyDevice("brisk", other=(0.9, 0.9))]
    assert [s.step.device for s in explain_model(model, tmp_path, devices)[1]] == ["sleepy"]
    penstock.compile(model, devices=devices, cache=tmp_path, tune=True).close()
    assert [s.step.device for s in explain_model(model, tmp_path, devices)[1]] == ["brisk"]


def test_tune_needs_something_to_choose() -> None:
    with pytest.raises(InputError, match="leaves nothing to choose"):
        penstock.compile(chain(KINDS), tune=True, policy=Policy(placement="nnapi"))


@pytest.mark.usefixtures("briefly")
def test_a_loop_of_a_measured_run_has_a_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int | None] = []
    execute = NumpyPrepared.execute

    def recorded(
        self: NumpyPrepared, request: hal.Request, config: hal.ExecutionConfig
    ) -> hal.ExecutionResult:
        seen.append(config.loop_timeout_ns)
        return execute(self, request, config)

    monkeypatch.setattr(NumpyPrepared, "execute", recorded)
    devices = [NumpyDevice("one"), NumpyDevice("two")]
    penstock.compile(chain(KINDS), devices, cache=None, tune=True).close()
    assert seen
    assert None not in seen
