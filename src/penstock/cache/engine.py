"""The blob cache, under the name that it has as a part of the compilation cache
(`penstock.blobcache`).
"""

from penstock.blobcache import BlobCache, PersistentBlobCache

__all__ = ["BlobCache", "PersistentBlobCache"]
