"""Loading an entry: each check in its order, and payloads that are verified where nobody else can
write.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from penstock.errors import (
    ForeignEntry,
    NotYetWritten,
    OtherVersion,
    RegistryMissing,
    RolledBack,
    SealBroken,
    TokenCollision,
    WrongLength,
)
from penstock.sealed.entry import CacheFile, Lent, LoadedEntry, Trust, naming, read_first
from penstock.sealed.header import FORMAT, HEADER_BYTES, Header, file_digest
from penstock.sealed.private import private_copy, shared
from penstock.sealed.registry import FileRecord, Registry, Row


def load_entry(trust: Trust, files: Sequence[CacheFile], lent: Lent) -> LoadedEntry:
    """The entry in *files*. Raises a subclass of `CacheError` that says what is wrong with it."""
    try:
        found = [read_first(trust.files, file) for file in files]
    except WrongLength:
        _check_written(trust, files)
        raise
    headers = [
        _verified(trust, file, content, lent.token)
        for file, (content, _) in zip(files, found, strict=True)
    ]
    _check_same_entry(headers, lent.binding)
    row = _row(trust.registry, headers[0])
    records = (*row.models, *row.datas)
    if len(records) != len(files):
        raise ForeignEntry("the registry lists another number of files for this entry")
    copies: list[memoryview] = []
    try:
        for file, (content, size), header, record in zip(
            files, found, headers, records, strict=True
        ):
            _check_record(file, content, size, record)
            with naming(file, "read"):
                copy, root = private_copy(
                    trust.files, file.fd, HEADER_BYTES, record.length, file.place
                )
            copies.append(copy)
            if not hmac.compare_digest(header.root, root):
                raise SealBroken(f"the payload of {file.place} was altered")
            copies[-1] = shared(copy, root)
    except BaseException:
        # The traceback would keep the memory, and its descriptors, for as long as the error lives.
        for copy in copies:
            copy.release()
        raise
    models = trust.needed[0]
    return LoadedEntry(row.entry, tuple(copies[:models]), tuple(copies[models:]))


def _check_written(trust: Trust, files: Sequence[CacheFile]) -> None:
    """Raises `NotYetWritten` where every file is empty."""
    sizes = set()
    for file in files:
        with naming(file, "read"):
            sizes.add(trust.files.status(file.fd).size)
    if sizes == {0}:
        raise NotYetWritten("the entry's files are empty")


def _verified(trust: Trust, file: CacheFile, content: bytes, token: bytes) -> Header:
    """What the header says, if the key's holder said it and it is of this driver version, token and
    place.
    """
    header = Header.unpack(content)
    if header is None or not trust.signer.is_sealed(content):
        if trust.registry.state() is None:
            raise RegistryMissing(f"no registry can tell whether {file.place} is authentic")
        raise SealBroken(f"the header of {file.place} was altered")
    if header.format != FORMAT:
        raise OtherVersion(
            f"{file.place} has format {header.format}, and this version reads {FORMAT}"
        )
    if not hmac.compare_digest(header.driver, trust.owner.driver_digest):
        raise ForeignEntry(f"{file.place} was sealed by another driver")
    if not hmac.compare_digest(header.version, trust.owner.version_digest):
        raise OtherVersion(f"{file.place} was sealed by another version of the driver")
    if not hmac.compare_digest(header.token, token):
        raise ForeignEntry(f"{file.place} was sealed for another token")
    if (header.kind, header.number) != (file.kind, file.number):
        raise ForeignEntry(f"{file.place} was sealed as {header.place}")
    if (header.models, header.datas) != trust.needed:
        raise ForeignEntry(f"{file.place} is of an entry with another number of files")
    return header


def _check_same_entry(headers: Sequence[Header], binding: bytes) -> None:
    if any(header.entry != headers[0].entry for header in headers):
        raise ForeignEntry("the files are of different entries")
    if not all(hmac.compare_digest(header.binding, binding) for header in headers):
        raise TokenCollision(
            "the token was given to something else: another model, or shapes, or options"
        )


def _row(registry: Registry, header: Header) -> Row:
    if (row := registry.find(header.token, header.entry)) is not None:
        return row
    state = registry.state()
    if state is None or state.registry != header.registry:
        raise RegistryMissing("the registry that listed this entry is gone")
    if state.changes < header.sequence:
        raise RolledBack("the registry is older than this entry")
    raise RolledBack("the registry no longer lists this entry: it was replaced or removed")


def _check_record(file: CacheFile, content: bytes, size: int, record: FileRecord) -> None:
    if size != HEADER_BYTES + record.length:
        raise WrongLength(
            f"{file.place} has {size} bytes, and {HEADER_BYTES + record.length} were sealed"
        )
    if not hmac.compare_digest(record.digest, file_digest(content)):
        raise SealBroken(f"{file.place} is not the one that the registry lists")
