"""The blob cache as a part of the compilation cache (`penstock.blobcache`)."""

from penstock.blobcache import BlobCache, PersistentBlobCache

__all__ = ["BlobCache", "PersistentBlobCache"]
