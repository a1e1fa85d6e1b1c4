"""Shadow verification: what it finds, what it leaves alone, and what it costs the caller."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

import penstock
from penstock import knobs
from penstock.cache.verdicts import DriverVerdicts
from penstock.drivers.reference import create as reference
from penstock.drivers.sample import create as sample
from penstock.errors import PlacementError, StateError
from penstock.execution.shadow import Shadow
from penstock.hal import Device
from penstock.ir import DType, Model, ModelBuilder, NDArray, Operand, Quantization
from penstock.ir.digest import form_of
from penstock.partitioning.policy import Policy
from penstock.runtime import investigation, shadow as worker
from penstock.testing.contract.cases import branch, state
from penstock.testing.doubles import SlowDevice, SubsetDevice, WrongDevice

T = TypeVar("T")

F32, INT8 = DType.FLOAT32, DType.INT8
Q = Quantization((0.1,), (0,))
X = np.linspace(-3, 3, 32, dtype=np.float32).reshape(1, 32)


@pytest.fixture(autouse=True)
def own_state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No verdict of one test reaches another."""
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path / "state"))


def network() -> Model:
    """MUL, ADD, TANH, SUB over floats."""
    b = ModelBuilder()
    x = b.input(F32, (1, 32), "x")
    two = b.constant(np.full((1, 32), 2.0, np.float32))
    for kind, other in (("MUL", two), ("ADD", two), ("TANH", None), ("SUB", two)):
        given = [x] if other is None else [x, other]
        (x,) = b.operation(kind, given, [Operand(F32, (1, 32), name=kind.lower())])
    return b.build([x])


def wrong(kind: str = "ADD", fault: str = "much", **how: object) -> WrongDevice:
    # As given.
    return WrongDevice(reference(), kind, fault, "wrong", **how)  # type: ignore[arg-type]


def right() -> WrongDevice:
    return WrongDevice(reference(), "NONE", name="right")


def verified(
    device: Device,
    runs: Sequence[Sequence[NDArray]] = ((X,),),
    model: Model | None = None,
    shadow: float = 1.0,
) -> tuple[list[NDArray], Shadow, list[str]]:
    """First outputs of *runs*, what shadow verification counted, and the notes of the receipts,
    once all is compared.
    """
    with penstock.compile(
        model or network(), devices=[device], cache=None, policy=Policy(shadow=shadow)
    ) as compiled:
        results = []
        for inputs in runs:
            results.append(compiled.run(list(inputs)))
            assert compiled.shadow is not None
            assert compiled.shadow.wait(60)
        shadowed = compiled.shadow
    assert shadowed is not None
    return [r[0] for r in results], shadowed, [n for r in results for n in r.receipt.notes]


def test_a_right_device_agrees() -> None:
    _, shadow, notes = verified(right())
    assert notes == ["shadow verification: agrees with the reference"]
    found = shadow.report()
    assert (found.chosen, found.compared, found.departed, found.verdicts) == (1, 1, 0, ())
    assert DriverVerdicts().every() == []


@pytest.mark.parametrize("kind", ["MUL", "ADD", "TANH", "SUB"])
def test_the_operation_at_fault_is_named_and_refused_from_then_on(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "penstock")
    device = wrong(kind)
    outputs, shadow, notes = verified(device)
    (verdict,) = shadow.report().verdicts
    assert (verdict.types, verdict.fault, verdict.accuracy) == ((kind,), "wrong", "faithful")
    assert (verdict.device, verdict.version) == ("wrong", device.version)
    assert f"shadow verification found that {kind} gives wrong results" in notes[0]
    assert sum("gives wrong results" in r.message for r in caplog.records) == 1
    # The caller's answer is the device's, untouched.
    with penstock.compile(network(), devices=["reference"], cache=None) as compiled:
        expected = compiled(X)[0]
    assert not np.allclose(outputs[0], expected, atol=0.1)
    with penstock.compile(network(), devices=[device, right()], cache=None) as compiled:
        placed = {p.type: p for p in compiled.plan.operations}
        assert placed[kind].device == "right"
        reason = placed[kind].reasons["wrong"]
        assert verdict.reason in reason
        assert f"penstock doctor --forget {verdict.short}" in reason
        others = {p.type for p in compiled.plan.operations if p.device == "wrong"}
        assert kind not in others
        np.testing.assert_allclose(compiled(X)[0], expected, rtol=1e-5)


