"""A small persistent store of blobs by key, for compiled kernels or anything else that can be made
again.

It stays within limits, evicts by a policy, keeps its entries in one checksummed file that several
processes may share, and never makes the program that uses it fail: what cannot be read is a miss,
what cannot be written is written later. `docs/blobcache.md` shows how to use it; nothing of it
needs the rest of Penstock.
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
