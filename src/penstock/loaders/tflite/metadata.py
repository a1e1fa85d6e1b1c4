"""Metadata of a file: its metadata buffers, the TFLite metadata FlatBuffer, and associated files.

Associated files (label lists) are in a zip archive behind the model (TFLite metadata guide).
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from typing import Final

from penstock import knobs
from penstock.errors import InvalidMetadata, LimitExceeded, ModelError
from penstock.export.tflite.metadata_schema import METADATA
from penstock.ir.subgraph import NO_METADATA, Metadata, TensorMetadata
from penstock.ir.types import NDArray
from penstock.loaders.flatbuffer import Reader, Values
from penstock.loaders.tflite.tensors import ARCHIVE_END, END_OF_ARCHIVE, File

ENTRY: Final = "TFLITE_METADATA"
MIB: Final = 1 << 20
LABEL_TYPES: Final = ("TENSOR_AXIS_LABELS", "TENSOR_VALUE_LABELS")
CONTENT: Final = {
    "FeatureProperties": "feature",
    "ImageProperties": "image",
    "BoundingBoxProperties": "bounding_box",
    "AudioProperties": "audio",
}


ENTRY_MEMORY: Final = 160


def read_metadata(file: File) -> Metadata:
    """The metadata of *file*. Raises `InvalidMetadata` if it cannot be read."""
    entries: dict[str, bytes] = {}
    for index, table in enumerate(file.tables("metadata")):
        where = f"metadata {index} ({table['name'] or ''})"
        try:
            file.charge(ENTRY_MEMORY)
            entries[table["name"] or ""] = file.copy(file.buffer(table["buffer"]))
        except ModelError as error:
            raise error.at(where) from None
    files = read_archive(file)
    raw = entries.get(ENTRY)
    if raw:
        return _described(file, raw, entries, files)
    if not entries and not files:
        return NO_METADATA
    return Metadata(entries=entries, files=files)


def read_archive(file: File) -> dict[str, bytes]:
    """The files of the zip archive at the end of *file*; empty if there is no archive.

    Raises `LimitExceeded` if they exceed the knob `metadata_limit_mib` together.
    """
    if END_OF_ARCHIVE not in file.tail(ARCHIVE_END):
        return {}
    import zipfile
    import zlib

    # Exceptions of zipfile and zlib on damaged archives, besides their own error classes.
    damaged = (EOFError, OSError, ValueError, IndexError, OverflowError, NotImplementedError)
    limit = knobs.metadata_limit_mib() * MIB
    files: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(_View(file.data)) as archive:
            members = [info for info in archive.infolist() if not info.is_dir()]
            if sum(info.file_size for info in members) > limit:
                raise LimitExceeded("the associated files take more than metadata_limit_mib allows")
            for info in members:
                if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise InvalidMetadata(
                        f"associated file {info.filename!r} is compressed in an unusual way"
                    )
                with archive.open(info) as stream:
                    files[info.filename] = stream.read(info.file_size)
    except ModelError:
        raise
    except (zipfile.BadZipFile, zlib.error, struct.error, RuntimeError, *damaged) as error:
        raise InvalidMetadata(f"the archive of associated files cannot be read: {error}") from None
    return files


class _View(io.RawIOBase):
    """A read-only file over a memoryview, without a copy."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}[whence]
        if base + offset < 0:
            raise ValueError("seek before the start")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # zipfile gives this
        part = self._data[self._at : self._at + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)


def _described(
    file: File, raw: bytes, entries: Mapping[str, bytes], files: Mapping[str, bytes]
) -> Metadata:
    try:
        root = Reader(memoryview(raw), METADATA, file.memory_left).root()
    except ModelError as error:
        raise InvalidMetadata(error.message, where=f"{ENTRY}, {error.where or 'header'}") from None
    subgraphs = root["subgraph_metadata"] or []
    main: Values = subgraphs[0] if subgraphs else METADATA.table("SubGraphMetadata").defaults
    return Metadata(
        root["name"] or "",
        root["description"] or "",
        root["version"] or "",
        root["author"] or "",
        root["license"] or "",
        tuple(_tensor(t, files) for t in main["input_tensor_metadata"] or ()),
        tuple(_tensor(t, files) for t in main["output_tensor_metadata"] or ()),
        entries,
        files,
    )


def _tensor(table: Values, files: Mapping[str, bytes]) -> TensorMetadata:
    content = table["content"] or {}
    kinds = METADATA.unions["ContentProperties"]
    number = content.get("content_properties_type", 0)
    kind = kinds[number] if number < len(kinds) else ""
    properties = content.get("content_properties") or {}
    color = METADATA.name("ColorSpaceType", properties.get("color_space", 0)) or ""
    stats = table["stats"] or {}
    return TensorMetadata(
        table["name"] or "",
        table["description"] or "",
        CONTENT.get(kind, ""),
        "" if color == "UNKNOWN" else color,
        _normalization(table),
        _floats(stats.get("min")),
        _floats(stats.get("max")),
        _labels(table, files),
        properties.get("sample_rate", 0),
    )


def _normalization(table: Values) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    wanted = METADATA.unions["ProcessUnitOptions"].index("NormalizationOptions")
    for unit in table["process_units"] or ():
        if unit["options_type"] == wanted and unit["options"] is not None:
            return _floats(unit["options"]["mean"]), _floats(unit["options"]["std"])
    return None


def _labels(table: Values, files: Mapping[str, bytes]) -> tuple[str, ...] | None:
    for associated in table["associated_files"] or ():
        if METADATA.name("AssociatedFileType", associated["type"]) not in LABEL_TYPES:
            continue
        content = files.get(associated["name"] or "")
        if content is not None:
            return tuple(content.decode("utf-8", "replace").splitlines())
    return None


def _floats(vector: NDArray | None) -> tuple[float, ...]:
    return () if vector is None else tuple(vector.tolist())