def test_without_another_device_the_reason_is_in_the_error() -> None:
    device = wrong()
    verified(device)
    policy = Policy(forbid={"*": "reference"})
    with pytest.raises(PlacementError, match="shadow verification found that ADD") as caught:
        penstock.compile(network(), devices=[device], cache=None, policy=policy)
    assert "wrong" in caught.value.reasons


def test_without_another_device_the_reference_takes_what_is_wrong_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    device = wrong()
    verified(device)
    with penstock.compile(network(), devices=["reference"], cache=None) as compiled:
        expected = compiled(X)[0]
    caplog.clear()
    with penstock.compile(network(), devices=[device], cache=None) as compiled:
        placed = {p.type: p.device for p in compiled.plan.operations}
        assert placed == {"MUL": "wrong", "ADD": "reference", "TANH": "wrong", "SUB": "wrong"}
        assert [s.fallbacks for s in compiled.plan.steps] == [("reference",), (), ("reference",)]
        (note,) = compiled.receipt.notes
        np.testing.assert_allclose(compiled(X)[0], expected, rtol=1e-5)
    began = (
        "1 operation on reference, which was not named: shadow verification found that ADD gives"
    )
    assert note.startswith(began)
    assert note in caplog.text
    with pytest.raises(PlacementError, match="shadow verification found that ADD") as caught:
        penstock.compile(
            network(), devices=[device], cache=None, policy=Policy(allow_fallback=False)
        )
    assert list(caught.value.reasons) == ["wrong"]


def test_the_reference_does_not_take_what_a_device_refuses_by_itself() -> None:
    def supports(model: Model, index: int) -> bool:
        return model.operations[index].type != "SUB"

    device = wrong()
    verified(device)
    with pytest.raises(PlacementError, match="shadow verification found that ADD") as caught:
        penstock.compile(
            network(), devices=[SubsetDevice(reference(), "wrong", supports)], cache=None
        )
    assert list(caught.value.reasons) == ["wrong"]


def test_another_version_of_the_driver_is_trusted_again() -> None:
    device = wrong()
    verified(device)

    class Newer(WrongDevice):
        version = "another"

    newer = Newer(reference(), "NONE", name="wrong")
    with penstock.compile(network(), devices=[newer, right()], cache=None) as compiled:
        assert {p.device for p in compiled.plan.operations} == {"wrong"}


def test_a_verdict_can_be_forgotten_and_switched_off() -> None:
    device = wrong()
    verified(device)
    with knobs.override(driver_verdicts=False):
        compiled = penstock.compile(network(), devices=[device, right()], cache=None)
    with compiled:
        assert compiled.plan.operations[1].device == "wrong"
    (verdict,) = DriverVerdicts().every()
    DriverVerdicts().remove(verdict.key)
    with penstock.compile(network(), devices=[device, right()], cache=None) as compiled:
        assert compiled.plan.operations[1].device == "wrong"


def test_a_stricter_class_is_not_held_against_a_laxer_policy() -> None:
    device = wrong("ADD", "little")
    model, inputs = quantised()
    policy = Policy(accuracy="exact", shadow=1)
    with penstock.compile(model, devices=[device], cache=None, policy=policy) as compiled:
        compiled.run(inputs)
        assert compiled.shadow is not None
        assert compiled.shadow.wait(60)
    (verdict,) = DriverVerdicts().every()
    assert verdict.accuracy == "exact"
    for accuracy, expected in (("exact", "right"), ("faithful", "wrong")):
        policy = Policy(accuracy=accuracy)  # type: ignore[arg-type]  # one of its words
        with penstock.compile(
            model, devices=[device, right()], cache=None, policy=policy
        ) as compiled:
            assert compiled.plan.operations[0].device == expected


def quantised() -> tuple[Model, list[NDArray]]:
    b = ModelBuilder()
    x = b.input(INT8, (1, 32), "x", Q)
    y = b.input(INT8, (1, 32), "y", Q)
    (out,) = b.operation("ADD", [x, y], [Operand(INT8, (1, 32), name="sum", quantization=Q)])
    array = np.arange(-16, 16, dtype=np.int8).reshape(1, 32)
    return b.build([out]), [array, array]


@pytest.mark.parametrize("kind", ["ADD", "TANH"])
def test_a_little_within_the_class_is_no_fault(kind: str) -> None:
    device = wrong(kind, "little")
    _, shadow, _ = verified(device)
    assert device.wrong >= 1
    assert shadow.report().departed == 0
    model, inputs = quantised()
    _, shadow, _ = verified(wrong("ADD", "little"), [inputs], model)
    assert (shadow.report().compared, shadow.report().departed) == (1, 0)


