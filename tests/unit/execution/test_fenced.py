"""Fenced execution: runs behind fences, steps behind each other's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import errors
from penstock.execution import fenced
from penstock.execution.fenced import run_fenced
from penstock.hal import CancelToken, EventFence, ExecutionConfig, Fence, Request, as_descriptor
from penstock.hal.fence import FenceStatus, fence_pair, status_of
from penstock.ir import Model
from tests.unit.execution.fakes import NumpyDevice, NumpyPrepared, accumulator, add_relu, f32

X = f32([[1, -2, 3], [4, 5, -6]])
Y = f32([[1, 1, 1], [-9, 1, 1]])
SUM = X + Y
RELU = np.maximum(SUM, 0)
PATIENCE_S = 30
NO_FALLBACK = penstock.Policy(allow_fallback=False)


def signalled(error: Any = None) -> EventFence:
    fence = EventFence()
    fence.signal(error)
    return fence


class Native(NumpyDevice):
    """Executes behind fences in threads of its own; *log* has what was launched, begun and
    ended.
    """

    def __init__(self, name: str, only: Sequence[str], log: list[str], **arguments: Any) -> None:
        super().__init__(name, only, **arguments)
        self.log = log

    def prepare_model(self, model: Model, config: Any) -> NumpyPrepared:
        return NativePrepared(model, self)


class NativePrepared(NumpyPrepared):
    def __init__(self, model: Model, device: Native) -> None:
        super().__init__(model, device.before)
        self.device = device

    def execute_fenced(
        self,
        request: Request,
        wait_for: Sequence[Fence],
        config: ExecutionConfig,
        timeout_after_fence_ns: int | None = None,
    ) -> Fence:
        name, log = self.device.name, self.device.log
        log.append(f"{name} launched")
        done = EventFence()

        def work() -> None:
            for fence in wait_for:
                fence.wait()
                if fence.error() is not None:
                    done.signal(errors.GeneralFailure("a fence failed"))
                    return
            log.append(f"{name} begun")
            if timeout_after_fence_ns is not None:
                log.append(f"{name} has {timeout_after_fence_ns / 1e9:g} s")
            try:
                self.execute(request, config)
            except penstock.errors.DriverError as error:
                done.signal(error)
            else:
                log.append(f"{name} ended")
                done.signal()

        threading.Thread(target=work).start()
        return done


Maker = Callable[[], penstock.CompiledModel]


def one_step(**arguments: Any) -> penstock.CompiledModel:
    return penstock.compile(add_relu(), devices=[NumpyDevice()], cache=False, **arguments)


def two_steps(**arguments: Any) -> penstock.CompiledModel:
    devices = [NumpyDevice("adder", ["ADD"]), NumpyDevice("relu", ["RELU"])]
    return penstock.compile(add_relu(), devices=devices, cache=False, **arguments)


def native(log: list[str] | None = None, **arguments: Any) -> penstock.CompiledModel:
    kept = [] if log is None else log
    devices = [Native("adder", ["ADD"], kept), Native("relu", ["RELU"], kept)]
    return penstock.compile(add_relu(), devices=devices, cache=False, **arguments)


@pytest.fixture(params=[one_step, two_steps, native])
def compiled(request: pytest.FixtureRequest) -> Iterator[penstock.CompiledModel]:
    with request.param() as compiled:
        yield compiled


class TestRuns:
    def test_fenced_run_without_or_behind_signalled_fences_runs(
        self, compiled: penstock.CompiledModel
    ) -> None:
        for count in range(3):
            run = compiled.start_fenced([X, Y], [signalled() for _ in range(count)])
            outputs = run.result(PATIENCE_S)
            np.testing.assert_array_equal(outputs["relu"], RELU)
            np.testing.assert_array_equal(outputs["sum"], SUM)
            assert run.fence.wait(0)
            assert run.fence.error() is None
            assert sum(len(s.operations) for s in outputs.receipt.steps) == 2

    def test_waits_for_every_fence(self, compiled: penstock.CompiledModel) -> None:
        fences = [EventFence() for _ in range(3)]
        target = np.full_like(X, 7)
        run = compiled.start_fenced({"x": X, "y": Y}, fences, out=[None, target])
        for fence in fences:
            assert not run.fence.wait(5_000_000)
            assert (target == 7).all()
            with pytest.raises(errors.MissedDeadlineTransient):
                run.result(0)
            fence.signal()
        assert run.result(PATIENCE_S)[1] is target
        np.testing.assert_array_equal(target, SUM)

    def test_runs_wait_for_runs(self, compiled: penstock.CompiledModel) -> None:
        first = EventFence()
        middle, last = np.empty_like(X), np.empty_like(X)
        one = compiled.start_fenced([X, Y], [first], out=[None, middle])
        two = compiled.start_fenced([middle, Y], [one.fence], out=[None, last])
        assert not two.fence.wait(5_000_000)
        first.signal()
        two.result(PATIENCE_S)
        np.testing.assert_array_equal(last, SUM + Y)

    def test_behind_a_descriptor(self, compiled: penstock.CompiledModel) -> None:
        signal, fence = fence_pair()
        run = compiled.start_fenced([X, Y], [fence])
        ended = as_descriptor(run.fence)
        assert not ended.wait(2_000_000)
        signal.signal()
        assert ended.wait()
        assert ended.error() is None
        np.testing.assert_array_equal(run.result()[1], SUM)

    def test_callbacks_of_a_fenced_run_end_before_its_result(
        self, compiled: penstock.CompiledModel
    ) -> None:
        first, told = EventFence(), threading.Event()
        run = compiled.start_fenced([X, Y], [first])

        def tell() -> None:
            # In the thread that signals, which would wait for itself.
            np.testing.assert_array_equal(run.result(PATIENCE_S)[1], SUM)
            time.sleep(0.01)
            told.set()

        run.fence.when_signalled(tell)
        ended = as_descriptor(run.fence)
        first.signal()
        run.result(PATIENCE_S)
        assert told.is_set()
        assert status_of(ended) is FenceStatus.SIGNALLED

    def test_callback_of_a_fenced_run_may_wait_for_a_reader_of_the_result(
        self, compiled: penstock.CompiledModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fenced, "CALLBACK_SECONDS", 0.02)
        first = EventFence()
        run = compiled.start_fenced([X, Y], [first])
        asked: list[bool] = []

        def tell() -> None:
            asking = threading.Thread(target=run.result, daemon=True)
            asking.start()
            asking.join(5)
            asked.append(not asking.is_alive())

        run.fence.when_signalled(tell)
        first.signal()
        run.result(PATIENCE_S)
        end = time.monotonic() + PATIENCE_S
        while not asked and time.monotonic() < end:
            time.sleep(0.001)
        assert asked == [True]

    def test_a_result_is_waited_for_no_longer_than_was_said(
        self, compiled: penstock.CompiledModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fenced, "CALLBACK_SECONDS", PATIENCE_S)
        first, go_on = EventFence(), threading.Event()
        run = compiled.start_fenced([X, Y], [first])

        def tell() -> None:
            go_on.wait(5)

        run.fence.when_signalled(tell)
        signalling = threading.Thread(target=first.signal)
        signalling.start()
        assert run.fence.wait(PATIENCE_S * 10**9)
        began = time.monotonic()
        run.result(0.02)
        took = time.monotonic() - began
        go_on.set()
        signalling.join(PATIENCE_S)
        assert took < 2

    def test_a_failed_fence_fails_the_run(self, compiled: penstock.CompiledModel) -> None:
        target = np.full_like(X, 7)
        fences = [signalled(), EventFence()]
        run = compiled.start_fenced([X, Y], fences, out=[None, target])
        fences[1].signal(errors.GeneralFailure("the camera is gone"))
        with pytest.raises(errors.GeneralFailure, match="the camera is gone"):
            run.result(PATIENCE_S)
        assert isinstance(run.fence.error(), errors.GeneralFailure)
        assert (target == 7).all()
        np.testing.assert_array_equal(compiled(X, Y)[1], SUM)

    def test_in_the_calling_thread(self, compiled: penstock.CompiledModel) -> None:
        np.testing.assert_array_equal(
            run_fenced(compiled.executable, [X, Y], [signalled()])[0], RELU
        )
        with pytest.raises(errors.GeneralFailure, match="gone"):
            run_fenced(compiled.executable, [X, Y], [signalled(errors.GeneralFailure("gone"))])

    def test_a_fence_that_never_signals(self, compiled: penstock.CompiledModel) -> None:
        never = EventFence()
        run = compiled.start_fenced([X, Y], [never], timeout=0.01)
        with pytest.raises(errors.MissedDeadline):
            run.result(PATIENCE_S)
        token = CancelToken()
        waiting = compiled.start_fenced([X, Y], [never], cancel=token)
        token.set()
        with pytest.raises(errors.Cancelled):
            waiting.result(PATIENCE_S)
        # Threads of drivers that heed neither end with it.
        never.signal()

    @pytest.mark.parametrize(
        "given", [{}, {"timeout": PATIENCE_S, "out": [None, np.empty_like(X)]}]
    )
    def test_close_ends_runs_whose_fences_have_not_signalled(
        self, compiled: penstock.CompiledModel, given: Any
    ) -> None:
        never = EventFence()
        run = compiled.start_fenced([X, Y], [signalled(), never], **given)
        assert not run.fence.wait(20_000_000)
        closing = threading.Thread(target=compiled.close)
        closing.start()
        with pytest.raises(errors.ClosedError, match="fences"):
            run.result(PATIENCE_S)
        closing.join(PATIENCE_S)
        assert not closing.is_alive()
        # Threads of drivers that heed no token end with it.
        never.signal()

    def test_time_counts_from_the_fences(self, compiled: penstock.CompiledModel) -> None:
        fence = EventFence()
        run = compiled.start_fenced([X, Y], [fence], timeout_after_fence=PATIENCE_S)
        time.sleep(0.01)
        fence.signal()
        np.testing.assert_array_equal(run.result(PATIENCE_S)[0], RELU)

    def test_measured_runs_have_times(self, compiled: penstock.CompiledModel) -> None:
        outputs = compiled.start_fenced([X, Y], [signalled()], measure=True).result(PATIENCE_S)
        np.testing.assert_array_equal(outputs[0], RELU)

    def test_arguments_that_make_no_sense(self, compiled: penstock.CompiledModel) -> None:
        waiting: Any
        for waiting in (None, (fence for fence in [signalled()])):
            with pytest.raises(errors.InputError, match="wait_for takes a list of fences"):
                compiled.start_fenced([X, Y], waiting)
        with pytest.raises(errors.InputError, match="wait_for takes fences"):
            compiled.start_fenced([X, Y], [None])  # type: ignore[list-item]
        for wrong in (0, -1, float("nan"), "1"):
            with pytest.raises(errors.InputError, match="timeout_after_fence"):
                compiled.start_fenced([X, Y], [], wrong)  # type: ignore[arg-type]
        with pytest.raises(errors.InputError, match="2 needed"):
            compiled.start_fenced([X], []).result(PATIENCE_S)
        with pytest.raises(errors.MissedDeadlinePersistent):
            compiled.start_fenced([X, Y], [], timeout=0)
        compiled.close()
        with pytest.raises(errors.ClosedError):
            compiled.start_fenced([X, Y])


def test_outputs_of_unknown_shape_are_refused() -> None:
    with (
        penstock.compile(add_relu((None, 3)), devices=[NumpyDevice()], cache=False) as compiled,
        pytest.raises(errors.InputError, match="unknown shape"),
    ):
        compiled.start_fenced([X, Y])


def test_state_goes_on() -> None:
    with penstock.compile(accumulator(), devices=[NumpyDevice()], cache=False) as compiled:
        fence = EventFence()
        waiting = compiled.start_fenced([f32([1, 1])], [fence])
        # A run that waits does not hold the state.
        np.testing.assert_array_equal(compiled(f32([1, 1]))[0], f32([11, 21]))
        fence.signal()
        np.testing.assert_array_equal(waiting.result(PATIENCE_S)[0], f32([12, 22]))


def test_close_waits_for_runs_whose_fences_have_signalled() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def hold(request: Request, config: ExecutionConfig) -> None:
        inside.set()
        assert go_on.wait(PATIENCE_S)
        if config.cancel is not None:
            config.cancel.check()

    device = NumpyDevice(before=hold)
    with penstock.compile(add_relu(), devices=[device], cache=False) as compiled:
        run = compiled.start_fenced([X, Y], [signalled()])
        assert inside.wait(PATIENCE_S)
        closing = threading.Thread(target=compiled.close)
        closing.start()
        closing.join(0.05)
        assert closing.is_alive()
        go_on.set()
        np.testing.assert_array_equal(run.result(PATIENCE_S)[0], RELU)
        closing.join(PATIENCE_S)
        assert not closing.is_alive()


class TestChains:
    def test_each_step_is_launched_behind_the_one_before(self) -> None:
        log: list[str] = []
        with native(log) as compiled:
            fence = EventFence()
            run = compiled.start_fenced([X, Y], [fence])
            end = time.monotonic() + PATIENCE_S
            while len(log) < 2 and time.monotonic() < end:
                time.sleep(0.001)
            assert log == ["adder launched", "relu launched"]
            fence.signal()
            run.result(PATIENCE_S)
        assert [entry for entry in log if "launched" not in entry] == [
            "adder begun",
            "adder ended",
            "relu begun",
            "relu ended",
        ]

    def test_the_time_after_the_fences_is_the_drivers_of_one_step(self) -> None:
        log: list[str] = []
        device = Native("both", ["ADD", "RELU"], log)
        with penstock.compile(add_relu(), devices=[device], cache=False) as compiled:
            run_fenced(compiled.executable, [X, Y], [signalled()], timeout_after_fence=5)
        assert "both has 5 s" in log

    def test_a_failed_step_is_repeated_as_a_whole_once_the_others_have_ended(self) -> None:
        log: list[str] = []
        failing = [True]

        def fail(request: Request, config: ExecutionConfig) -> None:
            if failing[0]:
                raise errors.GeneralFailure("not today")

        devices = [Native("adder", ["ADD"], log), Native("relu", ["RELU"], log, before=fail)]
        with penstock.compile(add_relu(), devices=devices, cache=False) as compiled:
            fence = EventFence()
            run = compiled.start_fenced([X, Y], [fence])
            fence.signal()
            outputs = run.result(PATIENCE_S)
            np.testing.assert_array_equal(outputs[0], RELU)
            assert outputs.receipt.steps[-1].device == "reference"
            assert outputs.receipt.steps[-1].fallback_from == "relu"
            failing[0] = False
            assert [s.device for s in run_fenced(compiled.executable, [X, Y]).receipt.steps] == [
                "adder",
                "relu",
            ]

    def test_without_the_policys_leave_the_error_comes_out(self) -> None:
        def fail(request: Request, config: ExecutionConfig) -> None:
            raise errors.GeneralFailure("not today")

        device = Native("both", ["ADD", "RELU"], [], before=fail)
        with penstock.compile(
            add_relu(), devices=[device], cache=False, policy=NO_FALLBACK
        ) as compiled:
            run = compiled.start_fenced([X, Y])
            with pytest.raises(errors.GeneralFailure, match="not today"):
                run.result(PATIENCE_S)
            assert isinstance(run.fence.error(), errors.GeneralFailure)

    @pytest.mark.parametrize("answer", [None, 3, ZeroDivisionError("!")])
    def test_wrong_answer_of_a_fenced_driver_is_its_failure(self, answer: Any) -> None:
        class Prepared(NumpyPrepared):
            def execute_fenced(self, *arguments: Any, **named: Any) -> Any:
                if isinstance(answer, Exception):
                    raise answer
                return answer

        class Device(NumpyDevice):
            def prepare_model(self, model: Model, config: Any) -> NumpyPrepared:
                return Prepared(model, None)

        with penstock.compile(add_relu(), devices=[Device()], cache=False) as compiled:
            outputs = run_fenced(compiled.executable, [X, Y])
            np.testing.assert_array_equal(outputs[0], RELU)
            assert outputs.receipt.steps[-1].fallback_from == "numpy"

    def test_failed_chain_writes_no_array_of_the_caller_later(self) -> None:
        """A driver that heeds neither deadline nor cancellation does not keep the run, and writes
        elsewhere.
        """
        inside, go_on = threading.Event(), threading.Event()

        def hold(request: Request, config: ExecutionConfig) -> None:
            inside.set()
            assert go_on.wait(PATIENCE_S)

        device = Native("both", ["ADD", "RELU"], [], before=hold)
        with penstock.compile(add_relu(), devices=[device], cache=False) as compiled:
            target, other = np.full_like(X, 7), np.empty_like(X)
            run = compiled.start_fenced([X, Y], out=[None, target], timeout=0.2)
            assert inside.wait(PATIENCE_S)
            with pytest.raises(errors.MissedDeadlineTransient):
                run.result(PATIENCE_S)
            token = CancelToken()
            cancelled = compiled.start_fenced([X, Y], out=[None, target], cancel=token)
            token.set()
            with pytest.raises(errors.Cancelled):
                cancelled.result(PATIENCE_S)
            go_on.set()
            outputs = run_fenced(compiled.executable, [X, Y], out=[None, other], timeout=PATIENCE_S)
            assert outputs[1] is other
            np.testing.assert_array_equal(other, SUM)
            assert [c.destination for c in outputs.receipt.copies] == ["caller"]
            assert (target == 7).all()
            assert not run_fenced(compiled.executable, [X, Y], out=[None, other]).receipt.copies
            inside.clear()
            go_on.clear()
            left = compiled.start_fenced([X, Y], timeout=0.2)
            assert inside.wait(PATIENCE_S)
            with pytest.raises(errors.MissedDeadlineTransient):
                left.result(PATIENCE_S)
            go_on.set()


def test_devices_that_take_turns_are_waited_for() -> None:
    from penstock.hal import Capabilities

    device = NumpyDevice(capabilities=Capabilities(concurrent_executions=1))
    with penstock.compile(add_relu(), devices=[device], cache=False) as compiled:
        fence = EventFence()
        waiting = compiled.start_fenced([X, Y], [fence])
        # Whoever waits for a fence has no slot.
        np.testing.assert_array_equal(compiled(X, Y)[0], RELU)
        fence.signal()
        np.testing.assert_array_equal(waiting.result(PATIENCE_S)[0], RELU)
