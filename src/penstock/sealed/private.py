"""A copy of a file's payload that no other process can write: what is hashed is what is used."""

from __future__ import annotations

import mmap
import os
import sys
import weakref
from contextlib import suppress

from penstock.errors import WrongLength
from penstock.sealed.files import FileSystem, read_exactly, write_all
from penstock.sealed.merkle import LEAF_BYTES, leaf_digest, map_leaves, merkle_root, root_of


def private_copy(
    files: FileSystem, fd: int, offset: int, length: int, place: str
) -> tuple[memoryview, bytes]:
    """*length* bytes of *fd* from *offset* on, read-only, and their `merkle_root`: in a sealed
    memfd on Linux, in private memory elsewhere.

    The caller has bounded *length*. Each leaf is hashed where nobody else can write, while it is
    still in the processor's cache. Raises `WrongLength` when the file ends before, `OSError` from
    reading. The memory lives as long as a view of it.
    """
    if not length:
        return memoryview(b""), merkle_root(b"")
    if sys.platform == "linux":
        with suppress(_NoSealedMemory):
            return _sealed_copy(files, fd, offset, length, place)
    content = bytearray(length)
    with memoryview(content) as target:

        def leaf(start: int, stop: int) -> bytes:
            with target[start:stop] as part:
                _read(files, fd, part, offset + start, place)
                return leaf_digest(part)

        root = root_of(map_leaves(length, leaf), length)
    return memoryview(content).toreadonly(), root


def shared(copy: memoryview, root: bytes) -> memoryview:
    """The bytes of *copy*, whose `merkle_root` is *root*, in the one sealed memory that this
    process has of them: whoever loads equal payloads, as the clients of one driver's host do, has
    them once.
    """
    region = copy.obj
    if not isinstance(region, mmap.mmap):
        return copy
    key = root, copy.nbytes
    del copy
    return memoryview(_regions.setdefault(key, region))


_regions: weakref.WeakValueDictionary[tuple[bytes, int], mmap.mmap] = weakref.WeakValueDictionary()


def _read(files: FileSystem, fd: int, part: memoryview, offset: int, place: str) -> None:
    if not read_exactly(files, fd, part, offset):
        raise WrongLength(f"{place} became shorter while it was read")


class _NoSealedMemory(Exception):
    """The kernel gives no sealed memory here."""


def _sealed_copy(
    files: FileSystem, fd: int, offset: int, length: int, place: str
) -> tuple[memoryview, bytes]:
    memory = _create()
    # One for each thread at work: what was hashed is what is written on.
    buffers: list[bytearray] = []

    def leaf(start: int, stop: int) -> bytes:
        try:
            buffer = buffers.pop()
        except IndexError:
            buffer = bytearray(min(length, LEAF_BYTES))
        with memoryview(buffer) as whole, whole[: stop - start] as part:
            _read(files, fd, part, offset + start, place)
            digest = leaf_digest(part)
            write_all(files, memory, part, start)
        buffers.append(buffer)
        return digest

    try:
        root = root_of(map_leaves(length, leaf), length)
        return memoryview(_freeze(memory, length)), root
    finally:
        os.close(memory)


def _create() -> int:
    if sys.platform != "linux" or not hasattr(os, "memfd_create"):
        raise _NoSealedMemory
    try:
        return os.memfd_create("penstock-cache", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:
        raise _NoSealedMemory from None


def _freeze(memory: int, length: int) -> mmap.mmap:
    """Seals *memory* against every change and maps it."""
    if sys.platform != "linux":
        raise _NoSealedMemory
    import fcntl

    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    try:
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, seals)
    except OSError:
        raise _NoSealedMemory from None
    # Before Linux 6.7 a write-sealed memfd can be mapped privately only.
    return mmap.mmap(memory, length, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
