"""`bind_state`: outputs that are inputs of the next run, and a network's own variables, on the
device in between.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.drivers.reference import ReferenceDevice
from penstock.drivers.sample import SampleDevice
from penstock.errors import DeadObject, DriverError, GeneralFailure, InputError, StateError
from penstock.hal import Device
from penstock.ir import DType, Lifetime, Model, ModelBuilder, NDArray, Operand
from penstock.memory import DeviceBuffer
from penstock.testing import assert_no_copies
from penstock.testing.doubles import FaultyDevice

F32 = DType.FLOAT32
X = np.array([1, -2, 3], np.float32)


def named(name: str, shape: Any = (3,)) -> Operand:
    return Operand(F32, shape, Lifetime.TEMPORARY_VARIABLE, name)


def summing(shape: tuple[int | None, ...] = (3,)) -> Model:
    """total_out = total_in + x, seen = relu(total_out)."""
    b = ModelBuilder()
    x, total = b.input(F32, shape, "x"), b.input(F32, shape, "total_in")
    (after,) = b.operation("ADD", [total, x], [named("total_out", shape)])
    (seen,) = b.operation("RELU", [after], [named("seen", shape)])
    return b.build([after, seen])


def counting() -> Model:
    """The same with a variable of the network's own."""
    b = ModelBuilder()
    x = b.input(F32, (3,), "x")
    before = b.operand(Operand(F32, (3,), Lifetime.SUBGRAPH_INPUT, "before"))
    (after,) = b.operation("ADD", [before, x], [(F32, (3,))])
    (seen,) = b.operation("RELU", [after], [named("seen")])
    b.state(b.variable("total", F32, (3,)), before, after)
    return b.build([seen])


@pytest.fixture(params=["reference", "sample"])
def device(request: pytest.FixtureRequest) -> Device:
    made: Device = ReferenceDevice() if request.param == "reference" else SampleDevice()
    return made


@pytest.fixture
def compiled(device: Device) -> Iterator[penstock.CompiledModel]:
    with penstock.compile(summing(), devices=[device], cache=None) as made:
        yield made


def test_bound_state_is_neither_input_nor_output(
    compiled: penstock.CompiledModel, device: Device
) -> None:
    bound = compiled.bind_state({"total_out": "total_in"})
    assert bound.names == ("total_in",)
    assert bound.device("total_in") == device.name
    assert [o.name for o in compiled.inputs] == ["x"]
    assert [o.name for o in compiled.outputs] == ["seen"]
    for times in (1, 2, 3):
        outputs = compiled(X)
        assert len(outputs) == 1
        assert np.array_equal(outputs["seen"], np.maximum(X * times, 0))
        # That in which it begins copies the zeros there.
        assert {c.operand for c in outputs.receipt.copies} <= ({0, 3} if times > 1 else {0, 1, 3})
    assert np.array_equal(bound.read("total_in"), X * 3)
    out = np.zeros(3, np.float32)
    compiled.run([X], out={"seen": out})
    assert np.array_equal(out, np.maximum(X * 4, 0))
    with compiled.burst() as burst:
        assert np.array_equal(burst.run(X)[0], np.maximum(X * 5, 0))


def test_the_first_run_shows_what_goes_to_the_device(device: Device) -> None:
    with (
        penstock.compile(summing(), devices=[device], cache=None) as one,
        penstock.compile(counting(), devices=[device], cache=None) as other,
    ):
        bound = one.bind_state({"total_out": "total_in"})
        other.bind_state()
        told = [
            [c for c in model(X).receipt.copies if c.operand == loop]
            for model, loop in ((one, 1), (other, 1))
        ]
        for copies, reason in zip(told, ("zeros", "the value that the state has"), strict=True):
            assert [c.reason for c in copies if "begins with" in c.reason] == [copies[0].reason]
            assert copies[0].reason.endswith(f"begins with {reason}")
            assert (copies[0].source, copies[0].destination) == ("host", device.name)
            assert {c.nbytes for c in copies} == {12}
        assert bound.device("total_in") == device.name


def test_a_value_that_another_model_has_on_its_device_is_fetched_and_it_shows(
    device: Device,
) -> None:
    with (
        penstock.compile(counting(), devices=[device], cache=None) as one,
        penstock.compile(counting(), devices=[device], cache=None) as other,
    ):
        one.bind_state()
        state = one.new_state()
        one.run([X], state=state)
        outputs = other.run([X], state=state)
        assert np.array_equal(outputs[0], np.maximum(2 * X, 0))
        told = [(c.source, c.nbytes) for c in outputs.receipt.copies if "another model" in c.reason]
        assert told == [(device.name, 12)]


