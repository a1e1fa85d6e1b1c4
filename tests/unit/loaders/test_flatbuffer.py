from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from penstock.errors import LimitExceeded, ModelError, NotAModel, OffsetOutOfBounds, TruncatedModel
from penstock.export.tflite.encoding import encode
from penstock.export.tflite.fields import TFLITE
from penstock.loaders.flatbuffer import Blob, Reader
from tests.unit.loaders.files import relu

CONTENT = relu().encode()


def read(content: bytes) -> object:
    return Reader(memoryview(content), TFLITE).root()


def test_vectors_of_numbers_view_the_file() -> None:
    reader = Reader(memoryview(CONTENT), TFLITE)
    shape = reader.root()["subgraphs"][0]["tensors"][0]["shape"]
    assert shape.tolist() == [1, 4]
    assert shape.dtype == np.dtype("<i4")
    assert np.shares_memory(shape, np.frombuffer(CONTENT, np.uint8))


def test_bytes_come_as_their_place() -> None:
    content = encode(TFLITE, {"buffers": [{"data": b"hello"}]})
    reader = Reader(memoryview(content), TFLITE)
    blob = reader.root()["buffers"][0]["data"]
    assert isinstance(blob, Blob)
    assert content[blob.offset : blob.offset + blob.length] == b"hello"
    assert reader.bytes_of(blob) == b"hello"
    assert reader.bytes_of(None) == b""


@pytest.mark.parametrize(("content", "error"), [
    (b"", NotAModel),
    (b"TFL3", TruncatedModel),
    (b"\x08\0\0\0TFL", TruncatedModel),
    (b"\x08\0\0\0ABCD\0\0\0\0", NotAModel),
    (b"\xff\xff\xff\x7fTFL3", OffsetOutOfBounds),
    (b"\0\0\0\0TFL3", OffsetOutOfBounds),
    (b"\x08\0\0\0TFL3\0\0\0\x80", OffsetOutOfBounds),
])  # fmt: skip
def test_a_damaged_header_is_named(content: bytes, error: type[ModelError]) -> None:
    with pytest.raises(error):
        read(content)


def test_an_error_has_the_path_and_the_offset() -> None:
    at = CONTENT.index(b"x\0") - 4
    broken = CONTENT[:at] + struct.pack("<I", 0x7FFFFFFF) + CONTENT[at + 4 :]
    with pytest.raises(TruncatedModel) as caught:
        read(broken)
    assert str(caught.value.where) == "subgraphs[0].tensors[0].name"
    assert caught.value.offset == at


@pytest.mark.parametrize("size", range(8, len(CONTENT)))
def test_every_truncation_is_refused_or_reads_whole(size: int) -> None:
    with pytest.raises((TruncatedModel, OffsetOutOfBounds)):
        read(CONTENT[:size])


@given(st.binary(max_size=200))
@example(b"\x08\0\0\0TFL3" + bytes(100))
def test_any_bytes_give_a_table_or_a_named_error(tail: bytes) -> None:
    for content in (tail, b"\x08\0\0\0TFL3" + tail):
        try:
            read(content)
        except ModelError:
            continue


@given(st.integers(0, len(CONTENT) - 4), st.integers(0, 2**32 - 1))
def test_any_word_of_a_file_may_be_anything(at: int, word: int) -> None:
    broken = CONTENT[:at] + struct.pack("<I", word) + CONTENT[at + 4 :]
    try:
        read(broken)
    except ModelError:
        return


def many_references(count: int) -> bytes:
    """A root whose `subgraphs` name one empty table *count* times."""
    head = struct.pack("<I4s", 24, b"TFL3")
    vtable = struct.pack("<HHHHH", 10, 8, 0, 0, 4) + b"\0\0"
    empty_vtable = struct.pack("<HH", 4, 4)
    root = struct.pack("<iII", 24 - 8, 4, count)
    start = 24 + len(root)
    target = start + 4 * count
    offsets = target - (start + 4 * np.arange(count, dtype=np.int64))
    return (
        head
        + vtable
        + empty_vtable
        + root
        + offsets.astype("<u4").tobytes()
        + struct.pack("<i", target - 20)
    )


def test_elements_may_be_shared_a_little() -> None:
    root = read(many_references(100))
    assert isinstance(root, dict)
    assert len(root["subgraphs"]) == 100


def test_shared_elements_do_not_multiply() -> None:
    with pytest.raises(LimitExceeded, match="more content than it has room for"):
        read(many_references(100_000))
