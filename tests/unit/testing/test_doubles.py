from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from typing import Literal

import numpy as np
import pytest

import penstock
from penstock import errors, hal
from penstock.drivers.null import create as null
from penstock.drivers.reference import create as reference
from penstock.drivers.sample import create as sample
from penstock.ir import Model
from penstock.testing import assert_no_copies, doubles
from penstock.testing.contract.cases import Case, every_case
from penstock.testing.contract.trial import PLAIN, Trial
from penstock.testing.loopback import LoopbackDevice
from penstock.testing.resources import Resources
from tests.checked import does_not_raise

CASE = next(c for c in every_case() if c.name == "diamond")


def exercise(device: hal.Device, case: Case = CASE) -> None:
    """Every method of `METHODS` once, errors let pass."""
    device.supported_operations(case.model)
    with pytest.raises((errors.GeneralFailure, errors.InvalidArgument)):
        device.prepare_model_from_cache(hal.PrepareConfig())
    with closing(device.prepare_model(case.model, hal.PrepareConfig())) as prepared:
        with suppress(errors.GeneralFailure):
            device.allocate(hal.BufferDesc(), [hal.BufferRole(prepared, "input", 0)])[1].close()
        with Trial(case) as trial:
            prepared.execute(trial.request, PLAIN)
            prepared.execute_fenced(trial.request, [], PLAIN).wait()
            with closing(prepared.configure_burst()) as burst:
                burst.execute(trial.request, PLAIN)
            with closing(prepared.create_reusable_execution(trial.request)) as execution:
                execution.execute(PLAIN)


