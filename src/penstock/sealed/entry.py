"""An entry's open cache files, their key and registry, and loading.

Loading makes every check in order, on payloads in memory that no other process can write.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol, TypeAlias

from msgspec import Struct

from penstock import errors
from penstock.sealed.files import (
    SYSTEM_FILES,
    FileSystem,
    Handle,
    Renaming,
    read_exactly,
    require_regular,
    unreadable,
)
from penstock.sealed.header import (
    FORMAT,
    HEADER_BYTES,
    MAGIC,
    Header,
    Kind,
    file_digest,
    is_sealed,
    word_of,
)
from penstock.sealed.keys import KeyStore
from penstock.sealed.payload import private_copy, shared
from penstock.sealed.registry import FileRecord, Owner, Registry, Row

Payload: TypeAlias = bytes | bytearray | memoryview

TOKEN_BYTES: Final = 32


class SaveReport(Struct, frozen=True):
    """Result of a save: the new *entry*'s id, or None and the *reason*, `<Name>: sentence`.

    *emptied*: it failed after the first write, so the files are empty and their old entry is
    dropped. *in_use*: another process holds the entry's lock; nothing was done. *payloads* are the
    model and data payloads of a save that succeeded: those of `private_payload` in the memory that
    equal payloads of this process share, the others as they were given.
    """

    entry: bytes | None = None
    reason: str | None = None
    emptied: bool = False
    in_use: bool = False
    payloads: tuple[Payload, ...] = ()

    @property
    def saved(self) -> bool:
        return self.entry is not None


class LoadedEntry(Struct, frozen=True):
    """A verified entry: read-only payloads in memory that no other process can write."""

    entry: bytes
    model: tuple[memoryview, ...]
    data: tuple[memoryview, ...]


class Signer(Protocol):
    """Signs headers with the user's key and verifies them. Thread-safe. Raises `Unreadable`."""

    def sign(self, header: Header) -> bytes:
        """The 256 bytes of *header*, sealed with the current key."""
        ...

    def is_sealed(self, content: bytes) -> bool:
        """Whether the user's key signed these 256 bytes, even if it was stored meanwhile."""
        ...


class KeySigner:
    """A `Signer` with the key of *keys*."""

    def __init__(self, keys: KeyStore) -> None:
        self._keys = keys

    def sign(self, header: Header) -> bytes:
        return header.pack(self._keys.key())

    def is_sealed(self, content: bytes) -> bool:
        if is_sealed(content, self._keys.key()):
            return True
        if content.startswith(MAGIC):
            with suppress(errors.Unreadable):
                return is_sealed(content, self._keys.refresh())
        return False


class Keeper(Protocol):
    """Another process that holds the key and the registries; this process has neither."""

    @property
    def origin(self) -> str:
        """The origin that it seals for, of its start (`penstock.distribution`)."""
        ...

    def trust(self, owner: Owner) -> tuple[Registry, Signer]:
        """The registry and signer of *owner*. Their calls raise `Unreadable`."""
        ...


_keepers: list[Keeper] = []


def kept_by(keeper: Keeper) -> None:
    """Makes *keeper* the holder of the key for seals of this process without their own."""
    _keepers[:] = [keeper]


def keeper() -> Keeper | None:
    """The process that holds the key for this process; None if this process holds it."""
    return _keepers[0] if _keepers else None


class Trust(Struct, frozen=True):
    """The key and registry of one driver version; *needed* counts its model and data files."""

    owner: Owner
    needed: tuple[int, int]
    files: FileSystem
    registry: Registry
    signer: Signer


class CacheFile(Struct, frozen=True):
    """One open cache file and its place in the entry."""

    fd: int
    kind: int
    number: int

    @property
    def place(self) -> str:
        return f"{word_of(self.kind)} file {self.number}"


class CacheConfig(Protocol):
    """The cache fields of a preparation's configuration: `hal.PrepareConfig` has them."""

    @property
    def model_cache(self) -> Sequence[Handle]: ...
    @property
    def data_cache(self) -> Sequence[Handle]: ...
    @property
    def token(self) -> bytes: ...
    @property
    def binding(self) -> bytes: ...
    @property
    def lock(self) -> Handle | None: ...


class EntryFiles(Struct, frozen=True):
    """A `CacheConfig`: the open files of one entry, and what they are sealed for."""

    model_cache: Sequence[Handle]
    data_cache: Sequence[Handle]
    token: bytes
    binding: bytes
    lock: Handle | None = None


def cache_files(given: CacheConfig, needed: tuple[int, int]) -> list[CacheFile]:
    """The files, model files first. Raises `InvalidArgument` for wrong counts or lengths."""
    models, datas = given.model_cache, given.data_cache
    if (len(models), len(datas)) != needed:
        raise errors.InvalidArgument(
            f"{len(models)} model and {len(datas)} data cache files were given, "
            f"and {needed[0]} and {needed[1]} are needed"
        )
    if not any(needed):
        raise errors.InvalidArgument("the driver has no cache files")
    if len(given.token) != TOKEN_BYTES or len(given.binding) != TOKEN_BYTES:
        raise errors.InvalidArgument(
            f"token and binding have {len(given.token)} and {len(given.binding)} bytes, not 32 each"
        )
    return [
        *(CacheFile(handle.fd, Kind.MODEL, i) for i, handle in enumerate(models)),
        *(CacheFile(handle.fd, Kind.DATA, i) for i, handle in enumerate(datas)),
    ]


def read_header(handle: Handle, *, file_system: FileSystem = SYSTEM_FILES) -> Header | None:
    """The unverified header of an open cache file; None if it has none. Raises `OSError`."""
    content = bytearray(HEADER_BYTES)
    with memoryview(content) as view:
        read_exactly(file_system, handle.fd, view, 0)
    return Header.unpack(bytes(content))


