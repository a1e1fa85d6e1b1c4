"""The store, the trusted root and the key that the settings name."""

from __future__ import annotations

from securesystemslib.signer import CryptoSigner

from penstock import knobs
from penstock.errors import InputError
from penstock.remotecache.fetching import Remote, trusted_root
from penstock.remotecache.roles import read_key
from penstock.remotecache.stores import ObjectStore, open_store


def store_at(url: str | None = None, seconds: float | None = None) -> ObjectStore:
    """The store at *url*; None is the knob `cache_store`. Raises `InputError`."""
    if not (chosen := url or knobs.cache_store()):
        raise InputError("no shared store is named: set the knob cache_store")
    return open_store(chosen, knobs.store_seconds() if seconds is None else seconds)


def remote_at(url: str | None = None, seconds: float | None = None) -> Remote:
    """`store_at`, under the trusted root of the knob `store_root`. Raises `NotTrusted` too."""
    return Remote(store_at(url, seconds), trusted_root(knobs.store_root()))


def own_key() -> CryptoSigner:
    """The publisher's key of the knob `store_key`. Raises `InputError`, `Unreadable`."""
    if not (path := knobs.store_key()):
        raise InputError("no publisher's key is named: set the knob store_key")
    return read_key(path)
