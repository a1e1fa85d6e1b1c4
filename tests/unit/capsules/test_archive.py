"""The file format of capsules: what is written comes back, and whatever else is read is refused by
one error.
"""

from __future__ import annotations

import contextlib
import io
import os
import struct
import tracemalloc
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock.capsules import Capsule, Manifest, archive, dump, parse, read, write
from penstock.capsules.archive import (
    CaseRecord,
    DeviceRecord,
    Environment,
    Failure,
    OperationRecord,
)
from penstock.errors import CapsuleError
from penstock.ir import NDArray

MIB = 1 << 20


def manifest(**fields: Any) -> Manifest:
    told: dict[str, Any] = {
        "penstock": "1.0",
        "created": 1.0,
        "environment": Environment("3.12", "CPython", "Linux", "x86_64", {"numpy": "2"}, {}),
        "failure": Failure(
            "verify",
            DeviceRecord("liar", "1", "cpu", 4),
            (OperationRecord(3, "ADD"),),
            "",
            "output 0 is off",
        ),
    }
    return Manifest(**told | fields)


def capsule(*inputs: NDArray, expected: Sequence[NDArray] = (), model: bytes = b"TFL3") -> Capsule:
    case = CaseRecord("", "faithful", ())
    return Capsule(manifest(case=case), model, inputs, expected, ())


def text(*values: bytes) -> NDArray:
    array = np.empty(len(values), object)
    array[:] = values
    return array


ARRAYS = {
    "float32": np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3),
    "big endian": np.arange(4, dtype=">i4"),
    "bfloat16": np.arange(4).astype(ml_dtypes.bfloat16),
    "int4": np.array([-8, 7, 0], ml_dtypes.int4),
    "bool": np.array([[True], [False]]),
    "strings": text(b"", b"a\0b", b"two"),
    "a scalar": np.array(3, np.int64),
    "nothing": np.zeros((0, 4), np.int8),
    "not contiguous": np.arange(12, dtype=np.int16).reshape(3, 4).T,
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_come_back_bit_for_bit(name: str) -> None:
    array = ARRAYS[name]
    found = parse(dump(capsule(array, expected=[array])))
    for got in (*found.inputs, *found.expected):
        assert got.shape == array.shape
        assert got.tolist() == array.tolist()
        assert got.dtype == array.dtype.newbyteorder("=")
    assert found.model == b"TFL3"


def test_a_file_is_for_its_owner_and_the_same_each_time(tmp_path: Path) -> None:
    path = tmp_path / "c.capsule"
    write(path, capsule(ARRAYS["float32"]))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes() == dump(capsule(ARRAYS["float32"]))
    assert read(path).manifest.failure == manifest().failure


def test_any_archiver_opens_it() -> None:
    with zipfile.ZipFile(io.BytesIO(dump(capsule(ARRAYS["float32"])))) as found:
        assert found.namelist() == ["capsule.json", "step.tflite", "inputs/0.bin"]
        assert found.testzip() is None
        told = msgspec.json.decode(found.read("capsule.json"))
    assert told["format"] == 1
    assert told["case"]["inputs"] == [
        {"file": "inputs/0.bin", "dtype": "float32", "shape": [2, 3], "nbytes": 24}
    ]


def test_array_without_a_form_is_refused() -> None:
    with pytest.raises(CapsuleError, match="datetime64"):
        dump(capsule(np.zeros(1, "M8[s]")))


def packed(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as made:
        for name, content in members.items():
            made.writestr(name, content)
    return stream.getvalue()


def with_case(record: dict[str, Any], raw: bytes, times: int = 1) -> bytes:
    told = msgspec.json.decode(msgspec.json.encode(manifest(case=CaseRecord("m", "faithful", ()))))
    whole = {"file": "i", "dtype": "float32", "shape": [1], "nbytes": 4} | record
    told["case"]["inputs"] = [whole] * times
    return packed({"capsule.json": msgspec.json.encode(told), "m": b"", "i": raw})


def renamed(found: bytes) -> bytes:
    """The local header of a member disagrees with the directory."""
    return found.replace(b"PK\x03\x04", b"PK\x03\x05", 1)


def twice() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as made:
        made.writestr("capsule.json", "{}")
        made.writestr("another.json", "{}")
    return stream.getvalue().replace(b"another.json", b"capsule.json")


def end(entries: int = 0, size: int = 0, offset: int = 0) -> bytes:
    return struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, entries, entries, size, offset, 0)


def overlapping(nbytes: int = 1000) -> bytes:
    """Many names for one member: what a zip bomb of the better kind is made of."""
    content = packed({"capsule.json": b"x" * nbytes})
    start = content.index(b"PK\x01\x02")
    entry = content[start : -archive._END.size]
    more = b"".join(entry.replace(b"capsule.json", b"%012d" % k) for k in range(100))
    return content[:start] + more + end(100, len(more), start)