def test_results_that_are_not_finite_are_found() -> None:
    _, shadow, notes = verified(wrong("TANH", "nan"))
    (verdict,) = shadow.report().verdicts
    assert (verdict.types, verdict.fault) == (("TANH",), "not_finite")
    assert "it is nan at [0, 0]" in notes[0]


class Negative(WrongDevice):
    """Gives its results with the other sign."""

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        result = proceed()
        if method == "execute":
            for argument in arguments[0].outputs:
                np.negative(argument.array, out=argument.array)
        return result


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_error_too_large_to_be_squared_is_found() -> None:
    b = ModelBuilder()
    x = b.input(DType.FLOAT64, (2,), "x")
    (y,) = b.operation("STABLEHLO_ADD", [x, x], [Operand(DType.FLOAT64, (2,), name="y")])
    device, policy = (
        Negative(reference(), "NONE", name="wrong"),
        Policy("cost", "relaxed", shadow=1),
    )
    made = penstock.compile(b.build([y]), devices=[device], cache=None, policy=policy)
    with made as compiled:
        compiled.run([np.array([1e300, 2e300])])
        assert compiled.shadow is not None
        assert compiled.shadow.wait(60)
        assert compiled.shadow.report().departed == 1


def test_a_device_that_gives_other_results_each_time_is_found() -> None:
    _, shadow, _ = verified(wrong("ADD", "noise"))
    (verdict,) = shadow.report().verdicts
    assert (verdict.types, verdict.fault) == (("ADD",), "not_repeatable")


def test_a_device_wrong_for_some_inputs_is_found_when_they_come() -> None:
    def negative(arrays: Sequence[NDArray]) -> bool:
        return any((a.astype(np.float64) < -2.5).any() for a in arrays)

    fine = np.abs(X)
    _, shadow, notes = verified(wrong("MUL", when=negative), [(fine,), (fine,), (X,)])
    assert [n == "shadow verification: agrees with the reference" for n in notes] == [
        True,
        True,
        False,
    ]
    (verdict,) = shadow.report().verdicts
    assert verdict.types == ("MUL",)


def test_a_device_that_is_wrong_only_late_is_found_in_its_own_compiled_form() -> None:
    _, shadow, notes = verified(wrong("ADD", after=3), [(X,)] * 6)
    assert notes[:3] == ["shadow verification: agrees with the reference"] * 3
    (verdict,) = shadow.report().verdicts
    assert "ADD" in verdict.types
    with penstock.compile(network(), devices=[wrong(), right()], cache=None) as compiled:
        assert compiled.plan.operations[1].device == "right"


def test_operations_wrong_only_when_compiled_together_are_refused_together() -> None:
    _, shadow, _ = verified(wrong("ADD", apart=False))
    (verdict,) = shadow.report().verdicts
    assert len(verdict.types) > 1
    assert "ADD" in verdict.types
    b = ModelBuilder()
    x = b.input(F32, (1, 32), "x")
    two = b.constant(np.full((1, 32), 2.0, np.float32))
    (out,) = b.operation("ADD", [x, two], [Operand(F32, (1, 32), name="add")])
    with penstock.compile(b.build([out]), devices=[wrong(), right()], cache=None) as compiled:
        assert compiled.plan.operations[0].device == "wrong"
    with penstock.compile(network(), devices=[wrong(), right()], cache=None) as compiled:
        assert compiled.plan.operations[1].device == "right"


def test_a_form_is_the_same_in_the_model_and_cut_out_of_it() -> None:
    from penstock.partitioning.split import Cutter

    model = network()
    forms = [form_of(model, o) for o in model.operations]
    assert len(set(forms)) == 4
    for index, form in enumerate(forms):
        cut = Cutter(model).cut([index]).model
        assert form_of(cut, cut.operations[0]) == form


def test_state_before_the_run_is_what_the_reference_gets() -> None:
    model, inputs = state().model, list(state().inputs)[:1]
    runs = [inputs] * 4
    outputs, shadow, notes = verified(right(), runs, model)
    assert notes == ["shadow verification: agrees with the reference"] * 4
    with penstock.compile(model, devices=["reference"], cache=None) as compiled:
        expected = [compiled.run(inputs)[0] for _ in runs]
    for got, want in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(got, want)
    assert shadow.report().compared == 4


