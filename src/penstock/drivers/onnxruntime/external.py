"""ONNX models whose constants lie in a file of their own: no copy of them is in memory while ONNX
Runtime reads or writes them.

The rules are those of onnx.proto: a tensor with `data_location` EXTERNAL names a file beside the
model, an offset and a length there.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from penstock.errors import GeneralFailure
from penstock.interrupts import polled
from penstock.ir import NDArray

LARGE_BYTES: Final = 16 << 20
"""Bytes of constants from which on they lie in a file of their own."""

LEAST_BYTES: Final = 1024
"""Smaller constants stay in the model: ONNX Runtime reads shapes from some."""

MODEL: Final = "model.onnx"
CONSTANTS: Final = "constants"
OPTIMISED: Final = "optimised.onnx"
OPTIMISED_CONSTANTS: Final = "optimised"
"""Names of files in the folder of one compile: what ONNX Runtime reads, and what it writes."""

GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9
"""Numbers of fields in onnx.proto, of ModelProto, GraphProto and TensorProto."""


def put_apart(tensor: Any, value: NDArray, file: Any) -> None:
    """Writes *value* to the end of *file*, and where it lies there to the protobuf *tensor*."""
    offset = file.seek(-file.tell() % mmap.ALLOCATIONGRANULARITY, 1)
    file.write(np.ascontiguousarray(value).data)
    tensor.data_location = tensor.EXTERNAL
    for key, content in (("location", CONSTANTS), ("offset", offset), ("length", value.nbytes)):
        tensor.external_data.add(key=key, value=str(content))


def read(onnx: Any, path: Path, *, whole: bool = False) -> Any:
    """The protobuf of the optimised model at *path*; *whole*: with the constants beside it. Raises
    `GeneralFailure`.
    """
    try:
        return onnx.load(path, load_external_data=whole)
    except Exception as error:
        raise GeneralFailure(f"the optimised model cannot be read: {error}") from error


def inlined(model: Any, folder: Path) -> Iterator[bytes | memoryview]:
    """The bytes of the protobuf *model*, with all constants in it, part by part. A part is there
    until the next is asked for: what lies in files of *folder* is never in memory as a whole.
    *model* loses its constants. Raises `GeneralFailure` for a constant that no file has.
    """
    graph = model.graph
    for inner in _branches(graph):
        for tensor in polled(inner.initializer):
            if tensor.external_data:
                with _content_of(tensor, folder) as content:
                    tensor.raw_data = bytes(content)
                _forget(tensor)
    tensors = [t for t in graph.initializer if t.external_data]
    kept = [t for t in graph.initializer if not t.external_data]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    yield model.SerializeToString()
    # A field that occurs again is joined to the first (protobuf, encoding, "Last One Wins").
    for tensor in polled(tensors):
        with _content_of(tensor, folder) as content:
            _forget(tensor)
            head = tensor.SerializeToString() + _head(RAW_DATA, content.nbytes)
            inside = _head(INITIALIZER, len(head) + content.nbytes)
            yield _head(GRAPH, len(inside) + len(head) + content.nbytes) + inside + head
            yield content


def _branches(graph: Any) -> Iterator[Any]:
    """The graphs inside of *graph*."""
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *((attribute.g,) if attribute.HasField("g") else ())):
                yield inner
                yield from _branches(inner)


def _forget(tensor: Any) -> None:
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")


def _head(field: int, size: int) -> bytes:
    """The key and the length of a field with *size* bytes (protobuf, encoding)."""
    return _varint(field << 3 | 2) + _varint(size)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


@contextmanager
def _content_of(tensor: Any, folder: Path) -> Iterator[memoryview]:
    """The bytes of a constant that lies in a file of *folder*, mapped within the block."""
    found = {entry.key: entry.value for entry in tensor.external_data}
    try:
        offset, length = int(found.get("offset", 0)), int(found["length"])
        before = offset % mmap.ALLOCATIONGRANULARITY
        with (folder / Path(found["location"]).name).open("rb") as file:
            mapped = mmap.mmap(
                file.fileno(), length + before, access=mmap.ACCESS_READ, offset=offset - before
            )
    except (OSError, ValueError, LookupError) as error:
        text = f"the optimised model's constant {tensor.name!r} cannot be read: {error}"
        raise GeneralFailure(text) from error
    with mapped, memoryview(mapped) as whole, whole[before:] as content:
        yield content
