"""Payloads of cache files: their hash, and private copies that no other process can write.

The bytes that are hashed are therefore the bytes that are used. The hash is a Merkle tree of
SHA-256 over leaves of 1 MiB. Leaves and nodes start with different bytes (RFC 6962 section 2.1), so
no node can pass for a leaf. The root covers the length, so no two payloads share a tree.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final, TypeVar

from penstock.errors import WrongLength
from penstock.sealed.files import FileSystem, read_exactly
from penstock.sealed.private_memory import CAN_FREEZE, PrivateMemory

T = TypeVar("T")

LEAF_BYTES: Final = 1 << 20
PIECE_BYTES: Final = 1 << 18
"""Bytes that are read and hashed at a time."""

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

    It lives while a view does. The caller has bounded *length*. Leaves are hashed in memory that no
    other process can write. Raises `WrongLength` or `OSError`.
    """
    if not length:
        return memoryview(b""), merkle_root(b"")
    # Without pages that can be made read-only, Python's views protect the bytes.
    region = PrivateMemory(length) if CAN_FREEZE else None
    with memoryview(bytearray(length)) if region is None else region.view() as target:

        def leaf(start: int, stop: int) -> bytes:
            digest = hashlib.sha256(_LEAF)
            for begin in range(start, stop, PIECE_BYTES):
                # Hashed while it is in the processor's cache.
                with target[begin : min(begin + PIECE_BYTES, stop)] as part:
                    if not read_exactly(files, fd, part, offset + begin):
                        raise WrongLength(f"{place} became shorter while it was read")
                    digest.update(part)
            return digest.digest()

        root = root_of(map_leaves(length, leaf), length)
        if region is None:
            return memoryview(target.obj).toreadonly(), root
    region.freeze()
    return region.frozen(), root


def private_payload(length: int, fill: Callable[[memoryview], None]) -> memoryview:
    """*length* read-only bytes that *fill* writes, at the start of a page.

    A payload that is saved from here lies in this process once: what later loads of equal payloads
    return is the same memory. Raises `OSError` if the system has no memory.
    """
    if not length:
        return memoryview(b"")
    if not CAN_FREEZE:
        with memoryview(mmap.mmap(-1, length)) as target:
            fill(target)
            return memoryview(target.obj).toreadonly()
    region = PrivateMemory(length)
    with region.view() as target:
        fill(target)
    region.freeze()
    return region.frozen()


def shared(payload: memoryview, root: bytes) -> memoryview:
    """The bytes of *payload*, whose `merkle_root` is *root*, stored once in this process.

    Equal payloads share one memory, as those of the clients of one driver's host. Only memory that
    nobody can write any more is shared.
    """
    region = payload.obj
    if not isinstance(region, PrivateMemory) or not region.is_frozen:
        return payload
    if payload.nbytes != region.length:
        return payload
    key = root, payload.nbytes
    del payload
    return _regions.setdefault(key, region).frozen()


_regions: weakref.WeakValueDictionary[tuple[bytes, int], PrivateMemory] = (
    weakref.WeakValueDictionary()
)