def test_bound_runs_copy_nothing(compiled: penstock.CompiledModel) -> None:
    with compiled.allocate(inputs=["x"]) as given, compiled.allocate(outputs=["seen"]) as seen:
        compiled.bind_state({"total_out": "total_in"})
        given.copy_from(X)
        compiled.run([given], out=[seen])
        with assert_no_copies():
            for _ in range(5):
                assert not compiled.run([given], out=[seen]).receipt.copies
        assert np.array_equal(seen.numpy(), np.maximum(X * 6, 0))


def test_the_first_value_is_given_or_zero(compiled: penstock.CompiledModel) -> None:
    bound = compiled.bind_state({"total_out": "total_in"})
    bound.write("total_in", X * 10)
    assert np.array_equal(compiled(X)[0], np.maximum(X * 11, 0))
    with pytest.raises(InputError, match="dimensions"):
        bound.write("total_in", np.zeros(4, np.float32))
    with pytest.raises(InputError, match="no bound input"):
        bound.read("x")


def test_a_state_of_ones_own(compiled: penstock.CompiledModel) -> None:
    bound = compiled.bind_state({"total_out": "total_in"})
    mine = compiled.new_state()
    compiled(X)
    bound.write("total_in", X * 5, mine)
    assert np.array_equal(compiled.run([X], state=mine)[0], np.maximum(X * 6, 0))
    assert np.array_equal(compiled(X)[0], np.maximum(X * 2, 0))
    mine.reset()
    assert np.array_equal(compiled.run([X], state=mine)[0], np.maximum(X, 0))


def test_a_run_that_fails_leaves_the_state_as_it_was(device: Device) -> None:
    weak = FaultyDevice(device, {"execute": 2}, name="weak")
    policy = penstock.Policy(allow_fallback=False)
    with penstock.compile(summing(), devices=[weak], cache=None, policy=policy) as compiled:
        bound = compiled.bind_state({"total_out": "total_in"})
        compiled(X)
        with pytest.raises(GeneralFailure):
            compiled(X)
        assert np.array_equal(bound.read("total_in"), X)
        assert np.array_equal(compiled(X)[0], np.maximum(X * 2, 0))


def test_a_step_that_falls_back_carries_the_state_on(device: Device) -> None:
    weak = FaultyDevice(device, {"execute": 2}, name="weak")
    with penstock.compile(summing(), devices=[weak], cache=None) as compiled:
        bound = compiled.bind_state({"total_out": "total_in"})
        compiled(X)
        second = compiled(X)
        assert np.array_equal(second[0], np.maximum(X * 2, 0))
        moved = [(c.source, c.destination) for c in second.receipt.copies]
        assert ("total_in", "host") in moved
        assert ("host", "total_in") in moved
        assert np.array_equal(compiled(X)[0], np.maximum(X * 3, 0))
        assert bound.device("total_in") == "weak"


def test_a_networks_own_variables_stay_on_the_device(device: Device) -> None:
    with penstock.compile(counting(), devices=[device], cache=None) as compiled:
        bound = compiled.bind_state()
        assert bound.names == ("total",)
        assert bound.device("total") == device.name
        mine = compiled.new_state()
        for times in (1, 2, 3):
            outputs = compiled.run([X], state=mine)
            assert np.array_equal(outputs[0], np.maximum(X * times, 0))
            assert {c.operand for c in outputs.receipt.copies} <= (
                {0, 3} if times > 1 else {0, 1, 3}
            )
        # Whoever looks at the state sees it, whoever changes it changes it.
        assert np.array_equal(mine.as_dict()["total"], X * 3)
        assert np.array_equal(mine.copied().get(0), X * 3)
        assert np.array_equal(compiled(X)[0], np.maximum(X, 0))
        mine.reset()
        assert np.array_equal(compiled.run([X], state=mine)[0], np.maximum(X, 0))
        bound.write("total", X * 7, mine)
        assert np.array_equal(mine.get(0), X * 7)
        mine.replace({0: X * 20})
        assert np.array_equal(compiled.run([X], state=mine)[0], np.maximum(X * 21, 0))
        mine.release()
        assert np.array_equal(mine.get(0), X * 21)


def test_bindings_that_make_no_sense_are_refused(compiled: penstock.CompiledModel) -> None:
    for match, bindings in (
        ("no output is named", {"nobody": "total_in"}),
        ("no input is named", {"seen": "nobody"}),
        ("bound twice", {"total_out": "total_in", "seen": "total_in"}),
    ):
        with pytest.raises(InputError, match=match):
            compiled.bind_state(bindings)
    compiled.bind_state({"total_out": "total_in"})
    with pytest.raises(StateError, match="already"):
        compiled.bind_state({"total_out": "total_in"})


