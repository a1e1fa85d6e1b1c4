"""Model files to valid models, or a named defect; all care for hostile input is here.

`load` picks the loader by the content of the file.
"""

from __future__ import annotations

import io
import os
from importlib import import_module
from typing import Any, BinaryIO, Final, TypeAlias

from penstock import knobs
from penstock.errors import InputError, NotAModel
from penstock.ir.model import Model
from penstock.ir.subgraph import ConstantPool
from penstock.memory import sealed_file

Source: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO"

LOADERS: Final = (
    ("TensorFlow Lite", "penstock.loaders.tflite"),
    ("ONNX", "penstock.loaders.onnx"),
)
"""Every format: its name, and the package, which is imported when it is tried. `may_begin` checks
the beginning of a file before the rest is read, `recognizes` the whole content.
"""

MIB: Final = 1 << 20
MEMORY_PER_BYTE: Final = 16
LEAST_MEMORY: Final = 64 * MIB
"""Least memory that loading a file may take, unless the knob `loading_limit_mib` sets another."""

MAX_NAME: Final = 1 << 16
"""Bytes of one name or text in a model file. Names are copied into every plan, receipt and
error.
"""


def room_for(size: int) -> int:
    """Bytes of memory that all but the weights of a file of *size* bytes may take."""
    given = knobs.loading_limit_mib()
    return given * MIB or max(MEMORY_PER_BYTE * size, LEAST_MEMORY)


def load(source: Source, *, map: bool = False) -> Model:  # the public name of the option
    """The model in *source*: a path, the bytes of a file, or a binary file object, read to its end.

    The first bytes are checked before the rest is read: content that is no model raises `NotAModel`
    at once. The content is read once, into memory that no other process can write, so that later
    changes of the file have no effect. A pipe or a file object, whose size is unknown, is read up
    to the knob `stream_limit_mib` (`LimitExceeded`). With *map* a path is mapped instead. That is
    cheaper for a large file, but a program that writes the file changes the model, and one that
    truncates it kills this process with SIGBUS.

    Raises `ModelError` subclasses that name the defect and its place, `OSError` when the file
    cannot be read, `InputError` for *map* without a path, a malformed path, and a source that does
    not return bytes.
    """
    content = _read(source, map)
    pool = ConstantPool(content.view, content, content.kind)
    for _, package in LOADERS:
        loader = import_module(package)
        if loader.recognizes(pool.view):
            model: Model = loader.load(pool)
            return model
    raise _unknown(pool.view)


def _judge(head: bytes, size: int | None) -> None:
    """Raises `NotAModel` for a file that begins with *head* as no model does."""
    view = memoryview(head)
    if not any(import_module(package).may_begin(view, size) for _, package in LOADERS):
        raise _unknown(view)


def _unknown(content: memoryview) -> NotAModel:
    if not len(content):
        return NotAModel("the file is empty; copy or download it again")
    known = ", ".join(name for name, _ in LOADERS)
    return NotAModel(
        f"the file begins with {bytes(content[:8])!r}, which is none of the known formats: {known}"
    )


class _Binary:
    """A file object whose `read` must give bytes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        chunk: object = self._file.read(size)
        if isinstance(chunk, bytes | bytearray | memoryview):
            return bytes(chunk)
        raise InputError(
            f"read() gave {type(chunk).__name__}, not bytes: open the file in binary mode, and "
            "blocking"
        )


def _read(source: Source, map_file: bool) -> sealed_file.SealedFile:
    if isinstance(source, str | os.PathLike):
        return sealed_file.map_path(source) if map_file else sealed_file.read_path(source, _judge)
    if map_file:
        raise InputError("map=True needs the path of a file")
    if isinstance(source, bytes | bytearray | memoryview):
        if isinstance(source, memoryview) and not source.c_contiguous:
            raise InputError(
                "the memoryview has gaps: load bytes(view), a contiguous copy, instead"
            )
        return sealed_file.seal_bytes(source, _judge)
    if hasattr(source, "read"):
        if isinstance(source, io.FileIO | io.BufferedReader | io.BytesIO):
            return sealed_file.read_file(source, _judge)
        binary: Any = _Binary(source)
        return sealed_file.read_file(binary, _judge)
    raise InputError(
        f"a model is loaded from a path, bytes or a binary file, not from {type(source).__name__}"
    )
