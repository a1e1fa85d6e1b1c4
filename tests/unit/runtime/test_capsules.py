"""Failures brought about, put into capsules, and repeated from there."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from penstock import capsules
from penstock.capsules import Capsule
from penstock.drivers.reference import create as reference
from penstock.errors import CapsuleError, GeneralFailure, PlacementError
from penstock.ir import DType, Model, ModelBuilder, NDArray, Operand
from penstock.runtime.reproducing import replay, reproduce
from penstock.testing.contract.cases import state
from penstock.testing.doubles import FaultyDevice, SubsetDevice, WrongDevice

F32 = DType.FLOAT32
X = np.linspace(-2, 2, 16, dtype=np.float32)
SECRET = np.float32(1234.5678)


def network() -> Model:
    """TANH, ADD of a constant that is nobody's business, MUL."""
    b = ModelBuilder()
    x = b.input(F32, (16,), "camera_of_marigold")
    weights = b.constant(np.full(16, SECRET, np.float32), "private_weights")
    two = b.constant(np.full(16, 2, np.float32), "two")
    (a,) = b.operation("TANH", [x], [Operand(F32, (16,), name="private_tanh")])
    (s,) = b.operation("MUL", [a, two], [Operand(F32, (16,), name="private_mul")])
    (out,) = b.operation("SUB", [s, weights], [Operand(F32, (16,), name="private_sub")])
    return b.build([out])


def wrong(kind: str = "MUL", fault: str = "much", **how: object) -> WrongDevice:
    # As given.
    return WrongDevice(reference(), kind, fault, "wrong", **how)  # type: ignore[arg-type]


def capsule(device: object | None = None, *, names: bool = False) -> Capsule:
    found = reproduce(network(), [X], device or wrong(), names=names).capsule  # type: ignore[arg-type]  # a device
    assert found is not None
    # As it comes from a file.
    return capsules.parse(capsules.dump(found))


def test_the_capsule_has_the_failing_operation_alone() -> None:
    found = capsule()
    manifest = found.manifest
    assert [(o.index, o.type) for o in manifest.failure.operations] == [(1, "MUL")]
    assert manifest.failure.stage == "verify"
    assert "of the largest value" in manifest.failure.distance
    (given,), (expected,), (got,) = found.inputs, found.expected, found.got
    np.testing.assert_allclose(given, np.tanh(X), rtol=1e-5)
    np.testing.assert_allclose(expected, 2 * np.tanh(X), rtol=1e-5)
    assert not np.allclose(got, expected, atol=0.1)
    assert manifest.environment.packages["numpy"] == np.__version__


def test_capsule_repeats_on_the_failed_device_only() -> None:
    found = capsule()
    again = replay(found, wrong())
    assert (again.repeats, again.runs, again.same_version) == (True, 1, True)
    assert again.show().startswith("repeats on wrong, version ")
    mended = replay(found, WrongDevice(reference(), "NONE", name="wrong"))
    assert (mended.repeats, mended.runs) == (False, 3)
    other = replay(found, "sample")
    assert (other.repeats, other.same_version) == (False, False)
    assert "another version than failed" in other.show()


def test_replay_finds_an_intermittent_fault_in_a_few_runs() -> None:
    noisy = wrong(fault="noise")
    assert replay(capsule(noisy), wrong(fault="noise"), tries=8).repeats


def test_a_device_that_raises_repeats_by_raising() -> None:
    def failing() -> FaultyDevice:
        return FaultyDevice(
            SubsetDevice(reference(), "wrong", lambda m, i: m.operations[i].type == "MUL"),
            {"execute": "always"},
        )

    found = capsule(failing())
    assert (found.manifest.failure.stage, found.got) == ("execute", ())
    assert found.manifest.failure.error.startswith("GeneralFailure: wrong: execute fails")
    again = replay(found, failing())
    assert again.repeats
    assert again.error.startswith("GeneralFailure: wrong: execute fails")


