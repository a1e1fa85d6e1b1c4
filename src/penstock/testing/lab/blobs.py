"""The lab device's own cache of compiled programs: how a driver uses `penstock.blobcache` for
itself.
"""

from __future__ import annotations

import hashlib
import os
import struct
from typing import Final

from penstock.blobcache import Capacity, Limits, PersistentBlobCache, Policy, Select
from penstock.testing.lab.program import Bytes

LIMITS: Final = Limits(key=96, value=4 << 20, total=32 << 20)
POLICY: Final = Policy(Select.LRU, Capacity.FIT)
_LENGTH: Final = struct.Struct("<Q")
_ALIGNED: Final = 16


class Artefacts:
    """Programs of one version of one device, in *blobs*: a file that is opened, or a cache that the
    caller has opened and closes.

    Those of the device's other versions are freed when this one starts. A blob cache notices
    damage, not malice: its file belongs where only its user can write, and a program from it is
    parsed as one from a stranger.
    """

    def __init__(
        self, blobs: PersistentBlobCache | str | os.PathLike[str], device: str, version: str
    ) -> None:
        self._owned = not isinstance(blobs, PersistentBlobCache)
        self._blobs = (
            blobs
            if isinstance(blobs, PersistentBlobCache)
            else PersistentBlobCache.open(blobs, LIMITS, POLICY)
        )
        self._device = b"artefact of " + hashlib.sha256(device.encode()).digest()
        self._version = self._device + hashlib.sha256(version.encode()).digest()[:16]
        self._delete(keep=self._version)

    def find(self, what: bytes) -> tuple[memoryview, memoryview] | None:
        """The stream and weights kept under *what*."""
        if (found := self._blobs.get(self._key(what))) is None or len(found) < _LENGTH.size:
            return None
        content = memoryview(found)
        (length,) = _LENGTH.unpack(content[: _LENGTH.size])
        return content[_LENGTH.size :][:length], content[_LENGTH.size :][length:]

    def keep(self, what: bytes, stream: Bytes, weights: Bytes) -> bool:
        """Keeps them, if they fit; whether they did."""
        padded = bytes(stream) + bytes(-(len(stream) + _LENGTH.size) % _ALIGNED)
        return self._blobs.set(self._key(what), _LENGTH.pack(len(padded)) + padded + bytes(weights))

    def free(self) -> int:
        """Frees all programs of the device; how many there were."""
        return self._delete()

    def close(self) -> None:
        """Writes what is unwritten, and closes what was opened here."""
        if self._owned:
            self._blobs.terminate()
        else:
            self._blobs.save()

    def _key(self, what: bytes) -> bytes:
        return self._version + hashlib.sha256(what).digest()

    def _delete(self, keep: bytes | None = None) -> int:
        mine = [key for key, _ in self._blobs.items() if key.startswith(self._device)]
        return sum(
            self._blobs.delete(key) for key in mine if keep is None or not key.startswith(keep)
        )
