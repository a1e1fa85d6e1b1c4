"""Loaders: model files to validated models, or an error that names the defect. Every check of
untrusted files is in this package.

`load` selects the loader by the content of the file.
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
"""The formats: the name of each, and its package, which is imported when the format is first tried.
`may_begin` checks the first bytes before the rest is read, `recognizes` the whole content.
"""

MIB: Final = 1 << 20
MEMORY_PER_BYTE: Final = 16
LEAST_MEMORY: Final = 64 * MIB
"""Memory limit of loading a small file, unless the knob `loading_limit_mib` sets another."""

MAX_NAME: Final = 1 << 16
"""Greatest size, in bytes, of one name or text in a model file. Names are copied into every plan,
receipt and error.
"""


def room_for(size: int) -> int:
    """The memory limit, in bytes, for everything but the weights of a file of *size* bytes."""
    given = knobs.loading_limit_mib()
    return given * MIB or max(MEMORY_PER_BYTE * size, LEAST_MEMORY)


def load(source: Source, *, map: bool = False) -> Model:  # the public name of the option
    """The model in *source*: a path, the bytes of a file, or a binary file object, which is read to
    its end.

    The first bytes are checked before the rest is read: content that is no model raises `NotAModel`
    at once. The content is read once, into memory that no other process can write, so later changes
    of the file have no effect. A pipe or a file object has an unknown size; it is read up to the
    option `stream_limit_mib` (`LimitExceeded`). With *map* a path is mapped instead. That needs
    less memory for a large file. But a program that writes the file then changes the model, and one
    that truncates it kills this process with SIGBUS.

    Raises `ModelError` subclasses that name the defect and its place, and `OSError` if the file
    cannot be read. Raises `InputError` for *map* without a path, for a malformed path, and for a
    source whose `read` does not return bytes.
    """
    return decode(read(source, map=map))


def read(source: Source, *, map: bool = False) -> ConstantPool:  # as in `load`
    """The bytes of *source*, as `load` reads them. Raises its errors, but for those of `decode`."""
    content = _read(source, map)
    return ConstantPool(content.view, content, content.kind)


def decode(pool: ConstantPool) -> Model:
    """The model in the bytes of *pool*. Raises `ModelError` subclasses."""
    for _, package in LOADERS:
        loader = import_module(package)
        if loader.recognizes(pool.view):
            model: Model = loader.load(pool)
            # The content of other files is not needed any more.
            return model.is_all_of(pool) if any(p is pool for p in model.pools) else model
    raise _unknown(pool.view)


def _judge(head: bytes, size: int | None) -> None:
    """Raises `NotAModel` if *head*, the first bytes of a file, cannot begin a model."""
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
    """A file object whose `read` must return bytes."""

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
