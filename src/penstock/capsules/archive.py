"""The capsule file: its manifest, and reading and writing the archive."""

from __future__ import annotations

import io
import os
import stat
import struct
import time
import zipfile
from collections.abc import Sequence
from math import prod
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta, Struct

from penstock.arguments import check_kind, path_of
from penstock.errors import CapsuleError, ModelError, counted
from penstock.hal import AccuracyClass
from penstock.ir import DType, NDArray
from penstock.ir.builder import pack_strings
from penstock.ir.subgraph import unpack_strings

FORMAT: Final = 1
"""Incremented when an older reader would misunderstand a capsule."""

Text = Annotated[str, Meta(max_length=65_536)]
Count = Annotated[int, Meta(ge=0, lt=2**48)]
Stage: TypeAlias = Literal["compile", "execute", "verify", "crash"]


class Environment(Struct, frozen=True):
    """Versions of *packages*, and *knobs* that differ from their defaults."""

    python: Text
    implementation: Text
    system: Text
    machine: Text
    packages: Annotated[dict[Text, Text], Meta(max_length=64)]
    knobs: Annotated[dict[Text, Text], Meta(max_length=256)]


class DeviceRecord(Struct, frozen=True):
    """The metadata of the device that failed."""

    name: Text
    version: Text
    type: Text
    feature_level: Count


class OperationRecord(Struct, frozen=True):
    """An operation that failed: *index* in the entry subgraph, *type*, and *name* if requested."""

    index: Count
    type: Text
    name: Text = ""


class Failure(Struct, frozen=True):
    """A failure and its place.

    *stage* is "compile", "execute", "verify" (a result that departs from the reference's), or
    "crash". *error* is the driver's error, *distance* the error of the result as text.
    """

    stage: Stage
    device: DeviceRecord
    operations: Annotated[tuple[OperationRecord, ...], Meta(max_length=65_536)]
    error: Text = ""
    distance: Text = ""


class ModelRecord(Struct, frozen=True):
    """Identifies the model without containing any of it.

    It has digests, as hexadecimal digits, and the number of operations in the entry. *constants* is
    empty if their digest was not known.
    """

    structure: Text
    constants: Text
    operations: Count


class ArrayRecord(Struct, frozen=True):
    """An array in the archive, as raw little-endian elements in C order in the member *file*.

    Strings are packed as TFLite packs them. *dtype* is a `DType`'s name.
    """

    file: Text
    dtype: Text
    shape: Annotated[tuple[Count, ...], Meta(max_length=64)]
    nbytes: Count


Arrays = Annotated[tuple[ArrayRecord, ...], Meta(max_length=4096)]
Shape = Annotated[tuple[Count, ...], Meta(max_length=64)]


class CaseRecord(Struct, frozen=True):
    """The failing step: the member *model* (a `.tflite` file), its inputs, expected and actual
    results.

    *left_out* has the shape of each input if the capsule has no input data. Then *inputs*,
    *expected* and *got* are empty, and a replay uses random inputs.
    """

    model: Text
    accuracy: AccuracyClass
    inputs: Arrays
    expected: Arrays = ()
    got: Arrays = ()
    left_out: Annotated[tuple[Shape, ...], Meta(max_length=4096)] | None = None


class Manifest(Struct, frozen=True, kw_only=True):
    """The contents of a capsule except models and arrays.

    *plan* and *receipt* are those of `ExecutionPlan.to_json` and `Receipt.to_json`. *crash* is the
    record of a dead host process, as JSON. *no_case* says why there is no *case*. *created* is in
    seconds since the epoch.
    """

    format: int = FORMAT
    penstock: Text
    created: float = msgspec.field(default_factory=time.time)
    environment: Environment
    failure: Failure
    model: ModelRecord | None = None
    plan: msgspec.Raw = msgspec.Raw(b"null")
    receipt: msgspec.Raw = msgspec.Raw(b"null")
    case: CaseRecord | None = None
    no_case: Text = ""
    crash: msgspec.Raw = msgspec.Raw(b"null")


