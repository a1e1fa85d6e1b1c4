"""What a run is asked beside its values: time, loops, measuring, and room for its outputs (NNAPI
section 7.3).
"""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import errors
from penstock.hal import ExecutionConfig, ExecutionResult, Request, Timing
from penstock.ir import Model
from penstock.testing.contract.cases import looping
from tests.unit.execution.fakes import NumpyDevice, NumpyPrepared, accumulator, add_relu, f32
from tests.unit.execution.test_lies import where

X = f32([[1, -2, 3], [4, 5, -6]])
MASK = np.array([[True, False, False], [False, True, True]])
PLACES = [[0, 0], [1, 1], [1, 2]]


class TestDeadlines:
    def test_persistent_before_a_driver_was_called_transient_after(self) -> None:
        began: list[str] = []

        def adder(request: Request, config: ExecutionConfig) -> None:
            began.append("adder")
            assert config.deadline_ns is not None
            while time.monotonic_ns() < config.deadline_ns:
                time.sleep(0.001)

        devices = [
            NumpyDevice("adder", ["ADD"], adder),
            NumpyDevice("relu", ["RELU"], lambda *_: began.append("relu")),
        ]
        with penstock.compile(add_relu(), devices=devices, cache=False) as compiled:
            for timeout in (0, -1, 1e-9):
                with pytest.raises(errors.MissedDeadlinePersistent):
                    compiled.run([X, X], timeout=timeout)
            assert began == []
            with pytest.raises(errors.MissedDeadlineTransient):
                compiled.run([X, X], timeout=0.2)
            assert began == ["adder"]
            with compiled.burst() as burst:
                with pytest.raises(errors.MissedDeadlinePersistent):
                    burst.run(X, X, timeout=1e-9)
                with pytest.raises(errors.MissedDeadlineTransient):
                    burst.run(X, X, timeout=0.2)
            assert began == ["adder", "adder"]

    @pytest.mark.parametrize("way", ["run", "submit", "burst", "fenced"])
    def test_no_wall_clock_is_asked(self, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def stepped() -> float:
            raise AssertionError("the wall clock was read")

        with penstock.compile(add_relu(), devices=[NumpyDevice()], cache=False) as compiled:
            with monkeypatch.context() as patch:
                for name in ("time", "time_ns"):
                    patch.setattr(time, name, stepped)
                if way == "run":
                    found = compiled.run([X, X], timeout=30)
                elif way == "submit":
                    found = compiled.submit(X, X, timeout=30).result()
                elif way == "fenced":
                    found = compiled.start_fenced([X, X], timeout=30).result(30)
                else:
                    with compiled.burst() as burst:
                        found = burst.run(X, X, timeout=30)
            assert np.array_equal(found[1], X + X)

    @pytest.mark.parametrize("timeout", ["1", float("nan"), True])
    def test_timeout_of_a_wrong_type_is_refused(self, timeout: Any) -> None:
        with (
            penstock.compile(add_relu(), devices=[NumpyDevice()], cache=False) as compiled,
            pytest.raises(errors.InputError, match="timeout"),
        ):
            compiled.run([X, X], timeout=timeout)

    @pytest.mark.parametrize("timeout", ["1", float("nan"), True])
    def test_waiting_for_a_fenced_run_takes_a_number(self, timeout: Any) -> None:
        with penstock.compile(add_relu(), devices=[NumpyDevice()], cache=False) as compiled:
            fenced = compiled.start_fenced([X, X], [])
            with pytest.raises(errors.InputError, match="timeout must be a number of seconds, not"):
                fenced.result(timeout)
            with pytest.raises(errors.InputError, match="timeout_after_fence must be a number"):
                compiled.start_fenced([X, X], [], timeout_after_fence=True)

    @pytest.mark.parametrize("way", ["run", "burst"])
    def test_dequantize_is_true_or_false(self, way: str) -> None:
        with (
            penstock.compile(add_relu(), devices=[NumpyDevice()], cache=False) as compiled,
            compiled.burst() as burst,
        ):
            run = compiled.run if way == "run" else burst.run
            wrong: Any = "no"
            for _ in range(2):
                with pytest.raises(
                    errors.InputError, match="dequantize must be true or false, not 'no'"
                ):
                    run([X, X], dequantize=wrong)
                run([X, X])

    @pytest.mark.parametrize("timeout", [2.1e6, 3e9, 1e300, 10**400, float("inf")])
    def test_timeout_beyond_the_system_limit_is_no_timeout(self, timeout: float) -> None:
        seen: list[int | None] = []
        device = NumpyDevice(before=lambda _, config: seen.append(config.deadline_ns))
        with penstock.compile(
            accumulator(), devices=[device], cache=False, timeout=timeout
        ) as compiled:
            x = f32([1, 2])
            compiled.run([x], timeout=timeout)
            compiled.submit(x, timeout=timeout).result(10)
            fenced = compiled.start_fenced([x], timeout=timeout, timeout_after_fence=timeout)
            assert fenced.result(timeout)[0].tolist() == [13, 26]
            assert seen == [None] * 3
            compiled.run([x], timeout=1.9e6)
            assert seen[3] is not None


class TestStates:
    @pytest.mark.parametrize("way", ["timeout", "cancel", "both"])
    def test_a_run_waits_for_a_state_no_longer_than_it_may(self, way: str) -> None:
        inside, go_on = threading.Event(), threading.Event()

        def hold(request: Request, config: ExecutionConfig) -> None:
            inside.set()
            assert go_on.wait(30)

        device = NumpyDevice(before=hold)
        with penstock.compile(accumulator(), devices=[device], cache=False) as compiled:
            first = compiled.submit(f32([1, 2]))
            assert inside.wait(30)
            token = penstock.CancelToken()
            asked: dict[str, Any] = {}
            if way != "cancel":
                asked["timeout"] = 0.02
            if way != "timeout":
                asked["cancel"] = token
            if way == "cancel":
                token.set()
            wanted = errors.Cancelled if way == "cancel" else errors.MissedDeadlinePersistent
            with pytest.raises(wanted):
                compiled.run([f32([1, 2])], **asked)
            late = compiled.submit(f32([1, 2]), timeout=30, cancel=penstock.CancelToken())
            go_on.set()
            np.testing.assert_array_equal(first.result(30)[0], f32([11, 22]))
            np.testing.assert_array_equal(late.result(30)[0], f32([12, 24]))


class TestLoops:
    @pytest.mark.parametrize("way", ["run", "burst"])
    def test_endless_loop_ends_at_its_timeout(self, way: str) -> None:
        counter, x = np.zeros(1, np.float32), np.zeros((2, 2), np.float32)
        with (
            penstock.compile(looping(0), devices=["reference"], cache=False) as compiled,
            compiled.burst() as burst,
        ):
            runs = {"run": compiled.run, "burst": burst.run}
            with pytest.raises(errors.MissedDeadlineTransient):
                runs[way]([counter, x], loop_timeout=0.02)

    def test_none_unless_asked_and_as_long_as_asked(self) -> None:
        seen: list[int | None] = []
        device = NumpyDevice(before=lambda _, config: seen.append(config.loop_timeout_ns))
        with penstock.compile(add_relu(), devices=[device], cache=False) as compiled:
            compiled.run([X, X])
            for seconds in (0.5, 14, 15, 16, 1e30, float("inf")):
                compiled.run([X, X], loop_timeout=seconds)
            for wrong in (0, -1, float("nan"), "1", True):
                with pytest.raises(errors.InputError, match="loop_timeout"):
                    compiled.run([X, X], loop_timeout=wrong)  # type: ignore[arg-type]
        assert seen == [None, 5 * 10**8, 14 * 10**9, 15 * 10**9, 16 * 10**9, None, None]


class TestRoom:
    def test_output_too_small_gets_the_shape_of_the_result(self) -> None:
        with penstock.compile(where(), devices=["reference"], cache=False) as compiled:
            small = np.full((2, 2), -1, np.int64)
            with pytest.raises(
                errors.OutputInsufficientSize, match="48 bytes are needed, 32"
            ) as caught:
                compiled.run([MASK], out=[small])
            ((shape, enough),) = caught.value.output_shapes
            assert (shape, enough) == ((3, 2), False)
            assert (small == -1).all()
            found = compiled.run([MASK], out=[np.empty(shape, np.int64)])
            np.testing.assert_array_equal(found[0], PLACES)
            with pytest.raises(errors.InputError, match=r"has shape \(4, 2\), the result \(3, 2\)"):
                compiled.run([MASK], out=[np.empty((4, 2), np.int64)])

    def test_burst_output_too_small_gets_its_shape(self) -> None:
        with (
            penstock.compile(where(), devices=["reference"], cache=False) as compiled,
            compiled.burst() as burst,
        ):
            with pytest.raises(errors.OutputInsufficientSize):
                burst.run(MASK, out=[np.empty((2, 2), np.int64)])
            target = np.empty((3, 2), np.int64)
            assert burst.run(MASK, out=[target])[0] is target
            np.testing.assert_array_equal(target, PLACES)
            found = burst.run(MASK)[0]
            np.testing.assert_array_equal(found, PLACES)
            assert not found.flags.writeable


class TestMeasuring:
    def test_a_measured_run_has_the_drivers_times_whatever_the_way(self) -> None:
        class Prepared(NumpyPrepared):
            def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
                super().execute(request, config)
                return ExecutionResult(timing=Timing(1, 2) if config.measure else Timing())

        class Device(NumpyDevice):
            def prepare_model(self, model: Model, config: Any) -> NumpyPrepared:
                return Prepared(model, None)

        with (
            penstock.compile(add_relu(), devices=[Device()], cache=False) as compiled,
            compiled.burst() as burst,
        ):
            for outputs in (
                compiled.run([X, X], measure=True),
                burst.run(X, X, measure=True),
                compiled.start_fenced([X, X], measure=True).result(30),
            ):
                assert [s.driver_ns for s in outputs.receipt.steps] == [2]
            for outputs in (compiled.run([X, X]), burst.run(X, X)):
                assert [s.driver_ns for s in outputs.receipt.steps] == [None]
            with pytest.raises(errors.InputError, match="measure"):
                compiled.run([X, X], measure=1)  # type: ignore[arg-type]


def test_a_run_that_is_submitted_with_something_else_than_a_token_is_refused_at_once() -> None:
    wrong: Any = "soon"
    with (
        penstock.compile(add_relu(), devices=[NumpyDevice()], cache=False) as compiled,
        pytest.raises(errors.InputError, match="cancel must be a CancelToken, not str"),
    ):
        compiled.submit(X, X, cancel=wrong)
