"""Saving and loading an entry: what a driver calls."""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from penstock.errors import (
    CacheError,
    ForeignEntry,
    InputError,
    InvalidArgument,
    NotYetWritten,
    OtherVersion,
    RegistryMissing,
    RolledBack,
    SealBroken,
    TokenCollision,
    Unreadable,
    WrongLength,
)
from penstock.sealed.files import (
    SYSTEM_FILES,
    FileStatus,
    FileSystem,
    Handle,
    read_exactly,
    require_regular,
    write_all,
)
from penstock.sealed.header import FORMAT, HEADER_BYTES, MAGIC, Header, Kind, file_digest, is_sealed
from penstock.sealed.keys import KeyStore, default_key_store
from penstock.sealed.merkle import merkle_root
from penstock.sealed.private import private_copy
from penstock.sealed.registry import MOST_FILES, FileRecord, Owner, Registry, Row

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.sealed.late import LateWriter

Payload: TypeAlias = bytes | bytearray | memoryview

TOKEN_BYTES: Final = 32
ENTRY_BYTES: Final = 16


class SaveReport(NamedTuple):
    """What came of a save: the new *entry*'s id, or None and the *reason*, `<Name>: sentence`.

    *emptied*: it failed after the first byte was written, so that the files are empty and what they held
    is forgotten.
    """

    entry: bytes | None = None
    reason: str | None = None
    emptied: bool = False

    @property
    def saved(self) -> bool:
        return self.entry is not None


class LoadedEntry(NamedTuple):
    """A verified entry: read-only payloads in memory that no other process can write."""

    entry: bytes
    model: tuple[memoryview, ...]
    data: tuple[memoryview, ...]


class CacheConfig(Protocol):
    """What a preparation says of its cache files: `hal.PrepareConfig` is one."""

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


class _Emptied(Exception):
    """A save failed, for its cause, and the files were emptied."""


class _File(NamedTuple):
    """One open cache file and its place in the entry."""

    fd: int
    kind: Kind
    number: int

    @property
    def place(self) -> str:
        return f"{self.kind.word} file {self.number}"