class Capsule(Struct, frozen=True, eq=False):
    """A *manifest*; with a case, also the failing step as `.tflite` bytes, *model*, and arrays."""

    manifest: Manifest
    model: bytes = b""
    inputs: Sequence[NDArray] = ()
    expected: Sequence[NDArray] = ()
    got: Sequence[NDArray] = ()

    def show(self) -> str:
        """The failure in a few lines, without a final newline."""
        failure, environment = self.manifest.failure, self.manifest.environment
        which = ", ".join(f"{o.index} ({o.type})" for o in failure.operations[:4])
        if len(failure.operations) > 4:
            which += f" and {len(failure.operations) - 4} more"
        device, machine = failure.device, f"{environment.system} {environment.machine}"
        lines = [
            f"{failure.stage} on {device.name}, version {device.version}",
            f"operation {which}" if which else "no operation is known",
            failure.error or failure.distance or "no error is known",
            f"penstock {self.manifest.penstock}, Python {environment.python}, {machine}",
        ]
        if self.manifest.case is None:
            lines.append(f"no step to repeat: {self.manifest.no_case or 'none was kept'}")
        else:
            nbytes = len(self.model) + sum(a.nbytes for a in self.inputs)
            data = "and its inputs" if self.manifest.case.left_out is None else "without input data"
            lines.append(f"the step {data}: {counted(nbytes, 'byte')}")
        return "\n".join(lines)


MOST_BYTES: Final = 1 << 30
"""Maximum size of a capsule's file."""
MOST_MANIFEST_BYTES: Final = 16 << 20
MOST_CRASH_BYTES: Final = 4 << 20
"""Maximum size of a manifest's crash record, which commands print in full."""
MOST_MEMBERS: Final = 4096
MOST_DIRECTORY_BYTES: Final = 1 << 20

MANIFEST: Final = "capsule.json"
MODEL: Final = "step.tflite"

ARRAYS: Final = ("inputs", "expected", "got")
"""The fields of a case, and of a capsule, that are arrays."""

_DATE: Final = (1980, 1, 1, 0, 0, 0)
_END: Final = struct.Struct("<4s4H2IH")
_LOCATOR: Final = b"PK\x06\x07"
_OPAQUE: Final = frozenset({DType.RESOURCE, DType.VARIANT})


def write(path: str | os.PathLike[str], capsule: Capsule) -> None:
    """Writes *capsule* to *path*. A new file is readable by its owner only.

    Raises `CapsuleError` for a capsule that is too large, `InputError` for an argument that is no
    path or no capsule, and `OSError`.
    """
    name = path_of(path, "a capsule is written to a path")
    content = dump(capsule)
    with open(name, "wb", opener=_owners) as file:
        file.write(content)


def dump(capsule: Capsule) -> bytes:
    """The bytes of a capsule's file. Equal capsules give equal bytes.

    Raises `CapsuleError` for a capsule that is too large, `InputError` for another type.
    """
    check_kind(capsule, Capsule, "a Capsule is needed")
    check_kind(capsule.manifest, Manifest, "a Capsule has a Manifest")
    members: dict[str, bytes] = {}
    manifest = capsule.manifest
    if manifest.case is not None:
        members[MODEL] = capsule.model
        arrays = {kind: _put(members, kind, getattr(capsule, kind)) for kind in ARRAYS}
        case = msgspec.structs.replace(manifest.case, model=MODEL, **arrays)
        manifest = msgspec.structs.replace(manifest, case=case)
    encoded = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    if len(encoded) > MOST_MANIFEST_BYTES:
        raise CapsuleError(f"a manifest of {len(encoded)} bytes is too large for a capsule")
    total = len(encoded) + sum(map(len, members.values()))
    if total > MOST_BYTES - MOST_DIRECTORY_BYTES or len(members) >= MOST_MEMBERS:
        raise CapsuleError(
            f"{len(members)} members of {total} bytes together are too much for a capsule"
        )
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED, allowZip64=False) as archive:
        for name, content in {MANIFEST: encoded, **members}.items():
            archive.writestr(zipfile.ZipInfo(name, _DATE), content)
    return stream.getvalue()