def test_an_output_of_another_shape_or_type_cannot_be_bound() -> None:
    b = ModelBuilder()
    x, other = b.input(F32, (3,), "x"), b.input(F32, (4,), "other")
    whole = b.input(DType.INT32, (3,), "whole")
    outs = [
        b.operation("RELU", [i], [named(n, s)])[0]
        for i, n, s in ((x, "y", (3,)), (other, "z", (4,)))
    ]
    (w,) = b.operation("NEG", [whole], [(DType.INT32, (3,))])
    with penstock.compile(b.build([*outs, w]), devices=["reference"], cache=None) as compiled:
        with pytest.raises(InputError, match="has shape"):
            compiled.bind_state({"y": "other"})
        with pytest.raises(InputError, match="one cannot become the other"):
            compiled.bind_state({"y": "whole"})


def test_state_without_memory_domains_lies_in_pools_and_is_noted(device: Device) -> None:
    weak = FaultyDevice(device, {"allocate": "always"})
    with penstock.compile(summing(), devices=[weak], cache=None) as compiled:
        bound = compiled.bind_state({"total_out": "total_in"})
        assert repr(bound) == "BoundState(total_in)"
        for times in (1, 2, 3):
            outputs = compiled(X)
            assert np.array_equal(outputs[0], np.maximum(X * times, 0))
            notes = outputs.receipt.notes
            assert all("input total_in, output total_out lies in a pool" in n for n in notes)
            assert 1 <= len(notes) == len(set(notes))
        assert bound.device("total_in") is None


def test_a_state_of_unknown_size_grows() -> None:
    """What was said so far, as the next run sees it."""
    b = ModelBuilder()
    x, past = b.input(F32, (1, 2), "x"), b.input(F32, (None, 2), "past")
    (now,) = b.operation("CONCATENATION", [past, x], [named("now", (None, 2))], {"axis": 0})
    (seen,) = b.operation("RELU", [now], [named("seen", (None, 2))])
    with penstock.compile(b.build([now, seen]), devices=["reference"], cache=None) as compiled:
        bound = compiled.bind_state({"now": "past"})
        with pytest.raises(StateError, match="has no value"):
            compiled(np.ones((1, 2), np.float32))
        bound.write("past", np.zeros((1, 2), np.float32))
        for rows in (2, 3, 4):
            assert compiled(np.ones((1, 2), np.float32))[0].shape == (rows, 2)
        assert bound.device("past") == "reference"


def test_closed_model_frees_its_bound_state(device: Any) -> None:
    with penstock.compile(summing(), devices=[device], cache=None) as compiled:
        compiled.bind_state({"total_out": "total_in"})
        compiled(X)
        assert device.domain.live == 2
    assert device.domain.live == 0


def test_states_of_ones_own_are_freed_with_the_model_and_keep_its_variables(device: Any) -> None:
    with penstock.compile(counting(), devices=[device], cache=None) as compiled:
        compiled.bind_state()
        mine = compiled.new_state()
        compiled.run([X], state=mine)
        assert device.domain.live == 2
    assert device.domain.live == 0
    assert np.array_equal(mine.as_dict()["total"], X)


def test_a_state_serves_one_model_that_binds_it_at_a_time(device: Device) -> None:
    other = penstock.compile(summing(), devices=[device], cache=None)
    with penstock.compile(summing(), devices=[device], cache=None) as compiled:
        bound = compiled.bind_state({"total_out": "total_in"})
        again = other.bind_state({"total_out": "total_in"})
        mine = compiled.new_state()
        compiled.run([X], state=mine)
        with pytest.raises(StateError, match="another compiled model"):
            other.run([X], state=mine)
        with pytest.raises(StateError, match="another compiled model"):
            again.read("total_in", mine)
        assert np.array_equal(bound.read("total_in", mine), X)
    with other:
        assert np.array_equal(other.run([X], state=mine)[0], np.maximum(X, 0))


def test_a_buffer_that_is_forgotten_is_freed(device: Any, compiled: penstock.CompiledModel) -> None:
    kept: list[DeviceBuffer] = [compiled.allocate(inputs=["x"])]
    assert device.domain.live == 1
    kept.clear()
    assert device.domain.live == 0


def test_unbound_runs_take_arrays_of_the_caller(compiled: penstock.CompiledModel) -> None:
    result: NDArray = compiled.run({"x": X, "total_in": X})["seen"]
    assert np.array_equal(result, np.maximum(X * 2, 0))


