"""Saving an entry: its row, payloads and seals, and undoing a failed save."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Final, TypeAlias

from msgspec.structs import replace

from penstock.errors import CacheError, ForeignEntry, InvalidArgument, WrongLength
from penstock.sealed.entry import (
    CacheConfig,
    CacheFile,
    Payload,
    SaveReport,
    Trust,
    cache_files,
    entry_of,
    naming,
    reason_of,
)
from penstock.sealed.files import require_regular, write_all
from penstock.sealed.header import HEADER_BYTES, Header, file_digest
from penstock.sealed.payload import merkle_root, shared
from penstock.sealed.registry import FileRecord, Row

ENTRY_BYTES: Final = 16

Expected: TypeAlias = tuple[bytes | None]


class _Emptied(Exception):
    """A save failed for its cause, and the files were emptied."""


def save_entry(
    find_trust: Callable[[], Trust],
    needed: tuple[int, int],
    given: CacheConfig,
    payloads: tuple[Sequence[Payload], Sequence[Payload]],
    expected: Expected | None = None,
    guard: AbstractContextManager[object] | None = None,
) -> SaveReport:
    """Writes the payloads of model and data files. Always returns a report.

    Without *expected* the files may hold anything. *guard* is held from their first check until
    they and the registry agree.
    """
    try:
        files = cache_files(given, needed)
        if (len(payloads[0]), len(payloads[1])) != needed:
            raise InvalidArgument(
                f"{len(payloads[0])} model and {len(payloads[1])} data payloads for {needed} files"
            )
        contents = (*payloads[0], *payloads[1])
        roots = [merkle_root(content) for content in contents]
        with guard or nullcontext():
            trust = find_trust()
            replaced = _replaced(trust, files, given.token, expected)
            entry = _seal(trust, files, given, contents, roots, replaced)
        return SaveReport(entry, payloads=tuple(map(_kept, contents, roots)))
    except _Emptied as emptied:
        return SaveReport(reason=reason_of(emptied.__cause__), emptied=True)
    # Whatever it is, the compile goes on without a cache.
    except Exception as error:  # noqa: BLE001
        return SaveReport(reason=reason_of(error))


def _kept(content: Payload, root: bytes) -> Payload:
    """*content* in the memory that equal payloads share, if it can be shared."""
    return shared(content, root) if isinstance(content, memoryview) else content


def _replaced(
    trust: Trust, files: Sequence[CacheFile], token: bytes, expected: Expected | None
) -> set[bytes]:
    """The entries of *token* that *files* hold, if they may be written."""
    replaced: set[bytes] = set()
    seen: dict[tuple[int, int], CacheFile] = {}
    for file in files:
        with naming(file, "read"):
            status = require_regular(trust.files, file.fd, file.place)
        with naming(file, "written"):
            # Checked before any write: if one file cannot be written, the entry stays unchanged.
            trust.files.write(file.fd, memoryview(b""), 0)
        # On systems without file numbers, all files have the number 0.
        if status.identity[1] and (first := seen.setdefault(status.identity, file)) is not file:
            raise InvalidArgument(f"{first.place} and {file.place} are one file")
        old = entry_of(trust, file, token)
        if expected == (None,) and status.size:
            raise ForeignEntry(f"{file.place} was written by another process meanwhile")
        if expected not in {None, (old,)}:
            raise ForeignEntry(f"{file.place} holds another entry than the one to replace")
        if old is not None:
            replaced.add(old)
    return replaced


def _seal(
    trust: Trust,
    files: Sequence[CacheFile],
    given: CacheConfig,
    payloads: Sequence[Payload],
    roots: Sequence[bytes],
    replaced: set[bytes],
) -> bytes:
    """Writes the files and changes the registry with them. Returns the new entry's id."""
    registry, entry = trust.registry, os.urandom(ENTRY_BYTES)
    lengths = [memoryview(payload).nbytes for payload in payloads]
    headers = _headers(trust, files, given, entry, lengths, roots)
    records = [
        FileRecord(file_digest(header), length)
        for header, length in zip(headers, lengths, strict=True)
    ]
    models = trust.needed[0]
    registry.begin(Row(given.token, entry, tuple(records[:models]), tuple(records[models:])))
    try:
        with naming(files[0], "written"):
            trust.files.truncate(files[0].fd, 0)
    except Exception:
        with suppress(CacheError):
            registry.remove(given.token, entry)
        raise
    try:
        _write(trust, files, headers, payloads)
    except Exception as error:
        _undo(trust, files, given.token, {entry, *replaced})
        raise _Emptied from error
    # The entry is valid; at worst the replaced entry stays listed.
    with suppress(CacheError):
        registry.publish(given.token, entry, sorted(replaced))
    return entry


def _headers(
    trust: Trust,
    files: Sequence[CacheFile],
    given: CacheConfig,
    entry: bytes,
    lengths: Sequence[int],
    roots: Sequence[bytes],
) -> list[bytes]:
    """The sealed header of each file of *entry*."""
    state = trust.registry.open()
    common = Header(
        kind=0,
        number=0,
        models=trust.needed[0],
        datas=trust.needed[1],
        sequence=state.changes + 1,
        length=0,
        entry=entry,
        registry=state.registry,
        token=given.token,
        binding=given.binding,
        driver=trust.owner.driver_digest,
        version=trust.owner.version_digest,
        root=b"",
    )
    # After the registry, which uses the new key if another process has stored one meanwhile.
    return [
        trust.signer.sign(
            replace(common, kind=file.kind, number=file.number, length=length, root=root)
        )
        for file, length, root in zip(files, lengths, roots, strict=True)
    ]


def _write(
    trust: Trust, files: Sequence[CacheFile], headers: Sequence[bytes], payloads: Sequence[Payload]
) -> None:
    """Writes every payload before the first seal, so a partial file is never valid."""
    for file, payload in zip(files, payloads, strict=True):
        with naming(file, "written"):
            trust.files.truncate(file.fd, 0)
            write_all(trust.files, file.fd, payload, HEADER_BYTES)
            _check_length(trust, file, payload)
            trust.files.sync(file.fd)
    for file, header in zip(files, headers, strict=True):
        with naming(file, "written"):
            write_all(trust.files, file.fd, header, 0)
            trust.files.sync(file.fd)


def _check_length(trust: Trust, file: CacheFile, payload: Payload) -> None:
    """Raises `WrongLength` if the payload is at a wrong offset: the file was opened to append."""
    with memoryview(payload) as view:
        wanted = HEADER_BYTES + view.nbytes if view.nbytes else 0
    if (size := trust.files.status(file.fd).size) != wanted:
        raise WrongLength(
            f"{file.place} has {size} bytes after its payload was written, not {wanted}: "
            "it was opened to append, or another process writes it"
        )


def _undo(trust: Trust, files: Sequence[CacheFile], token: bytes, entries: set[bytes]) -> None:
    """Empties the files and drops their entry: half an entry is useless."""
    for file in files:
        with suppress(OSError):
            trust.files.truncate(file.fd, 0)
    for entry in entries:
        with suppress(CacheError):
            trust.registry.remove(token, entry)
