"""The constants of a module: packed arrays one behind the other, equal ones once."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.errors import ResourceExhaustedTransient
from penstock.ir import NDArray
from penstock.sealed import private_payload

ALIGNMENT: Final = 64
"""The alignment of each array, in bytes."""

ENDS: Final = 64
"""How many bytes at both ends of an array are looked up before whole arrays are compared."""


class Constants:
    """Collects arrays. Each is kept as it is until `joined` copies all of them once."""

    def __init__(self) -> None:
        self.size = 0
        self._parts: list[tuple[int, memoryview]] = []
        self._known: dict[tuple[int, bytes, bytes], list[tuple[int, memoryview]]] = {}

    def add(self, array: NDArray) -> int:
        """The offset of the bytes of *array*, which must not change any more."""
        flat = np.ascontiguousarray(array).reshape(-1)
        view = flat.view(np.uint8).data if flat.size else memoryview(b"")
        same = self._known.setdefault((len(view), bytes(view[:ENDS]), bytes(view[-ENDS:])), [])
        for offset, other in same:
            if other == view:
                return offset
        offset = self.size + -self.size % ALIGNMENT
        self._parts.append((offset, view))
        self.size = offset + len(view)
        same.append((offset, view))
        return offset

    def joined(self) -> memoryview:
        """All bytes, read-only, aligned as each array is. Lets go of each array that it has copied:
        nothing can be added any more. Raises `ResourceExhaustedTransient` if there is no memory.
        """
        self._known.clear()
        try:
            return private_payload(self.size, self._fill)
        except OSError as error:
            size = self.size
            raise ResourceExhaustedTransient(f"no memory for {size} bytes of constants") from error

    def _fill(self, whole: memoryview) -> None:
        self._parts.reverse()
        end = 0
        while self._parts:
            offset, view = self._parts.pop()
            whole[end:offset] = bytes(offset - end)
            end = offset + len(view)
            whole[offset:end] = view
