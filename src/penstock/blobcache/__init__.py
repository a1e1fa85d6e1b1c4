"""A small persistent cache of blobs by key, for compiled kernels or other reproducible data.

It stays within limits, evicts by a policy, and keeps its entries in one checksummed file that
several processes may share. It never makes its program fail: an unreadable file is a miss, and a
failed write is retried later. `docs/blobcache.md` shows how to use it. The package can be used
without the rest of Penstock.
"""

from penstock.blobcache.cache import BlobCache, Buffer
from penstock.blobcache.flat import MalformedBlobs, Version
from penstock.blobcache.persistent import PersistentBlobCache
from penstock.blobcache.policy import POLICIES, Capacity, Limits, Policy, Select

__all__ = [
    "POLICIES",
    "BlobCache",
    "Buffer",
    "Capacity",
    "Limits",
    "MalformedBlobs",
    "PersistentBlobCache",
    "Policy",
    "Select",
    "Version",
]
