"""Runs on the same arrays each time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

import penstock
from penstock.errors import ClosedError, GeneralFailure, InputError
from penstock.execution.bound_run import BoundRun
from penstock.hal import PrepareConfig
from penstock.ir import DType, Model, ModelBuilder, NDArray
from penstock.testing.doubles import FaultyDevice, RecordingDevice
from tests.unit.execution.fakes import NumpyDevice, NumpyPrepared, add_relu, f32
from tests.unit.loaders.files import accumulator


def doubled(shape: tuple[int | None, ...] = (2,)) -> Model:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, shape, "x")
    return builder.build(builder.operation("ADD", [x, x], [(DType.FLOAT32, shape)]))


@pytest.fixture
def compiled() -> Iterator[penstock.CompiledModel]:
    with penstock.compile(doubled(), devices=["reference"]) as compiled:
        yield compiled


def test_each_run_reads_and_writes_the_same_arrays(compiled: penstock.CompiledModel) -> None:
    x, y = np.array([1, 2], np.float32), np.empty(2, np.float32)
    bound = BoundRun(compiled.executable, [x], [y])
    for value in (1, 5):
        x[:] = value
        (result,) = bound.run(None)
        assert result is y
        np.testing.assert_array_equal(y, [2 * value] * 2)


def test_without_out_each_run_makes_its_outputs(compiled: penstock.CompiledModel) -> None:
    bound = BoundRun(compiled.executable, [np.ones(2, np.float32)], None)
    first, second = bound.run(None)[0], bound.run(None)[0]
    assert not np.may_share_memory(first, second)
    np.testing.assert_array_equal([first, second], [[2, 2], [2, 2]])


def test_arrays_are_checked_when_they_are_bound(compiled: penstock.CompiledModel) -> None:
    x = np.ones(2, np.float32)
    with pytest.raises(InputError, match="float32"):
        BoundRun(compiled.executable, [np.ones(2)], None)
    with pytest.raises(InputError, match="shape"):
        BoundRun(compiled.executable, [x], [np.ones(3, np.float32)])
    with pytest.raises(InputError, match="shares memory"):
        BoundRun(compiled.executable, [x], [x])


def test_unknown_shapes_cannot_be_bound() -> None:
    with (
        penstock.compile(doubled((None,)), devices=["reference"]) as compiled,
        pytest.raises(InputError, match="unknown shape"),
    ):
        BoundRun(compiled.executable, [np.ones(2, np.float32)], None)


def test_state_goes_from_run_to_run() -> None:
    model = penstock.load(accumulator().encode())
    with penstock.compile(model, devices=["reference"]) as compiled:
        bound = BoundRun(compiled.executable, [np.ones(2, np.float32)], None)
        state = compiled.new_state()
        found = [bound.run(s)[0].tolist() for s in (None, None, state)]
    assert found == [[2, 3], [3, 4], [2, 3]]


def test_a_closed_model_is_refused(compiled: penstock.CompiledModel) -> None:
    bound = BoundRun(compiled.executable, [np.ones(2, np.float32)], None)
    compiled.close()
    with pytest.raises(ClosedError):
        bound.run(None)


class ShortModel(NumpyPrepared):
    """Has the short way to run; its calls number *failing* fail."""

    calls, failing = 0, frozenset[int]()

    def compute(self, inputs: Sequence[NDArray], outputs: Sequence[NDArray]) -> None:
        self.calls += 1
        if self.calls in self.failing:
            raise GeneralFailure("a fault")
        outputs[0][...] = inputs[0] + inputs[0]


class ShortDevice(NumpyDevice):
    def prepare_model(self, model: Model, config: PrepareConfig) -> ShortModel:
        self.short = ShortModel(model, self.before)
        return self.short


class TestShortWay:
    @pytest.fixture
    def device(self) -> ShortDevice:
        return ShortDevice("short")

    @pytest.fixture
    def compiled(self, device: ShortDevice) -> Iterator[penstock.CompiledModel]:
        with penstock.compile(doubled(), devices=[device], cache=False) as compiled:
            yield compiled

    def test_runs_are_calls_of_compute_alone(
        self, compiled: penstock.CompiledModel, device: ShortDevice
    ) -> None:
        x, y = np.array([1, 2], np.float32), np.empty(2, np.float32)
        bound = BoundRun(compiled.executable, [x], [y])
        for value in (1, 5):
            x[:] = value
            assert bound.run(None)[0] is y
            np.testing.assert_array_equal(y, [2 * value] * 2)
        assert (device.short.calls, device.short.runs) == (2, 0)

    def test_a_run_that_fails_is_executed_as_any_other(
        self, compiled: penstock.CompiledModel, device: ShortDevice
    ) -> None:
        x, y = np.ones(2, np.float32), np.empty(2, np.float32)
        bound = BoundRun(compiled.executable, [x], [y])
        device.short.failing = frozenset({2})
        for value in (1, 5, 7):
            x[:] = value
            assert bound.run(None)[0] is y
            np.testing.assert_array_equal(y, [2 * value] * 2)
        assert (device.short.calls, device.short.runs) == (3, 1)

    def test_a_closed_model_is_refused(self, compiled: penstock.CompiledModel) -> None:
        bound = BoundRun(compiled.executable, [np.ones(2, np.float32)], [np.empty(2, np.float32)])
        compiled.close()
        with pytest.raises(ClosedError):
            bound.run(None)
        assert compiled.executable.gate.inside == []


class TestReuse:
    def test_drivers_bind_the_arguments_once(self) -> None:
        device = RecordingDevice(NumpyDevice())
        x, y, target = f32([[1, 2, 3]] * 2), f32([[4, 5, 6]] * 2), np.empty((2, 3), np.float32)
        other = np.empty_like(target)
        with penstock.compile(add_relu(), devices=[device], cache=False) as compiled:
            bound = BoundRun(compiled.executable, [x, y], [other, target])
            for k in range(5):
                x[:] = k
                bound.run(None)
                np.testing.assert_array_equal(target, x + y)
            called = [c.method for c in device.calls]
            assert called.count("create_reusable_execution") == 1
            assert called.count("execute") + called.count("reusable_execute") == 5
            assert called.count("reusable_execute") >= 3
            bound.close()
            bound.close()
            bound.run(None)
            np.testing.assert_array_equal(target, x + y)

    def test_driver_without_reusable_executions_executes_requests(self) -> None:
        device = FaultyDevice(NumpyDevice(), {"create_reusable_execution": 1})
        x, target = f32([[1, -2, 3]] * 2), [np.empty((2, 3), np.float32) for _ in range(2)]
        with penstock.compile(add_relu(), devices=[device], cache=False) as compiled:
            bound = BoundRun(compiled.executable, [x, x], target)
            for k in range(4):
                x[:] = -k
                bound.run(None)
                np.testing.assert_array_equal(target[0], np.maximum(x + x, 0))
                np.testing.assert_array_equal(target[1], x + x)

    def test_a_failed_execution_is_repeated_elsewhere(self) -> None:
        device = FaultyDevice(NumpyDevice(), {"reusable_execute": 2})
        x, target = f32([[1, -2, 3]] * 2), [np.empty((2, 3), np.float32) for _ in range(2)]
        with penstock.compile(add_relu(), devices=[device], cache=False) as compiled:
            bound = BoundRun(compiled.executable, [x, x], target)
            for k in range(6):
                x[:] = k
                bound.run(None)
                np.testing.assert_array_equal(target[1], x + x)