def test_a_wrong_state_is_found() -> None:
    model, inputs = state().model, list(state().inputs)[:1]
    kind = model.operations[0].type
    _, shadow, _ = verified(wrong(kind), [inputs] * 2, model)
    assert shadow.report().departed == 1


def test_control_flow_is_compared() -> None:
    model, inputs = branch().model, list(branch().inputs)
    _, shadow, notes = verified(right(), [inputs], model)
    assert notes == ["shadow verification: agrees with the reference"]
    assert shadow.report().compared == 1


def test_copies_and_the_fate_of_the_comparison_stand_in_the_receipt() -> None:
    with penstock.compile(
        network(), devices=[wrong("NONE")], cache=None, policy=Policy(shadow=1)
    ) as compiled:
        first = compiled(X)
        assert compiled.shadow is not None
        assert compiled.shadow.wait(60)
        second = compiled(X)
    kept = [c for c in first.receipt.copies if c.destination == "shadow"]
    assert [(c.nbytes, c.source) for c in kept] == [(128, "caller"), (128, "host")]
    assert "note: shadow verification: agrees" in first.receipt.show()
    assert (second.receipt.copies, second.receipt.notes) == ((), ())


def test_without_shadow_there_is_nothing() -> None:
    with penstock.compile(network(), devices=[right()], cache=None) as compiled:
        outputs = compiled(X)
        assert compiled.shadow is None
        assert outputs.receipt.notes == ()
        assert type(compiled.executable.base).__name__ == "Variant"


def test_the_reference_is_not_compared_with_itself() -> None:
    _, shadow, notes = verified(reference())
    assert shadow.report().skipped == 1
    assert notes == ["shadow verification: not compared, for the reference itself computed it"]


@pytest.mark.parametrize(
    ("rate", "expected"), [(0.25, 250), (0.01, 10), (1.0, 1000), (3, 3), (2000, 1000)]
)
def test_a_share_or_the_first_runs_are_chosen(rate: float, expected: int) -> None:
    shadow = Shadow(rate)
    chosen = [shadow.choose() for _ in range(1000)]
    assert chosen[0]
    assert sum(chosen) == pytest.approx(expected, abs=2)
    if isinstance(rate, int):
        assert not any(chosen[rate:])
    else:
        # As many of every second and of every third run as of all.
        for period in (2, 3, 10):
            part = [chosen[i] for i in range(0, 1000, period)]
            assert sum(part) == pytest.approx(len(part) * rate, abs=3)


def test_runs_beyond_the_shadow_queue_are_dropped_and_counted() -> None:
    release, entered = threading.Event(), threading.Event()

    class Held(WrongDevice):
        """Waits in the worker's second run, until it may go on."""

        def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
            if method == "execute" and threading.current_thread().name.startswith(
                "penstock-shadow"
            ):
                entered.set()
                release.wait(60)
            return proceed()

    device = Held(reference(), "ADD", name="wrong")
    with penstock.compile(
        network(), devices=[device], cache=None, policy=Policy(shadow=1.0)
    ) as compiled:
        outputs = [compiled(X)]
        assert entered.wait(60)
        outputs += [compiled(X) for _ in range(5)]
        assert compiled.shadow is not None
        report = compiled.shadow.report()
        assert (report.chosen, report.dropped) == (6, 5 - worker.MOST_WAITING)
        assert "not compared, for earlier runs still are" in outputs[-1].receipt.notes[0]
        assert outputs[-1].receipt.copies == ()
        release.set()
        assert compiled.shadow.wait(60)
    assert compiled.shadow.report().waiting == 0


def test_close_ends_the_threads_and_stops_what_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.runtime.shadow.CLOSE_SECONDS", 0.0)
    slow = SlowDevice(wrong("ADD"), {"execute": 0.05})
    compiled = penstock.compile(network(), devices=[slow], cache=None, policy=Policy(shadow=1.0))
    compiled(X)
    shadow = compiled.shadow
    compiled.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("penstock-shadow")]
    assert shadow is not None
    assert shadow.report().waiting == 0


def test_close_lets_comparisons_end() -> None:
    compiled = penstock.compile(network(), devices=[wrong()], cache=None, policy=Policy(shadow=1))
    compiled(X)
    shadow = compiled.shadow
    compiled.close()
    assert shadow is not None
    assert len(shadow.report().verdicts) == 1


