"""The payloads of the cache files: the bytes that OpenVINO exported, with large constants stored
separately.

The model file has a manifest (its length in 4 bytes, little-endian, then msgpack) and the
artefact's parts, one after another, without the large constants that were found in them. The data
file has those constants. Loading rebuilds the parts in private memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np

from penstock.driverkit.artefact import Ports, framed, unframed
from penstock.errors import GeneralFailure
from penstock.ir import NDArray

SCHEMA: Final = 3
SMALLEST_CONSTANT: Final = 1024
"""Least size, in bytes, of a constant that is stored in the data file."""

NEEDLE: Final = 64
MAX_TRIES: Final = 16
"""Most matches of a constant's first bytes that are compared with the whole constant."""

ALIGNMENT: Final = 64


class Manifest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """*engine* is the build that exported the artefact, *form* its form.

    *parts* are the lengths of its parts: the exported bytes and, for a baseline, also the graph
    that they were compiled from (XML, then weights). Each of *cuts* is (offset in all parts
    together, offset in the data file, length), ascending.
    """

    schema: int
    engine: str
    form: str
    ports: Ports
    parts: tuple[int, ...]
    cuts: tuple[tuple[int, int, int], ...]


def pack(
    parts: Sequence[bytes], constants: Sequence[NDArray], ports: Ports, engine: str, form: str
) -> tuple[bytes, bytes]:
    """The payloads of the model file, and of the data file, which stores each constant once."""
    cuts: list[tuple[int, int, int]] = []
    kept: list[memoryview] = []
    moved: dict[int, int] = {}
    start = at = data_bytes = 0
    for part in parts:
        content, at = memoryview(part), 0
        for offset, index in find_constants(part, constants):
            length = constants[index].nbytes
            if index not in moved:
                moved[index] = data_bytes
                data_bytes += length
            cuts.append((start + offset, moved[index], length))
            kept.append(content[at:offset])
            at = offset + length
        kept.append(content[at:])
        start += len(part)
    lengths = tuple(map(len, parts))
    manifest = Manifest(SCHEMA, engine, form, ports, lengths, tuple(cuts))
    data = b"".join(_bytes_of(constants[index]) for index in moved)
    return framed(manifest, *kept), data


def unpack(model: memoryview, data: memoryview) -> tuple[Manifest, list[NDArray]]:
    """The manifest, and all parts in fresh memory. Raises `GeneralFailure` for other contents."""
    manifest, body = unframed(model, Manifest, SCHEMA)
    _check(manifest, body.nbytes, data.nbytes)
    total = sum(manifest.parts)
    whole = _aligned(total)
    source, constants = (np.frombuffer(content, np.uint8) for content in (body, data))
    read = at = 0
    for offset, place, length in (*manifest.cuts, (total, 0, 0)):
        whole[at:offset] = source[read : read + offset - at]
        read += offset - at
        at = offset + length
        whole[offset:at] = constants[place : place + length]
    bounds = [sum(manifest.parts[:k]) for k in range(len(manifest.parts) + 1)]
    return manifest, [whole[a:b] for a, b in pairwise(bounds)]


def find_constants(part: bytes, constants: Sequence[NDArray]) -> list[tuple[int, int]]:
    """Where large constants are in *part*: (offset, number of the constant), ascending, apart."""
    found: list[tuple[int, int]] = []
    end = 0
    for index, value in enumerate(constants):
        if value.nbytes < SMALLEST_CONSTANT:
            continue
        content = _bytes_of(value)
        # OpenVINO writes constants in the order of the graph. The search for each constant starts
        # behind the previous one.
        offset = _find(part, content, end)
        if offset < 0:
            offset = _find(part, content, 0)
        if offset >= 0:
            found.append((offset, index))
            end = offset + value.nbytes
    apart: list[tuple[int, int]] = []
    end = 0
    for offset, index in sorted(found):
        if offset >= end:
            apart.append((offset, index))
            end = offset + constants[index].nbytes
    return apart


def _find(part: bytes, content: memoryview, start: int) -> int:
    """The offset of *content* in *part* from *start* on; -1 if `MAX_TRIES` do not find it."""
    for _ in range(MAX_TRIES):
        start = part.find(content[:NEEDLE], start)
        if start < 0 or part[start : start + content.nbytes] == content:
            return start
        start += 1
    return -1


def _check(manifest: Manifest, model_bytes: int, data_bytes: int) -> None:
    if len(manifest.parts) not in {1, 3} or min(manifest.parts) < 0:
        raise GeneralFailure("the artefact has parts that nobody writes")
    end = moved = 0
    for offset, place, length in manifest.cuts:
        if offset < end or length < 0 or not 0 <= place <= data_bytes - length:
            raise GeneralFailure("the artefact's constants overlap, or lie outside its files")
        end = offset + length
        moved += length
    total = sum(manifest.parts)
    # Each constant occurs at most once in each part.
    if moved > len(manifest.parts) * data_bytes or end > total or total - moved != model_bytes:
        raise GeneralFailure("the artefact's files are not of the lengths that its manifest says")


def _bytes_of(value: NDArray) -> memoryview:
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8).data


def _aligned(length: int) -> NDArray:
    """Fresh writable bytes, aligned for vector instructions."""
    room = np.empty(length + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + length]
