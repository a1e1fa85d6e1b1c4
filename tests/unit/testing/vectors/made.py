"""Small files of operation vectors, written by the tests themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.ir import NDArray
from penstock.testing.vectors import Case, load_specification

DTYPES = {
    "TENSOR_FLOAT32": "<f4",
    "TENSOR_INT32": "<i4",
    "TENSOR_QUANT8_ASYMM": "|u1",
    "TENSOR_BOOL8": "|u1",
    "INT32": "<i4",
}
Entry = dict[str, Any]


class Blob:
    """Collects buffers; `put` gives an operand's `data`."""

    def __init__(self) -> None:
        self.content = b""

    def put(self, values: NDArray) -> list[int]:
        self.content += bytes(-len(self.content) % 4)
        offset = len(self.content)
        self.content += values.tobytes()
        return [offset, values.size]


def operand(
    blob: Blob, kind: str, lifetime: str, values: Sequence[float] | None, **more: Any
) -> Entry:
    """An operand; its dimensions are those of its values."""
    array = None if values is None else np.array(values, DTYPES[kind])
    dims = [] if array is None or not kind.startswith("TENSOR") else [array.size]
    data = {} if array is None else {"data": blob.put(array)}
    return {"name": lifetime, "type": kind, "dims": dims, "lifetime": lifetime, **data, **more}


def near(blob: Blob, kind: str, values: Sequence[float], **more: Any) -> Entry:
    """An output that must come back within 1e-5."""
    tolerance = {"compare": "near", "atol": 1e-5, "rtol": 1e-6}
    return operand(blob, kind, "output", values, **{**tolerance, **more})


def addition(name: str, blob: Blob, expected: Sequence[float], **more: Any) -> Entry:
    """A case: [1, 2] + [3, 4], the second a constant."""
    operands = [
        operand(blob, "TENSOR_FLOAT32", "input", [1, 2]),
        operand(blob, "TENSOR_FLOAT32", "constant", [3, 4]),
        operand(blob, "INT32", "constant", [0]),
        near(blob, "TENSOR_FLOAT32", expected),
    ]
    main = {
        "inputs": [0],
        "outputs": [3],
        "operations": [{"op": "ADD", "inputs": [0, 1, 2], "outputs": [3]}],
        "operands": operands,
    }
    return {"name": name, "feature_level": 1, "main": main, **more}


def write(
    path: Path,
    cases: Sequence[Entry],
    blob: Blob,
    dtypes: Mapping[str, str] = DTYPES,
    **header: Any,
) -> Path:
    """One file of the format, at *path*."""
    text = {
        "format": "nnapi-vectors/1",
        "spec": path.stem,
        "level": path.parent.name,
        "feature_level": 1,
        "dtypes": dict(dtypes),
        "cases": list(cases),
        **header,
    }
    return write_raw(path, json.dumps(text).encode(), blob.content)


def write_raw(path: Path, header: bytes, blob: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, header=np.frombuffer(header, np.uint8), blob=np.frombuffer(blob, np.uint8))
    return path


def case_of(path: Path, entry: Entry, blob: Blob) -> Case:
    """The case that *entry* makes, read back from a file."""
    return next(load_specification(write(path / "made.npz", [entry], blob)).cases)
