"""Bursts: runs that keep their arguments, and outputs that hold until the next one."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import penstock
from penstock import errors, hal
from penstock.ir import NDArray
from penstock.testing.doubles import FaultyDevice, RecordingDevice
from tests.unit.execution.fakes import NumpyDevice, NumpyPrepared, accumulator, add_relu, f32

X = f32([[1, -2, 3], [4, 5, -6]])
Y = f32([[1, 1, 1], [-9, 1, 1]])
SUM = X + Y
RELU = np.maximum(SUM, 0)


@pytest.fixture
def compiled() -> Iterator[penstock.CompiledModel]:
    with penstock.compile(add_relu(), devices=[NumpyDevice()], cache=False) as compiled:
        yield compiled


def two_steps(**arguments: Any) -> penstock.CompiledModel:
    devices = [NumpyDevice("adder", ["ADD"]), NumpyDevice("relu", ["RELU"])]
    compiled = penstock.compile(add_relu(), devices=devices, cache=False, **arguments)
    assert len(compiled.plan.steps) == 2
    return compiled


class TestValues:
    def test_by_position_sequence_mapping_and_keyword(
        self, compiled: penstock.CompiledModel
    ) -> None:
        with compiled.burst() as burst:
            for outputs in (
                burst.run(X, Y),
                burst.run([X, Y]),
                burst.run({"y": Y, "x": X}),
                burst.run(y=Y, x=X),
            ):
                np.testing.assert_array_equal(outputs[0], RELU)
                np.testing.assert_array_equal(outputs["sum"], SUM)
            with pytest.raises(errors.InputError, match="not both"):
                burst.run(X, y=Y)
            with pytest.raises(errors.InputError, match="2 needed"):
                burst.run(X)
            with pytest.raises(errors.InputError, match="float64"):
                burst.run(X, Y.astype(np.float64))

    @pytest.mark.parametrize("make", [two_steps, None], ids=["two steps", "one step"])
    def test_burst_reads_its_arrays_anew(
        self, compiled: penstock.CompiledModel, make: Callable[[], penstock.CompiledModel] | None
    ) -> None:
        chosen = compiled if make is None else make()
        x, y = X.copy(), Y.copy()
        with chosen.burst() as burst:
            for step in range(4):
                x[:] = X * step
                outputs = burst.run(x, y)
                np.testing.assert_array_equal(outputs[1], x + y)
                np.testing.assert_array_equal(outputs[0], np.maximum(x + y, 0))
                other = burst.run(y, x)
                np.testing.assert_array_equal(other[1], x + y)
        if make is not None:
            chosen.close()

    def test_outputs_are_read_only_views_that_hold_until_the_next_run(
        self, compiled: penstock.CompiledModel
    ) -> None:
        with compiled.burst() as burst:
            first = burst.run(X, Y)
            kept = first[1]
            assert not kept.flags.writeable
            with pytest.raises(ValueError, match="read-only"):
                kept[0, 0] = 1
            second = burst.run(X * 2, Y)
            assert np.may_share_memory(kept, second[1])
            np.testing.assert_array_equal(kept, X * 2 + Y)
        np.testing.assert_array_equal(kept, X * 2 + Y)
        assert "hold until the next run" in " ".join(str(type(burst).__doc__).split())

    def test_an_output_may_be_the_next_input(self, compiled: penstock.CompiledModel) -> None:
        for chosen in (compiled, two_steps()):
            with chosen.burst() as burst:
                wanted = X
                outputs = burst.run(X, Y)
                for _ in range(4):
                    wanted = wanted + Y
                    np.testing.assert_array_equal(outputs[1], wanted)
                    outputs = burst.run(outputs[1], Y)
                assert [c.nbytes for c in outputs.receipt.copies] == [X.nbytes]
                assert "output of the series" in outputs.receipt.copies[0].reason

    def test_out_is_written_in_place(self, compiled: penstock.CompiledModel) -> None:
        with compiled.burst() as burst:
            mine, other = np.empty_like(X), np.empty_like(X)
            for target in (mine, mine, other, mine):
                target[:] = -1
                outputs = burst.run(X, Y, out=[None, target])
                assert outputs[1] is target
                np.testing.assert_array_equal(target, SUM)
                np.testing.assert_array_equal(outputs[0], RELU)
                assert not outputs[0].flags.writeable
            mine[:] = -1
            assert burst.run(X, Y, out={"sum": other})["sum"] is other
            burst.run(X, Y)
            assert (mine == -1).all()
            with pytest.raises(errors.InputError, match="shares memory with an input"):
                burst.run(mine, Y, out=[None, mine])
            with pytest.raises(errors.InputError, match="shape"):
                burst.run(X, Y, out=[None, np.empty(3, np.float32)])

    def test_an_array_given_for_an_input_and_later_for_an_output(
        self, compiled: penstock.CompiledModel
    ) -> None:
        with compiled.burst() as burst:
            x, target = X.copy(), np.empty_like(X)
            burst.run(x, Y, out=[None, target])
            with pytest.raises(errors.InputError, match="shares memory with an input"):
                burst.run(target, Y, out=[None, target])
            np.testing.assert_array_equal(burst.run(x, Y, out=[None, target])[1], SUM)

    def test_burst_run_allocates_no_output(self) -> None:
        seen: list[tuple[int, ...]] = []

        def note(request: hal.Request, config: hal.ExecutionConfig) -> None:
            seen.append(tuple(a.array.ctypes.data for a in request.outputs))  # type: ignore[union-attr]

        device = NumpyDevice(before=note)
        with (
            penstock.compile(add_relu(), devices=[device], cache=False) as compiled,
            compiled.burst() as burst,
        ):
            for k in range(5):
                burst.run(X * k, Y)
        assert len(set(seen)) == 1

    def test_drivers_look_at_a_request_once(self) -> None:
        kinds: list[type[hal.Request]] = []
        ids: list[int] = []

        def note(request: hal.Request, config: hal.ExecutionConfig) -> None:
            kinds.append(type(request))
            ids.append(id(request))

        with (
            penstock.compile(
                add_relu(), devices=[NumpyDevice(before=note)], cache=False
            ) as compiled,
            compiled.burst() as burst,
        ):
            for _ in range(4):
                burst.run(X, Y)
        assert kinds == [hal.Request] + [hal.ProvenRequest] * 3
        assert len(set(ids[1:])) == 1

    def test_receipts_are_each_runs_own(self, compiled: penstock.CompiledModel) -> None:
        with compiled.burst() as burst:
            one, two = burst.run(X, Y), burst.run(X, Y)
            assert one.receipt is one.receipt
            assert one.receipt is not two.receipt
            assert [s.device for s in one.receipt.steps] == ["numpy"]
            assert one.receipt.copies == ()

    def test_interfaces_that_name_an_output_twice(self) -> None:
        model = add_relu()
        with (
            penstock.compile(model, devices=[NumpyDevice()], cache=False) as compiled,
            compiled.burst() as burst,
        ):
            assert burst.run(X, Y).as_dict().keys() == {"relu", "sum"}

    def test_unknown_dimensions_take_any_size(self) -> None:
        model = add_relu((None, 3))
        with penstock.compile(model, devices=[NumpyDevice()], cache=False) as compiled:
            x = np.ones((1, 3), np.float32)
            with compiled.burst() as burst:
                for rows in (2, 2, 5, 2, 1, 5):
                    x = np.ones((rows, 3), np.float32)
                    outputs = burst.run(x, x)
                    np.testing.assert_array_equal(outputs[1], x + x)
                    assert not outputs[1].flags.writeable
            np.testing.assert_array_equal(compiled(x, x)[1], x + x)

    @settings(max_examples=40, deadline=None)
    @given(
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)), max_size=12)
    )
    def test_a_burst_answers_as_runs_do(self, choices: list[tuple[int, int, int]]) -> None:
        """Whatever arrays come again, in whatever order, as inputs and outputs."""
        pool = [X.copy(), Y.copy(), f32(np.ones((2, 3)))]
        targets: list[NDArray | None] = [None, np.empty_like(X), np.empty_like(X)]
        for compiled in (SHARED_ONE, SHARED_TWO):
            with compiled.burst() as burst:
                for a, b, t in choices:
                    pool[a] += 1
                    wanted = compiled(pool[a], pool[b])
                    found = burst.run(pool[a], pool[b], out=[None, targets[t]])
                    for w, f in zip(wanted, found, strict=True):
                        np.testing.assert_array_equal(f, w)


SHARED_ONE = penstock.compile(add_relu(), devices=[NumpyDevice()], cache=False)
SHARED_TWO = two_steps()


class TestDrivers:
    def test_executions_go_through_the_drivers_burst(self) -> None:
        device = RecordingDevice(NumpyDevice())
        with (
            penstock.compile(add_relu(), devices=[device], cache=False) as compiled,
            compiled.burst() as burst,
        ):
            burst.run(X, Y)
            burst.run(X, Y)
        called = [c.method for c in device.calls]
        assert called.count("configure_burst") == 1
        assert called.count("burst_execute") == 2
        assert "execute" not in called

    def test_a_burst_that_cannot_be_made_is_no_error(self) -> None:
        device = FaultyDevice(NumpyDevice(), {"configure_burst": 1})
        with (
            penstock.compile(add_relu(), devices=[device], cache=False) as compiled,
            compiled.burst() as burst,
        ):
            for _ in range(3):
                outputs = burst.run(X, Y)
                np.testing.assert_array_equal(outputs[0], RELU)
                assert [s.fallback_from for s in outputs.receipt.steps] == [None]

    def test_the_drivers_bursts_are_closed(self) -> None:
        closed: list[str] = []

        class Device(NumpyDevice):
            def prepare_model(self, model: Any, config: Any) -> NumpyPrepared:
                made = Bursting(model, None)
                made.name = self.name
                return made

        class Bursting(NumpyPrepared):
            name = ""

            def configure_burst(self) -> hal.Burst:
                outer = self

                class Own:
                    def execute(
                        self, request: hal.Request, config: hal.ExecutionConfig
                    ) -> hal.ExecutionResult:
                        return outer.execute(request, config)

                    def close(self) -> None:
                        closed.append(outer.name)

                return Own()

        devices = [Device("one", ["ADD"]), Device("two", ["RELU"])]
        with penstock.compile(add_relu(), devices=devices, cache=False) as compiled:
            burst = compiled.burst()
            burst.run(X, Y)
            burst.close()
            burst.close()
            assert closed == ["one", "two"]
            left = compiled.burst()
            forgotten = compiled.burst()
            del forgotten
            gc.collect()
            assert closed == ["one", "two"] * 2
        assert closed == ["one", "two"] * 3
        with pytest.raises(errors.ClosedError):
            left.run(X, Y)

    def test_devices_with_memory_of_their_own(self) -> None:
        device = NumpyDevice(capabilities=hal.Capabilities(shares_host_memory=False))
        with (
            penstock.compile(add_relu(), devices=[device], cache=False) as compiled,
            compiled.burst() as burst,
        ):
            for k in (1, 2, 2):
                outputs = burst.run(X * k, Y)
                np.testing.assert_array_equal(outputs[1], X * k + Y)
                assert not outputs[1].flags.writeable
                assert len(outputs.receipt.copies) == 4


class TestFallback:
    def test_a_failed_step_is_repeated_elsewhere(self) -> None:
        failing = [False]

        def fail(request: hal.Request, config: hal.ExecutionConfig) -> None:
            if failing[0]:
                raise errors.GeneralFailure("not today")

        devices = [NumpyDevice("adder", ["ADD"], fail), NumpyDevice("relu", ["RELU"])]
        with (
            penstock.compile(add_relu(), devices=devices, cache=False) as compiled,
            compiled.burst() as burst,
        ):
            for failing[0] in (False, True, False, True, True):
                x = X + len(str(failing[0]))
                outputs = burst.run(x, Y)
                np.testing.assert_array_equal(outputs[1], x + Y)
                np.testing.assert_array_equal(outputs[0], np.maximum(x + Y, 0))
                first = outputs.receipt.steps[0]
                assert first.fallback_from == ("adder" if failing[0] else None)
                assert first.device == ("reference" if failing[0] else "adder")
                assert len(outputs.receipt.steps) == 2

    def test_foreign_error_or_answer_in_a_burst_falls_back(self) -> None:
        for act in (lambda: 1 / 0, lambda: "nonsense"):

            class Device(NumpyDevice):
                def prepare_model(self, model: Any, config: Any) -> NumpyPrepared:
                    class Prepared(NumpyPrepared):
                        def execute(self, request: Any, config: Any) -> Any:
                            return act()  # noqa: B023

                    return Prepared(model, None)

            with (
                penstock.compile(add_relu(), devices=[Device()], cache=False) as compiled,
                compiled.burst() as burst,
            ):
                outputs = burst.run(X, Y)
                np.testing.assert_array_equal(outputs[0], RELU)
                assert outputs.receipt.steps[0].fallback_from == "numpy"

    def test_without_the_policys_leave_the_error_comes_out(self) -> None:
        device = FaultyDevice(NumpyDevice(), {"burst_execute": 2})
        with (
            penstock.compile(
                add_relu(),
                devices=[device],
                cache=False,
                policy=penstock.Policy(allow_fallback=False),
            ) as compiled,
            compiled.burst() as burst,
        ):
            burst.run(X, Y)
            with pytest.raises(errors.GeneralFailure):
                burst.run(X, Y)
            np.testing.assert_array_equal(burst.run(X, Y)[0], RELU)


class TestState:
    def test_goes_on_from_run_to_run(self) -> None:
        with penstock.compile(accumulator(), devices=[NumpyDevice()], cache=False) as compiled:
            with compiled.burst() as burst:
                x = f32([1, 2])
                for k in range(1, 5):
                    np.testing.assert_array_equal(burst.run(x)[0], f32([10 + k, 20 + 2 * k]))
                own = compiled.new_state()
                np.testing.assert_array_equal(burst.run(x, state=own)[0], f32([11, 22]))
                np.testing.assert_array_equal(burst.run(x)[0], f32([15, 30]))
            np.testing.assert_array_equal(compiled(x)[0], f32([16, 32]))

    def test_an_output_that_is_fed_back_does_not_change_the_state(self) -> None:
        with (
            penstock.compile(accumulator(), devices=[NumpyDevice()], cache=False) as compiled,
            compiled.burst() as burst,
        ):
            total = f32([11, 21])
            value = burst.run(f32([1, 1]))[0]
            for _ in range(4):
                np.testing.assert_array_equal(value, total)
                value = burst.run(value)[0]
                total = total + total

    def test_a_failed_run_leaves_it_as_it_was(self) -> None:
        device = FaultyDevice(NumpyDevice(), {"burst_execute": 2})
        policy = penstock.Policy(allow_fallback=False)
        with (
            penstock.compile(
                accumulator(), devices=[device], cache=False, policy=policy
            ) as compiled,
            compiled.burst() as burst,
        ):
            x = f32([1, 2])
            burst.run(x)
            with pytest.raises(errors.GeneralFailure):
                burst.run(x)
            np.testing.assert_array_equal(burst.run(x)[0], f32([12, 24]))


class TestLimits:
    @pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")
    def test_arrays_whose_shape_was_changed_in_place_are_looked_at_again(
        self, compiled: penstock.CompiledModel
    ) -> None:
        x, out = X.copy(), np.empty_like(X)
        runs: list[Callable[[Any], Any]] = [
            lambda burst: burst.run(x, Y),
            lambda burst: burst.run([x, Y]),
            lambda burst: burst.run(x=x, y=Y),
        ]
        for run in runs:
            with compiled.burst() as burst:
                run(burst)
                run(burst)
                x.shape = (3, 2)
                for _ in range(2):
                    with pytest.raises(errors.InputError, match="shape"):
                        run(burst)
                x.shape = (2, 3)
                np.testing.assert_array_equal(run(burst)[1], SUM)
        with compiled.burst() as burst:
            for _ in range(2):
                burst.run(x, Y, out=[None, out])
            out.shape = (3, 2)
            with pytest.raises(errors.InputError, match="shape"):
                burst.run(x, Y, out=[None, out])

    def test_deadlines_and_cancellation(self) -> None:
        configs: list[hal.ExecutionConfig] = []
        device = NumpyDevice(before=lambda _, config: configs.append(config))
        with (
            penstock.compile(
                add_relu(), devices=[device], cache=False, priority="high"
            ) as compiled,
            compiled.burst() as burst,
        ):
            burst.run(X, Y)
            assert [c.priority for c in configs] == ["high"]
            burst.run(X, Y, timeout=60, priority="low", loop_timeout=99, measure=True)
            assert configs[-1].deadline_ns is not None
            assert [c.priority for c in configs] == ["high", "low"]
            assert configs[-1].loop_timeout_ns == 99 * 10**9
            assert configs[-1].measure
            with pytest.raises(errors.MissedDeadlinePersistent):
                burst.run(X, Y, timeout=0)
            token = hal.CancelToken()
            burst.run(X, Y, cancel=token)
            token.set()
            with pytest.raises(errors.Cancelled):
                burst.run(X, Y, cancel=token)
            np.testing.assert_array_equal(burst.run(X, Y)[0], RELU)

    def test_a_deadline_missed_midway(self) -> None:
        device = NumpyDevice(before=lambda *_: time.sleep(0.15))
        with (
            penstock.compile(add_relu(), devices=[device], cache=False) as compiled,
            compiled.burst() as burst,
            pytest.raises(errors.MissedDeadlineTransient),
        ):
            burst.run(X, Y, timeout=0.1)

    def test_two_threads_at_once_are_refused(self) -> None:
        inside, go_on = threading.Event(), threading.Event()

        def wait(request: hal.Request, config: hal.ExecutionConfig) -> None:
            inside.set()
            assert go_on.wait(30)

        device = NumpyDevice(before=wait)
        with penstock.compile(add_relu(), devices=[device], cache=False) as compiled:
            burst = compiled.burst()
            found: list[NDArray] = []
            thread = threading.Thread(target=lambda: found.append(burst.run(X, Y)[0]))
            thread.start()
            assert inside.wait(30)
            with pytest.raises(errors.StateError, match="another thread"):
                burst.run(X, Y)
            go_on.set()
            thread.join()
            np.testing.assert_array_equal(found[0], RELU)
            np.testing.assert_array_equal(burst.run(X, Y)[0], RELU)

    def test_bursts_of_one_model_do_not_meet(self, compiled: penstock.CompiledModel) -> None:
        failures: list[str] = []

        def work(k: int) -> None:
            with compiled.burst() as burst:
                for n in range(200):
                    x = X * (k + n)
                    if not np.array_equal(burst.run(x, Y)[1], x + Y):
                        failures.append(f"{k}, {n}")

        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []

    def test_close(self, compiled: penstock.CompiledModel) -> None:
        burst = compiled.burst()
        burst.close()
        burst.close()
        with pytest.raises(errors.ClosedError, match="burst used after close"):
            burst.run(X, Y)
        with compiled.burst() as other:
            other.run(X, Y)
            compiled.close()
            with pytest.raises(errors.ClosedError, match="compiled model used after close"):
                other.run(X, Y)
        with pytest.raises(errors.ClosedError):
            compiled.burst()

    def test_closing_the_model_waits_for_a_run_of_a_burst(self) -> None:
        inside, go_on = threading.Event(), threading.Event()
        order: list[str] = []

        def wait(request: hal.Request, config: hal.ExecutionConfig) -> None:
            inside.set()
            assert go_on.wait(30)
            order.append("ran")

        compiled = penstock.compile(add_relu(), devices=[NumpyDevice(before=wait)], cache=False)
        burst = compiled.burst()
        runner = threading.Thread(target=lambda: burst.run(X, Y))
        runner.start()
        assert inside.wait(30)

        def close() -> None:
            compiled.close()
            order.append("closed")

        closer = threading.Thread(target=close)
        closer.start()
        go_on.set()
        runner.join()
        closer.join()
        assert order == ["ran", "closed"]

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_a_child_process_gets_an_error_at_once(self) -> None:
        """Also where another thread of the parent was in a run of it."""
        inside, go_on = threading.Event(), threading.Event()

        def hold(request: hal.Request, config: hal.ExecutionConfig) -> None:
            inside.set()
            assert go_on.wait(30)

        with penstock.compile(
            add_relu(), devices=[NumpyDevice(before=hold)], cache=False
        ) as compiled:
            burst = compiled.burst()
            thread = threading.Thread(target=lambda: burst.run(X, Y))
            thread.start()
            assert inside.wait(30)
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    burst.run(X, Y)
                except errors.StateError:
                    burst.close()
                    code = 0
                finally:
                    os._exit(code)
            go_on.set()
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            thread.join()

    def test_nothing_keeps_a_dropped_burst_alive(self, compiled: penstock.CompiledModel) -> None:
        burst = compiled.burst()
        burst.run(X, Y)
        dead = weakref.ref(burst)
        del burst
        gc.collect()
        assert dead() is None

    def test_inputs_are_let_go_of_by_close(self, compiled: penstock.CompiledModel) -> None:
        class Base(np.ndarray[Any, Any]):
            pass

        x = np.zeros((2, 3), np.float32).view(Base)
        dead = weakref.ref(x)
        burst = compiled.burst()
        burst.run(np.asarray(x), Y)
        del x
        burst.close()
        gc.collect()
        assert dead() is None


def test_runs_of_a_burst_are_compared_in_the_shadow() -> None:
    policy = penstock.Policy(shadow=2)
    with (
        penstock.compile(
            add_relu(), devices=[NumpyDevice()], cache=False, policy=policy
        ) as compiled,
        compiled.burst() as burst,
    ):
        for _ in range(3):
            np.testing.assert_array_equal(burst.run(X, Y)[0], RELU)
        shadow = compiled.shadow
        assert shadow is not None
        assert shadow.report().chosen == 2