def read(path: str | os.PathLike[str]) -> Capsule:
    """Reads the capsule in the file at *path*.

    Raises `CapsuleError` for another file, `InputError` for an invalid path, and `OSError`.
    """
    name = path_of(path, "a capsule is read from a path")
    status = os.stat(name)
    if not stat.S_ISREG(status.st_mode):
        raise CapsuleError("it is not a regular file")
    if status.st_size > MOST_BYTES:
        raise CapsuleError(
            f"it has {counted(status.st_size, 'byte')}; a capsule has {MOST_BYTES} at most"
        )
    with open(name, "rb", opener=_without_waiting) as file:
        # The file may have been replaced after the check.
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise CapsuleError("it is not a regular file")
        return parse(file.read(MOST_BYTES + 1))


def parse(content: bytes) -> Capsule:
    """Parses the bytes of a capsule.

    Raises only `CapsuleError`, which names the fault, and `InputError` for another type.
    """
    check_kind(content, (bytes, bytearray), "a capsule is read from bytes")
    members = _members(content)
    if MANIFEST not in members:
        raise CapsuleError(f"there is no {MANIFEST} in it")
    encoded = members.pop(MANIFEST)
    if len(encoded) > MOST_MANIFEST_BYTES:
        raise CapsuleError(f"its manifest has {len(encoded)} bytes, {MOST_MANIFEST_BYTES} at most")
    manifest = _manifest(encoded)
    case = manifest.case
    if case is None:
        return Capsule(manifest)
    if case.left_out is not None and (case.inputs or case.expected or case.got):
        raise CapsuleError("its manifest says that arrays are left out, and names some")
    return Capsule(
        manifest,
        _take(members, case.model),
        *(tuple(_array(members, record) for record in getattr(case, kind)) for kind in ARRAYS),
    )


def _manifest(encoded: bytes) -> Manifest:
    try:
        found = msgspec.json.decode(encoded, type=_Version).format
        if found != FORMAT:
            raise CapsuleError(f"it is of format {found}; this version reads format {FORMAT}")
        # Raw JSON, such as plan and receipt, is checked nowhere else.
        str(encoded, "utf-8")
        manifest = msgspec.json.decode(encoded, type=Manifest)
        if len(manifest.crash) > MOST_CRASH_BYTES:
            raise CapsuleError(
                f"its crash record has {len(manifest.crash)} bytes, {MOST_CRASH_BYTES} at most"
            )
        msgspec.json.decode(manifest.crash)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CapsuleError(f"its manifest cannot be read: {error}") from None
    return manifest


class _Version(msgspec.Struct, frozen=True):
    format: int


