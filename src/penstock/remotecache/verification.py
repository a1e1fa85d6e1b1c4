"""A store's metadata as a machine trusts it: verified by python-tuf, and remembered between starts.

The history lies in the state directory, for each store and trusted root. It tells a machine which
versions it has seen, so that older ones are refused.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import Final, TypeVar

from tuf.api import exceptions
from tuf.api.metadata import (
    Metadata,
    MetaFile,
    Root,
    Snapshot,
    TargetFile,
    Targets,
    Timestamp,
)
from tuf.ngclient import Updater, UpdaterConfig
from tuf.ngclient.fetcher import FetcherInterface

from penstock.errors import (
    CacheError,
    Expired,
    NotTrusted,
    PenstockError,
    RolledBack,
    SealBroken,
    StoreUnavailable,
    WrongLength,
)
from penstock.logs import printable
from penstock.remotecache import bins, roles
from penstock.remotecache.stores import ObjectStore
from penstock.sealed.locks import locked
from penstock.sealed.places import store_directory

T = TypeVar("T", Root, Snapshot, Targets, Timestamp)

_BASE: Final = "penstock://"
_CONFIG: Final = UpdaterConfig(
    max_root_rotations=roles.MOST_ROTATIONS,
    max_delegations=roles.MOST_DELEGATIONS,
    root_max_length=roles.MOST_ROOT,
    timestamp_max_length=roles.MOST_TIMESTAMP,
    snapshot_max_length=roles.MOST_SNAPSHOT,
    targets_max_length=roles.MOST_TARGETS,
)


class Listed:
    """An entry that *publisher* lists: its *target*, with length and hashes, and the identifiers of
    the publisher's *keys* at that time.
    """

    def __init__(self, publisher: str, keys: tuple[str, ...], target: TargetFile) -> None:
        self.publisher, self.keys, self.target = publisher, keys, target

    @property
    def name(self) -> str:
        """The name of the object in the store. It has the hash of the content."""
        return object_name(self.target)


def object_name(target: TargetFile) -> str:
    """The name of the object of *target*."""
    return f"{roles.ENTRIES}/{target.hashes['sha256']}"


class _Fetcher(FetcherInterface):
    """Reads metadata from *store*."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.etags: dict[str, str] = {}
        self.requests = 0

    def _fetch(self, url: str) -> Iterator[bytes]:
        name = f"{roles.METADATA}/{url.removeprefix(_BASE)}"
        self.requests += 1
        found = self._store.get(name, roles.MOST_TARGETS)
        if found is None:
            raise exceptions.DownloadHTTPError(f"the store has no {name}", 404)
        self.etags[name] = found.etag
        return iter((found.content,))


