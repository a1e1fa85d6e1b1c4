"""Where the compilation cache keeps what it keeps."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from penstock import knobs
from penstock.errors import InputError, Unreadable


def places() -> dict[str, str | None]:
    """The cache directory, the state directory, which *key_store* holds the key of the seals
    (`file`, or `keyring`, the system's), and where that is. None where a setting keeps it from
    being known.

    Nothing is made, in the system's store neither.
    """
    from penstock.cache.location import default_directory
    from penstock.sealed.places import SEALS, state_directory

    found: dict[str, str | None] = dict.fromkeys(
        ("cache_directory", "state_directory", "key_store", "key")
    )
    try:
        found["cache_directory"] = default_directory()
        state = state_directory()
        found["state_directory"] = state
        found["key_store"] = _key_store()
    except (InputError, Unreadable, OSError):
        return found
    system = found["key_store"] == "keyring"
    found["key"] = "the system's key store" if system else str(Path(state, SEALS, "key"))
    return found


class Unwritable(NamedTuple):
    """A directory of the cache's in which nothing can be kept, and why in *text*. It is *used*
    where something was kept before, which gives hits.
    """

    text: str
    used: bool


def unwritable_places() -> list[Unwritable]:
    """The cache directory and the state directory, where they cannot be made or written. Each is
    tried with an empty file, in the nearest directory above where it is not there yet: permissions
    do not tell of quotas, mounts and special file systems.
    """
    from penstock.cache.location import default_directory
    from penstock.sealed.places import state_directory

    found = []
    for kind, find in (("cache", default_directory), ("state", state_directory)):
        with suppress(InputError, Unreadable):
            path = Path(find())
            if reason := _why_unwritable(path):
                used = _holds_something(path)
                act = "written" if _exists(path) else "made"
                means = "what is there is used, and nothing added" if used else "nothing is cached"
                text = (
                    f"the {kind} directory {path} cannot be {act}: {reason}; {means}. Set PENSTOCK_{kind.upper()}_DIR to a "
                    "directory that this user can write"
                )
                found.append(Unwritable(text, used))
    return found


def _why_unwritable(path: Path) -> str:
    if path.is_symlink() and not _exists(path):
        return "it is a symbolic link to nothing"
    place = next(each for each in (path, *path.parents) if _exists(each) or each == each.parent)
    try:
        with tempfile.NamedTemporaryFile(prefix=".penstock-", dir=place):
            return ""
    except OSError as error:
        return error.strerror or type(error).__name__


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _holds_something(path: Path) -> bool:
    try:
        return any(True for _ in path.iterdir())
    except OSError:
        return False


def unknown_places() -> list[str]:
    """Why there is no cache directory or no state directory, for each that the system has no place
    for.
    """
    from penstock.cache.location import default_directory
    from penstock.sealed.places import state_directory

    reasons = []
    for find in (default_directory, state_directory):
        with suppress(InputError, OSError):
            try:
                find()
            except Unreadable as error:
                reasons.append(error.args[0])
    return reasons


def settings_place() -> str | None:
    """Where the settings file is looked for; None for a user without a home directory."""
    path = knobs.settings_path()
    return None if path is None else str(path)


def _key_store() -> str:
    from penstock.sealed.keyring_store import LIMIT_SECONDS, quiet_backend, within

    if knobs.key_store() != "auto":
        return "file"
    try:
        return "file" if within(LIMIT_SECONDS, quiet_backend) is None else "keyring"
    except Exception:  # noqa: BLE001  # a backend fails as it likes
        return "file"