def _members(content: bytes) -> dict[str, bytes]:
    """The members of the archive, uncompressed. Checks the directory's size first."""
    if len(content) > MOST_BYTES:
        raise CapsuleError(f"it is longer than {MOST_BYTES} bytes")
    if len(content) < _END.size:
        raise CapsuleError("it is no capsule: too short for an archive")
    mark, disk, first, here, entries, size, offset, comment = _END.unpack(content[-_END.size :])
    if mark != b"PK\x05\x06" or comment or disk or first or here != entries:
        raise CapsuleError("it is no capsule, or cut short: the archive has no end")
    if content[-_END.size - 20 : -_END.size][:4] == _LOCATOR:
        raise CapsuleError("its archive is of the ZIP64 form, which capsules do not have")
    if entries > MOST_MEMBERS or size > MOST_DIRECTORY_BYTES:
        raise CapsuleError(f"its archive has {entries} members, in a directory of {size} bytes")
    if offset + size + _END.size != len(content):
        raise CapsuleError("its archive's directory is not where it says")
    members: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for info in archive.infolist():
                if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & ~0x800:
                    if MANIFEST not in archive.NameToInfo:
                        raise CapsuleError(f"it is no capsule: it has no {MANIFEST}")
                    raise CapsuleError(f"its member {info.filename!r} is packed or encrypted")
                if info.file_size != info.compress_size:
                    raise CapsuleError(f"its member {info.filename!r} lies about its size")
            if sum(info.file_size for info in archive.infolist()) > len(content):
                raise CapsuleError("its members overlap")
            for info in archive.infolist():
                if info.filename in members:
                    raise CapsuleError(f"its member {info.filename!r} is there twice")
                with archive.open(info) as member:
                    members[info.filename] = member.read(info.file_size)
    except CapsuleError:
        raise
    except (zipfile.BadZipFile, EOFError, OSError, ValueError, RuntimeError, struct.error) as error:
        raise CapsuleError(f"its archive is damaged: {error}") from None
    return members


def _take(members: dict[str, bytes], name: str) -> bytes:
    """Removes and returns member *name*. Used once only: a repeated array would use much memory."""
    if name not in members:
        raise CapsuleError(f"its manifest names {name!r}, which is not in it, or names it twice")
    return members.pop(name)


def _array(members: dict[str, bytes], record: ArrayRecord) -> NDArray:
    raw = _take(members, record.file)
    try:
        dtype = DType(record.dtype)
    except ValueError:
        raise CapsuleError(f"{record.file} has the unknown element type {record.dtype!r}") from None
    if dtype in _OPAQUE:
        raise CapsuleError(
            f"{record.file} has elements of type {record.dtype}, which have no bytes"
        )
    if len(raw) != record.nbytes:
        raise CapsuleError(f"{record.file} has {len(raw)} bytes, not {record.nbytes}")
    elements = prod(record.shape)
    if dtype is DType.STRING:
        if elements > len(raw):
            raise CapsuleError(f"{record.file} is too short for {elements} strings")
        try:
            return unpack_strings(memoryview(raw), record.shape)
        except (ModelError, ValueError, struct.error) as error:
            raise CapsuleError(f"{record.file} holds no strings: {error}") from None
    if elements * dtype.numpy.itemsize != len(raw):
        raise CapsuleError(
            f"{record.file} has {len(raw)} bytes, and {record.dtype}{list(record.shape)} needs "
            f"{elements * dtype.numpy.itemsize}"
        )
    if dtype is DType.BOOL and any(raw.translate(None, b"\0\1")):
        raise CapsuleError(f"{record.file} has bytes that are neither true nor false")
    # A shape with a zero may have any other dimension, so NumPy makes the final check.
    try:
        return np.frombuffer(bytearray(raw), dtype.numpy).reshape(record.shape)
    except ValueError as error:
        raise CapsuleError(f"{record.file} has an impossible shape: {error}") from None


def _put(
    members: dict[str, bytes], kind: str, arrays: Sequence[NDArray]
) -> tuple[ArrayRecord, ...]:
    records = []
    for position, array in enumerate(arrays):
        name = f"{kind}/{position}.bin"
        dtype = _dtype_of(array)
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        members[name] = raw = pack_strings(array) if dtype is DType.STRING else little.tobytes()
        records.append(ArrayRecord(name, dtype.value, tuple(array.shape), len(raw)))
    return tuple(records)


def _dtype_of(array: NDArray) -> DType:
    from penstock.ir.types import dtype_of

    if array.dtype.hasobject:
        return DType.STRING
    found = dtype_of(array.dtype)
    if found is None:
        raise CapsuleError(f"arrays of {array.dtype} have no form in a capsule")
    return found


def _without_waiting(path: str, flags: int) -> int:
    """Opens a file without waiting for another user's lease or for a pipe's writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _owners(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