def test_state_lost_with_its_process_is_reported_and_reset() -> None:
    """Memory of a driver's process ends with it; no other call does."""
    with (
        penstock.compile(summing(), devices=["sample"], isolate=True, cache=None) as compiled,
        compiled.allocate(inputs=["x"]) as given,
    ):
        bound = compiled.bind_state({"total_out": "total_in"})
        given.copy_from(X)
        compiled.run([given])
        compiled.run([given])
        (step,) = compiled.executable.base.compilation.steps
        os.kill(step.device.pid, signal.SIGKILL)  # type: ignore[attr-defined]  # it is isolated
        with pytest.raises(DriverError, match="lost with its device"):
            compiled.run([X])
        with pytest.raises(DeadObject, match="allocate another"):
            given.copy_from(X)
        state = compiled.new_state()
        assert np.array_equal(compiled.run([X], state=state)[0], np.maximum(X, 0))
        assert bound.device("total_in", state) == "sample"
        for use in (lambda: compiled(X), lambda: compiled(X), lambda: bound.read("total_in")):
            with pytest.raises(DeadObject, match=r"the buffer for .*total_in.* begins again"):
                use()
        bound.reset()
        assert np.array_equal(compiled(X)[0], np.maximum(X, 0))
        assert np.array_equal(compiled(X)[0], np.maximum(X * 2, 0))


def test_every_use_of_a_buffer_that_died_says_that_it_is_lost() -> None:
    with penstock.compile(summing(), devices=["sample"], isolate=True, cache=None) as compiled:
        given, taken = compiled.allocate(inputs=["x"]), compiled.allocate(outputs=["seen"])
        given.copy_from(X)
        compiled.run([given, X], out={"seen": taken})
        (step,) = compiled.executable.base.compilation.steps
        os.kill(step.device.pid, signal.SIGKILL)  # type: ignore[attr-defined]  # it is isolated
        # Its token is another buffer's in the process that follows.
        assert np.array_equal(compiled.run([X, X])["seen"], np.maximum(X * 2, 0))
        another = compiled.allocate(inputs=["x"])
        another.copy_from(X)
        for _ in range(2):
            for use in (
                lambda: compiled.run([given, X]),
                lambda: compiled.run([X, X], out={"seen": taken}),
                lambda: given.copy_from(X),
                given.numpy,
                taken.numpy,
                lambda: given.copy_to(np.empty_like(X)),
                lambda: another.copy_from(given),
            ):
                with pytest.raises(DeadObject, match=r"is lost with its device \(.*SIGKILL\)"):
                    use()
        assert not given.is_initialized
        assert np.array_equal(another.numpy(), X)


def test_a_run_finds_the_buffer_lost_with_the_process() -> None:
    with penstock.compile(summing(), devices=["sample"], isolate=True, cache=None) as compiled:
        given = compiled.allocate(inputs=["x"])
        given.copy_from(X)
        (step,) = compiled.executable.base.compilation.steps
        os.kill(step.device.pid, signal.SIGKILL)  # type: ignore[attr-defined]  # it is isolated
        with pytest.raises(DeadObject, match="SIGKILL") as caught:
            compiled.run([given, X])
        assert "Errno" not in str(caught.value)
        assert "the buffer for input x is lost with its device" in str(caught.value)
        assert "allocate another; " in str(caught.value)
        assert str(caught.value).endswith("; no other device can repeat it without that buffer")


def test_wrong_binding_is_refused(compiled: penstock.CompiledModel) -> None:
    with pytest.raises(InputError, match="takes a mapping of outputs to inputs, not list"):
        compiled.bind_state(["total_out"])  # type: ignore[arg-type]


def test_bound_state_can_be_reset(compiled: penstock.CompiledModel) -> None:
    bound = compiled.bind_state({"total_out": "total_in"})
    other = compiled.new_state()
    for state in (None, other):
        for _ in range(2):
            compiled.run([X], state=state)
    bound.reset()
    assert np.array_equal(bound.read("total_in"), np.zeros(3, np.float32))
    assert np.array_equal(bound.read("total_in", other), 2 * X)
    bound.reset(other)
    assert np.array_equal(compiled.run([X], state=other)[0], np.maximum(X, 0))


def test_runs_whose_state_is_on_the_device_are_not_compared_in_the_shadow(device: Device) -> None:
    """The reference would compute from another state, and find a fault that is none."""
    policy = penstock.Policy(shadow=5)
    with penstock.compile(counting(), devices=[device], cache=None, policy=policy) as compiled:
        compiled.bind_state()
        compiled(X)
        compiled(X)
        outputs = compiled(X)
        assert any("not compared" in note for note in outputs.receipt.notes)
        assert np.array_equal(outputs[0], np.maximum(X * 3, 0))
        assert compiled.shadow is not None
        assert compiled.shadow.report().verdicts == ()
        assert compiled.shadow.report().departed == 0
