"""The failures that are kept when they happen: which, how many, for whom, and with how much in
them.
"""

from __future__ import annotations

import stat
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

import penstock
from penstock import capsules, knobs
from penstock.capsules import Capsule, evidence
from penstock.drivers.reference import create as reference
from penstock.errors import CapsuleError, GeneralFailure
from penstock.export import tflite
from penstock.hal import Device
from penstock.ir import DType, Model, ModelBuilder, Operand
from penstock.memory.copies import CopyReceipt
from penstock.partitioning.policy import Policy
from penstock.runtime.reproducing import replay
from penstock.testing.doubles import FaultyDevice, SubsetDevice, WrongDevice

X = np.linspace(-1, 1, 8, dtype=np.float32)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state directory of this test alone."""
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def network() -> Model:
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (8,), "private_input")
    (y,) = b.operation("TANH", [x], [Operand(DType.FLOAT32, (8,), name="private_tanh")])
    (z,) = b.operation("ADD", [y, x], [Operand(DType.FLOAT32, (8,), name="private_sum")])
    return b.build([z])


def failing(method: str = "execute") -> Device:
    """Takes ADD alone, and fails at it."""

    def supports(model: Model, index: int) -> bool:
        return model.operations[index].type == "ADD"

    return FaultyDevice(SubsetDevice(reference(), "failing", supports), {method: "always"})


def run(device: Device, **how: Any) -> list[CopyReceipt]:
    """Two runs with TANH on one device and ADD on *device*, which a third can repeat; the copies of
    the first.
    """
    others = [WrongDevice(reference(), "NONE", name=name) for name in ("other", "first")]
    policy = Policy(require={"TANH": "first", "ADD": (device.name, "other")}, **how)
    with penstock.compile(
        network(), devices=[device, *others], cache=None, policy=policy
    ) as compiled:
        first = compiled(X)
        compiled(X)
    return list(first.receipt.copies)


def kept() -> Capsule:
    path = evidence.last()
    assert path is not None
    return capsules.read(path)


def files(state: Path) -> list[Path]:
    evidence.wait()
    return sorted((state / evidence.FAILURES).glob("*"))


def test_a_run_that_fell_back_is_kept_once_and_without_input_data(state: Path) -> None:
    run(failing())
    (path,) = files(state)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    manifest = kept().manifest
    failure = manifest.failure
    assert (failure.stage, failure.device.name) == ("execute", "failing")
    assert [(o.index, o.type, o.name) for o in failure.operations] == [(1, "ADD", "")]
    assert failure.error.startswith("GeneralFailure: failing: execute fails at call 1")
    assert manifest.case is not None
    assert manifest.case.left_out == ((8,), (8,))
    found = kept()
    assert (found.inputs, found.expected, found.got) == ((), (), ())
    assert [o.type for o in penstock.load(found.model).operations] == ["ADD"]
    plan: Any = msgspec.json.decode(manifest.plan)
    assert [s["device"] for s in plan["steps"]] == ["first", "failing"]
    receipt: Any = msgspec.json.decode(manifest.receipt)
    assert receipt["steps"][-1]["failures"][0]["device"] == "failing"
    assert manifest.model is not None
    assert manifest.model.structure == network().digest.structure.hex()
    assert b"private" not in path.read_bytes()


def test_kept_failure_of_a_run_is_replayed_with_drawn_inputs() -> None:
    run(failing())
    found = replay(kept(), failing())
    assert (found.repeats, found.drawn) == (True, True)
    assert found.error.startswith("GeneralFailure: failing: execute fails at call 1")
    assert "with drawn inputs, since the capsule has no input data" in found.show()
    sound = replay(kept(), "reference", tries=2)
    assert (sound.repeats, sound.drawn, sound.runs) == (False, True, 2)


def test_kept_failure_of_a_compile_is_replayed_with_drawn_inputs() -> None:
    run(failing("prepare_model"))
    found = replay(kept(), failing("prepare_model"))
    assert (found.repeats, found.drawn) == (True, True)
    assert "prepare_model fails" in found.error


def test_kept_wrong_result_is_replayed_with_drawn_inputs() -> None:
    device = WrongDevice(reference(), "ADD", name="wrong")
    with penstock.compile(
        network(), devices=[device], cache=None, policy=Policy(shadow=1)
    ) as compiled:
        compiled(X)
        assert compiled.shadow is not None
        assert compiled.shadow.wait(60)
    capsule = kept()
    assert capsule.manifest.case is not None
    assert capsule.manifest.case.left_out is not None
    assert (capsule.inputs, capsule.expected, capsule.got) == ((), (), ())
    found = replay(capsule, device)
    assert (found.repeats, found.drawn) == (True, True)
    assert found.distance is not None
    assert not replay(capsule, "reference").repeats


def test_kept_step_with_state_and_unknown_shapes_is_replayed() -> None:
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (None, 4), "x")
    (y,) = b.operation("TANH", [x], [Operand(DType.FLOAT32, (None, 4), name="y")])
    device = FaultyDevice(
        SubsetDevice(reference(), "failing", lambda *_: True), {"execute": "always"}
    )
    with penstock.compile(b.build([y]), devices=[device], cache=None) as compiled:
        compiled(np.zeros((3, 4), np.float32))
    capsule = kept()
    assert capsule.manifest.case is not None
    assert capsule.manifest.case.left_out == ((3, 4),)
    assert replay(capsule, device).repeats


def test_a_run_that_nothing_could_repeat_is_kept(state: Path) -> None:
    with pytest.raises(GeneralFailure):
        run(failing(), allow_fallback=False)
    assert kept().manifest.failure.stage == "execute"
    assert len(files(state)) == 1


@pytest.mark.parametrize("fall_back", [True, False])
def test_a_compile_that_failed_is_kept(fall_back: bool) -> None:
    if fall_back:
        run(failing("prepare_model"), allow_fallback=fall_back)
    else:
        with pytest.raises(GeneralFailure):
            run(failing("prepare_model"), allow_fallback=fall_back)
    manifest = kept().manifest
    assert (manifest.failure.stage, manifest.failure.device.name) == ("compile", "failing")
    assert "prepare_model fails at call 1" in manifest.failure.error
    plan: Any = msgspec.json.decode(manifest.plan)
    assert [s["device"] for s in plan["steps"]] == ["first", "failing"]


def test_with_the_knob_the_step_and_its_inputs_are_there() -> None:
    with knobs.override(keep_failure_data=True):
        copies = run(failing())
    assert [(c.nbytes, c.reason) for c in copies] == [(32, "kept for a capsule of the failure")] * 2
    found = kept()
    assert found.manifest.case is not None
    given = {tuple(np.round(a.reshape(-1), 5).tolist()) for a in found.inputs}
    assert given == {tuple(np.round(a, 5).tolist()) for a in (X, np.tanh(X))}
    model = penstock.load(found.model)
    assert [o.type for o in model.operations] == ["ADD"]
    assert b"private" not in found.model


def test_a_run_does_not_wait_for_its_failure_to_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    save, slow = evidence._save, threading.Event()

    def saving(*given: Any) -> None:
        assert slow.wait(60)
        save(*given)

    monkeypatch.setattr(evidence, "_save", saving)
    try:
        run(failing())
    finally:
        slow.set()
    assert kept().manifest.failure.device.name == "failing"


def test_nothing_is_kept_with_the_knob_off(state: Path) -> None:
    with knobs.override(keep_failures=False):
        run(failing())
    assert not (state / evidence.FAILURES).exists()
    assert evidence.last() is None


def test_only_the_last_few_are_kept(state: Path) -> None:
    for _ in range(evidence.MOST_KEPT + 3):
        run(failing())
    assert len(files(state)) == evidence.MOST_KEPT
    assert evidence.clear() == evidence.MOST_KEPT
    assert evidence.last() is None


def test_large_failure_is_kept_without_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "MOST_KEPT_BYTES", 1000)
    with knobs.override(keep_failure_data=True):
        run(failing())
    manifest = kept().manifest
    assert manifest.case is None
    assert "too many to be kept" in manifest.no_case


def test_a_state_directory_that_cannot_be_made_changes_nothing_for_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path / "file" / "state"))
    run(failing())
    assert evidence.last() is None


def test_a_run_that_shadow_verification_found_wrong_is_kept() -> None:
    device = WrongDevice(reference(), "ADD", name="wrong")
    with (
        knobs.override(keep_failure_data=True),
        penstock.compile(
            network(), devices=[device], cache=None, policy=Policy(shadow=1)
        ) as compiled,
    ):
        compiled(X)
        assert compiled.shadow is not None
        assert compiled.shadow.wait(60)
    found = kept()
    assert (found.manifest.failure.stage, found.manifest.failure.device.name) == ("verify", "wrong")
    assert "of the largest value" in found.manifest.failure.distance
    (expected,), (got,) = found.expected, found.got
    np.testing.assert_allclose(expected, np.tanh(X) + X, rtol=1e-5)
    assert not np.allclose(got, expected, atol=0.05)


def test_comparing_devices_keeps_nothing(state: Path) -> None:
    from penstock.runtime.comparison import compare

    assert compare(network(), [X], failing()).departs
    assert not (state / evidence.FAILURES).exists()


@pytest.mark.parametrize(
    ("left_out", "words"),
    [
        (((8,),), "has 1 shapes of inputs, its step 2"),
        (((8,), (9,)), "shape \\(9,\\) of input 1 does not fit"),
    ],
)
def test_capsule_whose_shapes_do_not_fit_its_step_is_refused(
    left_out: tuple[tuple[int, ...], ...], words: str
) -> None:
    run(failing())
    capsule = kept()
    assert capsule.manifest.case is not None
    case = replace(capsule.manifest.case, left_out=left_out)
    wrong = Capsule(replace(capsule.manifest, case=case), capsule.model)
    with pytest.raises(CapsuleError, match=words):
        replay(wrong, failing())


def test_capsule_whose_drawn_inputs_would_be_too_large_is_refused() -> None:
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (None,), "x")
    (y,) = b.operation("TANH", [x], [Operand(DType.FLOAT32, (None,), name="y")])
    run(failing())
    manifest = kept().manifest
    assert manifest.case is not None
    case = replace(manifest.case, left_out=((1 << 40,),))
    wrong = Capsule(replace(manifest, case=case), tflite.write(b.build([y])))
    with pytest.raises(CapsuleError, match="inputs would have 4398046511104 bytes"):
        replay(wrong, failing())


def test_capsule_that_names_arrays_and_says_they_are_left_out_is_refused() -> None:
    with knobs.override(keep_failure_data=True):
        run(failing())
    capsule = kept()
    assert capsule.manifest.case is not None
    case = replace(capsule.manifest.case, left_out=((8,), (8,)))
    wrong = capsules.dump(
        Capsule(replace(capsule.manifest, case=case), capsule.model, capsule.inputs)
    )
    with pytest.raises(CapsuleError, match="arrays are left out, and names some"):
        capsules.parse(wrong)
