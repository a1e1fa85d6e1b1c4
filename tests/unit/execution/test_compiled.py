from __future__ import annotations

import array
import asyncio
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import errors
from penstock.hal import CancelToken, Capabilities, ExecutionConfig, HostMemory, Request
from penstock.ir import NDArray
from tests.support_programs import run_python
from tests.unit.execution.fakes import NumpyDevice, accumulator, add_relu, f32


def u8(values: object) -> NDArray:
    return np.array(values, np.uint8)


X = f32([[1, -2, 3], [4, 5, -6]])
Y = f32([[1, 1, 1], [-9, 1, 1]])
SUM = X + Y
RELU = np.maximum(SUM, 0)


@pytest.fixture
def device() -> NumpyDevice:
    return NumpyDevice()


@pytest.fixture
def compiled(device: NumpyDevice) -> Iterator[penstock.CompiledModel]:
    with penstock.compile(add_relu(), devices=[device]) as compiled:
        yield compiled


class TestInputs:
    def test_by_position_mapping_and_keyword(self, compiled: penstock.CompiledModel) -> None:
        for outputs in (compiled(X, Y), compiled({"x": X, "y": Y}), compiled(y=Y, x=X)):
            np.testing.assert_array_equal(outputs[0], RELU)
            np.testing.assert_array_equal(outputs[1], SUM)
        np.testing.assert_array_equal(compiled.run([X, Y])["relu"], RELU)
        np.testing.assert_array_equal(compiled.run({"y": Y, "x": X})["sum"], SUM)

    def test_array_protocols_come_in_without_a_cast(self, compiled: penstock.CompiledModel) -> None:
        class WithArray:
            def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
                return X

        class WithDlpack:
            def __dlpack__(self, **kwargs: Any) -> Any:
                return X.__dlpack__(**kwargs)

            def __dlpack_device__(self) -> Any:
                return X.__dlpack_device__()

        buffer = memoryview(array.array("f", X.reshape(-1).tolist())).cast("B").cast("f", (2, 3))
        for value in (WithArray(), WithDlpack(), buffer):
            np.testing.assert_array_equal(compiled(value, Y)[0], RELU)

    @pytest.mark.parametrize(
        ("inputs", "message"),
        [
            ([X], "1 input given, 2 needed"),
            ([X, Y, Y], "3 inputs given"),
            ({"x": X}, "input 'y' is missing"),
            ({"x": X, "y": Y, "z": Y}, "no input is named 'z'; there are 'x', 'y'"),
            ([X, Y[0]], r"input 1 \(y\) has shape \(2, 3\), an array of shape \(3,\)"),
            ([X, Y.astype(np.float64)], r"input 1 \(y\) is float32, an array of float64"),
            (
                [X, [1, 2]],
                (
                    r"input 1 \(y\) needs an array .float32 of shape \(2, 3\)., not list; make one "
                    r"with numpy.array$"
                ),
            ),
            ([X, 1.0], r"input 1 .* not float; make one with numpy.array$"),
            (
                [X, [X, Y]],
                r"not list; a call takes an argument for each input, run\(\) one list of",
            ),
            ([X, None], r"input 1 .* not NoneType; make one with numpy.array$"),
            ([X, "y"], r"input 1 .* not str; make one with numpy.array$"),
        ],
    )
    def test_input_that_does_not_fit_is_refused_by_name(
        self, compiled: penstock.CompiledModel, inputs: Any, message: str
    ) -> None:
        with pytest.raises(errors.InputError, match=message) as caught:
            compiled.run(inputs)
        assert isinstance(caught.value, ValueError)

    def test_positions_and_keywords_do_not_mix(self, compiled: penstock.CompiledModel) -> None:
        with pytest.raises(errors.InputError, match="not both"):
            compiled(X, y=Y)

    def test_memory_that_is_not_contiguous_is_copied_and_said(
        self, compiled: penstock.CompiledModel
    ) -> None:
        outputs = compiled(np.asfortranarray(X), Y)
        np.testing.assert_array_equal(outputs[0], RELU)
        assert [(c.nbytes, c.source) for c in outputs.receipt.copies] == [(X.nbytes, "caller")]

    def test_contiguous_inputs_reach_the_driver_where_they_are(self) -> None:
        seen: list[int] = []

        def before(request: Request, config: ExecutionConfig) -> None:
            argument = request.inputs[0]
            assert isinstance(argument, HostMemory)
            seen.append(argument.array.ctypes.data)

        with penstock.compile(add_relu(), devices=[NumpyDevice(before=before)]) as compiled:
            outputs = compiled(X, Y)
        assert seen == [X.ctypes.data]
        assert outputs.receipt.copies == ()

    def test_two_inputs_of_one_name_are_reached_by_position_only(self, device: NumpyDevice) -> None:
        from penstock.ir import DType, ModelBuilder

        builder = ModelBuilder()
        a = builder.input(DType.FLOAT32, (1,), "same")
        b = builder.input(DType.FLOAT32, (1,), "same")
        outputs = builder.operation("ADD", [a, b], [(DType.FLOAT32, (1,))])
        with penstock.compile(builder.build(outputs), devices=[device]) as compiled:
            one = f32([1])
            assert compiled(one, one)[0] == 2
            with pytest.raises(errors.InputError, match="inputs 0, 1 are all named 'same'"):
                compiled(same=one)


