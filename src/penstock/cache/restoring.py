"""An index that was lost, written again for an entry that still loads."""

from __future__ import annotations

from contextlib import suppress

from msgspec import structs

from penstock.cache.index import IndexRecord
from penstock.cache.naming import index_name, lock_name
from penstock.cache.store import FileVersion, Store
from penstock.errors import CacheError


def restore(
    store: Store, token: bytes, record: IndexRecord, first: str, seen: FileVersion | None
) -> bool:
    """See `CacheDirectory.restore`; *first* is a file of the entry, *seen* what stood there when it
    was opened.
    """
    with suppress(OSError, CacheError):
        held = store.locks.take(lock_name(token), exclusive=True, create=False, timeout=0)
        if held is None:
            return False
        try:
            if seen is None or store.version_of(first) != seen or store.read_record(token):
                return False
            store.unlink(index_name(token))
            store.write_record(token, structs.replace(record, created=seen[2] / 1e9))
        finally:
            store.locks.release(held)
        return True
    return False
