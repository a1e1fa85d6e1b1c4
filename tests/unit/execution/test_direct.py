"""The fast path of runs without options: which runs take it, and that it keeps every promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import CompiledModel, errors
from penstock.execution import direct
from penstock.ir import DType, Model, ModelBuilder
from tests.unit.execution.fakes import accumulator, add_relu, f32
from tests.unit.execution.test_compute import ComputingDevice

X = f32([[1, -2, 3], [4, 5, -6]])


def relu() -> Model:
    """One input and one output."""
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (2, 3), "x")
    return builder.build(builder.operation("RELU", [x], [(DType.FLOAT32, (2, 3))]))


MODELS: list[tuple[Callable[[], Model], list[Any], Any]] = [
    (relu, [X], np.maximum(X, 0)),
    (add_relu, [X, X], np.maximum(2 * X, 0)),
]


@pytest.fixture(params=MODELS, ids=["one input", "several"])
def case(request: pytest.FixtureRequest) -> Any:
    return request.param


def without_slow_path(compiled: CompiledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the slow path was taken")

    monkeypatch.setattr(compiled.executable, "run", refuse)


def test_plain_arrays_take_the_fast_path(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make, given, wanted = case
    with penstock.compile(make(), devices=[ComputingDevice()], cache=False) as compiled:
        without_slow_path(compiled, monkeypatch)
        names = [operand.name for operand in compiled.inputs]
        named = dict(zip(names, given, strict=True))
        for inputs in (given, tuple(given), named):
            np.testing.assert_array_equal(compiled.run(inputs)[0], wanted)
        outputs = compiled.run(given)
        (step,) = outputs.receipt.steps
        assert step.device == "numpy"
        assert 0 < step.wall_ns <= outputs.receipt.wall_ns
        assert outputs.receipt is outputs.receipt


def test_other_arguments_take_the_slow_path(case: Any) -> None:
    make, given, wanted = case
    device = ComputingDevice()
    with penstock.compile(make(), devices=[device], cache=False) as compiled:
        fast = compiled.executable.direct
        assert fast is not None
        strided = np.repeat(X, 2, axis=1)[:, ::2]
        others: list[Any] = [[a, *given[1:]] for a in (strided, X.tolist())]
        for inputs in (*others, {}, given[1:], None):
            assert fast(inputs) is None
        np.testing.assert_array_equal(compiled.run([strided, *given[1:]])[0], wanted)
        for wrong in (X.astype(np.float64), X[:1], X.astype(np.int32)):
            with pytest.raises(errors.InputError):
                compiled.run([wrong, *given[1:]])
        with pytest.raises(errors.InputError):
            compiled.run([*given, X])
        assert not compiled.executable.gate.inside


def test_a_failure_falls_back(case: Any) -> None:
    make, given, wanted = case
    device = ComputingDevice(errors.GeneralFailure("broken"), ValueError("foreign"))
    with penstock.compile(make(), devices=[device], cache=False) as compiled:
        for text in ("foreign", "broken"):
            outputs = compiled.run(given)
            np.testing.assert_array_equal(outputs[0], wanted)
            (step,) = outputs.receipt.steps
            assert (step.device, step.fallback_from) == ("reference", "numpy")
            assert text in str(step.error)
        assert compiled.run(given).receipt.steps[0].device == "numpy"
        assert not compiled.executable.gate.inside


def test_a_missed_deadline_is_raised(case: Any) -> None:
    make, given, _ = case
    device = ComputingDevice(errors.MissedDeadlineTransient("late"))
    with (
        penstock.compile(make(), devices=[device], cache=False) as compiled,
        pytest.raises(errors.MissedDeadlineTransient, match="late"),
    ):
        compiled.run(given)


def test_a_closed_model_refuses(case: Any) -> None:
    make, given, _ = case
    compiled = penstock.compile(make(), devices=[ComputingDevice()], cache=False)
    compiled.run(given)
    compiled.close()
    with pytest.raises(errors.ClosedError):
        compiled.run(given)
    assert not compiled.executable.gate.inside


def test_outputs_without_memory_are_reported(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make, given, _ = case

    def none(*_: object) -> None:
        raise MemoryError

    with penstock.compile(make(), devices=[ComputingDevice()], cache=False) as compiled:
        fast = compiled.executable.direct
        assert fast is not None
        monkeypatch.setattr(direct, "empty", none)
        assert fast(given) is None
        assert not compiled.executable.gate.inside


def test_a_queued_step_has_no_fast_path(case: Any) -> None:
    make, given, wanted = case
    with penstock.compile(make(), devices=[ComputingDevice()], cache=False) as compiled:
        fast, step = compiled.executable.direct, compiled.executable.base.lone
        assert fast is not None
        assert step is not None
        step.queue_runs()
        assert fast(given) is None
        np.testing.assert_array_equal(compiled.run(given)[0], wanted)


def test_state_advances_on_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    x = f32([1, 2])
    with penstock.compile(accumulator(), devices=[ComputingDevice()], cache=False) as compiled:
        without_slow_path(compiled, monkeypatch)
        for turn in range(1, 5):
            outputs = compiled.run([x])
            np.testing.assert_array_equal(outputs[0], f32([10, 20]) + turn * x)
            (step,) = outputs.receipt.steps
            assert step.device == "numpy"
        state = compiled.executable.state
        assert state is not None
        np.testing.assert_array_equal(state.as_list()[0], f32([10, 20]) + 4 * x)


def test_state_stays_where_the_fast_path_fails() -> None:
    x, device = f32([1, 2]), ComputingDevice()
    with penstock.compile(accumulator(), devices=[device], cache=False) as compiled:
        fast = compiled.executable.direct
        assert fast is not None
        compiled.run([x])
        device.failing.append(errors.GeneralFailure("broken"))
        assert fast([x]) is None
        assert not device.failing
        device.failing.append(errors.GeneralFailure("broken"))
        np.testing.assert_array_equal(compiled.run([x])[0], f32([10, 20]) + 2 * x)
        assert not compiled.executable.gate.inside


def test_a_value_that_a_caller_holds_is_not_overwritten() -> None:
    x = f32([1, 2])
    with penstock.compile(accumulator(), devices=[ComputingDevice()], cache=False) as compiled:
        compiled.run([x])
        state, fast = compiled.executable.state, compiled.executable.direct
        assert state is not None
        assert fast is not None
        held = state.get(0)
        assert fast([x]) is None
        np.testing.assert_array_equal(compiled.run([x])[0], f32([10, 20]) + 2 * x)
        np.testing.assert_array_equal(held, f32([10, 20]) + x)


def test_models_of_other_devices_or_of_open_shapes_have_no_fast_path() -> None:
    device = ComputingDevice()
    with penstock.compile(add_relu((None, 3)), devices=[device], cache=False) as compiled:
        assert compiled.executable.direct is None
        np.testing.assert_array_equal(compiled.run([X, X])[0], np.maximum(2 * X, 0))
    with penstock.compile(add_relu(), devices=["reference"], cache=False) as compiled:
        assert compiled.executable.direct is None
    device = ComputingDevice()
    with penstock.compile(relu(), devices=[device], cache=False) as compiled:
        fast = compiled.executable.direct
        assert fast is not None
        output, name = compiled.outputs[0].name, compiled.inputs[0].name
        compiled.bind_state({output: name})
        assert compiled.executable.direct is None
        assert fast([X]) is None
