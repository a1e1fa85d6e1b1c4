"""Payloads of cache files: their hash, and private copies that no other process can write.

The bytes that are hashed are therefore the bytes that are used. The hash is a Merkle tree of
SHA-256 over leaves of 1 MiB. Leaves and nodes start with different bytes (RFC 6962 section 2.1), so
no node can pass for a leaf. The root covers the length, so no two payloads share a tree.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Final, TypeVar

from penstock.errors import WrongLength
from penstock.sealed.files import FileSystem, read_exactly, write_all

T = TypeVar("T")

LEAF_BYTES: Final = 1 << 20
_FEW_LEAVES: Final = 4
_MOST_THREADS: Final = 8
_LEAF, _NODE, _ROOT = b"\x00", b"\x01", b"\x02"


def merkle_root(content: bytes | bytearray | memoryview) -> bytes:
    """The 32-byte root over *content*, a contiguous buffer of any length, zero included.

    From 4 MiB on the leaves are hashed by as many threads as the knob `num_threads` allows.
    """
    with memoryview(content) as whole, whole.cast("B") as flat:

        def leaf(start: int, stop: int) -> bytes:
            with flat[start:stop] as part:
                return leaf_digest(part)

        return root_of(map_leaves(flat.nbytes, leaf), flat.nbytes)


def leaf_digest(content: memoryview) -> bytes:
    """The 32 bytes of one leaf."""
    digest = hashlib.sha256(_LEAF)
    digest.update(content)
    return digest.digest()


def root_of(leaves: list[bytes], size: int) -> bytes:
    """The root over the digests of all leaves of *size* bytes, in order."""
    level = leaves
    while len(level) > 1:
        level = list(_parents(level))
    return hashlib.sha256(_ROOT + size.to_bytes(8, "little") + level[0]).digest()


def map_leaves(size: int, work: Callable[[int, int], T]) -> list[T]:
    """*work*(start, stop) for each leaf of *size* bytes, in order; at least one leaf."""
    bounds = list(pairwise([*range(0, size, LEAF_BYTES), size])) or [(0, 0)]
    if len(bounds) < _FEW_LEAVES or (threads := min(_threads(), len(bounds))) < 2:
        return [work(start, stop) for start, stop in bounds]
    return _side_by_side(bounds, work, threads)


def _side_by_side(
    bounds: list[tuple[int, int]], work: Callable[[int, int], T], threads: int
) -> list[T]:
    """Hashes the leaves in as many threads, this one among them, interleaved: leaves cost alike."""
    import threading

    found: dict[int, T] = {}
    failures: list[BaseException] = []

    def share(first: int) -> None:
        try:
            for number in range(first, len(bounds), threads):
                if failures:
                    return
                found[number] = work(*bounds[number])
        except BaseException as error:  # noqa: BLE001  # carried over to the calling thread
            failures.append(error)

    others = [
        threading.Thread(target=share, args=(first,), name="penstock-hash", daemon=True)
        for first in range(1, threads)
    ]
    for thread in others:
        thread.start()
    share(0)
    for thread in others:
        thread.join()
    if failures:
        raise failures[0]
    return [found[number] for number in range(len(bounds))]


def _parents(level: list[bytes]) -> Iterator[bytes]:
    """The next level; a last node without a sibling moves up unchanged."""
    for i in range(0, len(level) - 1, 2):
        yield hashlib.sha256(_NODE + level[i] + level[i + 1]).digest()
    if len(level) % 2:
        yield level[-1]


def _threads() -> int:
    from penstock import knobs

    if wanted := knobs.num_threads():
        return wanted
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), _MOST_THREADS)
    return min(os.cpu_count() or 1, _MOST_THREADS)


def private_copy(
    files: FileSystem, fd: int, offset: int, length: int, place: str
) -> tuple[memoryview, bytes]:
    """A read-only copy of *length* bytes of *fd* from *offset* on, and their `merkle_root`.

    It is in a sealed memfd on Linux, else in private memory, and lives while a view does. The
    caller has bounded *length*. Leaves are hashed in memory that no other process can write. Raises
    `WrongLength` or `OSError`.
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
    """The bytes of *copy*, whose `merkle_root` is *root*, stored once in this process.

    Equal payloads share one sealed memory, as those of the clients of one driver's host.
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
    """As `private_copy`, in memory that is sealed against every change. `_NoSealedMemory`."""
    if sys.platform != "linux":
        raise _NoSealedMemory
    import fcntl

    try:
        memory = os.memfd_create("penstock-cache", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except (OSError, AttributeError):
        raise _NoSealedMemory from None
    # One for each working thread: it writes on exactly the bytes that it hashed.
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
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        try:
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, seals)
        except OSError:
            raise _NoSealedMemory from None
        # Before Linux 6.7 a write-sealed memfd can be mapped privately only.
        region = mmap.mmap(memory, length, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        return memoryview(region), root
    finally:
        os.close(memory)
