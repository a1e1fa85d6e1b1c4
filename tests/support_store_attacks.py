"""What somebody who can write anything into a store may try."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import CacheError
from penstock.remotecache import bins, roles
from penstock.remotecache.fetching import Remote

REFUSED = "refused"


class Files:
    """The files of a store in a directory, which an attacker reads and writes at will."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def read(self, name: str) -> bytes:
        return (self.place / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        (self.place / name).write_bytes(content)

    def names(self, prefix: str) -> list[str]:
        found = (self.place / prefix).iterdir()
        return sorted(f"{prefix}/{path.name}" for path in found)

    def metadata(self, role: str) -> str:
        """The name of the newest metadata of *role*."""
        if role == "timestamp":
            return roles.TIMESTAMP
        names = [n for n in self.names(roles.METADATA) if n.endswith(f".{role}.json")]
        return max(names, key=lambda name: int(name.split("/")[1].split(".")[0]))

    def copy(self, to: Path) -> Path:
        return Path(shutil.copytree(self.place, to))

    def restore(self, copy: Path) -> None:
        shutil.rmtree(self.place)
        shutil.copytree(copy, self.place)


def bin_with(token: bytes, publisher: str = "ci") -> str:
    """The bin of *publisher* that lists the entry of *token*."""
    return bins.bin_of(publisher, roles.target_of(publisher, token.hex()))


def outcome(machine: Remote, token: bytes) -> str:
    """The word in the entry that a machine gets, or `REFUSED`. Other errors than those of a cache
    are raised.
    """
    try:
        return machine.look_up(token).parcel.model[0].decode()
    except CacheError:
        return REFUSED


def flipped(content: bytes, chance: random.Random | None = None, count: int = 0) -> Iterator[bytes]:
    """*content* with one bit altered: each bit in turn, or *count* that *chance* draws."""
    bits = range(8 * len(content))
    for bit in bits if chance is None else chance.sample(bits, min(count, len(bits))):
        altered = bytearray(content)
        altered[bit // 8] ^= 1 << bit % 8
        yield bytes(altered)