class TestFaulty:
    @pytest.mark.parametrize("method", doubles.METHODS)
    def test_every_method_can_fail(self, method: str) -> None:
        device = doubles.FaultyDevice(null(), {method: 1}, errors.ResourceExhaustedTransient)
        with pytest.raises(errors.ResourceExhaustedTransient, match=f"{method} fails at call 1"):
            exercise(device)
        exercise(device)
        assert device.calls[method] == 2

    def test_the_third_call_fails_and_the_fourth_does_not(self) -> None:
        device = doubles.FaultyDevice(sample(), raise_on={"execute": 3})
        prepared = device.prepare_model(CASE.model, hal.PrepareConfig())
        with Trial(CASE) as trial:
            for call in range(1, 6):
                if call == 3:
                    with pytest.raises(errors.GeneralFailure, match="execute fails at call 3"):
                        prepared.execute(trial.request, PLAIN)
                else:
                    prepared.execute(trial.request, PLAIN)

    def test_faulty_device_raises_at_several_calls_or_all(self) -> None:
        some = doubles.FaultyDevice(null(), {"supported_operations": range(2, 4)})
        every = doubles.FaultyDevice(null(), {"supported_operations": "always"})
        outcomes = []
        for _ in range(4):
            for device in (some, every):
                try:
                    device.supported_operations(CASE.model)
                    outcomes.append(True)
                except errors.GeneralFailure:
                    outcomes.append(False)
        assert outcomes == [True, False, False, False, False, False, True, False]

    def test_calls_are_counted_across_threads(self) -> None:
        device = doubles.FaultyDevice(null(), {})
        threads = [
            threading.Thread(
                target=lambda: [device.supported_operations(CASE.model) for _ in range(200)]
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert device.calls["supported_operations"] == 800

    def test_a_method_that_does_not_exist_is_refused(self) -> None:
        with pytest.raises(errors.InputError, match="no method of a device is named run"):
            doubles.FaultyDevice(null(), {"run": 1})

    def test_a_status_is_the_error_of_its_class(self) -> None:
        device = doubles.FaultyDevice(null(), {"execute": 1}, errors.ErrorStatus.DEAD_OBJECT)
        prepared = device.prepare_model(CASE.model, hal.PrepareConfig())
        with (
            Trial(CASE) as trial,
            pytest.raises(errors.DeadObject, match="execute fails at call 1"),
        ):
            prepared.execute(trial.request, PLAIN)
        with pytest.raises(errors.InputError, match="NONE is no failure"):
            doubles.FaultyDevice(null(), {}, errors.ErrorStatus.NONE)

    def test_runtime_falls_back_from_a_faulty_device(self) -> None:
        class Quick(doubles.FaultyDevice):
            capabilities = hal.Capabilities(default_performance=hal.PerformanceInfo(0.1, 0.1))

        faulty = Quick(reference(), {"execute": "always"}, name="faulty")
        with penstock.compile(CASE.model, devices=[faulty, "reference"], cache=False) as compiled:
            outputs = compiled(*CASE.inputs)
            for found, wanted in zip(outputs, CASE.outputs, strict=True):
                assert np.array_equal(found, wanted)
            assert outputs.receipt.steps[0].fallback_from == "faulty"


class TestRecording:
    def test_every_method_is_seen(self) -> None:
        device = doubles.RecordingDevice(null())
        exercise(device)
        assert {call.method for call in device.calls} == set(doubles.METHODS)
        assert device.count("execute") == 1
        failed = [c.method for c in device.calls if c.error is not None]
        assert sorted(failed) == ["allocate", "prepare_model_from_cache"]

    def test_arguments_and_results_are_kept(self) -> None:
        device = doubles.RecordingDevice(doubles.LabDevice())
        exercise(device)
        (run,) = [c for c in device.calls if c.method == "execute"]
        assert isinstance(run.arguments[0], hal.Request)
        assert run.arguments[1] is PLAIN
        assert [s.dimensions for s in run.result.output_shapes] == [a.shape for a in CASE.outputs]


class TestSlow:
    def test_slow_device_delays_by_its_own_clock(self) -> None:
        clock = Clock()
        device = doubles.SlowDevice(
            sample(), {"execute": 0.5}, sleep=clock.sleep, clock_ns=clock.nanoseconds
        )
        prepared = device.prepare_model(CASE.model, hal.PrepareConfig())
        assert clock.now == 0.0
        with Trial(CASE) as trial:
            prepared.execute(trial.request, PLAIN)
        assert clock.now == pytest.approx(0.5, abs=0.002)

    def test_slow_device_notices_the_deadline(self) -> None:
        clock = Clock()
        device = doubles.SlowDevice(
            sample(), {"execute": 60.0}, sleep=clock.sleep, clock_ns=clock.nanoseconds
        )
        prepared = device.prepare_model(CASE.model, hal.PrepareConfig())
        config = hal.ExecutionConfig(deadline_ns=10**9)
        with Trial(CASE) as trial, pytest.raises(errors.MissedDeadlineTransient):
            prepared.execute(trial.request, config)
        assert clock.now == pytest.approx(1.0, abs=0.002)

    def test_slow_device_notices_the_cancel_token(self) -> None:
        token = hal.CancelToken()

        def sleep(_: float) -> None:
            token.set()

        device = doubles.SlowDevice(sample(), {"prepare_model": 60.0}, sleep=sleep)
        with pytest.raises(errors.Cancelled):
            device.prepare_model(CASE.model, hal.PrepareConfig(cancel=token))

    def test_a_heedless_one_notices_nothing(self) -> None:
        clock = Clock()
        started = clock.now = time.monotonic() + 900.0  # past the deadline by its own clock alone
        config = hal.ExecutionConfig(deadline_ns=time.monotonic_ns() + 600 * 10**9)
        for heedless in (True, False):
            device = doubles.SlowDevice(
                sample(),
                {"execute": 3.0},
                heedless=heedless,
                sleep=clock.sleep,
                clock_ns=clock.nanoseconds,
            )
            prepared = device.prepare_model(CASE.model, hal.PrepareConfig())
            with Trial(CASE) as trial:
                if heedless:
                    prepared.execute(trial.request, config)
                    assert clock.now - started == pytest.approx(3.0, abs=0.002)
                else:
                    with pytest.raises(errors.MissedDeadlineTransient):
                        prepared.execute(trial.request, config)

    def test_a_method_that_does_not_exist_is_refused(self) -> None:
        with pytest.raises(errors.InputError, match="no method of a device is named run"):
            doubles.SlowDevice(null(), {"run": 1})


class TestLying:
    def test_lying_device_combines_several_lies(self) -> None:
        device = doubles.LyingDevice(sample(), "values", "output_count", "writes_behind")
        prepared = device.prepare_model(CASE.model, hal.PrepareConfig())
        with Trial(CASE) as trial:
            result = prepared.execute(trial.request, PLAIN)
            assert len(result.output_shapes) == len(CASE.outputs) - 1
            with pytest.raises(AssertionError, match="bytes behind argument"):
                trial.check_memory()

    @pytest.mark.parametrize(
        ("lie", "complaint"),
        [
            ("writes_behind", "bytes behind argument"),
            ("writes_before", "bytes before argument"),
            ("changes_inputs", "input 0 was changed"),
        ],
    )
    def test_lies_that_are_writes(self, lie: doubles.Lie, complaint: str) -> None:
        prepared = doubles.LyingDevice(sample(), lie).prepare_model(CASE.model, hal.PrepareConfig())
        with Trial(CASE) as trial:
            prepared.execute(trial.request, PLAIN)
            with pytest.raises(AssertionError, match=complaint):
                trial.check_memory()

    @pytest.mark.parametrize("where", ["host", "pool"])
    def test_values_are_far_off_in_any_memory(self, where: Literal["host", "pool"]) -> None:
        prepared = doubles.LyingDevice(reference(), "values").prepare_model(
            CASE.model, hal.PrepareConfig()
        )
        with Trial(CASE, where) as trial:
            found = trial.run(prepared)
        for array, wanted in zip(found, CASE.outputs, strict=True):
            assert np.abs(array - wanted).reshape(-1)[0] > 0.1
            assert np.array_equal(array.reshape(-1)[2:], wanted.reshape(-1)[2:])

    def test_an_unknown_lie_is_refused(self) -> None:
        with pytest.raises(
            errors.InputError, match="no lie is named flattery; known: support_length"
        ):
            doubles.LyingDevice(sample(), "flattery")  # type: ignore[arg-type]  # the point


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def nanoseconds(self) -> int:
        return int(self.now * 1e9)


class TestSubset:
    def test_subset_device_refuses_operations_with_a_reason(self) -> None:
        def supports(model: Model, index: int) -> bool | str:
            return "adds are dull" if model.operations[index].type == "ADD" else True

        device = doubles.SubsetDevice(reference(), "subset", supports)
        answers = device.supported_operations(CASE.model)
        assert [a.supported for a in answers] == [True, False, False]
        assert answers[1].reason == "adds are dull"
        with pytest.raises(errors.GeneralFailure, match=r"operation 1 \(ADD\): adds are dull"):
            device.prepare_model(CASE.model, hal.PrepareConfig())

    def test_subset_device_supports_at_most_what_its_device_does(self) -> None:
        model = next(c for c in every_case() if c.name == "add_int8").model
        device = doubles.SubsetDevice(sample(), "subset", lambda _model, _index: True)
        assert not device.supported_operations(model)[0].supported

    def test_two_subset_devices_share_one_model(self) -> None:
        even = doubles.SubsetDevice(reference(), "even", lambda _, i: i % 2 == 0)
        odd = doubles.SubsetDevice(reference(), "odd", lambda m, i: m.operations[i].type != "RELU")
        case = next(c for c in every_case() if c.name == "chain")
        relu = doubles.SubsetDevice(
            reference(), "relu", lambda m, i: m.operations[i].type == "RELU"
        )
        with penstock.compile(case.model, devices=[relu, odd], cache=False) as compiled:
            assert np.array_equal(compiled(*case.inputs)[0], case.outputs[0])
            used = {s.device for s in compiled(*case.inputs).receipt.steps}
        assert used == {"relu", "odd"}
        assert even.name == "even"


def test_doubles_nest_and_keep_the_properties_of_what_is_inside() -> None:
    inner = sample()
    device = doubles.RecordingDevice(
        LoopbackDevice(doubles.FaultyDevice(doubles.InterceptingDevice(inner, "new"), {}))
    )
    assert device.name == "new"
    assert (device.version, device.type) == (inner.version, inner.type)
    assert (device.feature_level, device.hal_version) == (inner.feature_level, inner.hal_version)
    assert device.capabilities == inner.capabilities
    assert device.check() is None
    assert device.cache_files_needed() == (1, 1)
    exercise(device)
    device.close()


class TestLoopback:
    def test_objects_live_and_die_with_those_of_the_client(self) -> None:
        device = LoopbackDevice(sample())
        prepared = device.prepare_model(CASE.model, hal.PrepareConfig())
        burst = prepared.configure_burst()
        assert len(device.dispatcher.objects) == 2
        del burst
        device.check()  # what a finalizer drops goes with the next call
        assert len(device.dispatcher.objects) == 1
        prepared.close()
        prepared.close()
        device.check()
        assert len(device.dispatcher.objects) == 0

    def test_use_after_close_is_named(self) -> None:
        prepared = LoopbackDevice(sample()).prepare_model(CASE.model, hal.PrepareConfig())
        prepared.close()
        with (
            Trial(CASE) as trial,
            pytest.raises(penstock.errors.ClosedError, match="RemotePreparedModel used after"),
        ):
            prepared.execute(trial.request, PLAIN)

    def test_the_device_is_closed_once(self) -> None:
        closes = []

        class Counting(doubles.InterceptingDevice):
            def close(self) -> None:
                closes.append(1)

        device = LoopbackDevice(Counting(sample()))
        device.close()
        device.close()
        assert closes == [1]

    def test_runtime_runs_through_a_loopback_device(self) -> None:
        with penstock.compile(
            CASE.model, devices=[LoopbackDevice(reference())], cache=False
        ) as compiled:
            for found, wanted in zip(compiled(*CASE.inputs), CASE.outputs, strict=True):
                assert np.array_equal(found, wanted)

    def test_errors_of_the_device_arrive_as_themselves(self) -> None:
        faulty = doubles.FaultyDevice(sample(), {"execute": 1}, errors.ResourceExhaustedTransient)
        prepared = LoopbackDevice(faulty).prepare_model(CASE.model, hal.PrepareConfig())
        with (
            Trial(CASE) as trial,
            pytest.raises(errors.ResourceExhaustedTransient, match="as told"),
        ):
            prepared.execute(trial.request, PLAIN)

    def test_a_prepared_model_of_another_device_is_no_role(self) -> None:
        device, other = LoopbackDevice(sample()), LoopbackDevice(sample())
        prepared = other.prepare_model(CASE.model, hal.PrepareConfig())
        with pytest.raises(penstock.errors.InvalidArgument, match="another device"):
            device.allocate(hal.BufferDesc(), [hal.BufferRole(prepared, "input", 0)])


class TestCopies:
    def test_a_run_on_host_memory_copies_nothing(self) -> None:
        with penstock.compile(CASE.model, devices=["reference"], cache=False) as compiled:
            for wrong in (-1, 1.5, "1", None, True):
                with (
                    pytest.raises(
                        errors.InputError, match="allowed_bytes is a whole number of bytes, 0 or m"
                    ),
                    assert_no_copies(wrong),  # type: ignore[arg-type]  # what users give
                ):
                    pass
            with assert_no_copies() as copies:
                compiled(*CASE.inputs)
            assert copies == []

    def test_a_pools_only_device_costs_copies(self) -> None:
        with penstock.compile(CASE.model, devices=["sample"], cache=False) as compiled:
            with pytest.raises(AssertionError, match="takes pools only"), assert_no_copies():
                compiled(*CASE.inputs)
            with assert_no_copies(allowed_bytes=1 << 20) as copies:
                outputs = compiled(*CASE.inputs)
            assert tuple(copies) == outputs.receipt.copies

    def test_copies_outside_the_block_do_not_count(self) -> None:
        with penstock.compile(CASE.model, devices=["sample"], cache=False) as compiled:
            compiled(*CASE.inputs)
            with does_not_raise(), assert_no_copies():
                pass
            compiled(*CASE.inputs)


def test_leaks_are_named() -> None:
    kept = []
    with (
        pytest.raises(AssertionError, match=r"opening a pool leaves behind: .* mapped pools"),
        Resources.unchanged("opening a pool"),
    ):
        kept.append(Trial(CASE))
    for trial in kept:
        trial.close()
    before = Resources(1, 0, 1, 0)
    assert Resources(3, 1, 1, 0).more_than(before) == ["2 descriptors", "1 child processes"]
    assert Resources(None, None, 1, 0).more_than(before) == []


def test_thread_that_ends_soon_is_no_leak() -> None:
    with does_not_raise(), Resources.unchanged("a thread that ends"):
        threading.Timer(0.2, int).start()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the children of a thread")
def test_the_child_of_a_thread_that_has_ended_was_counted_before() -> None:
    started: list[subprocess.Popen[bytes]] = []
    go_on = threading.Event()

    def start() -> None:
        started.append(subprocess.Popen(["sleep", "60"]))
        go_on.wait(60)

    thread = threading.Thread(target=start)
    thread.start()
    while not started:
        time.sleep(0.01)
    before = Resources.now()
    go_on.set()
    thread.join()
    try:
        assert Resources.now().children == before.children
    finally:
        started[0].kill()
        started[0].wait()