class TestOutputs:
    def test_is_a_sequence_by_position_and_name(self, compiled: penstock.CompiledModel) -> None:
        outputs = compiled(X, Y)
        relu, total = outputs
        assert len(outputs) == 2
        assert outputs["relu"] is outputs[0] is relu
        assert outputs[-1] is total
        assert list(outputs.as_dict()) == ["relu", "sum"]
        with pytest.raises(errors.InputError, match="no output is named 'nothing'"):
            outputs["nothing"]
        with pytest.raises(IndexError):
            outputs[2]

    def test_arrays_own_their_memory(self, device: NumpyDevice) -> None:
        compiled = penstock.compile(add_relu(), devices=[device])
        first = compiled(X, Y)
        kept = [a.copy() for a in first]
        compiled(-X, Y)
        compiled.close()
        for array_, copy in zip(first, kept, strict=True):
            np.testing.assert_array_equal(array_, copy)

    def test_out_is_written_in_place(self, compiled: penstock.CompiledModel) -> None:
        relu, total = np.zeros_like(X), np.zeros_like(X)
        outputs = compiled.run([X, Y], out=[relu, total])
        assert outputs[0] is relu
        assert outputs[1] is total
        np.testing.assert_array_equal(relu, RELU)
        only = np.zeros_like(X)
        compiled.run([X, Y], out={"sum": only})
        np.testing.assert_array_equal(only, SUM)

    @pytest.mark.parametrize(
        "wrong",
        [
            np.zeros((3, 2), np.float32),
            np.zeros((2, 3)),
            np.zeros((2, 6), np.float32)[:, ::2],
            np.broadcast_to(f32(0), (2, 3)),
            "text",
        ],
    )
    def test_out_that_does_not_fit_is_named(
        self, compiled: penstock.CompiledModel, wrong: Any
    ) -> None:
        with pytest.raises(errors.InputError, match=r"out for output 0 \(relu\)"):
            compiled.run([X, Y], out=[wrong, None])

    def test_out_with_a_mask_is_refused(self, compiled: penstock.CompiledModel) -> None:
        masked, whole = (np.ma.masked_array(np.zeros_like(X), mask=mask) for mask in (X > 0, False))
        with pytest.raises(
            errors.InputError,
            match=r"out for output 0 \(relu\) is a masked array, .* give its data",
        ):
            compiled.run([X, Y], out=[masked, None])
        assert compiled.run([X, Y], out=[whole, None])[0] is whole
        np.testing.assert_array_equal(whole.data, RELU)

    def test_an_output_that_is_an_input_or_constant_is_a_copy(self, device: NumpyDevice) -> None:
        from penstock.ir import DType, ModelBuilder

        builder = ModelBuilder()
        x = builder.input(DType.FLOAT32, (2,), "x")
        c = builder.constant(f32([7, 8]), "c")
        (y,) = builder.operation("RELU", [x], [(DType.FLOAT32, (2,))])
        with penstock.compile(builder.build([x, c, y, y]), devices=[device]) as compiled:
            given = f32([-1, 2])
            passed, constant, relu, again = compiled(given)
            assert passed is not given
            assert relu is not again
            np.testing.assert_array_equal(passed, given)
            np.testing.assert_array_equal(constant, [7, 8])
            np.testing.assert_array_equal(again, [0, 2])
            constant[:] = 0
            np.testing.assert_array_equal(compiled(given)[1], [7, 8])
            target = np.zeros(2, np.float32)
            compiled.run([given], out=[None, target, None, None])
            np.testing.assert_array_equal(target, [7, 8])

    def test_out_for_an_output_that_is_an_input_leaves_the_input_to_its_readers(self) -> None:
        from penstock.ir import DType, ModelBuilder, Operand

        builder = ModelBuilder()
        x = builder.input(DType.FLOAT32, (2, 3), "x")
        (y,) = builder.operation("ADD", [x, x], [Operand(DType.FLOAT32, (2, 3), name="y")])
        given = [np.full((2, 3), np.nan, np.float32) for _ in range(2)]
        with penstock.compile(builder.build([x, y]), devices=[NumpyDevice()]) as compiled:
            outputs = compiled.run([X], out=given)
        np.testing.assert_array_equal(given[0], X)
        np.testing.assert_array_equal(given[1], X + X)
        assert all(o is g for o, g in zip(outputs, given, strict=True))

    def test_outputs_export_through_dlpack(self, compiled: penstock.CompiledModel) -> None:
        outputs = compiled(X, Y)
        np.testing.assert_array_equal(np.from_dlpack(outputs[0]), RELU)


