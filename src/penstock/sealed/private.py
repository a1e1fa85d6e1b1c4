"""A copy of a file's payload that no other process can write: what is hashed is what is used."""

from __future__ import annotations

import mmap
import os
import sys
from contextlib import suppress

from penstock.errors import WrongLength
from penstock.sealed.files import FileSystem, read_exactly
from penstock.sealed.merkle import map_leaves


def private_copy(files: FileSystem, fd: int, offset: int, length: int, place: str) -> memoryview:
    """*length* bytes of *fd* from *offset* on, read-only: a sealed memfd on Linux, private memory elsewhere.

    The caller has bounded *length*. Raises `WrongLength` when the file ends before, `OSError` from reading.
    The memory lives as long as a view of it.
    """
    if not length:
        return memoryview(b"")
    if sys.platform == "linux":
        with suppress(_NoSealedMemory):
            return _sealed_copy(files, fd, offset, length, place)
    content = bytearray(length)
    with memoryview(content) as target:

        def leaf(start: int, stop: int) -> bool:
            with target[start:stop] as part:
                return read_exactly(files, fd, part, offset + start)

        if not all(map_leaves(length, leaf)):
            raise _shorter(place)
    return memoryview(content).toreadonly()


def _shorter(place: str) -> WrongLength:
    return WrongLength(f"{place} became shorter while it was read")


class _NoSealedMemory(Exception):
    """The kernel gives no sealed memory here."""


def _sealed_copy(files: FileSystem, fd: int, offset: int, length: int, place: str) -> memoryview:
    memory = _create()
    try:
        done = 0
        while done < length:
            count = files.append(memory, fd, offset + done, length - done)
            if not count:
                raise _shorter(place)
            done += count
        return memoryview(_freeze(memory, length))
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
    return mmap.mmap(
        memory, length, flags=mmap.MAP_PRIVATE | mmap.MAP_POPULATE, prot=mmap.PROT_READ
    )
