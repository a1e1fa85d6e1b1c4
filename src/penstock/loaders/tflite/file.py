"""One opened TFLite file: its decoded tables, and where the bytes of its buffers are."""

from __future__ import annotations

from typing import Any, Final

from penstock import knobs
from penstock.errors import (
    Fault,
    FaultCode,
    IndexOutOfRange,
    LimitExceeded,
    NotAModel,
    OffsetOutOfBounds,
    Place,
)
from penstock.export.tflite.fields import TFLITE
from penstock.ir.operand import DataLocation
from penstock.ir.subgraph import ConstantPool
from penstock.loaders.flatbuffer import (
    MEMORY_ALLOWANCE,
    MEMORY_PER_BYTE,
    Blob,
    Reader,
    Values,
)
from penstock.loaders.registry import MAX_NAME, MIB, room_for

SCHEMA_VERSION: Final = 3
BUFFER_MEMORY: Final = 160

END_OF_ARCHIVE: Final = b"PK\x05\x06"
ARCHIVE_END: Final = 22 + 0xFFFF
"""What a zip archive's last record begins with, and the most bytes that it takes, its comment
included.
"""


class File:
    """The root table of a file, verified, with access to buffers by index."""

    def __init__(self, pool: ConstantPool) -> None:
        self.pool, self.data = pool, pool.view
        size = self.data.nbytes
        room = room_for(size)
        if not knobs.loading_limit_mib():
            room = min(room, MEMORY_PER_BYTE * size + MEMORY_ALLOWANCE)
        told = f"what the file describes would take more than {room // MIB} MiB: the knob loading_limit_mib allows more"
        self.reader = Reader(self.data, TFLITE, room, text=MAX_NAME, exhausted=told)
        self.root: Values = self.reader.root()
        if self.root["version"] != SCHEMA_VERSION:
            raise NotAModel(
                Fault(FaultCode.SCHEMA_VERSION, found=self.root["version"], known=SCHEMA_VERSION)
            )
        buffers = self.tables("buffers")
        self.charge(BUFFER_MEMORY * len(buffers), "buffers")
        self._places = [self._place(i, b) for i, b in enumerate(buffers)]
        self._copies_left = len(self.data)

    def tables(self, name: str) -> list[Values]:
        """A vector of tables of the root; empty when absent."""
        found: list[Values] = self.root[name] or []
        return found

    def buffer(self, index: int, user: Place | str) -> DataLocation | None:
        """Where buffer *index* lies in the file; None for an empty one. *user* names who asks."""
        if not 0 <= index < len(self._places):
            raise IndexOutOfRange(f"refers to buffer {index} of {len(self._places)}", where=user)
        return self._places[index]

    def tail(self, size: int) -> bytes:
        """A copy of the last *size* bytes of the file, or of all there are."""
        return bytes(self.data[-size:])

    def bytes_at(self, place: DataLocation) -> memoryview:
        return self.data[place.offset : place.offset + place.length]

    def copy(self, place: DataLocation | Blob | None, user: Place | str) -> bytes:
        """A copy of some bytes of the file. All copies together may take as much as the file."""
        if place is None:
            return b""
        self.charge(place.length, user)
        self._copies_left -= place.length
        if self._copies_left < 0:
            raise LimitExceeded("the file refers to the same bytes too often", where=user)
        return bytes(self.data[place.offset : place.offset + place.length])

    def charge(self, amount: int, user: Place | str = "") -> None:
        """Charges *amount* bytes to what the file may take in memory (`LimitExceeded`)."""
        self.reader.charge(amount, user)

    @property
    def memory_left(self) -> int:
        """What is left of the bytes that the file may take in memory."""
        return self.reader.memory_left

    def outside(self, offset: int, size: int, user: Place | str) -> DataLocation:
        """A span given by file offset and size, as data beyond 2 GiB is."""
        if offset + size > len(self.data):
            raise OffsetOutOfBounds(
                f"data at [{offset}, {offset + size}) of a file of {len(self.data)} bytes",
                where=user,
            )
        return DataLocation(0, offset, size)

    def _place(self, index: int, buffer: Values) -> DataLocation | None:
        data: Blob | None = buffer["data"]
        if data is not None and data.length:
            return DataLocation(0, data.offset, data.length)
        if buffer["offset"] > 1 and buffer["size"] > 1:
            return self.outside(buffer["offset"], buffer["size"], f"buffer {index}")
        return None


def tensor_place(subgraph: int, index: int, tensor: Values) -> Place:
    """The place of a tensor in the file."""
    return Place(subgraph, tensor=index, name=tensor["name"] or "")


def integers(vector: Any) -> tuple[int, ...]:
    """A vector of integers as a tuple; empty when absent."""
    return () if vector is None else tuple(vector.tolist())
