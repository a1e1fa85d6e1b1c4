"""Where the compilation cache keeps what it keeps."""

from __future__ import annotations

from pathlib import Path

from penstock.errors import InputError


def places() -> dict[str, str | None]:
    """The cache directory, the state directory, which *key_store* holds the key of the seals (`file`, or
    `keyring`, the system's), and where that is. None where a setting keeps it from being known.

    Nothing is made, in the system's store neither.
    """
    from penstock.cache.location import default_directory
    from penstock.sealed.places import state_directory

    found: dict[str, str | None] = dict.fromkeys(
        ("cache_directory", "state_directory", "key_store", "key")
    )
    try:
        found["cache_directory"] = default_directory()
        state = state_directory()
        found["state_directory"] = state
        found["key_store"] = _key_store()
    except (InputError, OSError):
        return found
    system = found["key_store"] == "keyring"
    found["key"] = "the system's key store" if system else str(Path(state, "sealed", "key"))
    return found


def _key_store() -> str:
    from penstock import knobs
    from penstock.sealed.keyring_store import LIMIT_SECONDS, quiet_backend, within

    if knobs.key_store() != "auto":
        return "file"
    try:
        return "file" if within(LIMIT_SECONDS, quiet_backend) is None else "keyring"
    except Exception:  # noqa: BLE001  # a backend fails as it likes
        return "file"
