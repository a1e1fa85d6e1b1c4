"""`compile_plan`: what drivers are given, what they may answer, what is closed, and the plan
afterwards.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import penstock
from penstock.compilation import Compilation, CompileOptions, compile_plan
from penstock.errors import Cancelled, DriverError, GeneralFailure, MissedDeadlinePersistent
from penstock.hal import CancelToken, Device, PrepareConfig, ProgressEvent
from penstock.partitioning import Policy, place
from tests.support_devices import NumpyDevice
from tests.unit.compilation.fakes import Recorder, Returning, raiser
from tests.unit.partitioning.models import chain

KINDS = ("ADD", "RELU", "ADD")


def compiled(
    *devices: Device,
    policy: Policy = Policy(),  # noqa: B008  # immutable
    config: PrepareConfig = PrepareConfig(),  # noqa: B008  # immutable
    spare: Device | None = None,
    allow_fallback: bool = True,
) -> Compilation:
    """A chain of three steps on *devices*; *spare* is there to fall back on, not to be placed
    on.
    """
    plan = place(chain(KINDS), devices, policy)
    named: Mapping[str, Device] = {d.name: d for d in (*devices, *([spare] if spare else []))}
    return compile_plan(plan, named, config, CompileOptions(allow_fallback=allow_fallback))


class TestWhatDriversAreGiven:
    @pytest.mark.parametrize("preference", penstock.hal.PREFERENCES)
    def test_the_preference(self, preference: penstock.hal.Preference) -> None:
        device = Recorder("one")
        penstock.compile(chain(KINDS), devices=[device], preference=preference).close()
        assert [c.preference for c in device.configs] == [preference]

    @pytest.mark.parametrize("priority", penstock.hal.PRIORITIES)
    def test_the_priority(self, priority: penstock.hal.Priority) -> None:
        device = Recorder("one")
        penstock.compile(chain(KINDS), devices=[device], priority=priority).close()
        assert [c.priority for c in device.configs] == [priority]

    @pytest.mark.parametrize("accuracy", ["relaxed", "faithful", "exact"])
    def test_the_accuracy(self, accuracy: penstock.hal.AccuracyClass) -> None:
        device = Recorder("one", accuracy="exact")
        policy = Policy(accuracy=accuracy)
        penstock.compile(chain(KINDS), devices=[device], policy=policy).close()
        assert [c.accuracy for c in device.configs] == [accuracy]

    @pytest.mark.parametrize("threads", [1, 3, 7])
    def test_the_number_of_threads(self, threads: int) -> None:
        device = Recorder("one")
        penstock.compile(chain(KINDS), devices=[device], num_threads=threads).close()
        assert [c.num_threads for c in device.configs] == [threads]

    def test_the_deadline_and_the_cancel_token(self) -> None:
        device, token = Recorder("one"), CancelToken()
        before = time.monotonic_ns()
        penstock.compile(chain(KINDS), devices=[device], timeout=60.0, cancel=token).close()
        (config,) = device.configs
        assert config.cancel is token
        assert config.deadline_ns is not None
        assert before <= config.deadline_ns - 60 * 10**9 <= time.monotonic_ns()

    def test_every_step_and_fallback_get_the_config(self) -> None:
        adder = Recorder("adder", "ADD", on_prepare=raiser(GeneralFailure("no room")))
        rest, spare = Recorder("rest", "RELU"), Recorder("reference")
        config = PrepareConfig(priority="high", num_threads=5, preference="low_power")
        compiled(adder, rest, spare=spare, config=config)
        assert adder.configs == [config, config]
        assert rest.configs == [config]
        assert spare.configs == [config, config]

    def test_progress_step_by_step(self) -> None:
        events: list[ProgressEvent] = []
        config = PrepareConfig(progress=events.append)
        compiled(Recorder("adder", "ADD"), Recorder("rest", "RELU"), config=config)
        assert [(e.stage, e.subject, e.done, e.total) for e in events] == [
            ("compile", "adder", 0, 3),
            ("compile", "rest", 1, 3),
            ("compile", "adder", 2, 3),
            ("compile", "", 3, 3),
        ]


class TestWhatDriversMayAnswer:
    @pytest.mark.parametrize("result", [None, 7, "prepared", object()])
    def test_something_that_cannot_execute(self, result: Any) -> None:
        broken = Returning("broken")
        broken.result = result
        kind = type(result).__name__
        with pytest.raises(GeneralFailure, match=f"device broken returned {kind} from prepare_m"):
            compiled(broken)

    def test_wrong_answer_of_a_driver_falls_back(self) -> None:
        result = compiled(Returning("broken"), spare=Recorder("reference"))
        (step,) = result.receipt.steps
        assert (step.device, step.fallback_from) == ("reference", "broken")
        assert "returned NoneType" in str(step.error)

    def test_an_execute_that_is_no_function(self) -> None:
        broken = Returning("broken")
        broken.result = type("Odd", (), {"execute": 3})()
        with pytest.raises(GeneralFailure, match="device broken returned Odd"):
            compiled(broken)

    def test_any_exception_is_a_general_failure(self) -> None:
        with pytest.raises(GeneralFailure, match=r"device one failed in prepare_model: Zero.*bug"):
            compiled(Recorder("one", on_prepare=raiser(ZeroDivisionError("bug"))))


class TestWhatIsClosed:
    @pytest.mark.parametrize(
        "error", [GeneralFailure("no room"), Cancelled("enough"), KeyboardInterrupt()]
    )
    def test_prepared_steps_when_a_later_one_fails(self, error: BaseException) -> None:
        adder = Recorder("adder", "ADD")
        with pytest.raises(type(error)):
            compiled(adder, Recorder("rest", "RELU", on_prepare=raiser(error)))
        assert [p.closed for p in adder.made] == [1]

    def test_failed_fallback_closes_prepared_steps(self) -> None:
        adder = Recorder("adder", "ADD")
        rest = Recorder("rest", "RELU", on_prepare=raiser(GeneralFailure("first")))
        spare = Recorder("reference", on_prepare=raiser(GeneralFailure("second")))
        with pytest.raises(GeneralFailure, match="second"):
            compiled(adder, rest, spare=spare)
        assert [p.closed for p in adder.made] == [1]

    def test_everything_when_the_progress_callback_fails(self) -> None:
        def report(event: ProgressEvent) -> None:
            if event.done == 3:
                raise RuntimeError("window closed")

        adder, rest = Recorder("adder", "ADD"), Recorder("rest", "RELU")
        with pytest.raises(RuntimeError, match="window closed"):
            compiled(adder, rest, config=PrepareConfig(progress=report))
        assert [p.closed for p in (*adder.made, *rest.made)] == [1, 1, 1]

    def test_failing_close_still_closes_other_steps(self, caplog: pytest.LogCaptureFixture) -> None:
        adder = Recorder("adder", "ADD", on_close=raiser(OSError("stuck")))
        with caplog.at_level(logging.WARNING):
            compiled(adder, Recorder("rest", "RELU")).close()
        assert [p.closed for p in adder.made] == [1, 1]
        assert caplog.text.count("device adder failed in close: OSError('stuck')") == 2

    def test_a_compiled_model_closes_its_steps(self) -> None:
        adder, rest = Recorder("adder", "ADD"), Recorder("rest", "RELU")
        with penstock.compile(chain(KINDS), devices=[adder, rest]):
            assert [p.closed for p in (*adder.made, *rest.made)] == [0, 0, 0]
        assert all(p.closed for p in (*adder.made, *rest.made))


class TestDeadline:
    def test_compile_that_ends_late_misses_its_deadline(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        deadline = time.monotonic_ns() + 3600 * 10**9

        def pass_time() -> None:
            monkeypatch.setattr(time, "monotonic_ns", lambda: deadline)

        device = Recorder("one", on_prepare=pass_time)
        with pytest.raises(MissedDeadlinePersistent, match="timeout"):
            compiled(device, config=PrepareConfig(deadline_ns=deadline))
        assert [p.closed for p in device.made] == [1]

    def test_passed_deadline_reaches_no_driver(self) -> None:
        device = Recorder("one")
        with pytest.raises(MissedDeadlinePersistent):
            compiled(device, config=PrepareConfig(deadline_ns=time.monotonic_ns()))
        assert device.configs == []

    def test_a_token_that_is_set_during_the_last_compile(self) -> None:
        token = CancelToken()
        device = Recorder("one", on_prepare=token.set)
        with pytest.raises(Cancelled):
            compiled(device, config=PrepareConfig(cancel=token))
        assert [p.closed for p in device.made] == [1]

    def test_a_missed_deadline_does_not_fall_back(self) -> None:
        late = Recorder("one", on_prepare=raiser(MissedDeadlinePersistent("too slow")))
        spare = Recorder("reference")
        with pytest.raises(MissedDeadlinePersistent, match="too slow"):
            compiled(late, spare=spare)
        assert spare.configs == []


def broken(*kinds: str) -> Recorder:
    return Recorder("broken", *kinds, on_prepare=raiser(GeneralFailure("no room")))


class TestFallBack:
    @pytest.mark.parametrize("candidate", [False, True])
    @pytest.mark.parametrize(
        "policy",
        [
            Policy(forbid={"*": "reference"}),
            Policy(forbid={"v1": "reference"}),
            Policy(require={"RELU": "broken"}),
            Policy(min_coverage=1.0),
        ],
    )
    def test_the_policy_holds(self, policy: Policy, candidate: bool) -> None:
        device, reference = broken(), NumpyDevice("reference")
        given = [device, reference] if candidate else [device]
        with pytest.raises(GeneralFailure, match="no room"):
            compiled(*given, policy=policy, spare=reference)
        assert reference.prepared == []

    def test_a_step_that_may_not(self) -> None:
        device, reference = broken(), NumpyDevice("reference")
        plan = place(chain(KINDS), [device])
        plan = replace(plan, steps=tuple(replace(s, fallbacks=()) for s in plan.steps))
        named: dict[str, Device] = {"broken": device, "reference": reference}
        with pytest.raises(GeneralFailure, match="no room"):
            compile_plan(plan, named, PrepareConfig(), CompileOptions())

    def test_failed_step_has_no_fallback_without_permission(self) -> None:
        with pytest.raises(GeneralFailure, match="no room"):
            compiled(broken(), spare=NumpyDevice("reference"), allow_fallback=False)

    @pytest.mark.parametrize(
        "spare", [NumpyDevice("reference", {"ADD"}), NumpyDevice("reference", accuracy="relaxed")]
    )
    def test_failed_step_has_no_fallback_on_an_unfit_device(self, spare: NumpyDevice) -> None:
        with pytest.raises(DriverError, match="no room"):
            compiled(broken(), spare=spare)

    @pytest.mark.parametrize("answer", [[], [True] * 3, None])
    def test_failed_step_has_no_fallback_on_a_device_with_a_bad_answer(
        self, answer: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spare = NumpyDevice("reference")
        monkeypatch.setattr(spare, "supported_operations", lambda _: answer)
        with pytest.raises(GeneralFailure, match="no room"):
            compiled(broken(), spare=spare)

    def test_plan_shows_the_fallback_device(self) -> None:
        rest, spare = Recorder("rest", "RELU"), NumpyDevice("reference", accuracy="exact")
        result = compiled(broken("ADD"), rest, spare=spare)
        plan = result.plan
        assert plan.devices == ("broken", "rest", "reference")
        assert [(s.device, "reference" in s.fallbacks) for s in plan.steps] == [
            ("reference", False),
            ("rest", True),
            ("reference", False),
        ]
        assert [p.device for p in plan.operations] == ["reference", "rest", "reference"]
        assert [p.accuracy for p in plan.operations] == ["exact", "faithful", "exact"]
        failed = "failed to compile: GeneralFailure: no room"
        assert plan.operations[0].reasons == {"broken": failed, "rest": "rest has no ADD"}
        assert plan.operations[1].reasons == {
            "broken": "broken has no RELU",
            "reference": "not a candidate; it repeats only what another device failed at",
        }
        assert plan.summary().startswith("3 steps, 3 operations (rest 1, reference 2)")
        assert [(s.device, s.fallback_from) for s in result.receipt.steps] == [
            ("reference", "broken"),
            ("rest", None),
            ("reference", "broken"),
        ]
        assert result.receipt.compiles == 5
        assert [s.device.name for s in result.steps] == ["reference", "rest", "reference"]

    def test_a_candidate_that_takes_over_has_no_reason_left_against_it(self) -> None:
        result = compiled(broken("ADD"), NumpyDevice("reference"))
        assert result.plan.devices == ("broken", "reference")
        for placement in result.plan.operations:
            assert placement.device == "reference"
            assert set(placement.reasons) == {"broken"}

    def test_the_values_are_right(self) -> None:
        x = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
        devices: list[Device] = [broken("ADD"), Recorder("rest", "RELU"), NumpyDevice("reference")]
        with penstock.compile(chain(KINDS), devices=devices) as model:
            np.testing.assert_array_equal(model.run([x])[0], np.maximum(x * 2, 0) * 2)