def test_submitted_and_asynchronous_runs_are_compared() -> None:
    import asyncio

    device = right()
    with penstock.compile(
        network(), devices=[device], cache=None, policy=Policy(shadow=2)
    ) as compiled:
        compiled.submit(X).result(60)
        assert compiled.shadow is not None
        assert compiled.shadow.wait(60)
        asyncio.run(compiled.run_async(X))
        assert compiled.shadow.wait(60)
        assert compiled.shadow.report().compared == 2


def test_every_shape_of_a_dynamic_model_is_compared() -> None:
    b = ModelBuilder()
    x = b.input(F32, (None, 4), "x")
    (out,) = b.operation("TANH", [x], [Operand(F32, (None, 4), name="y")])
    model = b.build([out])
    runs = [(np.ones((n, 4), np.float32),) for n in (1, 3, 3)]
    _, shadow, _ = verified(right(), runs, model)
    assert shadow.report().compared == 3


def test_a_fault_in_one_shape_of_a_dynamic_model_counts_where_that_shape_may_come() -> None:
    b = ModelBuilder()
    x = b.input(F32, (None, 4), "x")
    (out,) = b.operation("TANH", [x], [Operand(F32, (None, 4), name="y")])
    model = b.build([out])
    device = wrong("TANH")
    verified(device, [(np.ones((3, 4), np.float32),)], model)
    for shapes, expected in ((None, "right"), ({"x": (3, 4)}, "right"), ({"x": (2, 4)}, "wrong")):
        with penstock.compile(
            model, devices=[device, right()], cache=None, shapes=shapes
        ) as compiled:
            assert compiled.plan.operations[0].device == expected


def test_a_failed_run_is_not_compared() -> None:
    from penstock.errors import GeneralFailure
    from penstock.testing.doubles import FaultyDevice

    device = FaultyDevice(sample(), {"execute": 1})
    policy = Policy(shadow=1.0, allow_fallback=False)
    b = ModelBuilder()
    x = b.input(F32, (4,), "x")
    (out,) = b.operation("ADD", [x, x], [Operand(F32, (4,), name="y")])
    with penstock.compile(b.build([out]), devices=[device], cache=None, policy=policy) as compiled:
        with pytest.raises(GeneralFailure):
            compiled(np.ones(4, np.float32))
        assert compiled.shadow is not None
        assert compiled.shadow.report().skipped == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_refuses_at_once_and_ends() -> None:
    with penstock.compile(
        network(), devices=[wrong("NONE")], cache=None, policy=Policy(shadow=1.0)
    ) as compiled:
        compiled(X)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                compiled(X)
            except StateError:
                compiled.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_device_whose_other_operations_are_elsewhere_is_blamed_alone() -> None:
    def only_tanh(model: Model, index: int) -> bool:
        return model.operations[index].type == "TANH"

    tanh = SubsetDevice(reference(), "tanh", only_tanh)
    bad = wrong("SUB")
    policy = Policy(shadow=1, require={"TANH": "tanh", "SUB": "wrong"})
    with penstock.compile(
        network(), devices=[tanh, bad, "reference"], cache=None, policy=policy
    ) as compiled:
        compiled(X)
        assert compiled.shadow is not None
        assert compiled.shadow.wait(60)
        (verdict,) = compiled.shadow.report().verdicts
    assert (verdict.device, verdict.types) == ("wrong", ("SUB",))


def test_delegates_refuse_what_was_found_and_leave_it_to_the_interpreter() -> None:
    from penstock import tflite
    from penstock.delegates import DriverDelegate
    from penstock.export.tflite import write

    content = write(network())
    found: list[NDArray] = []
    reasons: dict[int, str] = {}
    for shadow in (1.0, 0.0):
        policy = Policy(shadow=shadow, allow_fallback=False)
        delegate = DriverDelegate(wrong(), policy=policy, cache=False, max_delegated_partitions=9)
        with_delegate = tflite.Interpreter(model_content=content, experimental_delegates=[delegate])
        with_delegate.allocate_tensors()
        with_delegate.set_tensor(with_delegate.get_input_details()[0]["index"], X)
        with_delegate.invoke()
        found.append(with_delegate.get_tensor(with_delegate.get_output_details()[0]["index"]))
        reasons = delegate.reasons
        with_delegate.close()
    assert list(reasons) == [1]
    assert "shadow verification found that ADD gives wrong results" in reasons[1]
    with penstock.compile(network(), devices=["reference"], cache=None) as compiled:
        expected = compiled(X)[0]
    assert not np.allclose(found[0], expected, atol=0.1)
    np.testing.assert_allclose(found[1], expected, rtol=1e-5)