def read_first(files: FileSystem, file: CacheFile, *, whole: bool = True) -> tuple[bytes, int]:
    """The first 256 bytes of *file*, padded with zeros, and its size.

    With *whole* it must be a regular file that is long enough: else `NotRegularFile`,
    `WrongLength`. Raises `Unreadable`.
    """
    content = bytearray(HEADER_BYTES)
    with naming(file, "read"):
        if not whole:
            size = files.status(file.fd).size
        elif (size := require_regular(files, file.fd, file.place).size) < HEADER_BYTES:
            raise errors.WrongLength(f"{file.place} has {size} bytes, fewer than a header")
        with memoryview(content) as view:
            if not read_exactly(files, file.fd, view, 0) and whole:
                raise errors.WrongLength(f"{file.place} became shorter while it was read")
    return bytes(content), size


def entry_of(trust: Trust, file: CacheFile, token: bytes) -> bytes | None:
    """The id of the entry of *token* that *file* belongs to; None if none. `Unreadable`."""
    content = read_first(trust.files, file, whole=False)[0]
    header = Header.unpack(content)
    if header is None or header.token != token or not trust.signer.is_sealed(content):
        return None
    return header.entry


def reason_of(error: BaseException | None) -> str:
    """`<Name>: sentence`."""
    name = "" if isinstance(error, errors.CacheError) else f"{type(error).__name__}: "
    return f"{name}{error}"


def naming(file: CacheFile, act: str) -> Renaming:
    """Turns an `OSError` of the block into `Unreadable`."""
    return unreadable(f"{file.place} cannot be {act}")


def load_entry(trust: Trust, files: Sequence[CacheFile], given: CacheConfig) -> LoadedEntry:
    """The entry in *files*. Raises a subclass of `CacheError` with the reason."""
    try:
        found = [read_first(trust.files, file) for file in files]
    except errors.WrongLength:
        with unreadable("the entry's files cannot be read"):
            sizes = [trust.files.status(file.fd).size for file in files]
        if not any(sizes):
            raise errors.NotYetWritten("the entry's files are empty") from None
        raise
    headers = [
        _verified(trust, file, content, given.token)
        for file, (content, _) in zip(files, found, strict=True)
    ]
    if any(header.entry != headers[0].entry for header in headers):
        raise errors.ForeignEntry("the files are of different entries")
    if not all(hmac.compare_digest(header.binding, given.binding) for header in headers):
        raise errors.TokenCollision("the token is that of another model, or shapes, or options")
    row = _row(trust.registry, headers[0])
    records = (*row.models, *row.datas)
    if len(records) != len(files):
        raise errors.ForeignEntry("the registry lists another number of files for this entry")
    copies: list[memoryview] = []
    rows = zip(files, found, headers, records, strict=True)
    try:
        for file, (content, size), header, record in rows:
            _check_record(file, content, size, record)
            place, length = file.place, record.length
            with naming(file, "read"):
                copy, root = private_copy(trust.files, file.fd, HEADER_BYTES, length, place)
            copies.append(copy)
            if not hmac.compare_digest(header.root, root):
                raise errors.SealBroken(f"the payload of {file.place} was altered")
            copies[-1] = shared(copy, root)
    except BaseException:
        # The traceback would keep the memory, and its descriptors, for as long as the error lives.
        for copy in copies:
            copy.release()
        raise
    models = trust.needed[0]
    return LoadedEntry(row.entry, tuple(copies[:models]), tuple(copies[models:]))


def _verified(trust: Trust, file: CacheFile, content: bytes, token: bytes) -> Header:
    """The header, if it is authentic and of this driver version, token and place."""
    header = Header.unpack(content)
    if header is None or not trust.signer.is_sealed(content):
        if trust.registry.state() is None:
            raise errors.RegistryMissing(f"no registry can tell whether {file.place} is authentic")
        raise errors.SealBroken(f"the header of {file.place} was altered")
    if header.format != FORMAT:
        raise errors.OtherVersion(f"{file.place} has format {header.format}, not {FORMAT}")
    if not hmac.compare_digest(header.driver, trust.owner.driver_digest):
        raise errors.ForeignEntry(f"{file.place} was sealed by another driver")
    if not hmac.compare_digest(header.version, trust.owner.version_digest):
        raise errors.OtherVersion(f"{file.place} was sealed by another version of the driver")
    if not hmac.compare_digest(header.token, token):
        raise errors.ForeignEntry(f"{file.place} was sealed for another token")
    if (header.kind, header.number) != (file.kind, file.number):
        raise errors.ForeignEntry(f"{file.place} was sealed as {header.place}")
    if (header.models, header.datas) != trust.needed:
        raise errors.ForeignEntry(f"{file.place} is of an entry with another number of files")
    return header


def _row(registry: Registry, header: Header) -> Row:
    if (row := registry.find(header.token, header.entry)) is not None:
        return row
    state = registry.state()
    if state is None or state.registry != header.registry:
        raise errors.RegistryMissing("the registry that listed this entry is missing")
    if state.changes < header.sequence:
        raise errors.RolledBack("the registry is older than this entry")
    raise errors.RolledBack("the registry no longer lists this entry: it was replaced or removed")


def _check_record(file: CacheFile, content: bytes, size: int, record: FileRecord) -> None:
    if size != HEADER_BYTES + record.length:
        sealed = HEADER_BYTES + record.length
        raise errors.WrongLength(f"{file.place} has {size} bytes, and {sealed} were sealed")
    if not hmac.compare_digest(record.digest, file_digest(content)):
        raise errors.SealBroken(f"{file.place} is not the one that the registry lists")