class Seal:
    """Seals and verifies the cache entries of one version of one driver (docs/cache-format.md).

    *driver* and *version* are the device's name and version string, *files* its `cache_files_needed()`.
    The registry and the key lie under the knob `state_dir` unless *registry* and *keys* are given.
    Thread-safe; nothing stays open between calls.

        seal = Seal("sample", VERSION, files=(1, 0))
        report = seal.save(config.model_cache, config.data_cache, config.token, config.binding, model=[program])
        loaded = seal.load(config.model_cache, config.data_cache, config.token, config.binding)
    """

    def __init__(
        self,
        driver: str,
        version: str,
        *,
        files: tuple[int, int],
        registry: Registry | None = None,
        keys: KeyStore | None = None,
        file_system: FileSystem = SYSTEM_FILES,
    ) -> None:
        if not (0 <= files[0] <= MOST_FILES and 0 <= files[1] <= MOST_FILES):
            raise InputError(f"a driver has 0 to {MOST_FILES} files of each kind, not {files}")
        self.owner, self._needed, self._files = Owner(driver, version), files, file_system
        self._given_registry, self._given_keys = registry, keys
        self._found: tuple[Registry, KeyStore] | None = None

    @property
    def file_system(self) -> FileSystem:
        return self._files

    @property
    def registry(self) -> Registry:
        """The driver version's registry. Raises `Unreadable` when it can have none."""
        return self._trust()[0]

    def save(
        self,
        model_cache: Sequence[Handle],
        data_cache: Sequence[Handle],
        token: bytes,
        binding: bytes,
        *,
        model: Sequence[Payload] = (),
        data: Sequence[Payload] = (),
    ) -> SaveReport:
        """Writes one payload into each file and records their hashes. Never raises: a compile goes on.

        Nothing of the handles' offsets or contents is assumed. The files must not be written by anybody
        else meanwhile. After a failure they are empty, or as they were. An entry that the files held
        before, of the same token, is forgotten once the new one stands.
        """
        return self._save(model_cache, data_cache, token, binding, model, data)

    def replace(
        self,
        model_cache: Sequence[Handle],
        data_cache: Sequence[Handle],
        token: bytes,
        binding: bytes,
        *,
        expected: bytes | None,
        guard: AbstractContextManager[object],
        model: Sequence[Payload] = (),
        data: Sequence[Payload] = (),
    ) -> SaveReport:
        """As `save`, only if the files still hold the entry *expected* (None: they are all empty).

        *guard* is entered once the payloads are hashed, and left when files and registry agree again: it
        keeps readers and other writers out. If entering it raises, nothing is written. `LateWriter` passes
        the entry's lock.
        """
        return self._save(model_cache, data_cache, token, binding, model, data, (expected,), guard)

    def late_writer(self, config: CacheConfig, *, expected: bytes | None) -> LateWriter | None:
        """A writer into the cache files of *config* for after the preparation; None where it has none, or no lock.

        *expected* is the entry that the driver loaded or saved there, None where it saved nothing.
        """
        if config.lock is None or not (config.model_cache or config.data_cache):
            return None
        from penstock.sealed.late import LateWriter

        return LateWriter(
            self,
            config.model_cache,
            config.data_cache,
            config.token,
            config.binding,
            lock=config.lock,
            expected=expected,
        )

    def load(
        self,
        model_cache: Sequence[Handle],
        data_cache: Sequence[Handle],
        token: bytes,
        binding: bytes,
    ) -> LoadedEntry:
        """The entry's payloads, copied into private memory and verified there.

        Raises `InvalidArgument` for a wrong number of handles or length of token, and for anything else a
        subclass of `CacheError`, whose text a driver passes on in its `GeneralFailure`.
        """
        files = self._checked(model_cache, data_cache, token, binding)
        registry, keys = self._trust()
        try:
            headers = [self._header(file) for file in files]
        except WrongLength:
            self._check_written(files)
            raise
        key = key_of(headers[0][0], keys) or keys.key()
        parsed = [
            self._trusted(file, content, key, registry, token)
            for file, (content, _) in zip(files, headers, strict=True)
        ]
        self._same_entry(parsed, binding)
        row = self._row(registry, parsed[0])
        records = (*row.models, *row.datas)
        if len(records) != len(files):
            raise ForeignEntry("the registry lists another number of files for this entry")
        copies: list[memoryview] = []
        try:
            for file, (content, size), header, record in zip(
                files, headers, parsed, records, strict=True
            ):
                self._check_record(file, content, size, record)
                with _naming(file, "read"):
                    copy, root = private_copy(
                        self._files, file.fd, HEADER_BYTES, record.length, file.place
                    )
                copies.append(copy)
                if not hmac.compare_digest(header.root, root):
                    raise SealBroken(f"the payload of {file.place} was altered")
        except BaseException:
            # The traceback would keep the memory, and its descriptors, for as long as the error lives.
            for copy in copies:
                copy.release()
            raise
        models = self._needed[0]
        return LoadedEntry(row.entry, tuple(copies[:models]), tuple(copies[models:]))

    def entry_of(self, handle: Handle, token: bytes) -> bytes | None:
        """The id of the entry of *token* that an open file was sealed as part of; None if of none.

        Says nothing of the payload. Raises `Unreadable`.
        """
        return self._entry(_File(handle.fd, Kind.MODEL, 0), token)

    def forget(self, token: bytes, entry: bytes) -> None:
        """Drops an entry that was replaced or removed: its files are refused from then on."""
        self.registry.remove(token, entry)

    def _checked(
        self,
        model_cache: Sequence[Handle],
        data_cache: Sequence[Handle],
        token: bytes,
        binding: bytes,
    ) -> list[_File]:
        if (len(model_cache), len(data_cache)) != self._needed:
            raise InvalidArgument(
                f"{len(model_cache)} model and {len(data_cache)} data cache files were given, "
                f"and {self._needed[0]} and {self._needed[1]} are needed"
            )
        if not any(self._needed):
            raise InvalidArgument("the driver has no cache files")
        if len(token) != TOKEN_BYTES or len(binding) != TOKEN_BYTES:
            raise InvalidArgument(
                f"token and binding have {len(token)} and {len(binding)} bytes, not 32 each"
            )
        return [
            *(_File(handle.fd, Kind.MODEL, i) for i, handle in enumerate(model_cache)),
            *(_File(handle.fd, Kind.DATA, i) for i, handle in enumerate(data_cache)),
        ]

    def _save(
        self,
        model_cache: Sequence[Handle],
        data_cache: Sequence[Handle],
        token: bytes,
        binding: bytes,
        model: Sequence[Payload],
        data: Sequence[Payload],
        expected: tuple[bytes | None] | None = None,
        guard: AbstractContextManager[object] | None = None,
    ) -> SaveReport:
        """Whatever happens, a report. Without *expected* the files may hold anything."""
        try:
            files = self._checked(model_cache, data_cache, token, binding)
            if (len(model), len(data)) != self._needed:
                raise InvalidArgument(
                    f"{len(model)} model and {len(data)} data payloads for {self._needed} files"
                )
            payloads = (*model, *data)
            roots = [merkle_root(payload) for payload in payloads]
            with guard or nullcontext():
                replaced = self._replaced(files, token, expected)
                return SaveReport(self._seal(files, token, binding, payloads, roots, replaced))
        except _Emptied as emptied:
            return SaveReport(reason=reason_of(emptied.__cause__), emptied=True)
        except Exception as error:  # noqa: BLE001  # whatever it is, the compile goes on without a cache
            return SaveReport(reason=reason_of(error))

    def _replaced(
        self, files: Sequence[_File], token: bytes, expected: tuple[bytes | None] | None
    ) -> set[bytes]:
        """The entries of *token* that *files* hold, if they may be written."""
        replaced: set[bytes] = set()
        for file in files:
            with _naming(file, "read"):
                status = require_regular(self._files, file.fd, file.place)
            old = self._entry(file, token)
            if expected is not None:
                _check_unchanged(file, status, old, expected[0])
            if old is not None:
                replaced.add(old)
        return replaced

    def _seal(
        self,
        files: Sequence[_File],
        token: bytes,
        binding: bytes,
        payloads: Sequence[Payload],
        roots: Sequence[bytes],
        replaced: set[bytes],
    ) -> bytes:
        """Writes the files and changes the registry with them; the new entry's id."""
        registry, keys = self._trust()
        lengths = [memoryview(payload).nbytes for payload in payloads]
        state = registry.open()
        # After the registry, which takes a key that somebody else has stored meanwhile.
        key = keys.key()
        common = Header(
            kind=0,
            number=0,
            models=self._needed[0],
            datas=self._needed[1],
            sequence=state.changes + 1,
            length=0,
            entry=os.urandom(ENTRY_BYTES),
            registry=state.registry,
            token=token,
            binding=binding,
            driver=self.owner.driver_digest,
            version=self.owner.version_digest,
            root=b"",
        )
        headers = [
            common._replace(kind=file.kind, number=file.number, length=length, root=root).pack(key)
            for file, length, root in zip(files, lengths, roots, strict=True)
        ]
        records = [
            FileRecord(file_digest(header), length)
            for header, length in zip(headers, lengths, strict=True)
        ]
        models = self._needed[0]
        registry.begin(Row(token, common.entry, tuple(records[:models]), tuple(records[models:])))
        try:
            with _naming(files[0], "written"):
                self._files.truncate(files[0].fd, 0)
        except Exception:
            with suppress(CacheError):
                registry.remove(token, common.entry)
            raise
        try:
            self._write(files, headers, payloads)
        except Exception as error:
            self._undo(registry, files, token, {common.entry, *replaced})
            raise _Emptied from error
        # The entry stands; at worst the one that it replaces stays listed.
        with suppress(CacheError):
            registry.publish(token, common.entry, sorted(replaced))
        return common.entry

    def _write(
        self, files: Sequence[_File], headers: Sequence[bytes], payloads: Sequence[Payload]
    ) -> None:
        """Writes every payload before the first seal, so that a file under way is never taken for whole."""
        for file, payload in zip(files, payloads, strict=True):
            with _naming(file, "written"):
                self._files.truncate(file.fd, 0)
                write_all(self._files, file.fd, payload, HEADER_BYTES)
                self._files.sync(file.fd)
        for file, header in zip(files, headers, strict=True):
            with _naming(file, "written"):
                write_all(self._files, file.fd, header, 0)
                self._files.sync(file.fd)

    def _undo(
        self, registry: Registry, files: Sequence[_File], token: bytes, entries: set[bytes]
    ) -> None:
        """Empties the files and forgets what they held: half an entry is of no use."""
        for file in files:
            with suppress(OSError):
                self._files.truncate(file.fd, 0)
        for entry in entries:
            with suppress(CacheError):
                registry.remove(token, entry)

    def _entry(self, file: _File, token: bytes) -> bytes | None:
        found = self._header(file, whole=False)[0]
        header = Header.unpack(found)
        if header is None or header.token != token or key_of(found, self._trust()[1]) is None:
            return None
        return header.entry

    def _header(self, file: _File, *, whole: bool = True) -> tuple[bytes, int]:
        """The first 256 bytes of *file*, zeros where it has none, and its size. With *whole* it must be a
        regular file that is long enough.
        """
        content = bytearray(HEADER_BYTES)
        with _naming(file, "read"):
            if not whole:
                size = self._files.status(file.fd).size
            elif (size := require_regular(self._files, file.fd, file.place).size) < HEADER_BYTES:
                raise WrongLength(f"{file.place} has {size} bytes, fewer than a header")
            with memoryview(content) as view:
                if not read_exactly(self._files, file.fd, view, 0) and whole:
                    raise WrongLength(f"{file.place} became shorter while it was read")
        return bytes(content), size

    def _check_written(self, files: Sequence[_File]) -> None:
        """Raises `NotYetWritten` where every file is empty."""
        sizes = set()
        for file in files:
            with _naming(file, "read"):
                sizes.add(self._files.status(file.fd).size)
        if sizes == {0}:
            raise NotYetWritten("the entry's files are empty")

    def _trusted(
        self, file: _File, content: bytes, key: bytes, registry: Registry, token: bytes
    ) -> Header:
        """What the header says, if the key's holder said it and it is of this driver version, token and place."""
        header = Header.unpack(content)
        if header is None or not is_sealed(content, key):
            if registry.state() is None:
                raise RegistryMissing(f"no registry can tell whether {file.place} is authentic")
            raise SealBroken(f"the header of {file.place} was altered")
        if header.format != FORMAT:
            raise OtherVersion(
                f"{file.place} has format {header.format}, and this version reads {FORMAT}"
            )
        if not hmac.compare_digest(header.driver, self.owner.driver_digest):
            raise ForeignEntry(f"{file.place} was sealed by another driver")
        if not hmac.compare_digest(header.version, self.owner.version_digest):
            raise OtherVersion(f"{file.place} was sealed by another version of the driver")
        if not hmac.compare_digest(header.token, token):
            raise ForeignEntry(f"{file.place} was sealed for another token")
        if (header.kind, header.number) != (file.kind, file.number):
            raise ForeignEntry(f"{file.place} was sealed as {header.place}")
        if (header.models, header.datas) != self._needed:
            raise ForeignEntry(f"{file.place} is of an entry with another number of files")
        return header

    def _same_entry(self, headers: Sequence[Header], binding: bytes) -> None:
        if any(header.entry != headers[0].entry for header in headers):
            raise ForeignEntry("the files are of different entries")
        if not all(hmac.compare_digest(header.binding, binding) for header in headers):
            raise TokenCollision(
                "the token was given to something else: another model, or shapes, or options"
            )

    def _check_record(self, file: _File, content: bytes, size: int, record: FileRecord) -> None:
        if size != HEADER_BYTES + record.length:
            raise WrongLength(
                f"{file.place} has {size} bytes, and {HEADER_BYTES + record.length} were sealed"
            )
        if not hmac.compare_digest(record.digest, file_digest(content)):
            raise SealBroken(f"{file.place} is not the one that the registry lists")

    def _row(self, registry: Registry, header: Header) -> Row:
        if (row := registry.find(header.token, header.entry)) is not None:
            return row
        state = registry.state()
        if state is None or state.registry != header.registry:
            raise RegistryMissing("the registry that listed this entry is gone")
        if state.changes < header.sequence:
            raise RolledBack("the registry is older than this entry")
        raise RolledBack("the registry no longer lists this entry: it was replaced or removed")

    def _trust(self) -> tuple[Registry, KeyStore]:
        """The registry and the key store, found at first use."""
        if self._found is None:
            keys, registry = self._given_keys, self._given_registry
            if keys is None or registry is None:
                from penstock import knobs
                from penstock.sealed.sqlite_registry import SqliteRegistry, make_private_directory

                directory = state_directory() / "sealed"
                make_private_directory(directory)
                keys = keys or default_key_store(directory, knobs.key_store)
                registry = registry or SqliteRegistry(
                    registry_path(directory, self.owner, keys), self.owner, keys
                )
            self._found = registry, keys
        return self._found