GOOD = dump(capsule(ARRAYS["float32"]))
HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", "too short"),
    "text": (lambda: b"#!/bin/sh\n" * 10, "the archive has no end"),
    "an archive without a manifest": (lambda: packed({"a": b""}), "no capsule.json"),
    "a packed archive of something else": (
        lambda: packed({"labels.txt": b"a" * 99}, zipfile.ZIP_DEFLATED),
        "it is no capsule: it has no capsule.json",
    ),
    "a manifest that is no JSON": (lambda: packed({"capsule.json": b"{"}), "cannot be read"),
    "a manifest of pickle": (
        lambda: packed({"capsule.json": b"\x80\x04cos\nsystem\n"}),
        "cannot be read",
    ),
    "a manifest of nothing": (lambda: packed({"capsule.json": b"{}"}), "cannot be read"),
    "a deep manifest": (
        lambda: packed({"capsule.json": b'{"format":1,"plan":' + b"[" * 100_000}),
        "cannot be read",
    ),
    "another format": (lambda: packed({"capsule.json": b'{"format": 2}'}), "of format 2"),
    "a packed member": (
        lambda: packed({"capsule.json": b"0" * 10_000}, zipfile.ZIP_DEFLATED),
        "packed or encrypted",
    ),
    "a name twice": (twice, "there twice"),
    "a million members": (lambda: end(65535, 1 << 30) + end(65535, 1 << 30), "members"),
    "a directory elsewhere": (lambda: end(0, 0, 7), "not where it says"),
    "a member that is not there": (lambda: renamed(GOOD), "damaged"),
    "members that overlap": (overlapping, "damaged|overlap"),
    "ZIP64": (lambda: b"PK\x06\x07" + bytes(16) + end(), "ZIP64"),
    "an unknown element type": (lambda: with_case({"dtype": "quaternion"}, bytes(4)), "quaternion"),
    "elements without bytes": (lambda: with_case({"dtype": "resource"}, bytes(4)), "no bytes"),
    "a length that is not": (lambda: with_case({"nbytes": 5}, bytes(4)), "has 4 bytes, not 5"),
    "a shape that is too large": (lambda: with_case({"shape": [1 << 40]}, bytes(4)), "needs"),
    "a shape of nothing too large": (
        lambda: with_case({"shape": [0, 1 << 47, 1 << 47], "nbytes": 0}, b""),
        "impossible shape",
    ),
    "a negative dimension": (lambda: with_case({"shape": [-1]}, bytes(4)), "cannot be read"),
    "a hundred dimensions": (lambda: with_case({"shape": [1] * 100}, bytes(4)), "cannot be read"),
    "no booleans": (
        lambda: with_case({"dtype": "bool", "shape": [4]}, b"\0\1\2\1"),
        "neither true nor false",
    ),
    "no strings": (
        lambda: with_case({"dtype": "string", "shape": [1]}, b"\xff\xff\xff\x7f"),
        "holds no strings",
    ),
    "more strings than bytes": (
        lambda: with_case({"dtype": "string", "shape": [1 << 40]}, bytes(4)),
        "too short",
    ),
    "a member that is named and missing": (
        lambda: with_case({"file": "../../etc/passwd"}, bytes(4)),
        "not in it",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_by_name(name: str) -> None:
    make, words = HOSTILE[name]
    with pytest.raises(CapsuleError, match=words):
        parse(make())


@pytest.mark.parametrize(
    "content",
    [
        with_case({"dtype": "uint8", "shape": [MIB], "nbytes": MIB}, bytes(MIB), times=100),
        overlapping(MIB),
    ],
    ids=["a member that is named often", "members that overlap"],
)
def test_a_small_file_takes_little_memory(content: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CapsuleError, match=r"twice|damaged|overlap"):
            parse(content)
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()


def test_a_capsule_that_is_cut_short_is_refused_wherever(tmp_path: Path) -> None:
    for length in range(0, len(GOOD), 7):
        with pytest.raises(CapsuleError):
            parse(GOOD[:length])
    with pytest.raises(CapsuleError):
        parse(GOOD + b"\0")


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_one_wrong_byte_is_a_capsule_or_one_error(at: int, change: int) -> None:
    damaged = bytearray(GOOD)
    damaged[at] ^= change
    with contextlib.suppress(CapsuleError):
        parse(bytes(damaged))


@given(st.binary(max_size=400))
def test_any_bytes_are_a_capsule_or_one_error(content: bytes) -> None:
    with pytest.raises(CapsuleError):
        parse(content)


def test_irregular_file_is_not_opened(tmp_path: Path) -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("this system has no named pipes")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(CapsuleError, match="not a regular file"):
            read(path)


def test_a_file_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(archive.MOST_BYTES + 1)
    with pytest.raises(CapsuleError, match="bytes; a capsule has"):
        read(path)
    monkeypatch.setattr(archive, "MOST_BYTES", 100 + archive.MOST_DIRECTORY_BYTES)
    with pytest.raises(CapsuleError, match="too much for a capsule"):
        dump(capsule(np.zeros(100, np.int64)))
