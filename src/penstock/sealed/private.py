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

    def fill(target: memoryview) -> None:
        def leaf(start: int, stop: int) -> bool:
            with target[start:stop] as part:
                return read_exactly(files, fd, part, offset + start)

        if not all(map_leaves(length, leaf)):
            raise WrongLength(f"{place} became shorter while it was read")

    if not length:
        return memoryview(b"")
    if sys.platform == "linux" and hasattr(os, "memfd_create"):
        with suppress(_NoSealedMemory):
            memory = _create(length)
            try:
                with mmap.mmap(memory, length) as writable, memoryview(writable) as target:
                    fill(target)
                return memoryview(_freeze(memory, length))
            finally:
                os.close(memory)
    content = bytearray(length)
    with memoryview(content) as target:
        fill(target)
    return memoryview(content).toreadonly()


class _NoSealedMemory(Exception):
    """The kernel gives no sealed memory here."""


def _create(length: int) -> int:
    if sys.platform != "linux":
        raise _NoSealedMemory
    try:
        memory = os.memfd_create("penstock-cache", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:
        raise _NoSealedMemory from None
    try:
        os.ftruncate(memory, length)
    except OSError:
        os.close(memory)
        raise _NoSealedMemory from None
    return memory


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