def state_directory() -> Path:
    """Where drivers keep what must outlive the cache: the knob `state_dir`, else the user's state directory."""
    from pathlib import Path

    from penstock import knobs

    if chosen := knobs.state_dir():
        return Path(chosen).expanduser()
    return knobs.user_directory("state")


def registry_path(directory: Path, owner: Owner, keys: KeyStore) -> Path:
    """The database of *owner*'s registry. One a key store: what another key sealed is of no use."""
    readable = "".join(
        c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in owner.driver
    )
    return directory / f"{readable[:40]}-{owner.digits}-{keys.name}.sqlite"


def read_header(handle: Handle, *, file_system: FileSystem = SYSTEM_FILES) -> Header | None:
    """What an open cache file says of itself, unverified; None when it has no header. `OSError` as reading."""
    content = bytearray(HEADER_BYTES)
    with memoryview(content) as view:
        read_exactly(file_system, handle.fd, view, 0)
    return Header.unpack(bytes(content))


def key_of(header: bytes, keys: KeyStore) -> bytes | None:
    """The user's key that *header* is sealed with, even if another process stored it meanwhile; None for no key of his.

    Raises `Unreadable` where there can be no key.
    """
    if is_sealed(header, key := keys.key()):
        return key
    if header.startswith(MAGIC):
        with suppress(Unreadable):
            if is_sealed(header, key := keys.refresh()):
                return key
    return None


def _check_unchanged(
    file: _File, status: FileStatus, old: bytes | None, expected: bytes | None
) -> None:
    if expected is None and status.size:
        raise ForeignEntry(f"{file.place} was written by somebody else meanwhile")
    if old != expected:
        raise ForeignEntry(f"{file.place} holds another entry than the one to replace")


def reason_of(error: BaseException | None) -> str:
    """`<Name>: sentence`."""
    return str(error) if isinstance(error, CacheError) else f"{type(error).__name__}: {error}"


@contextmanager
def _naming(file: _File, act: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unreadable(f"{file.place} cannot be {act}: {error.strerror or error}") from None
