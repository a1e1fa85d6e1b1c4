"""The file format `nnapi-vectors/1`: one `.npz` for each specification, with a JSON header and the
bytes of every buffer.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec
import numpy as np

from penstock.arguments import path_of
from penstock.errors import PenstockError
from penstock.ir import NDArray

FORMAT: Final = "nnapi-vectors/1"
MAX_BYTES: Final = 1 << 30
"""Files that are larger than this when unpacked are rejected before they are read."""

Compare: TypeAlias = Literal["near", "ignored", "multinomial", "none"]


class VectorError(PenstockError):
    """A directory or file does not contain operation vectors of this format."""


class ChannelScales(msgspec.Struct, frozen=True):
    """Scales along dimension *dim*."""

    dim: int
    scales: tuple[float, ...]


class OperandEntry(msgspec.Struct, frozen=True):
    """One operand of the file; *data* is (byte offset, number of elements) in the blob."""

    type: str
    dims: tuple[int, ...]
    lifetime: Literal["input", "output", "temporary", "constant", "no_value", "subgraph"]
    name: str = ""
    scale: float = 0.0
    zero_point: int = 0
    channel_quant: ChannelScales | None = None
    data: tuple[int, int] | None = None
    value: bool | int | float | list[bool | int | float] | None = None
    shared_memory: bool = False
    empty: bool = False
    omitted: bool = False
    ignored: bool = False
    subgraph: int | None = None
    compare: Compare = "near"
    atol: float = 0.0
    rtol: float = 0.0


class OperationEntry(msgspec.Struct, frozen=True):
    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class SubgraphEntry(msgspec.Struct, frozen=True):
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operations: tuple[OperationEntry, ...]
    operands: tuple[OperandEntry, ...]
    name: str | None = None


class Derive(msgspec.Struct, frozen=True):
    """Further runs that are derived mechanically from a case."""

    tensors_as_inputs: tuple[int, ...] = ()
    inputs_as_internal: tuple[int, ...] = ()
    dynamic_output_shape: bool = False
    quant8_signed: bool = False


class CaseEntry(msgspec.Struct, frozen=True):
    name: str
    main: SubgraphEntry
    referenced: tuple[SubgraphEntry, ...] = ()
    feature_level: int | None = None
    relaxed: bool = False
    expect_failure: bool | str = False
    multinomial_tolerance: float = 0.0
    zero_sized: bool = False
    derive: Derive = Derive()


class Header(msgspec.Struct, frozen=True):
    format: str
    spec: str
    dtypes: dict[str, str]
    cases: tuple[CaseEntry, ...]
    level: str = ""
    feature_level: int | None = None


@dataclass(frozen=True, slots=True)
class Specification:
    """One file: its header, and the bytes that contain the operands' data."""

    header: Header
    blob: memoryview
    path: Path

    @property
    def name(self) -> str:
        """Level and name: unique in a directory."""
        return "/".join(filter(None, (self.header.level, self.header.spec)))

    @property
    def cases(self) -> Iterator[Case]:
        """Its cases in order."""
        return (Case(entry, self) for entry in self.header.cases)

    def flat(self, operand: OperandEntry) -> NDArray | None:
        """The elements recorded for *operand*; None if nothing is recorded.

        Raises `VectorError` if they are outside the file, or their type is unknown.
        """
        where = f"{self.path.name}, operand {operand.name!r}"
        if operand.data is None and operand.value is None:
            return None
        try:
            dtype = np.dtype(self.header.dtypes[operand.type])
        except (KeyError, TypeError, ValueError, SyntaxError) as error:
            raise VectorError(f"{where}: no element type for {operand.type}") from error
        if dtype.kind not in "biuf":
            raise VectorError(f"{where}: elements of {dtype} are no numbers")
        if operand.data is None:
            return np.atleast_1d(np.array(operand.value, dtype))
        offset, count = operand.data
        if offset < 0 or count < 0 or offset + count * dtype.itemsize > len(self.blob):
            raise VectorError(f"{where}: its values lie outside the file")
        return np.frombuffer(self.blob, dtype, count, offset)


@dataclass(frozen=True, slots=True)
class Case:
    """One case of a specification."""

    entry: CaseEntry
    specification: Specification

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def operations(self) -> frozenset[str]:
        """The operations that occur in it."""
        entries = (self.entry.main, *self.entry.referenced)
        return frozenset(operation.op for entry in entries for operation in entry.operations)

    @property
    def is_infinite_loop(self) -> bool:
        """Whether the expected failure is that of a loop that never ends."""
        names = (self.entry.expect_failure, self.name, self.specification.header.spec)
        return bool(names[0]) and any("infinite_loop" in str(n) for n in names)


def load_specification(path: Path) -> Specification:
    """Reads one file. Raises `VectorError` with the defect."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > MAX_BYTES:
            raise VectorError(f"{path}: {size} bytes; the limit is {MAX_BYTES}")
        with np.load(path, allow_pickle=False) as archive_:
            text, blob = (np.ascontiguousarray(archive_[k], np.uint8) for k in ("header", "blob"))
        header = msgspec.json.decode(text.tobytes(), type=Header)
    except VectorError:
        raise
    except Exception as error:
        # zipfile and NumPy raise arbitrary errors for a broken archive.
        raise VectorError(f"{path}: not operation vectors ({error})") from error
    if header.format != FORMAT:
        raise VectorError(f"{path}: format {header.format!r}, this version reads {FORMAT}")
    return Specification(header, memoryview(blob.tobytes()), path)


def load_directory(directory: str | os.PathLike[str]) -> list[Specification]:
    """Every specification below *directory*, ordered by path, or that of one file.

    Raises `VectorError` if there is none, `InputError` if it is no path.
    """
    directory = Path(path_of(directory, "operation vectors lie in a directory"))
    if directory.is_file():
        return [load_specification(directory)]
    if not directory.is_dir():
        raise VectorError(f"{directory}: no such directory")
    paths = sorted(directory.rglob("*.npz"))
    if not paths:
        raise VectorError(f"{directory}: holds no operation vectors (.npz files)")
    return [load_specification(path) for path in paths]
