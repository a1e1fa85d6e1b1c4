"""Where registries, the key and locks are stored."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final

from penstock.arguments import check_kind
from penstock.errors import Unreadable
from penstock.sealed.registry import Owner

if TYPE_CHECKING:
    from penstock.sealed.files import StrPath
    from penstock.sealed.keys import KeyStore


MOST_NAMES: Final = 4096
"""Most names of the directory that are checked."""
_SUFFIXES: Final = (".sqlite", ".sqlite-wal", ".sqlite-shm", ".sqlite-journal")


def remove_former(directory: str) -> None:
    """Removes the key and the registries of earlier versions in *directory*.

    Also removes the directory once it is empty. Other files stay, and so do files that cannot be
    removed. A link is not followed.
    """
    if os.path.islink(directory):
        return
    with suppress(OSError):
        with os.scandir(directory) as entries:
            names = [entry.name for entry in islice(entries, MOST_NAMES)]
        for name in names:
            is_key = name == "key" or (name.startswith("key.") and name.endswith(".tmp"))
            if is_key or name.endswith(_SUFFIXES):
                with suppress(OSError):
                    os.unlink(os.path.join(directory, name))
        os.rmdir(directory)


SEALS: Final = "seals"
"""The directory of key and registries in the state directory."""


MOST_REGISTRIES = 1024
"""Most registries of drivers and versions: a driver in a host process could create any number."""


def state_directory() -> str:
    """The directory of state that must outlive the cache: the knob `state_dir`, else the user's."""
    from penstock import knobs

    if chosen := knobs.state_dir():
        return knobs.absolute(chosen)
    return knobs.user_directory("state")


def sealed_directory() -> str:
    """`seals` in the state directory, created if necessary, where no other user can write.

    Removes the `sealed` of earlier versions: drivers in the sandbox could read that key. Raises
    `Unreadable`.
    """
    directory = _private(SEALS)
    if os.path.lexists(former := os.path.join(os.path.dirname(directory), "sealed")):
        remove_former(former)
    return directory


def lock_directory() -> str:
    """`locks` in the state directory, created as `sealed_directory`.

    No other user can hold a lock there. Raises `Unreadable` if it cannot be created.
    """
    return _private("locks")


STORES: Final = "stores"
"""The directory of the histories of shared stores in the state directory."""


def store_directory() -> str:
    """`stores` in the state directory, created as `sealed_directory`.

    It has the history of shared stores. Raises `Unreadable` if it cannot be created.
    """
    return _private(STORES)


def asked_path(store: str) -> str:
    """The empty file whose time says when the shared store at the URL *store* was last asked."""
    from hashlib import sha256

    name = sha256(store.encode()).hexdigest()[:32]
    return os.path.join(state_directory(), STORES, f"{name}.asked")


def _private(name: str) -> str:
    state = state_directory()
    directory = os.path.join(state, name)
    make_private_directory(directory)
    _keep_others_out(state)
    return directory


def registry_path(directory: StrPath, owner: Owner, keys: KeyStore) -> str:
    """The file of *owner*'s registry: one for each key store, since keys differ."""
    check_kind(owner, Owner, "a registry has an Owner")
    allowed = (c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in owner.driver)
    readable = "".join(allowed)
    return os.path.join(directory, f"{readable[:40]}-{owner.digits}-{keys.name}.registry")


def bound_registries(directory: str) -> None:
    """Removes the oldest registries beyond `MOST_REGISTRIES`; their entries are compiled again."""
    try:
        with os.scandir(directory) as entries:
            found = [entry.path for entry in entries if entry.name.endswith(".registry")]
        if len(found) <= MOST_REGISTRIES:
            return
        for path in sorted(found, key=_changed)[: len(found) - MOST_REGISTRIES]:
            os.unlink(path)
    except OSError:
        # Others remove some too.
        return


def _changed(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0


SHADERS: Final = "shaders"


def shader_directory() -> str:
    """The directory where graphics drivers of the system keep the shaders that they compiled for
    Penstock. Nothing is created. Raises `Unreadable` for a user without a home directory.
    """
    from penstock import knobs

    chosen = knobs.cache_dir()
    root = knobs.absolute(chosen) if chosen else knobs.user_directory("cache")
    return os.path.join(root, SHADERS)


def make_private_directory(path: StrPath) -> None:
    """Makes *path* and its parents private (0700). Raises `Unreadable` if that fails."""
    try:
        _make(os.fspath(path))
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode):
            raise Unreadable(f"{path} is a link or no directory")
        if sys.platform != "win32":
            if status.st_uid != os.geteuid():
                raise Unreadable(f"{path} belongs to another user")
            if status.st_mode & 0o077:
                os.chmod(path, 0o700)
    except OSError as error:
        raise Unreadable(f"{path} cannot be made: {error.strerror}") from None


def _make(path: str, *, below: bool = False) -> None:
    """Creates *path* and its parents with mode 0700, whatever the process's umask is."""
    try:
        os.mkdir(path, 0o700)
    except FileNotFoundError:
        # In /proc nothing can be made, also where the parent exists (*below*).
        if below or (parent := os.path.dirname(path)) == path:
            raise
        _make(parent)
        _make(path, below=True)
    except OSError:
        if not os.path.isdir(path):
            raise
    else:
        # The process's umask may have removed the owner's own rights.
        if sys.platform != "win32" and os.lstat(path).st_mode & 0o777 != 0o700:
            os.chmod(path, 0o700)


def _keep_others_out(path: str) -> None:
    """Keeps other users out: one who can rename in *path* can restore older content."""
    if sys.platform == "win32":
        return
    try:
        status = os.stat(path)
        if status.st_uid not in {os.geteuid(), 0}:
            raise Unreadable(f"{path} belongs to another user")
        if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
            os.chmod(path, stat.S_IMODE(status.st_mode) & ~0o022)
    except OSError as error:
        raise Unreadable(f"{path} cannot be kept to its owner: {error.strerror}") from None
