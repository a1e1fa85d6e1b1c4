"""Runs through a driver's `compute`: which runs take it, and what happens when it fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import errors, hal
from penstock.ir import DType, Lifetime, Model, ModelBuilder, NDArray, Operand
from tests.unit.execution.fakes import NumpyDevice, NumpyPrepared, accumulator, add_relu, f32

X = f32([[1, -2, 3], [4, 5, -6]])


class Computing(NumpyPrepared):
    """Counts the calls of `compute`, which raises what *failing* holds."""

    def __init__(self, model: Model, failing: list[Exception]) -> None:
        super().__init__(model, None)
        self.failing, self.calls = failing, 0

    @property
    def compute(self) -> Any:  # type: ignore[override]  # a method here
        return self._compute

    def _compute(self, inputs: Sequence[NDArray], outputs: Sequence[NDArray]) -> None:
        self.calls += 1
        if self.failing:
            raise self.failing.pop()
        request = hal.Request(
            tuple(hal.HostMemory(a) for a in inputs), tuple(hal.HostMemory(a) for a in outputs)
        )
        self.execute(request, hal.ExecutionConfig())


class ComputingDevice(NumpyDevice):
    def __init__(self, *failing: Exception) -> None:
        super().__init__()
        self.failing = list(failing)

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> NumpyPrepared:
        prepared = Computing(model, self.failing)
        self.prepared.append(prepared)
        return prepared

    @property
    def calls(self) -> int:
        return sum(p.calls for p in self.prepared if isinstance(p, Computing))


def test_a_plain_run_of_one_step_takes_it_and_one_with_limits_does_not() -> None:
    device = ComputingDevice()
    with penstock.compile(add_relu(), devices=[device], cache=False) as compiled:
        compiled.run([X, X])
        outputs = compiled.run([X, X])
        np.testing.assert_array_equal(outputs[0], np.maximum(2 * X, 0))
        assert [s.device for s in outputs.receipt.steps] == ["numpy"]
        assert device.calls == 2
        compiled.run([X, X], timeout=60)
        compiled.run([X, X], measure=True)
        compiled.run([X, X], out=[np.empty_like(X), np.empty_like(X)])
        assert device.calls == 2


def test_outputs_of_two_runs_are_apart() -> None:
    with penstock.compile(add_relu(), devices=[ComputingDevice()], cache=False) as compiled:
        first, second = compiled.run([X, X])[0], compiled.run([-X, -X])[0]
        np.testing.assert_array_equal(first, np.maximum(2 * X, 0))
        np.testing.assert_array_equal(second, np.maximum(-2 * X, 0))


@pytest.mark.parametrize("failure", [errors.GeneralFailure("broken"), ValueError("broken")])
def test_a_failure_falls_back_and_is_in_the_receipt(failure: Exception) -> None:
    device = ComputingDevice(failure)
    with penstock.compile(add_relu(), devices=[device], cache=False) as compiled:
        outputs = compiled.run([X, X])
        np.testing.assert_array_equal(outputs[0], np.maximum(2 * X, 0))
        (step,) = outputs.receipt.steps
        assert (step.device, step.fallback_from) == ("reference", "numpy")
        assert "broken" in str(step.error)


def test_a_failure_without_fallback_is_raised() -> None:
    policy = penstock.Policy(allow_fallback=False)
    device = ComputingDevice(errors.GeneralFailure("broken"))
    with (
        penstock.compile(add_relu(), devices=[device], cache=False, policy=policy) as compiled,
        pytest.raises(errors.GeneralFailure, match="broken"),
    ):
        compiled.run([X, X])


def test_state_advances_through_it_and_stays_after_a_failure() -> None:
    device = ComputingDevice()
    x = f32([1, 2])
    with penstock.compile(accumulator(), devices=[device], cache=False) as compiled:
        state = compiled.new_state()
        for turn in range(1, 4):
            outputs = compiled.run([x], state=state)
            np.testing.assert_array_equal(outputs[0], f32([10, 20]) + turn * x)
        assert device.calls > 0
        device.failing.append(errors.GeneralFailure("broken"))
        outputs = compiled.run([x], state=state)
        np.testing.assert_array_equal(outputs[0], f32([10, 20]) + 4 * x)
        assert device.failing == []


def two_sums() -> Model:
    """Two variables, u' = u + a and v' = v + b; the outputs are v' * a and u' * b."""
    builder, kind = ModelBuilder(), (DType.FLOAT32, (2,))
    b, a = (builder.input(*kind, name) for name in "ba")
    before, after = [], []
    for name, given in (("u", a), ("v", b)):
        variable = builder.variable(name, *kind, initial=f32([1, 2]))
        before.append(builder.operand(Operand(*kind, Lifetime.SUBGRAPH_INPUT, f"{name} before")))
        after += builder.operation("ADD", [given, before[-1]], [Operand(*kind, name=name)])
        builder.state(variable, before[-1], after[-1])
    outputs = [builder.operation("MUL", pair, [kind])[0] for pair in ((after[1], a), (after[0], b))]
    return builder.build(outputs)


def test_several_inputs_and_outputs_keep_their_places_beside_state() -> None:
    device = ComputingDevice()
    a, b = f32([1, 2]), f32([-3, 5])
    with penstock.compile(two_sums(), devices=[device], cache=False) as compiled:
        found = [compiled.run({"a": turn * a, "b": b}) for turn in range(1, 6)]
        assert device.calls > 0
        u = v = f32([1, 2])
        for turn, outputs in enumerate(found, 1):
            u, v = u + turn * a, v + b
            np.testing.assert_array_equal(outputs[0], v * turn * a)
            np.testing.assert_array_equal(outputs[1], u * b)


def test_inputs_of_unknown_shape_take_it_in_each_of_their_shapes() -> None:
    device = ComputingDevice()
    with penstock.compile(add_relu((None, 3)), devices=[device], cache=False) as compiled:
        for rows in (1, 2, 1, 2):
            given = np.full((rows, 3), rows, np.float32)
            np.testing.assert_array_equal(compiled.run([given, given])[0], 2 * given)
        assert device.calls >= 4
