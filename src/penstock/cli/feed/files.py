"""INPUT files, pipes among them, and random values in place of a file."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, BinaryIO, Final, Literal, TypeAlias

import numpy as np

from penstock.cli.failures import FileError, UsageError, os_reason
from penstock.cli.options import assumed
from penstock.errors import LimitExceeded
from penstock.ir import DType, NDArray, Operand
from penstock.memory.sealed_file import SealedFile, read_path

if TYPE_CHECKING:
    from pathlib import Path

EMPTY: Final = "the file is empty; copy or download it again"


class File:
    """A file by its *name*, or the *content* of a pipe, or of a value, of that name."""

    def __init__(self, name: str, content: SealedFile | bytes | None = None) -> None:
        self._name, self._content = name, content

    def __str__(self) -> str:
        return self._name

    @property
    def is_piped(self) -> bool:
        return self._content is not None

    @property
    def suffix(self) -> str:
        return os.path.splitext(self._name)[1]

    def open(self, mode: Literal["rb"]) -> BinaryIO:
        """The content from its beginning; can be called repeatedly."""
        if isinstance(self._content, bytes):
            return io.BytesIO(self._content)
        if self._content is not None:
            return io.BytesIO(self._content.view)
        return open(self._name, mode)


InputFile: TypeAlias = "File | Path"


def input_file(name: str) -> File:
    """The file of this name. Raises `FileError` if it is empty or cannot be read."""
    found = File(name)
    try:
        if os.path.isfile(name):
            size = os.stat(name).st_size
        else:
            content = read_path(name)
            found, size = File(name, content), len(content)
    except OSError as error:
        raise FileError(name, os_reason(error)) from None
    except (LimitExceeded, ValueError) as error:
        raise FileError(name, str(error)) from None
    if not size:
        raise FileError(name, EMPTY)
    return found


_WORDS: Final = (b"gate", b"pipe", b"river", b"turbine", b"water")


def random_array(operand: Operand, generator: np.random.Generator) -> NDArray:
    """Random values of the operand's type.

    Floats are in [-1, 1); 8- and 16-bit integers use their whole range; wider ones are 0 or 1,
    because they are often indexes. Also booleans and short words. Unknown dimensions are 1.
    """
    if (shape := assumed(operand)) is None:
        raise UsageError(f"input {operand.name!r} has no fixed rank; random cannot fill it")
    dtype = operand.dtype
    if dtype.is_float:
        return generator.uniform(-1, 1, shape).astype(np.float32).astype(dtype.numpy)
    if dtype is DType.BOOL:
        return generator.integers(0, 2, shape).astype(np.bool_)
    if dtype is DType.STRING:
        words = np.empty(shape, object)
        words[...] = np.array(_WORDS, object)[generator.integers(0, len(_WORDS), shape)]
        return words
    if dtype.is_integer:
        if (dtype.bits or 64) > 16:
            return generator.integers(0, 2, shape).astype(dtype.numpy)
        limits = np.iinfo(f"{'u' if dtype.value.startswith('u') else ''}int16")
        bits = dtype.bits or 8
        low, high = int(limits.min) >> (16 - bits), int(limits.max) >> (16 - bits)
        return generator.integers(low, high + 1, shape).astype(dtype.numpy)
    if dtype in {DType.COMPLEX64, DType.COMPLEX128}:
        return (generator.uniform(-1, 1, shape) + 1j * generator.uniform(-1, 1, shape)).astype(
            dtype.numpy
        )
    raise UsageError(f"input {operand.name!r} is {dtype.value}; random cannot make one")
