"""What becomes of a step that cannot be compiled or run: the devices named after its own, then
"reference".
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import hal
from penstock.errors import (
    Cancelled,
    DriverError,
    GeneralFailure,
    MissedDeadlineTransient,
    OutputInsufficientSize,
    ResourceExhaustedTransient,
)
from penstock.ir import DType, Model, ModelBuilder, NDArray, Operand
from penstock.testing import doubles
from penstock.testing.devices import find_devices
from tests.unit.execution.fakes import NumpyDevice, NumpyPrepared, accumulator, add_relu, f32

X = f32([[1, -2, 3], [-4, 5, -6]])
NNAPI = penstock.Policy(placement="nnapi")


def reference() -> hal.Device:
    """The reference driver, a new one."""
    (device,) = find_devices("reference")
    return device


def only(name: str, *kinds: str) -> doubles.SubsetDevice:
    """The reference driver under another *name*, for operations of these *kinds*."""
    return doubles.SubsetDevice(
        reference(), name, lambda model, index: model.operations[index].type in kinds
    )


def compiled(
    model: Model, *devices: Any, policy: penstock.Policy = NNAPI
) -> penstock.CompiledModel:
    return penstock.compile(model, devices=devices, cache=False, policy=policy)


def faulty(device: hal.Device, method: str, *calls: int, **more: Any) -> doubles.FaultyDevice:
    return doubles.FaultyDevice(device, {method: calls or "always"}, **more)


def chain_of(receipt: penstock.Receipt) -> list[tuple[str, list[str]]]:
    """Of every step, where it ran and which devices had failed at it."""
    return [(s.device, [f.device for f in s.failures]) for s in receipt.steps]


class TestTheNextNamedDevice:
    def test_the_plan_names_them_in_the_order_given_and_reference_last(self) -> None:
        devices = only("b", "ADD"), only("a", "ADD", "RELU"), only("c", "RELU")
        with compiled(add_relu(), *devices) as model:
            assert [(s.device, s.fallbacks) for s in model.plan.steps] == [
                ("b", ("a", "reference")),
                ("a", ("c", "reference")),
            ]

    def test_a_step_that_fails_at_run_time_goes_through_them_all(self) -> None:
        first, second = (faulty(NumpyDevice(name), "execute") for name in "ab")
        third = doubles.RecordingDevice(NumpyDevice("c"))
        with compiled(add_relu(), first, second, third) as model:
            outputs = model(X, X)
            again = model(X, X)
        np.testing.assert_array_equal(outputs[1], X + X)
        assert chain_of(outputs.receipt) == [("c", ["a", "b"])]
        (step,) = outputs.receipt.steps
        assert (step.fallback_from, step.step) == ("a", 0)
        assert step.error == "GeneralFailure: a: execute fails at call 1, as told"
        assert [f.error for f in step.failures] == [
            step.error,
            "GeneralFailure: b: execute fails at call 1, as told",
        ]
        assert (outputs.receipt.compiles, again.receipt.compiles) == (2, 0)
        assert third.count("prepare_model") == 1

    def test_a_step_that_does_not_compile_goes_through_them_all(self) -> None:
        first, second = (faulty(NumpyDevice(name), "prepare_model") for name in "ab")
        with compiled(add_relu(), first, second, NumpyDevice("c")) as model:
            assert chain_of(model.receipt) == [("c", ["a", "b"])]
            assert model.receipt.compiles == 3
            assert [(s.device, s.fallbacks) for s in model.plan.steps] == [("c", ("reference",))]
            assert {p.device for p in model.plan.operations} == {"c"}
            for placement in model.plan.operations:
                assert placement.reasons["a"].startswith("failed to compile: GeneralFailure: a:")
                assert placement.reasons["b"].startswith("failed to compile: GeneralFailure: b:")
            np.testing.assert_array_equal(model(X, X)[1], X + X)

    def test_device_that_failed_to_compile_is_not_tried_again(self) -> None:
        first = faulty(NumpyDevice("a"), "prepare_model")
        second = faulty(NumpyDevice("b"), "execute")
        with compiled(add_relu(), first, second) as model:
            outputs = model(X, X)
        assert chain_of(outputs.receipt) == [("reference", ["b"])]
        assert first.calls["prepare_model"] == 1

    def test_device_that_took_over_at_compile_keeps_the_devices_after_it(self) -> None:
        first = faulty(NumpyDevice("a"), "prepare_model")
        second, third = (faulty(NumpyDevice(name), "execute") for name in "bc")
        with compiled(add_relu(), first, second, third) as model:
            (step,) = model.plan.steps
            assert (step.device, step.fallbacks) == ("b", ("c", "reference"))
            outputs = model(X, X)
        np.testing.assert_array_equal(outputs[1], X + X)
        assert chain_of(outputs.receipt) == [("reference", ["b", "c"])]

    def test_step_moved_to_the_last_device_says_that_no_device_comes_after_it(self) -> None:
        with compiled(add_relu(), faulty(NumpyDevice("a"), "prepare_model")) as model:
            (step,) = model.plan.steps
            assert (step.device, step.fallbacks) == ("reference", ())
            assert step.no_fallback == "no device comes after reference"

    def test_a_fall_back_that_does_not_compile_is_passed_over(self) -> None:
        first = faulty(NumpyDevice("a"), "execute")
        second = faulty(NumpyDevice("b"), "prepare_model")
        with compiled(add_relu(), first, second) as model:
            outputs = model(X, X)
        np.testing.assert_array_equal(outputs[1], X + X)
        assert chain_of(outputs.receipt) == [("reference", ["a", "b"])]

    def test_fallback_skips_devices_that_cannot_run_the_step(self) -> None:
        first = faulty(NumpyDevice("a"), "execute")
        second = doubles.RecordingDevice(NumpyDevice("b", only=["ADD"]))
        with compiled(add_relu(), first, second) as model:
            assert model.plan.steps[0].fallbacks == ("reference",)
            assert chain_of(model(X, X).receipt) == [("reference", ["a"])]
        assert second.count("prepare_model") == 0

    def test_device_that_withdraws_its_support_is_skipped(self) -> None:
        first = faulty(NumpyDevice("a"), "execute")
        second = doubles.LyingDevice(NumpyDevice("b"), "support_changes")
        with compiled(add_relu(), first, second) as model:
            assert model.plan.steps[0].fallbacks == ("b", "reference")
            assert chain_of(model(X, X).receipt) == [("reference", ["a"])]

    @pytest.mark.parametrize("lie", ["output_count", "output_shapes", "insufficient"])
    def test_device_with_a_wrong_answer_falls_back(self, lie: Any) -> None:
        with compiled(
            add_relu(), doubles.LyingDevice(NumpyDevice("a"), lie), NumpyDevice("b")
        ) as model:
            outputs = model(X, X)
        np.testing.assert_array_equal(outputs[1], X + X)
        assert chain_of(outputs.receipt) == [("b", ["a"])]

    def test_the_device_is_tried_again_in_the_next_run(self) -> None:
        with compiled(add_relu(), faulty(NumpyDevice("a"), "execute", 2)) as model:
            ran = [model(X, X).receipt.steps[0].device for _ in range(3)]
        assert ran == ["a", "reference", "a"]


class TestACompileWithinARun:
    """A fallback that is prepared when it is first needed is held to the run, not to the
    compile.
    """

    def devices(
        self, before: Callable[[hal.PrepareConfig], None] = lambda _: None
    ) -> list[hal.Device]:
        class Second(NumpyDevice):
            def prepare_model(self, model: Model, config: hal.PrepareConfig) -> NumpyPrepared:
                before(config)
                return super().prepare_model(model, config)

        self.second = Second("b")
        return [faulty(NumpyDevice("a"), "execute"), self.second]

    def test_fallback_compile_gets_deadline_and_token_of_the_run(self) -> None:
        token = penstock.CancelToken()
        began = time.monotonic_ns()
        with compiled(add_relu(), *self.devices()) as model:
            model.run([X, X], timeout=60, cancel=token)
        config = self.second.prepared[0].config
        assert config.cancel is token
        assert config.deadline_ns is not None
        assert 0 < config.deadline_ns - began - 60_000_000_000 < 30_000_000_000

    def test_fallback_compile_without_deadline_has_none(self) -> None:
        with penstock.compile(
            add_relu(), devices=self.devices(), cache=False, policy=NNAPI, timeout=60
        ) as model:
            model.run([X, X])
        config = self.second.prepared[0].config
        assert (config.deadline_ns, config.cancel) == (None, None)

    def test_a_token_set_meanwhile_ends_the_run(self) -> None:
        token = penstock.CancelToken()

        def wait(config: hal.PrepareConfig) -> None:
            token.set()
            if config.cancel is not None:
                config.cancel.check()

        devices = self.devices(wait)
        with compiled(add_relu(), *devices) as model, pytest.raises(Cancelled):
            model.run([X, X], cancel=token)

    def test_a_deadline_that_passes_meanwhile_ends_the_run(self) -> None:
        def late(config: hal.PrepareConfig) -> None:
            if config.deadline_ns is not None:
                raise MissedDeadlineTransient("too late")

        devices = self.devices(late)
        with compiled(add_relu(), *devices) as model:
            with pytest.raises(MissedDeadlineTransient, match="too late"):
                model.run([X, X], timeout=60)
            assert chain_of(model.run([X, X]).receipt) == [("b", ["a"])]


class TestWhatDoesNotFallBack:
    @pytest.mark.parametrize("method", ["prepare_model", "execute"])
    def test_without_the_policys_leave_nothing(self, method: str) -> None:
        alone = penstock.Policy(allow_fallback=False)
        with pytest.raises(GeneralFailure, match=f"a: {method} fails"):
            compiled(add_relu(), faulty(NumpyDevice("a"), method), NumpyDevice("b"), policy=alone)(
                X, X
            )

    def test_plan_without_fallback_names_no_device(self) -> None:
        alone = penstock.Policy(allow_fallback=False)
        with compiled(add_relu(), NumpyDevice("a"), NumpyDevice("b"), policy=alone) as model:
            assert [s.fallbacks for s in model.plan.steps] == [()]

    @pytest.mark.parametrize("error", [MissedDeadlineTransient, Cancelled])
    @pytest.mark.parametrize("failing", ["a", "b"])
    def test_a_missed_deadline_or_a_cancelled_run(
        self, error: type[Exception], failing: str
    ) -> None:
        spare = doubles.RecordingDevice(NumpyDevice("c"))
        devices = [
            faulty(NumpyDevice(n), "execute", error=error if n == failing else GeneralFailure)
            for n in "ab"
        ]
        with compiled(add_relu(), *devices, spare) as model, pytest.raises(error):
            model(X, X)
        assert spare.count("execute") == 0

    def test_forbidden_device_of_an_operation_is_no_fallback(self) -> None:
        policy = penstock.Policy(
            placement="nnapi", forbid={"RELU": ("b", "reference"), "sum": "reference"}
        )
        with compiled(
            add_relu(), faulty(NumpyDevice("a"), "execute"), NumpyDevice("b"), policy=policy
        ) as model:
            assert model.plan.steps[0].fallbacks == ()
            with pytest.raises(GeneralFailure, match="a: execute fails"):
                model(X, X)

    def test_the_error_is_that_of_the_plans_own_device_and_notes_the_others(self) -> None:
        policy = penstock.Policy(placement="nnapi", forbid={"*": "reference"})
        devices = [faulty(NumpyDevice(n), "execute") for n in "ab"]
        with compiled(add_relu(), *devices, policy=policy) as model:
            with pytest.raises(GeneralFailure, match="a: execute fails") as caught:
                model(X, X)
            (note,) = caught.value.__notes__
        assert note.startswith("b failed at the same step: GeneralFailure: b: execute fails")

    def test_a_guest_as_fall_back_keeps_the_coverage(self) -> None:
        policy = penstock.Policy(placement="nnapi", min_coverage=1.0)
        with compiled(
            add_relu(), faulty(NumpyDevice("a"), "execute"), NumpyDevice("b"), policy=policy
        ) as model:
            assert model.plan.steps[0].fallbacks == ("b",)
            assert chain_of(model(X, X).receipt) == [("b", ["a"])]


def spoiling(name: str) -> NumpyDevice:
    """Fills its outputs with what is not a number, then fails."""

    def before(request: hal.Request, config: hal.ExecutionConfig) -> None:
        for argument in request.outputs:
            assert isinstance(argument, hal.HostMemory)
            argument.array.fill(np.nan)
        raise GeneralFailure("overheated")

    return NumpyDevice(name, before=before)


def three_steps() -> Model:
    """a = x + x; b = relu(a); c = a * b, with b an output as well as c."""
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (2, 3), "x")
    (a,) = builder.operation("ADD", [x, x], [Operand(DType.FLOAT32, (2, 3), name="a")])
    (b,) = builder.operation("RELU", [a], [Operand(DType.FLOAT32, (2, 3), name="b")])
    (c,) = builder.operation("MUL", [a, b], [Operand(DType.FLOAT32, (2, 3), name="c")])
    return builder.build([b, c])


class TestValues:
    @pytest.mark.parametrize("broken", ["ADD", "RELU", "MUL"])
    @pytest.mark.parametrize("into", ["own", "out", "one of out"])
    def test_arrays_given_as_out_are_right_whichever_step_fails(
        self, broken: str, into: str
    ) -> None:
        devices = []
        for kind in ("ADD", "RELU", "MUL"):
            device = spoiling(kind.lower()) if kind == broken else NumpyDevice(kind.lower())
            device.only = (kind,)
            devices.append(device)
        given: Any = None
        if into != "own":
            given = [np.full((2, 3), 7, np.float32), np.full((2, 3), 7, np.float32)]
        if into == "one of out":
            given[1] = None
        with compiled(three_steps(), *devices) as model:
            assert len(model.plan.steps) == 3
            outputs = model.run([X], out=given)
        relu = np.maximum(X + X, 0)
        np.testing.assert_array_equal(outputs[0], relu)
        np.testing.assert_array_equal(outputs[1], (X + X) * relu)
        for target, result in zip(given or [], outputs, strict=False):
            assert target is None or target is result
        assert [f for _, f in chain_of(outputs.receipt) if f] == [[broken.lower()]]
        assert outputs.receipt.copies == ()

    @pytest.mark.parametrize("failing_run", [1, 2, 3])
    def test_the_state_goes_on_as_it_would_have(self, failing_run: int) -> None:
        device = faulty(NumpyDevice("a"), "execute", failing_run)
        with compiled(accumulator(), device) as model:
            totals = [model(f32([1, 2]))[0].tolist() for _ in range(3)]
        assert totals == [[11, 22], [12, 24], [13, 26]]

    def test_a_state_is_left_as_it_was_where_nothing_could_repeat_the_step(self) -> None:
        policy = penstock.Policy(placement="nnapi", forbid={"RELU": "reference"})
        devices = [
            NumpyDevice("a", only=["ADD"]),
            faulty(NumpyDevice("b", only=["RELU"]), "execute", 2),
        ]
        with compiled(accumulator(), *devices, policy=policy) as model:
            state = model.new_state()
            model.run([f32([1, 2])], state=state)
            with pytest.raises(GeneralFailure):
                model.run([f32([5, 5])], state=state)
            np.testing.assert_array_equal(state.as_dict()["total"], [11, 22])
            np.testing.assert_array_equal(model.run([f32([1, 2])], state=state)[0], [12, 24])


class WholeOnly(NumpyDevice):
    """A device named "reference" that runs models of at least *least* operations."""

    def __init__(self, least: int) -> None:
        dear = hal.Capabilities(default_performance=hal.PerformanceInfo(9, 9))
        super().__init__("reference", before=self._check, capabilities=dear)
        self._least = least

    def _check(self, request: hal.Request, config: hal.ExecutionConfig) -> None:
        if len(self.prepared[-1].model.operations) < self._least:
            raise GeneralFailure("too small for it")


class TestTheWholeModel:
    def devices(self, *failing: str) -> list[hal.Device]:
        return [
            faulty(device, "execute") if kind in failing else device
            for kind in ("ADD", "RELU", "MUL")
            for device in [NumpyDevice(kind.lower(), only=[kind])]
        ]

    def test_runs_on_reference_where_a_step_cannot_be_repeated_by_itself(self) -> None:
        given: list[NDArray | None] = [np.full((2, 3), np.nan, np.float32) for _ in range(2)]
        with compiled(three_steps(), *self.devices("MUL"), WholeOnly(3)) as model:
            assert [s.device for s in model.plan.steps] == ["add", "relu", "mul"]
            outputs = model.run([X], out=given)
        relu = np.maximum(X + X, 0)
        np.testing.assert_array_equal(given[0], relu)
        np.testing.assert_array_equal(given[1], (X + X) * relu)
        assert chain_of(outputs.receipt) == [
            ("add", []),
            ("relu", []),
            ("reference", ["mul", "reference"]),
        ]
        last = outputs.receipt.steps[-1]
        assert (last.step, last.operations) == (None, (0, 1, 2))
        assert last.fallback_from == "mul"
        assert "the whole model on reference" in outputs.receipt.show()

    def test_the_state_is_read_once_and_written_once(self) -> None:
        devices = [
            NumpyDevice("a", only=["ADD"]),
            faulty(NumpyDevice("b", only=["RELU"]), "execute"),
        ]
        with compiled(accumulator(), *devices, WholeOnly(2)) as model:
            totals = [model(f32([1, 2]))[0].tolist() for _ in range(3)]
        assert totals == [[11, 22], [12, 24], [13, 26]]

    def test_whole_model_has_no_fallback_on_a_forbidden_device(self) -> None:
        policy = penstock.Policy(placement="nnapi", forbid={"ADD": "reference"})
        with (
            compiled(three_steps(), *self.devices("MUL"), WholeOnly(3), policy=policy) as model,
            pytest.raises(GeneralFailure, match="mul: execute fails"),
        ):
            model(X)

    def test_failing_whole_model_fallback_raises_the_first_error(self) -> None:
        with (
            compiled(three_steps(), *self.devices("MUL"), WholeOnly(4)) as model,
            pytest.raises(GeneralFailure, match="mul: execute fails"),
        ):
            model(X)


def found_positions() -> Model:
    """The positions of what is not zero, doubled: a shape that only a run tells is between two
    steps.
    """
    builder = ModelBuilder()
    x = builder.input(DType.BOOL, (2, 3), "x")
    (at,) = builder.operation("WHERE", [x], [Operand(DType.INT64, (None, 2), name="at")])
    (twice,) = builder.operation("ADD", [at, at], [Operand(DType.INT64, (None, 2), name="twice")])
    return builder.build([twice])


class TestLearnedShapes:
    def test_a_value_without_elements_is_taken_to_reference(self) -> None:
        adder = doubles.RecordingDevice(only("adder", "ADD"))
        with compiled(found_positions(), only("finder", "WHERE"), adder) as model:
            some = model(np.eye(2, 3, dtype=bool))
            none = model(np.zeros((2, 3), bool))
        np.testing.assert_array_equal(some[0], [[0, 0], [2, 2]])
        assert chain_of(some.receipt) == [("finder", []), ("adder", [])]
        assert none[0].shape == (0, 2)
        assert chain_of(none.receipt) == [("finder", []), ("reference", ["adder"])]
        assert none.receipt.steps[1].error == "not asked: operand 1 has no elements"
        assert adder.count("execute") == 1

    def test_a_value_that_never_had_elements_stays_with_its_device(self) -> None:
        """It knew that when it said yes."""
        nothing = np.empty((0, 3), np.float32)
        devices = NumpyDevice("add", only=["ADD"]), NumpyDevice("relu", only=["RELU"])
        with compiled(add_relu((0, 3)), *devices) as model:
            assert [s.device for s in model.plan.steps] == ["add", "relu"]
            outputs = model.run([nothing, nothing])
        assert chain_of(outputs.receipt) == [("add", []), ("relu", [])]
        assert outputs[0].shape == (0, 3)

    def test_without_leave_to_fall_back_its_device_gets_it(self) -> None:
        alone = penstock.Policy(placement="nnapi", allow_fallback=False)
        devices = only("finder", "WHERE"), only("adder", "ADD")
        with compiled(found_positions(), *devices, policy=alone) as model:
            none = model(np.zeros((2, 3), bool))
        assert none[0].shape == (0, 2)
        assert chain_of(none.receipt) == [("finder", []), ("adder", [])]

    def test_fallback_gets_the_memory_that_it_needs(self) -> None:
        tight = Tight(only("tight", "WHERE"), "tight")
        first = faulty(only("first", "WHERE"), "execute")
        with compiled(found_positions(), first, tight, only("adder", "ADD")) as model:
            outputs = model(np.ones((2, 3), bool))
        assert outputs[0].shape == (6, 2)
        assert chain_of(outputs.receipt) == [("tight", ["first"]), ("adder", [])]
        assert tight.asked == 2


class Tight(doubles.RecordingDevice):
    """Says once that an output did not fit, and that it needs twice the room."""

    asked = 0

    def intercept(self, method: str, arguments: Any, proceed: Callable[[], Any]) -> Any:
        if method != "execute":
            return proceed()
        self.asked += 1
        if self.asked == 1:
            raise OutputInsufficientSize("small", [((6, 2), False)])
        return proceed()


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_no_memory_for_an_output_is_a_failure_of_the_step(
    monkeypatch: pytest.MonkeyPatch, timeout: float | None
) -> None:
    def find_none(*_: object) -> NDArray:
        raise MemoryError

    def refuse(*_: object) -> NDArray:
        raise ResourceExhaustedTransient("no memory for an output")

    with compiled(add_relu(), only("a", "ADD", "RELU")) as model:
        expected = model(X, X)[0]
        monkeypatch.setattr("penstock.execution.step.empty", find_none)
        monkeypatch.setattr("penstock.execution.step.allocate", refuse)
        outputs = model.run([X, X], timeout=timeout)
        np.testing.assert_array_equal(outputs[0], expected)
        assert chain_of(outputs.receipt) == [("reference", ["a"])]


@pytest.mark.parametrize(
    ("method", "verb"), [("prepare_model", "compile"), ("execute", "run")], ids=["compile", "run"]
)
def test_fallback_is_logged_once(caplog: pytest.LogCaptureFixture, method: str, verb: str) -> None:
    with (
        caplog.at_level(logging.WARNING, "penstock"),
        compiled(add_relu(), faulty(NumpyDevice("a"), method)) as model,
    ):
        for _ in range(3):
            model(X, X)
    (told,) = [r.getMessage() for r in caplog.records]
    begins = f"step 0: a failed to {verb} it, falling back to reference: GeneralFailure"
    assert told.startswith(begins)


def test_a_failure_of_everything_is_one_error() -> None:
    devices = [faulty(NumpyDevice(n), "prepare_model") for n in "ab"]
    policy = penstock.Policy(placement="nnapi", forbid={"*": "reference"})
    with pytest.raises(DriverError, match="a: prepare_model fails") as caught:
        compiled(add_relu(), *devices, policy=policy)
    (note,) = caught.value.__notes__
    assert note.startswith("b failed at the same step: GeneralFailure: b:")


def test_many_threads_fall_back_on_one_compile() -> None:
    spare = doubles.RecordingDevice(NumpyDevice("b"))
    with compiled(add_relu(), faulty(NumpyDevice("a"), "execute"), spare) as model:
        futures = [model.submit(X, X) for _ in range(12)]
        receipts = [future.result().receipt for future in futures]
    assert {r.steps[0].device for r in receipts} == {"b"}
    assert sum(r.compiles for r in receipts) == spare.count("prepare_model") == 1


def test_the_receipt_names_a_device_that_could_not_be_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = faulty(NumpyDevice("broken"), "supported_operations")
    with compiled(add_relu(), broken, NumpyDevice("whole")) as model:
        (note,) = model.receipt.notes
    said = "GeneralFailure: broken: supported_operations fails at call 1, as told"
    assert note == f"device broken runs nothing: cannot be asked: {said}"
    assert note in caplog.text
    with compiled(add_relu(), only("adder", "ADD"), NumpyDevice("whole")) as model:
        assert model.receipt.notes == ()


@pytest.mark.parametrize("method", ["prepare_model", "execute"])
def test_error_of_a_driver_commands_no_terminal(method: str) -> None:
    said = "hot\x1b[2J\x00 and\nbroken\x9b"
    device = doubles.FaultyDevice(
        only("a", "ADD", "RELU"), {method: "always"}, lambda _: GeneralFailure(said)
    )
    with compiled(add_relu(), device) as model:
        receipt = model(X, X).receipt if method == "execute" else model.receipt
    errors = [failure.error for step in receipt.steps for failure in step.failures]
    assert errors
    assert set(errors) == {r"GeneralFailure: hot\x1b[2J\x00 and broken\x9b"}
    assert receipt.show().replace("\n", "").isprintable()
    refused = doubles.FaultyDevice(
        only("a", "ADD", "RELU"), {method: "always"}, lambda _: GeneralFailure(said)
    )
    alone = penstock.Policy(placement="nnapi", allow_fallback=False)
    with pytest.raises(GeneralFailure, match=r"hot\\x1b\[2J\\x00 and broken\\x9b"):
        compiled(add_relu(), refused, policy=alone)(X, X)
