"""Reads arrays of `.npy` and `.npz` files, without pickles."""

from __future__ import annotations

import math
import zipfile
import zlib
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

from penstock.cli.failures import FileError, reading
from penstock.execution.interface import fits
from penstock.ir import DType, NDArray, Operand
from penstock.ir.model import show_operand, show_shape
from penstock.ir.types import dtype_of

if TYPE_CHECKING:
    from penstock.cli.feed.files import InputFile

MAX_BYTES: Final = 2**31
"""An array of more bytes is rejected before it is read."""

CHUNK: Final = 2**20

EXPECTED: Final = "expected/"


def read_npy(path: InputFile, operand: Operand) -> NDArray:
    """The one array of an `.npy` file, if it fits *operand*. Raises `FileError`."""
    with reading(path, "not an .npy file"), path.open("rb") as stream:
        return _read(stream, path, operand)


def read_npz(path: InputFile, operands: list[Operand]) -> list[NDArray]:
    """An array for each of *operands*, by name, or by position if the file has exactly as many.

    Ignores entries whose names begin with `expected/` and match no input: they are expected outputs
    for `compare`. Raises `FileError`.
    """
    with (
        reading(path, "not an .npz file"),
        path.open("rb") as stream,
        zipfile.ZipFile(stream) as archive,
    ):
        names = [n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy")]
        wanted = [o.name for o in operands]
        names = [n for n in names if n in wanted or not n.startswith(EXPECTED)]
        if not (all(wanted) and set(wanted) <= set(names)):
            if len(names) != len(operands):
                raise FileError(path, f"holds {_list(names)}; the model needs {_list(wanted)}")
            wanted = names
        return [_read_entry(archive, n, path, o) for n, o in zip(wanted, operands, strict=True)]


def _read_entry(archive: zipfile.ZipFile, name: str, path: InputFile, operand: Operand) -> NDArray:
    with reading(path, f"entry {name!r} cannot be read"), archive.open(f"{name}.npy") as stream:
        return _read(stream, path, operand, f"entry {name!r} ")


def _read(stream: IO[bytes], path: InputFile, operand: Operand, entry: str = "") -> NDArray:
    """Checks the header against the operand before allocating the values."""
    shape, fortran, dtype = _header(stream, path, entry)
    check(path, operand, dtype, shape, entry)
    data = _exactly(stream, math.prod(shape) * dtype.itemsize, path)
    array = np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
    if operand.dtype is DType.STRING:
        encoded: NDArray = np.char.encode(array, "utf-8") if array.dtype.kind == "U" else array
        return encoded.astype(object)
    return np.asarray(array, operand.dtype.numpy, order="C")


def _header(
    stream: IO[bytes], path: InputFile, entry: str
) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether the first dimension varies fastest, and dtype. Raises `FileError`."""
    try:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            return np.lib.format.read_array_header_1_0(stream)
        if version == (2, 0):
            return np.lib.format.read_array_header_2_0(stream)
    except (OSError, zipfile.BadZipFile, zlib.error):
        raise
    except Exception as error:
        # NumPy evaluates the header as Python source. Its error would be a message of Python's
        # parser.
        what = f"{entry}is not" if entry else "not"
        raise FileError(
            path, f"{what} an .npy file, or its header is damaged; numpy.save writes one"
        ) from error
    number = ".".join(map(str, version))
    raise FileError(
        path, f"{entry}has version {number} of the .npy format; versions 1.0 and 2.0 are read"
    )


def _exactly(stream: IO[bytes], nbytes: int, path: InputFile) -> bytearray:
    if nbytes > MAX_BYTES:
        raise FileError(
            path, f"declares {nbytes:,} bytes of values; at most {MAX_BYTES:,} are read"
        )
    data = bytearray()
    while len(data) < nbytes:
        part = stream.read(min(nbytes - len(data), CHUNK))
        if not part:
            raise FileError(path, f"ends after {len(data):,} of {nbytes:,} bytes of values")
        data += part
    return data


def check(
    path: InputFile, operand: Operand, dtype: np.dtype[Any], shape: tuple[int, ...], entry: str = ""
) -> None:
    """Raises `FileError`, beginning with *entry*, if such an array does not fit *operand*."""
    given = f"{dtype.name}{show_shape(shape)}"
    if dtype.hasobject:
        raise FileError(path, f"{entry}holds Python objects, which are not read")
    same = dtype_of(dtype.newbyteorder("=")) is operand.dtype
    if not same or not fits(shape, operand.shape):
        raise FileError(
            path, f"{entry}holds {given}; input {operand.name!r} needs {show_operand(operand)}"
        )


def _list(names: list[str]) -> str:
    return ", ".join(map(repr, names)) or "nothing"
