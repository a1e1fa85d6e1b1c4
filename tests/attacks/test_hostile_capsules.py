"""Capsules that somebody else wrote: reading, showing and replaying one ends in time, and says by
name what is wrong.
"""

from __future__ import annotations

import io
import json
import os
import sys
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest

from penstock import capsules
from penstock.capsules import Capsule, archive
from penstock.capsules.archive import (
    CaseRecord,
    DeviceRecord,
    Environment,
    Failure,
    Manifest,
    OperationRecord,
)
from penstock.cli.capsules import describe
from penstock.errors import CapsuleError, PenstockError
from penstock.export import tflite
from penstock.ir.types import static_shape
from penstock.runtime.reproducing import replay
from penstock.testing.contract.cases import looping
from tests.support_pipes import in_time

LONGEST = 20.0
"""Seconds, on a machine that has other work too; what is tried here never ended, or not by
itself.
"""


def endless(*, with_inputs: bool) -> Capsule:
    """The step is a loop that never ends, on the reference as on any device."""
    model = looping(0.0)
    shapes = tuple(static_shape(o.shape) or () for o in model.inputs)
    case = CaseRecord("step.tflite", "faithful", (), (), (), None if with_inputs else shapes)
    arrays = [np.zeros(shape, np.float32) for shape in shapes]
    manifest = Manifest(
        penstock="1",
        environment=Environment("3", "CPython", "Linux", "x86_64", {}, {}),
        failure=Failure(
            "execute", DeviceRecord("wrong", "1", "cpu", 8), (OperationRecord(0, "X"),)
        ),
        case=case,
    )
    made = Capsule(manifest, tflite.write(model), arrays if with_inputs else ())
    return capsules.parse(capsules.dump(made))


@pytest.mark.parametrize("with_inputs", [True, False])
def test_a_step_that_never_ends_on_the_reference_ends_at_the_timeout(with_inputs: bool) -> None:
    """The reference computes what is expected: of inputs that the capsule has at once, of drawn
    ones after a run.
    """
    found = endless(with_inputs=with_inputs)
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(replay(found, "reference", timeout=0.5))
        except PenstockError as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LONGEST)

    assert outcome, "it goes on"
    assert isinstance(outcome[0], CapsuleError)
    assert "the reference does not compute its step in 0.5 s" in str(outcome[0])


@pytest.mark.parametrize("part", ["plan", "receipt", "crash"])
@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"1e999999", id="a float out of range"),
        pytest.param(b"9" * 6000, id="an integer out of range"),
        pytest.param(b'"\xff\xfe"', id="no UTF-8"),
        pytest.param(b"[" * 5000 + b"]" * 5000, id="5,000 lists in each other"),
        pytest.param(b"[" + b"[]," * 2_000_000 + b"1]", id="two million lists"),
    ],
)
def test_parts_that_are_kept_as_they_stand_are_refused_by_name_or_shown(
    part: str, raw: bytes
) -> None:
    empty = Manifest(
        penstock="1",
        environment=Environment("3", "CPython", "Linux", "x86_64", {}, {}),
        failure=Failure("execute", DeviceRecord("wrong", "1", "cpu", 8), ()),
    )
    content = altered(capsules.dump(Capsule(empty)), part, raw)
    refused: CapsuleError | None = None
    told: dict[str, object] = {}
    try:
        told = describe(archive.parse(content))
    except CapsuleError as error:
        refused = error

    assert told or refused is not None
    assert not {"plan", "receipt"} & set(told)
    json.dumps(told)


def altered(content: bytes, part: str, raw: bytes) -> bytes:
    """The capsule *content* with *raw* as that part of its manifest."""
    with zipfile.ZipFile(io.BytesIO(content)) as read:
        manifest = json.loads(read.read(archive.MANIFEST))
    del manifest[part]
    encoded = json.dumps(manifest).encode()[:-1] + f', "{part}": '.encode() + raw + b"}"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as written:
        written.writestr(archive.MANIFEST, encoded)
    return stream.getvalue()


@pytest.mark.skipif(sys.platform != "linux", reason="leases are Linux's")
def test_a_file_that_its_owner_has_a_lease_of_is_not_waited_for(tmp_path: Path) -> None:
    """Who opens it otherwise waits until the lease is given back, for as long as `lease-break-time`
    says.
    """
    import fcntl
    import signal

    path = tmp_path / "a.capsule"
    path.write_bytes(b"no capsule")
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        assert isinstance(in_time(lambda: capsules.read(path)), BlockingIOError)
    finally:
        os.close(descriptor)
        signal.signal(signal.SIGIO, before)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_that_takes_the_file_s_place_meanwhile_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.capsule"
    path.write_bytes(b"no capsule")
    seen, looked_at = path.stat(), os.stat
    path.unlink()
    os.mkfifo(path)

    def stat(name: object, **how: object) -> os.stat_result:
        # As given.
        return seen if name == str(path) else looked_at(name, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", stat)
    refusal = in_time(lambda: capsules.read(path))
    assert isinstance(refusal, CapsuleError)
    assert "not a regular file" in str(refusal)