class Metadatas:
    """The verified metadata of *store* under the trusted *root*, its bytes.

    *directory* has the history; None is below the state directory. Use it in one thread.
    """

    def __init__(self, store: ObjectStore, root: bytes, directory: str | None = None) -> None:
        self.store, self._root = store, root
        named = sha256(sha256(root).digest() + store.url.encode()).hexdigest()[:32]
        self.directory = os.path.join(directory or store_directory(), named)
        self._fetcher = _Fetcher(store)
        self._updater: Updater | None = None

    def refresh(self, seconds: float = 10.0) -> None:
        """Fetches and verifies what is newer than the history.

        Raises `Expired`, `RolledBack` for versions older than the history, `SealBroken` for bytes
        that another role does not name, `NotTrusted`, `WrongLength` and `StoreUnavailable`.
        """
        self._updater = None
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        with self.exclusive(seconds), _named():
            try:
                self._updater = self._refreshed(self.directory)
            except exceptions.RepositoryError:
                if not (revoked := self._revoked_lists()):
                    raise
                self._forget(revoked)
                self._updater = self._refreshed(self.directory)

    def _refreshed(self, directory: str) -> Updater:
        updater = Updater(
            directory, _BASE, fetcher=self._fetcher, config=_CONFIG, bootstrap=self._root
        )
        updater.refresh()
        return updater

    def _revoked_lists(self) -> set[str]:
        """The lists in the history that are of publishers whom the root does not know any more."""
        with suppress(NotTrusted):
            trusted = {"targets", *self.publishers()}
            meta = self.history("snapshot", Snapshot).meta
            return {name for name in meta if roles.publisher_of(name) not in trusted}
        return set()

    def _forget(self, revoked: Collection[str]) -> None:
        """Takes the *revoked* lists out of the history.

        TUF refuses a snapshot that lacks a list which an earlier one had. A store drops those of
        revoked publishers, so the next snapshot is verified in an empty history with the present
        timestamp, and no other list may be missing there or older.
        """
        with tempfile.TemporaryDirectory(dir=self.directory) as fresh:
            with suppress(FileNotFoundError):
                shutil.copy(os.path.join(self.directory, "timestamp.json"), fresh)
            shutil.copytree(f"{self.directory}/root_history", f"{fresh}/root_history")
            self._refreshed(fresh)
            path = os.path.join(fresh, "snapshot.json")
            after = Metadata[Snapshot].from_file(path).signed.meta
            for name, before in self.history("snapshot", Snapshot).meta.items():
                if name not in revoked and (
                    (now := after.get(name)) is None or now.version < before.version
                ):
                    raise exceptions.BadVersionNumberError(f"the snapshot has an older {name}")
            os.replace(path, os.path.join(self.directory, "snapshot.json"))

    @contextmanager
    def exclusive(self, seconds: float) -> Iterator[None]:
        """Holds the history for the block. Raises `StoreUnavailable`."""
        fd = os.open(os.path.join(self.directory, "lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            with locked(fd, exclusive=True, timeout=seconds) as held:
                if not held:
                    raise StoreUnavailable(
                        "another process is still reading the store's metadata after a wait of "
                        f"{seconds:.3g} s"
                    )
                yield
        finally:
            os.close(fd)

    @property
    def etag(self) -> str:
        """The ETag of the timestamp that `refresh` read."""
        return self._fetcher.etags.get(roles.TIMESTAMP, "")

    @property
    def requests(self) -> int:
        """How many objects were asked for."""
        return self._fetcher.requests

    def publishers(self) -> dict[str, tuple[str, ...]]:
        """The identifiers of the keys of each publisher that is trusted now.

        The root lists these keys too, so that a revocation holds as soon as the root is known.
        """
        delegations = self.history("targets", Targets).delegations
        if delegations is None or delegations.roles is None:
            return {}
        known = self.history("root", Root).roles["timestamp"].keyids
        keys = {
            name: tuple(key for key in role.keyids if key in known)
            for name, role in delegations.roles.items()
        }
        return {name: found for name, found in keys.items() if found}

    def find(self, publisher: str, token: str) -> Listed | None:
        """The entry of *token* that *publisher* lists. Raises as `refresh`."""
        path = roles.target_of(publisher, token)
        if self._updater is None or bins.bin_of(publisher, path) not in self.bins_of(publisher):
            return None
        with self.exclusive(10.0), _named():
            target = self._updater.get_targetinfo(path)
        if target is None:
            return None
        return Listed(publisher, self.publishers().get(publisher, ()), target)

    def has_list(self, publisher: str) -> bool:
        """Whether *publisher* is trusted now, and has published something."""
        if publisher not in self.publishers():
            return False
        return f"{publisher}.json" in self.history("snapshot", Snapshot).meta

    def bins_of(self, publisher: str) -> set[str]:
        """The bins of *publisher* that the snapshot names; none if it is not trusted now."""
        if not self.has_list(publisher):
            return set()
        meta = self.history("snapshot", Snapshot).meta
        return {name for name in bins.names(publisher) if f"{name}.json" in meta}

    def signed(self, role: str, delegator: Targets) -> Targets | None:
        """The list *role* that the snapshot names, for its publisher to go on from, whatever its
        date. None if *delegator* trusts none of the keys that signed it, or the store lost it.

        Raises `SealBroken` and `StoreUnavailable`.
        """
        meta = self.history("snapshot", Snapshot).meta[f"{role}.json"]
        if (content := self._content(role, meta)) is None:
            return None
        try:
            with _named():
                meta.verify_length_and_hashes(content)
                listed = Metadata[Targets].from_bytes(content)
                delegator.verify_delegate(role, listed.signed_bytes, listed.signatures)
        except NotTrusted:
            return None
        return listed.signed

    def _content(self, role: str, meta: MetaFile) -> bytes | None:
        """The metadata of *role*, from the history if it is the version of *meta*."""
        with suppress(OSError, exceptions.LengthOrHashMismatchError):
            with open(os.path.join(self.directory, f"{role}.json"), "rb") as file:
                content = file.read()
            meta.verify_length_and_hashes(content)
            return content
        name = f"{roles.METADATA}/{meta.version}.{role}.json"
        found = self.store.get(name, roles.MOST_TARGETS)
        return None if found is None else found.content

    def history(self, role: str, kind: type[T]) -> T:
        """The metadata of *role* that was verified last. Raises `NotTrusted`."""
        try:
            with open(os.path.join(self.directory, f"{role}.json"), "rb") as file:
                found = Metadata[T].from_bytes(file.read())
        except FileNotFoundError:
            raise NotTrusted("no metadata of the store was verified here before") from None
        except (OSError, exceptions.RepositoryError) as error:
            raise NotTrusted(f"the history of the store cannot be read: {error}") from None
        if not isinstance(found.signed, kind):
            raise NotTrusted(f"the history of the store has another role in place of {role}")
        return found.signed


@contextmanager
def _named() -> Iterator[None]:
    """Turns an error of python-tuf in the block into a `CacheError`."""
    try:
        yield
    except CacheError:
        raise
    except exceptions.ExpiredMetadataError as error:
        raise Expired(_words(error)) from None
    except exceptions.BadVersionNumberError as error:
        raise RolledBack(_words(error)) from None
    except exceptions.LengthOrHashMismatchError as error:
        raise SealBroken(_words(error)) from None
    except exceptions.DownloadLengthMismatchError as error:
        raise WrongLength(_words(error)) from None
    except exceptions.DownloadHTTPError as error:
        raise NotTrusted(_words(error)) from None
    except exceptions.DownloadError as error:
        cause = error.__cause__
        if isinstance(cause, CacheError):
            raise cause from None
        raise StoreUnavailable(_words(error)) from None
    except exceptions.RepositoryError as error:
        raise NotTrusted(_words(error)) from None
    except OSError as error:
        raise StoreUnavailable(
            f"the history of the store cannot be kept: {error.strerror or error}"
        ) from None
    except PenstockError:
        raise
    # Hostile metadata may make the library raise anything.
    except Exception as error:  # noqa: BLE001
        raise NotTrusted(_words(error)) from None


def _words(error: Exception) -> str:
    with suppress(Exception):
        return f"the store's metadata was refused: {printable(str(error))[:300]}"
    return "the store's metadata was refused"
