"""Whether somebody still has an opening of a lock file that was lent to a driver.

A mark is a byte-range lock of the open file description (Linux), far behind anything that is ever
written. It is shared by duplicates of the descriptor and goes when the last of them is closed, or
its process dies; the whole-file locks of `penstock.sealed.locks` are of another kind and never wait
for it.
"""

from __future__ import annotations

import struct
import sys
from contextlib import suppress
from typing import Final

if sys.platform == "linux":
    import fcntl

# struct flock of a 64-bit Linux: type, whence, start, length, process.
_FLOCK: Final = struct.Struct("=hh4xqqi4x")
_AT: Final = 1 << 40
_SUPPORTED: Final = sys.maxsize > 1 << 32


def mark(fd: int) -> bool:
    """Marks the open file description of *fd*; False where there are no such marks.

    Call it while another opening of the file is locked exclusively: on file systems where the two
    kinds of lock are one (NFS) that refuses the mark, which nobody could tell from a reader's lock
    there.
    """
    if sys.platform == "linux" and _SUPPORTED:
        with suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_RDLCK, 0, _AT, 1, 0))
            return True
    return False


def is_marked(fd: int, *, unknown: bool = True) -> bool:
    """Whether another open file description of the same file is marked; *unknown* where that cannot
    be told.
    """
    if sys.platform == "linux" and _SUPPORTED:
        with suppress(OSError):
            found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, _AT, 1, 0))
            kind: int = _FLOCK.unpack(found)[0]
            return kind != fcntl.F_UNLCK
    return unknown