class TestReceipts:
    def test_receipt_of_a_compile_names_devices(self, compiled: penstock.CompiledModel) -> None:
        receipt = compiled.receipt
        assert receipt.compiles == 1
        assert [s.device for s in receipt.steps] == ["numpy"]
        assert receipt.steps[0].operations == (0, 1)
        assert receipt.steps[0].cache.outcome == "off"
        assert receipt.wall_ns >= receipt.steps[0].wall_ns > 0

    def test_receipt_of_a_run_counts_only_that_run(self, compiled: penstock.CompiledModel) -> None:
        first, second = compiled(X, Y), compiled(np.asfortranarray(X), Y)
        assert len(first.receipt.copies) == 0
        assert len(second.receipt.copies) == 1
        assert first.receipt.compiles == 0
        assert first.receipt is first.receipt
        assert "numpy" in first.receipt.show()
        assert '"device":"numpy"' in first.receipt.to_json()

    def test_is_frozen(self, compiled: penstock.CompiledModel) -> None:
        with pytest.raises(AttributeError):
            compiled.receipt.compiles = 3  # type: ignore[misc]  # that is the point


class TestLifetime:
    def test_close_is_idempotent_and_final(self, device: NumpyDevice) -> None:
        compiled = penstock.compile(add_relu(), devices=[device])
        compiled.close()
        compiled.close()
        assert device.prepared[0].closed == 1
        for use in (
            lambda: compiled(X, Y),
            lambda: compiled.submit(X, Y),
            compiled.new_state,
            compiled.__enter__,
        ):
            with pytest.raises(errors.ClosedError):
                use()

    def test_close_waits_for_runs_in_flight(self) -> None:
        inside, go_on = threading.Event(), threading.Event()

        def before(request: Request, config: ExecutionConfig) -> None:
            inside.set()
            assert go_on.wait(10)

        compiled = penstock.compile(add_relu(), devices=[NumpyDevice(before=before)])
        future = compiled.submit(X, Y)
        assert inside.wait(10)
        closing = threading.Thread(target=compiled.close)
        closing.start()
        assert closing.is_alive()
        go_on.set()
        closing.join(10)
        assert not closing.is_alive()
        np.testing.assert_array_equal(future.result(10)[0], RELU)

    def test_many_threads_get_what_one_gets(self, compiled: penstock.CompiledModel) -> None:
        inputs = [(X * k, Y - k) for k in range(64)]
        futures = [compiled.submit(x, y) for x, y in inputs]
        for (x, y), future in zip(inputs, futures, strict=True):
            np.testing.assert_array_equal(future.result(10)["sum"], x + y)

    def test_async(self, compiled: penstock.CompiledModel) -> None:
        async def both() -> list[penstock.Outputs]:
            return list(
                await asyncio.gather(compiled.run_async(X, Y), compiled.run_async(x=-X, y=Y))
            )

        one, two = asyncio.run(both())
        np.testing.assert_array_equal(one["sum"], SUM)
        np.testing.assert_array_equal(two["sum"], Y - X)

    def test_cancelling_the_task_cancels_the_run(self) -> None:
        seen: list[CancelToken | None] = []
        inside = threading.Event()

        def before(request: Request, config: ExecutionConfig) -> None:
            seen.append(config.cancel)
            inside.set()
            deadline = time.monotonic() + 10
            while not (config.cancel and config.cancel.is_set()) and time.monotonic() < deadline:
                time.sleep(0.001)

        async def start_and_cancel(compiled: penstock.CompiledModel) -> None:
            task = asyncio.create_task(compiled.run_async(X, Y))
            await asyncio.to_thread(inside.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        with penstock.compile(add_relu(), devices=[NumpyDevice(before=before)]) as compiled:
            asyncio.run(start_and_cancel(compiled))
        assert seen[0] is not None
        assert seen[0].is_set()

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
    def test_after_fork_the_child_gets_an_error_at_once(self) -> None:
        # In a process of its own: what other tests left running has no part in the fork.
        code = "from tests.unit.execution.test_compiled import _use_after_fork; _use_after_fork()"
        done = run_python("-W", "ignore::DeprecationWarning", "-c", code)
        assert (done.returncode, done.stdout) == (0, "StateError,StateError"), done.stderr

    def test_pickles_as_a_recipe(self) -> None:
        with penstock.compile(add_relu(), devices=["reference"]) as compiled:
            data = pickle.dumps(compiled)
        with pickle.loads(data) as again:  # noqa: TID251  # what a user may do with his own bytes
            np.testing.assert_array_equal(again(X, Y)[0], RELU)
            assert again.model == compiled.model

    def test_another_process_can_compile_what_was_pickled(self) -> None:
        context = multiprocessing.get_context("spawn")
        with (
            penstock.compile(add_relu(), devices=["reference"]) as compiled,
            context.Pool(1) as pool,
        ):
            result = pool.apply_async(_run_pickled, (compiled,)).get(60)
        np.testing.assert_array_equal(result, RELU)

    def test_nothing_keeps_a_dropped_model_alive(self, device: NumpyDevice) -> None:
        import weakref

        compiled = penstock.compile(add_relu(), devices=[device])
        compiled(X, Y)
        alive = weakref.ref(compiled)
        del compiled
        gc.collect()
        assert alive() is None


def _use_after_fork() -> None:
    """Prints what the child of a fork gets from a compiled model made before it."""
    compiled = penstock.compile(add_relu(), devices=[NumpyDevice()])
    compiled.submit(X, Y).result(10)
    read, write = os.pipe()
    # Holding the lock at the fork is the worst case: a child that waited for it would hang.
    with compiled.executable.gate._idle:
        pid = os.fork()
        if pid == 0:
            signal.alarm(60)
            answers = []
            for use in (lambda: compiled(X, Y), lambda: compiled.submit(X, Y)):
                try:
                    use()
                    answers.append("ran")
                except errors.StateError:
                    answers.append("StateError")
            compiled.close()
            os.write(write, ",".join(answers).encode())
            os._exit(0)
    os.close(write)
    assert os.waitpid(pid, 0)[1] == 0
    with os.fdopen(read) as pipe:
        sys.stdout.write(pipe.read())
    np.testing.assert_array_equal(compiled(X, Y)[0], RELU)
    compiled.close()


def _run_pickled(compiled: penstock.CompiledModel) -> Any:
    with compiled:
        return compiled(X, Y)[0]


class TestInterruption:
    def test_a_timeout_of_nothing_is_missed_at_once(self, compiled: penstock.CompiledModel) -> None:
        with pytest.raises(errors.MissedDeadlinePersistent) as caught:
            compiled.run([X, Y], timeout=0)
        assert isinstance(caught.value, TimeoutError)

    def test_the_driver_gets_the_deadline(self) -> None:
        seen: list[int | None] = []

        def before(request: Request, config: ExecutionConfig) -> None:
            seen.append(config.deadline_ns)

        device = NumpyDevice(before=before)
        with penstock.compile(add_relu(), devices=[device], timeout=50) as compiled:
            compiled.run([X, Y], timeout=100)
            compiled.run([X, Y])
        now = time.monotonic_ns()
        assert seen[0] is not None
        assert now < seen[0] < now + 100 * 10**9
        assert seen[1] is None
        deadline = device.prepared[0].config.deadline_ns
        assert deadline is not None
        assert deadline < now + 50 * 10**9

    def test_compile_past_its_timeout(self, device: NumpyDevice) -> None:
        with pytest.raises(errors.MissedDeadline):
            penstock.compile(add_relu(), devices=[device], timeout=-1)

    def test_a_missed_deadline_is_not_repeated_elsewhere(self) -> None:
        def before(request: Request, config: ExecutionConfig) -> None:
            raise errors.MissedDeadlinePersistent("too slow")

        cheap = Capabilities(default_performance=penstock.hal.PerformanceInfo(0.1, 0.1))
        device = NumpyDevice(before=before, capabilities=cheap)
        with (
            penstock.compile(add_relu(), devices=[device, "reference"]) as compiled,
            pytest.raises(errors.MissedDeadlinePersistent),
        ):
            compiled(X, Y)

    def test_cancel(self, compiled: penstock.CompiledModel, device: NumpyDevice) -> None:
        token = CancelToken()
        np.testing.assert_array_equal(compiled.run([X, Y], cancel=token)[0], RELU)
        token.set()
        with pytest.raises(errors.Cancelled):
            compiled.run([X, Y], cancel=token)
        with pytest.raises(errors.Cancelled):
            penstock.compile(add_relu(), devices=[device], cancel=token)


class TestFallback:
    def failing(self, name: str = "weak") -> NumpyDevice:
        def before(request: Request, config: ExecutionConfig) -> None:
            for argument in request.outputs:
                assert isinstance(argument, HostMemory)
                argument.array.fill(np.nan)
            raise errors.GeneralFailure("overheated")

        cheap = Capabilities(default_performance=penstock.hal.PerformanceInfo(0.1, 0.1))
        return NumpyDevice(name, before=before, capabilities=cheap)

    def test_a_failing_step_is_repeated_on_the_reference_device(self) -> None:
        with penstock.compile(add_relu(), devices=[self.failing(), "reference"]) as compiled:
            assert {p.device for p in compiled.plan.operations} == {"weak"}
            outputs = compiled(X, Y)
            again = compiled(X, Y)
        np.testing.assert_array_equal(outputs[0], RELU)
        (step,) = outputs.receipt.steps
        assert (step.device, step.fallback_from) == ("reference", "weak")
        assert step.error is not None
        assert "overheated" in step.error
        assert outputs.receipt.compiles == 1
        assert again.receipt.compiles == 0

    def test_without_the_policys_leave_the_error_comes_out(self) -> None:
        policy = penstock.Policy(allow_fallback=False)
        with (
            penstock.compile(
                add_relu(), devices=[self.failing(), "reference"], policy=policy
            ) as compiled,
            pytest.raises(errors.GeneralFailure, match="overheated"),
        ):
            compiled(X, Y)

    def test_the_reference_device_is_the_last_resort_named_or_not(self) -> None:
        with penstock.compile(add_relu(), devices=[self.failing()]) as compiled:
            outputs = compiled(X, Y)
        np.testing.assert_array_equal(outputs[0], RELU)
        assert outputs.receipt.steps[0].device == "reference"

    def test_foreign_error_of_a_driver_is_a_driver_error(self) -> None:
        def before(request: Request, config: ExecutionConfig) -> None:
            raise ZeroDivisionError("vendor bug")

        alone = penstock.Policy(allow_fallback=False)
        device = NumpyDevice(before=before)
        with (
            penstock.compile(add_relu(), devices=[device], policy=alone) as compiled,
            pytest.raises(errors.GeneralFailure, match=r"numpy failed in execute.*vendor bug"),
        ):
            compiled(X, Y)

    def test_step_that_does_not_compile_moves_in_the_plan(self) -> None:
        device = self.failing()

        def refuse(model: Any, config: Any) -> Any:
            raise errors.GeneralFailure("out of registers")

        # A driver that lies in its support.
        device.prepare_model = refuse  # type: ignore[method-assign]
        with penstock.compile(add_relu(), devices=[device, "reference"]) as compiled:
            assert {p.device for p in compiled.plan.operations} == {"reference"}
            assert "out of registers" in compiled.plan.operations[0].reasons["weak"]
            assert compiled.receipt.steps[0].fallback_from == "weak"
            np.testing.assert_array_equal(compiled(X, Y)[0], RELU)


class TestState:
    def test_the_default_state_goes_on_from_run_to_run(self, device: NumpyDevice) -> None:
        with penstock.compile(accumulator(), devices=[device]) as compiled:
            assert [i.name for i in compiled.inputs] == ["x"]
            assert [o.name for o in compiled.outputs] == ["out"]
            one = f32([1, 2])
            np.testing.assert_array_equal(compiled(one)[0], [11, 22])
            np.testing.assert_array_equal(compiled(one)[0], [12, 24])

    def test_states_of_ones_own_are_apart(self, device: NumpyDevice) -> None:
        with penstock.compile(accumulator(), devices=[device]) as compiled:
            one = f32([1, 2])
            mine = compiled.new_state()
            compiled.run([one], state=mine)
            compiled.run([one], state=mine)
            np.testing.assert_array_equal(mine.as_dict()["total"], [12, 24])
            np.testing.assert_array_equal(compiled(one)[0], [11, 22])
            mine.reset()
            np.testing.assert_array_equal(compiled.run([one], state=mine)[0], [11, 22])

    def test_a_failed_run_leaves_the_state_as_it_was(self) -> None:
        fail = [False]

        def before(request: Request, config: ExecutionConfig) -> None:
            if fail[0]:
                raise errors.GeneralFailure("no")

        one = f32([1, 2])
        alone = penstock.Policy(allow_fallback=False)
        device = NumpyDevice(before=before)
        with penstock.compile(accumulator(), devices=[device], policy=alone) as compiled:
            state = compiled.new_state()
            compiled.run([one], state=state)
            fail[0] = True
            with pytest.raises(errors.GeneralFailure):
                compiled.run([one], state=state)
            fail[0] = False
            np.testing.assert_array_equal(compiled.run([one], state=state)[0], [12, 24])

    def test_runs_on_one_state_are_serial_and_on_two_overlap(self) -> None:
        inside = [0, 0]
        lock, both = threading.Lock(), threading.Barrier(2)

        def before(request: Request, config: ExecutionConfig) -> None:
            with lock:
                inside[0] += 1
                inside[1] = max(inside)
            if overlap:
                both.wait(10)
            time.sleep(0.002)
            with lock:
                inside[0] -= 1

        one = f32([1, 2])
        overlap = False
        with penstock.compile(accumulator(), devices=[NumpyDevice(before=before)]) as compiled:
            for future in [compiled.submit(one) for _ in range(8)]:
                future.result(10)
            assert inside[1] == 1
            np.testing.assert_array_equal(compiled(one)[0], [19, 38])
            overlap = True
            states = [compiled.new_state(), compiled.new_state()]
            threads = [
                threading.Thread(target=compiled.run, args=([one],), kwargs={"state": s})
                for s in states
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(10)
            assert inside[1] == 2

    def test_a_state_of_another_model_is_refused_before_anything_runs(
        self, device: NumpyDevice
    ) -> None:
        with (
            penstock.compile(accumulator(), devices=[device]) as one,
            penstock.compile(add_relu(), devices=[device]) as other,
        ):
            given, out = np.zeros(2, np.float32), np.full(2, 7, np.float32)
            with pytest.raises(errors.StateError):
                one.run([given], out=[out], state=other.new_state())
            with pytest.raises(errors.StateError):
                one.start_fenced([given], out=[out], state=other.new_state()).result(30)
            with one.burst() as burst, pytest.raises(errors.StateError):
                burst.run([given], out=[out], state=other.new_state())
            assert out.tolist() == [7, 7]
            assert not any(prepared.runs for prepared in device.prepared)

    def test_an_output_the_caller_changes_does_not_change_the_state(
        self, device: NumpyDevice
    ) -> None:
        from msgspec.structs import replace

        model = accumulator()
        entry = model.entry
        both = replace(entry, outputs=(entry.states[0].output or 0, *entry.outputs))
        with penstock.compile(replace(model, subgraphs=(both,)), devices=[device]) as compiled:
            one = f32([1, 2])
            compiled(one)[0].fill(-1000)
            np.testing.assert_array_equal(compiled(one)[0], [12, 24])


class TestShapes:
    def test_unknown_dimensions_take_any_size(self, device: NumpyDevice) -> None:
        with penstock.compile(add_relu((None, 3)), devices=[device]) as compiled:
            assert compiled.inputs[0].shape == (None, 3)
            for rows in (1, 4, 1, 0):
                x = np.full((rows, 3), -1, np.float32)
                outputs = compiled(x, x)
                assert outputs[1].shape == (rows, 3)
                np.testing.assert_array_equal(outputs["sum"], x * 2)
            with pytest.raises(errors.InputError):
                compiled(X[:, :2], X[:, :2])
            assert compiled(X, Y).receipt.compiles == 1
            assert compiled(X, Y).receipt.compiles == 0

    def test_shapes_given_at_compile_time_replace_the_models(self, device: NumpyDevice) -> None:
        shapes = {"x": (5, 1), "y": (1, 2)}
        with penstock.compile(add_relu(), devices=[device], shapes=shapes) as compiled:
            assert compiled.outputs[0].shape == (5, 2)
            outputs = compiled(np.ones((5, 1), np.float32), np.ones((1, 2), np.float32))
            assert outputs[0].shape == (5, 2)

    @pytest.mark.parametrize("shapes", [{"z": (1,)}, {"x": (-1, 3)}, {"x": ("a",)}, {"x": 5}])
    def test_shapes_that_make_no_sense(self, device: NumpyDevice, shapes: Any) -> None:
        with pytest.raises(errors.InputError):
            penstock.compile(add_relu(), devices=[device], shapes=shapes)

    def test_shapes_that_do_not_fit_each_other_name_the_operation(
        self, device: NumpyDevice
    ) -> None:
        with pytest.raises(penstock.errors.ShapeMismatch, match="ADD"):
            penstock.compile(add_relu(), devices=[device], shapes={"x": (4, 4)})


class TestQuantized:
    def test_real_values_in_and_out(self, device: NumpyDevice) -> None:
        from penstock.ir import DType, ModelBuilder, Operand, Quantization

        builder = ModelBuilder()
        q = Quantization((0.5,), (10,))
        x = builder.input(DType.UINT8, (4,), "x", q)
        outputs = builder.operation(
            "RELU", [x], [Operand(DType.UINT8, (4,), name="y", quantization=q)]
        )
        with penstock.compile(builder.build(outputs), devices=[device]) as compiled:
            real = f32([-100, 0.2, 0.25, 1000])
            result = compiled.run([real], dequantize=True)
            assert result[0].dtype == np.float32
            np.testing.assert_array_equal(result[0], [-5, 0, 0.5, 122.5])
            assert len(result.receipt.copies) == 2
            stored = compiled.run([u8([0, 10, 11, 255])])
            assert stored[0].dtype == np.uint8
            with pytest.raises(errors.InputError, match="real values"):
                compiled.run([u8([0, 10, 11, 255])], dequantize=True)


class TestNotAvailable:
    def test_an_object_of_this_process_cannot_be_isolated(self, device: NumpyDevice) -> None:
        with pytest.raises(errors.PlacementError, match="cannot be isolated"):
            penstock.compile(add_relu(), devices=[device], isolate=True)

    @pytest.mark.parametrize("arguments", [{"cache": True}, {"cache": False}, {"isolate": None}])
    def test_device_without_options_gets_defaults(
        self, device: NumpyDevice, arguments: Any
    ) -> None:
        with penstock.compile(add_relu(), devices=[device], **arguments) as compiled:
            assert [step.device for step in compiled.plan.steps] == [device.name]


@pytest.mark.parametrize(
    "arguments", [{"preference": "fastest"}, {"priority": "urgent"}, {"num_threads": 0}]
)
def test_arguments_that_are_not_in_the_vocabulary(device: NumpyDevice, arguments: Any) -> None:
    with pytest.raises(errors.InputError):
        penstock.compile(add_relu(), devices=[device], **arguments)


def test_progress_is_reported_step_by_step(device: NumpyDevice) -> None:
    events: list[penstock.ProgressEvent] = []
    penstock.compile(add_relu(), devices=[device], progress=events.append).close()
    assert [(e.stage, e.done, e.total) for e in events] == [("compile", 0, 1), ("compile", 1, 1)]
