"""The sealed header: the first 256 bytes of every cache file (docs/cache-format.md)."""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Final

from msgspec import Struct

MAGIC: Final = b"\x89PNSEAL\n"
FORMAT: Final = 1
HEADER_BYTES: Final = 256
SEAL_BYTES: Final = 32
_SIGNED: Final = HEADER_BYTES - SEAL_BYTES
_FIELDS: Final = struct.Struct("<8sH4BHQQ16s16s32s32s32s32s32s")
_SEAL_DOMAIN: Final = b"penstock file seal\x00"
_DIGEST_DOMAIN: Final = b"penstock file digest\x00"


class Kind:
    """Content of a cache file: a compiled program, or constants (NNAPI section 2.1)."""

    MODEL: Final = 1
    DATA: Final = 2


def word_of(kind: int) -> str:
    """The word for a `Kind` in messages."""
    return {Kind.MODEL: "model", Kind.DATA: "data"}.get(kind, f"kind {kind}")


class Header(Struct, frozen=True):
    """The header of a cache file.

    *entry* (16 bytes) is shared by an entry's files. *registry* (16 bytes) lists it since its count
    *sequence*. *token*, *binding* and the digests *driver* and *version* are 32 bytes each. The
    file is number *number* of the *models* or *datas* files of its *kind*. *root* is `merkle_root`
    of *length* bytes of payload.
    """

    kind: int
    number: int
    models: int
    datas: int
    sequence: int
    length: int
    entry: bytes
    registry: bytes
    token: bytes
    binding: bytes
    driver: bytes
    version: bytes
    root: bytes
    format: int = FORMAT

    def pack(self, key: bytes) -> bytes:
        """The 256 bytes, sealed with *key*."""
        place = self.kind, self.number, self.models, self.datas
        digests = self.token, self.binding, self.driver, self.version, self.root
        counts = self.sequence, self.length
        ids = self.entry, self.registry
        fields = _FIELDS.pack(MAGIC, self.format, *place, 0, *counts, *ids, *digests)
        return fields + _seal(fields, key)

    @classmethod
    def unpack(cls, content: bytes) -> Header | None:
        """Parses *content* without verifying it; None if it is no header."""
        if len(content) != HEADER_BYTES or content[: len(MAGIC)] != MAGIC:
            return None
        _, format_, kind, number, models, datas, _, *rest = _FIELDS.unpack(content[:_SIGNED])
        return cls(*(kind, number, models, datas, *rest, format_))

    @property
    def place(self) -> str:
        """The file's position according to its header: "model file 0"."""
        return f"{word_of(self.kind)} file {self.number}"


def is_sealed(content: bytes, key: bytes) -> bool:
    """Whether *key* sealed the 256 bytes *content*; all formats have the seal at one offset."""
    return hmac.compare_digest(content[_SIGNED:], _seal(content[:_SIGNED], key))


def file_digest(header: bytes) -> bytes:
    """The hash of a whole file: of its header, which holds the payload's root and length."""
    return hashlib.sha256(_DIGEST_DOMAIN + header).digest()


def identity(text: str) -> bytes:
    """The 32-byte digest that identifies a driver's version."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def driver_identity(name: str, origin: str) -> bytes:
    """The 32-byte digest of a driver's name and *origin* (`penstock.distribution`)."""
    return hashlib.sha256(identity(name) + identity(origin)).digest()


def _seal(fields: bytes, key: bytes) -> bytes:
    return hmac.digest(key, _SEAL_DOMAIN + fields, "sha256")