def test_an_interpreter_with_a_policy_is_verified() -> None:
    from penstock import tflite
    from penstock.export.tflite import write

    interpreter = tflite.Interpreter(
        model_content=write(network()), devices=[wrong()], policy=Policy(shadow=1.0), cache=False
    )
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], X)
    interpreter.invoke()
    interpreter.close()
    (verdict,) = DriverVerdicts().every()
    assert verdict.types == ("ADD",)


def test_bursts_and_fenced_runs_are_compared() -> None:
    with (
        penstock.compile(
            network(), devices=[right()], cache=None, policy=Policy(shadow=1.0)
        ) as compiled,
        compiled.burst() as burst,
    ):
        assert compiled.shadow is not None
        for fenced in (False, True):
            outputs = compiled.start_fenced([X]).result(60) if fenced else burst.run([X])
            (note,) = outputs.receipt.notes
            assert compiled.shadow.wait(60)
            assert note.startswith("shadow verification: ")
        assert compiled.shadow.report().compared == 2


def test_memory_that_is_not_the_hosts_is_not_compared() -> None:
    from penstock.testing.doubles import LabDevice

    b = ModelBuilder()
    x = b.input(F32, (1, 4), "x")
    h = b.input(F32, (1, 4), "h")
    (out,) = b.operation("ADD", [x, h], [Operand(F32, (1, 4), name="h_out")])
    x4 = np.ones((1, 4), np.float32)
    with penstock.compile(
        b.build([out]), devices=[LabDevice()], cache=None, policy=Policy(shadow=1.0)
    ) as compiled:
        compiled.bind_state({"h_out": "h"})
        notes = [n for _ in range(3) for n in compiled.run({"x": x4}).receipt.notes]
        assert compiled.shadow is not None
        assert compiled.shadow.wait(60)
        report = compiled.shadow.report()
        assert (report.skipped, report.departed) == (3, 0)
    assert sum("not all that it reads and writes is the host's memory" in n for n in notes) == 3


class Once(WrongDevice):
    """Wrong in the caller's own runs alone, so that no search finds where."""

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        result = proceed()
        if method == "execute" and not threading.current_thread().name.startswith(
            "penstock-shadow"
        ):
            from penstock.testing.doubles.lying import damage_outputs

            damage_outputs(arguments[0])
        return result


def test_unexplained_departure_is_logged_and_finally_ignored(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(investigation, "MOST_UNEXPLAINED", 2)
    monkeypatch.setattr(investigation, "TRIES", 2)
    caplog.set_level(logging.WARNING, "penstock")
    device = Once(reference(), "NONE", name="once")
    _, shadow, notes = verified(device, [(X,)] * (investigation.MOST_UNEXPLAINED + 3))
    report = shadow.report()
    assert (report.chosen, report.departed) == (investigation.MOST_UNEXPLAINED,) * 2
    assert report.verdicts == ()
    assert DriverVerdicts().every() == []
    assert all("no operation by itself does" in note for note in notes)
    assert len(caplog.records) == investigation.MOST_UNEXPLAINED


def test_an_index_that_roundings_turn_is_no_fault_and_looked_into_once() -> None:
    b = ModelBuilder()
    x = b.input(INT8, (1, 4), "x", Q)
    y = b.input(INT8, (1, 4), "y", Q)
    (total,) = b.operation("ADD", [x, y], [Operand(INT8, (1, 4), name="sum", quantization=Q)])
    axis = b.constant(np.array(1, np.int32), "axis")
    (best,) = b.operation("ARG_MAX", [total, axis], [Operand(DType.INT32, (1,), name="best")])

    class Turned(WrongDevice):
        """Gives the sum's first element one step more, and the index that follows from it."""

        def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
            result = proceed()
            if method == "execute":
                for argument in arguments[0].outputs:
                    if argument.array.dtype == np.int8:
                        argument.array.reshape(-1)[0] += 1
                    elif len(arguments[0].inputs) == 2:
                        argument.array[...] = 0
            return result

    one = np.array([[4, 5, 1, 1]], np.int8)
    zero = np.zeros((1, 4), np.int8)
    device = Turned(reference(), "NONE", name="turned")
    _, shadow, notes = verified(device, [(one, zero)] * 3, b.build([best]))
    report = shadow.report()
    assert (report.compared, report.departed, report.verdicts) == (3, 0, ())
    assert "the roundings of many operations" in notes[0]
    assert notes[1:] == ["shadow verification: agrees with the reference"] * 2
