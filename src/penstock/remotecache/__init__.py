"""The shared tier of the compilation cache: entries of other machines, from a store that is not
trusted.

What is fetched is verified against signed metadata in this process's memory, and then sealed
locally like an own compile (docs/fleet.md). Nothing here is imported by a hit in the local cache.
"""

from typing import TYPE_CHECKING

from penstock.facade import lazily

if TYPE_CHECKING:
    from penstock.remotecache.administration import Administration
    from penstock.remotecache.fetching import Remote
    from penstock.remotecache.publishing import Publisher
    from penstock.remotecache.stores import ObjectStore, Stored, open_store

__all__ = ["Administration", "ObjectStore", "Publisher", "Remote", "Stored", "open_store"]

__getattr__ = lazily(
    __name__,
    {
        "administration": "Administration",
        "fetching": "Remote",
        "publishing": "Publisher",
        "stores": "ObjectStore Stored open_store",
    },
)
