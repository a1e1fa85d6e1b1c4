"""The sealed index of an entry: what it was compiled from, so that a miss can be explained."""

from __future__ import annotations

import time
from typing import Final

import msgspec

from penstock.cache.naming import Count, Digits, sealed, unsealed
from penstock.distribution import BY_THE_PROGRAM

MOST_INDEX_BYTES: Final = 1 << 20

_DOMAIN: Final = b"penstock cache index"


class IndexRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of an entry.

    *token* and *binding* are 64 hexadecimal digits. *ingredients* maps name to text for every
    ingredient of the key. *models* and *datas* are the numbers of files, *created* is in seconds
    since the epoch, *compile_ns* is the duration of the compile, *penstock* the version that wrote
    it.
    """

    token: Digits
    binding: Digits
    device: str
    version: str
    ingredients: dict[str, str]
    models: Count
    datas: Count
    compile_ns: int = 0
    created: float = msgspec.field(default_factory=time.time)
    penstock: str = ""

    @property
    def source(self) -> str:
        """The origin of the device (`penstock.distribution`)."""
        return self.ingredients.get("source", BY_THE_PROGRAM)


def pack_record(record: IndexRecord, key: bytes) -> bytes:
    """The bytes of an index file: the record as JSON, and its HMAC-SHA-256 under *key*."""
    return sealed("record", record, _DOMAIN, key) + b"\n"


def unpack_record(content: bytes, key: bytes, token: bytes) -> IndexRecord | None:
    """The record, if it is authentic and of *token*; else None."""
    record = unsealed("record", content, IndexRecord, _DOMAIN, key)
    return None if record is None or record.token != token.hex() else record
