"""Where the compilation cache keeps what it keeps."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from penstock import knobs
from penstock.errors import InputError, Unreadable


def places() -> dict[str, str | None]:
    """The cache directory, the state directory, which *key_store* holds the key of the seals (`file`, or
    `keyring`, the system's), and where that is. None where a setting keeps it from being known.

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


def unknown_places() -> list[str]:
    """Why there is no cache directory or no state directory, for each that the system has no place for."""
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
