"""Memory of this process alone, which is filled once and then read-only.

It is anonymous and private: no other process has a descriptor of it or maps it. Large memory is in
large pages where the system has them: each page costs a fault, and a place in the processor's
table of pages.
"""

from __future__ import annotations

import functools
import mmap
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Self

LARGE_PAGE: Final = 1 << 21
"""Bytes of a large page of x86-64, and of aarch64 with small pages of 4 KiB."""

LEAST_REST: Final = LARGE_PAGE * 3 // 4
"""Bytes beyond whole large pages from which a further large page is used."""

CAN_FREEZE: Final = sys.platform != "win32"
"""Whether the system has memory that this module makes read-only."""

READ: Final = 1
"""PROT_READ of mprotect(2)."""

POPULATE_WRITE: Final = 23
"""MADV_POPULATE_WRITE of Linux 5.14: maps all pages at once."""


class PrivateMemory(mmap.mmap):
    """*length* bytes, a positive number, to be filled by `view`. `freeze` makes them read-only.

    They live as long as a view of them does. Not on Windows. Raises `OSError`.
    """

    start: int
    length: int
    is_frozen: bool = False

    def __new__(cls, length: int) -> Self:
        if sys.platform == "win32":
            raise OSError("memory cannot be made read-only here")
        # Enough to begin at a large page.
        room = length + LARGE_PAGE if length >= LARGE_PAGE else length
        self = super().__new__(cls, -1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.start, self.length, large = 0, length, 0
        if sys.platform == "linux":
            if length >= LARGE_PAGE:
                self.start = -_address_of(self) % LARGE_PAGE
                large = length - length % LARGE_PAGE
                large += LARGE_PAGE if length - large >= LEAST_REST else 0
                large = min(large, room - self.start)
                # A system may be built without large pages.
                with suppress(OSError):
                    self.madvise(mmap.MADV_HUGEPAGE, self.start, large)
            if length > large:
                with suppress(OSError):
                    self.madvise(POPULATE_WRITE, self.start + large, length - large)
        return self

    def view(self) -> memoryview:
        """The bytes, which can be written until `freeze`."""
        return memoryview(self)[self.start : self.start + self.length]

    def freeze(self) -> None:
        """Makes the pages read-only: a write ends this process. Raises `OSError`."""
        _protect()(_address_of(self), len(self), READ)
        self.is_frozen = True

    def frozen(self) -> memoryview:
        """The bytes, read-only."""
        return self.view().toreadonly()


def _address_of(region: mmap.mmap) -> int:
    import ctypes

    return ctypes.addressof(ctypes.c_char.from_buffer(region))


@functools.cache
def _protect() -> Callable[[int, int, int], None]:
    """`mprotect` of the C library, which raises `OSError`."""
    import ctypes

    function: Any = ctypes.CDLL(None, use_errno=True).mprotect
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def protect(address: int, size: int, protection: int) -> None:
        if function(address, size, protection):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    return protect
