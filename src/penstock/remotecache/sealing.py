"""Copies between a store and a local cache: a fetched entry is sealed as an own compile is, and an
own entry is unsealed to be published.
"""

from __future__ import annotations

from penstock.cache.directory import CacheDirectory
from penstock.cache.lease import Lease
from penstock.cache.naming import IndexRecord
from penstock.cache.store import Store
from penstock.errors import Unreadable
from penstock.remotecache.copies import Copies, Copy
from penstock.remotecache.fetching import Fetched, Remote
from penstock.remotecache.parcel import Parcel
from penstock.sealed import EntryFiles


def seal_locally(
    remote: Remote, fetched: Fetched, record: IndexRecord, store: Store, lease: Lease
) -> None:
    """Publishes *fetched* in the local cache *store* as the entry of *record*, under its *lease*.

    The copy is remembered with its publisher first, so that it can be refused when that is revoked.
    Raises `CacheError`; the local entry is then what it was, or gone.
    """
    parcel = fetched.parcel
    needed = record.models, record.datas
    token, binding = bytes.fromhex(record.token), bytes.fromhex(record.binding)
    with lease.create(needed) as files:
        seal = store.seal(record.device, record.version, needed, record.source)
        given = EntryFiles(files.model, files.data, token, binding)
        report = seal.save(given, model=parcel.model, data=parcel.data)
        if report.entry is None:
            raise Unreadable(f"the entry from the store cannot be sealed: {report.reason}")
        copy = Copy(
            publisher=fetched.listed.publisher,
            keys=fetched.listed.keys,
            device=record.device,
            version=record.version,
            source=record.source,
            models=record.models,
            datas=record.datas,
            token=record.token,
            entry=report.entry.hex(),
        )
        remember(remote, store, copy)
        lease.publish(files, record)


def remember(remote: Remote, store: Store, copy: Copy) -> None:
    """Raises `Unreadable`, `StoreUnavailable`."""
    try:
        Copies(remote.metadata.directory, store).add(copy)
    except OSError as error:
        raise Unreadable(f"the copy cannot be remembered: {error.strerror or error}") from None


def refuse_revoked(remote: Remote, store: Store) -> int:
    """Refuses the local copies of publishers that are not trusted any more; returns how many.

    Call it after `look_up` or `refresh`. Raises `Unreadable`, `StoreUnavailable`, `NotTrusted`.
    """
    metadata = remote.metadata
    try:
        return Copies(metadata.directory, store).refuse_revoked(metadata.publishers())
    except OSError as error:
        raise Unreadable(f"the copies cannot be listed: {error.strerror or error}") from None


def parcel_of(directory: CacheDirectory, record: IndexRecord) -> Parcel:
    """The local entry of *record*, verified and unsealed. Raises `CacheError`."""
    needed = record.models, record.datas
    token, binding = bytes.fromhex(record.token), bytes.fromhex(record.binding)
    seal = directory.store.seal_of(record)
    with directory.open(token, needed) as files:
        loaded = seal.load(EntryFiles(files.model, files.data, token, binding))
    try:
        return Parcel(
            binding=record.binding,
            device=record.device,
            version=record.version,
            ingredients=record.ingredients,
            model=tuple(map(bytes, loaded.model)),
            data=tuple(map(bytes, loaded.data)),
            compile_ns=record.compile_ns,
            penstock=record.penstock,
        )
    finally:
        for payload in (*loaded.model, *loaded.data):
            payload.release()


def why_not_shared(ingredients: dict[str, str]) -> str:
    """Why an entry of these *ingredients* cannot be shared; empty if it can."""
    from penstock.distribution import BY_THE_PROGRAM

    source = ingredients.get("source", BY_THE_PROGRAM)
    if "structure" not in ingredients:
        return "a token that is trusted does not name the model to other machines"
    if source == BY_THE_PROGRAM:
        return "the program made the device itself, and other machines know nothing of it"
    if source.startswith("service:"):
        return "the device is of a service, which seals entries with its own key"
    return ""
