"""Seals for cache files, as a driver uses them: one `Seal` for each driver version."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from penstock.distribution import current_origin
from penstock.errors import InputError
from penstock.sealed.entry import (
    CacheConfig,
    CacheFile,
    KeySigner,
    LoadedEntry,
    Payload,
    SaveReport,
    Signer,
    Trust,
    cache_files,
    entry_of,
    keeper,
    load_entry,
    reason_of,
)
from penstock.sealed.files import SYSTEM_FILES, FileSystem, Handle
from penstock.sealed.header import Kind
from penstock.sealed.keys import KeyStore, default_key_store
from penstock.sealed.places import registry_path, sealed_directory, state_directory
from penstock.sealed.registry import MOST_FILES, Owner, Registry

if TYPE_CHECKING:
    from penstock.sealed.late import LateWriter


class Seal:
    """Seals and verifies the cache entries of one version of one driver (docs/cache-format.md).

    *driver* and *version* are the device's name and version string, *files* its
    `cache_files_needed()`. Its origin is the current one (`penstock.distribution`): a device that
    creates the seal after its own construction does so in `made_by`. The registry and the key are
    below the knob `state_dir` unless *registry* and *keys* are given. A driver in a host process
    has neither: the broker seals for it, with the origin that it was started for. Thread-safe; no
    file stays open between calls.

        seal = Seal("sample", VERSION, files=(1, 0))
        report = seal.save(config, model=[program])
        loaded = seal.load(config)
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
        other = keeper() if registry is None and keys is None else None
        origin = current_origin() if other is None else other.origin
        self.owner, self._needed, self._files = Owner(driver, version, origin), files, file_system
        self._given_registry, self._given_keys = registry, keys
        self._found: Trust | None = None
        self._state = ""

    @property
    def file_system(self) -> FileSystem:
        return self._files

    @property
    def registry(self) -> Registry:
        """The driver version's registry. Raises `Unreadable` if there can be none."""
        return self._trust().registry

    def save(
        self, config: CacheConfig, *, model: Sequence[Payload] = (), data: Sequence[Payload] = ()
    ) -> SaveReport:
        """Writes one payload into each cache file of *config* and records their hashes.

        Never raises, so that a compile continues. The files' offsets and contents do not matter. No
        other process may write the files meanwhile. After a failure they are empty or unchanged. An
        older entry of the token is dropped.
        """
        return self._save(config, (model, data))

    def replace(
        self,
        config: CacheConfig,
        *,
        expected: bytes | None,
        guard: AbstractContextManager[object],
        model: Sequence[Payload] = (),
        data: Sequence[Payload] = (),
    ) -> SaveReport:
        """As `save`, if the files still hold the entry *expected* (None: they are empty).

        *guard* is entered before the payloads are hashed, and left once files and registry agree,
        to exclude other writers. If entering it raises, nothing is written.
        """
        return self._save(config, (model, data), (expected,), guard)

    def late_writer(self, config: CacheConfig, *, expected: bytes | None) -> LateWriter | None:
        """A writer into the cache files of *config*, for use after the preparation.

        None if *config* has no cache files or no lock, or if the process has no descriptor left.
        *expected* is the entry that the driver loaded or saved there, None if it saved nothing.
        """
        if config.lock is None or not (config.model_cache or config.data_cache):
            return None
        try:
            # It cannot be imported without a free descriptor.
            from penstock.sealed.late import LateWriter
        except Exception:  # noqa: BLE001  # whatever it is, the compile goes on without a cache
            return None
        return LateWriter(self, config, expected=expected)

    def load(self, config: CacheConfig) -> LoadedEntry:
        """The payloads in the cache files of *config*, copied to private memory and verified there.

        Raises `InvalidArgument` for a wrong number of handles or length of token. Any other error
        is a subclass of `CacheError`, whose text a driver passes on in its `GeneralFailure`.
        """
        files = cache_files(config, self._needed)
        return load_entry(self._trust(), files, config)

    def entry_of(self, handle: Handle, token: bytes) -> bytes | None:
        """The id of the entry of *token* that the open file belongs to; None if it belongs to none.

        Does not check the payload. Raises `Unreadable`.
        """
        return entry_of(self._trust(), CacheFile(handle.fd, Kind.MODEL, 0), token)

    def forget(self, token: bytes, entry: bytes) -> None:
        """Drops an entry that was replaced or removed: its files are rejected from then on."""
        self.registry.remove(token, entry)

    def _save(
        self,
        given: CacheConfig,
        payloads: tuple[Sequence[Payload], Sequence[Payload]],
        expected: tuple[bytes | None] | None = None,
        guard: AbstractContextManager[object] | None = None,
    ) -> SaveReport:
        try:
            # Only saving needs this module; it cannot be imported without a free descriptor.
            from penstock.sealed.writing import save_entry
        # Whatever it is, the compile goes on without a cache.
        except Exception as error:  # noqa: BLE001
            return SaveReport(reason=reason_of(error))
        return save_entry(self._trust, self._needed, given, payloads, expected, guard)

    def _trust(self) -> Trust:
        """The key and registry, found at first use and when the state directory changes."""
        keys, registry = self._given_keys, self._given_registry
        is_given = keys is not None and registry is not None
        state = "" if is_given or keeper() is not None else state_directory()
        if self._found is None or state != self._state:
            self._state = state
            if registry is None and keys is None and (other := keeper()) is not None:
                found = other.trust(self.owner)
            else:
                found = own_trust(self.owner, registry, keys)
            self._found = Trust(self.owner, self._needed, self._files, *found)
        return self._found


def own_trust(
    owner: Owner, registry: Registry | None = None, keys: KeyStore | None = None
) -> tuple[Registry, Signer]:
    """The registry and signer of *owner* with this process's key. Raises `Unreadable`."""
    if registry is None or keys is None:
        from penstock import knobs
        from penstock.sealed.file_registry import FileRegistry

        directory = sealed_directory()
        keys = keys or default_key_store(directory, knobs.key_store)
        registry = registry or FileRegistry(registry_path(directory, owner, keys), owner, keys)
    return registry, KeySigner(keys)
