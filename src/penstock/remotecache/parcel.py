"""An entry as one object: the unsealed payloads of its cache files, and what they are for."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from penstock.cache.naming import Digits
from penstock.errors import ForeignEntry, OtherVersion, SealBroken
from penstock.hal import MAX_NUMBER_OF_CACHE_FILES

MOST_BYTES: Final = 1 << 30
"""Maximum size of an entry in a store."""

FORMAT: Final = 1

Payloads = Annotated[tuple[bytes, ...], msgspec.Meta(max_length=MAX_NUMBER_OF_CACHE_FILES)]


class Parcel(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of *device* at *version* for the key *ingredients*, whose digest is *binding*.

    *model* and *data* are the payloads of its files. *compile_ns* is the duration of the compile,
    *penstock* the version that made it.
    """

    format: int = FORMAT
    binding: Digits
    device: str
    version: str
    ingredients: dict[str, str]
    model: Payloads
    data: Payloads
    compile_ns: int = 0
    penstock: str = ""

    def pack(self) -> bytes:
        return msgspec.msgpack.encode(self)

    def check(self, binding: bytes, device: str, version: str, needed: tuple[int, int]) -> None:
        """Raises `ForeignEntry` or `OtherVersion` unless it is that entry.

        Its publisher signed it for another key then.
        """
        if (self.device, self.binding) != (device, binding.hex()):
            raise ForeignEntry("the entry in the store is of another device or key than its name")
        if self.version != version:
            raise OtherVersion("the entry in the store is of another version of the driver")
        if (len(self.model), len(self.data)) != needed:
            raise ForeignEntry("the entry in the store has another number of files")


def unpack(content: bytes) -> Parcel:
    """The entry in verified bytes. Raises `SealBroken`, `OtherVersion`."""
    try:
        found = msgspec.msgpack.decode(content, type=Parcel)
    except (msgspec.DecodeError, RecursionError) as error:
        raise SealBroken(f"the entry in the store cannot be decoded: {error}") from None
    if found.format != FORMAT:
        raise OtherVersion(f"the entry in the store has format {found.format}, not {FORMAT}")
    return found