def test_capsule_names_operations_by_their_number_in_the_network() -> None:
    def failing() -> FaultyDevice:
        return FaultyDevice(
            SubsetDevice(reference(), "wrong", lambda m, i: m.operations[i].type == "MUL"),
            {"execute": "always"},
            lambda _: GeneralFailure("operation 0 (MUL): it is not to be"),
        )

    words = "GeneralFailure: operation 1 (MUL): it is not to be"
    comparison = reproduce(network(), [X], failing()).comparison
    assert comparison.departure is not None
    assert comparison.departure.error == words
    found = capsule(failing())
    assert found.manifest.failure.error == words
    assert replay(found, failing()).error == words


def test_a_device_that_no_longer_takes_the_step_does_not_repeat() -> None:
    refusing = SubsetDevice(reference(), "wrong", lambda _m, _i: False)
    found = replay(capsule(), refusing)
    assert not found.repeats
    assert "does not take the step" in found.show()


def test_a_device_that_is_right_gives_no_capsule() -> None:
    found = reproduce(network(), [X], "sample")
    assert found.capsule is None
    assert not found.comparison.departs


def test_nothing_else_of_the_network_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "marigold")
    monkeypatch.setenv("HOME", "/home/marigold")
    content = capsules.dump(capsule())
    for private in (
        b"marigold",
        b"private",
        SECRET.tobytes(),
        X.tobytes(),
        os.fsencode(Path.cwd()),
        b"penstock-tests-",
    ):
        assert private not in content
    assert np.tanh(X[3:4]).tobytes()[:3] in content
    named = capsules.dump(capsule(names=True))
    assert b"private_mul" in named
    assert b"private_tanh" in named
    assert SECRET.tobytes() not in named


def test_state_that_an_operator_keeps_goes_along() -> None:
    case = state()
    model, inputs = case.model, list(case.inputs)[:1]
    kind = model.operations[0].type
    found = reproduce(model, inputs, wrong(kind)).capsule
    assert found is not None
    assert replay(found, wrong(kind)).repeats
    assert not replay(found, wrong("NONE")).repeats


def test_without_a_step_there_is_nothing_to_repeat() -> None:
    found = capsule()
    bare = Capsule(replace(found.manifest, case=None, no_case="because"))
    with pytest.raises(CapsuleError, match="no step to repeat: because"):
        replay(bare)


def test_without_what_is_expected_the_reference_says_it() -> None:
    found = capsule()
    bare = Capsule(found.manifest, found.model, found.inputs)
    assert replay(bare, wrong()).repeats
    assert not replay(bare, wrong("NONE")).repeats


def test_a_device_that_is_not_here_is_named() -> None:
    with pytest.raises(PlacementError, match="'wrong'"):
        replay(capsule())


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            lambda c: Capsule(c.manifest, b"no model", c.inputs, c.expected),
            "its step cannot be read",
        ),
        (lambda c: Capsule(c.manifest, c.model, (), c.expected), "0 inputs, its step 1"),
        (lambda c: Capsule(c.manifest, c.model, c.inputs, c.expected * 2), "2 expected results"),
        (
            lambda c: Capsule(c.manifest, c.model, [a.astype(np.int8) for a in c.inputs]),
            "number 0 of its inputs is of int8",
        ),
        (
            lambda c: Capsule(c.manifest, c.model, [a[:3] for a in c.inputs], c.expected),
            "does not fit",
        ),
    ],
)
def test_a_step_that_does_not_fit_is_named(changed: object, words: str) -> None:
    with pytest.raises(CapsuleError, match=words):
        replay(changed(capsule()), wrong())  # type: ignore[operator]  # a function


def arrays(found: Capsule) -> list[NDArray]:
    return [*found.inputs, *found.expected, *found.got]


def test_a_capsule_survives_its_file(tmp_path: Path) -> None:
    found = capsule()
    capsules.write(tmp_path / "c", found)
    back = capsules.read(tmp_path / "c")
    assert back.manifest == found.manifest
    assert [a.tobytes() for a in arrays(back)] == [a.tobytes() for a in arrays(found)]
