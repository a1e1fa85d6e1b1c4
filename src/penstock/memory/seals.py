"""Seals of anonymous memory files (memfd_create(2), fcntl(2))."""

from __future__ import annotations

import errno
import sys
import time
from typing import Final

PATIENCE_S: Final = 2.0
"""Seconds in which the kernel must let go of the pages of a file that is to be sealed."""

PAUSE_S: Final = 0.005


def add_seals(fd: int, seals: int) -> None:
    """Adds *seals* to the file. Raises `OSError`.

    Linux refuses F_SEAL_WRITE with EBUSY while anything else holds a page of the file, such as the
    kernel's own walk over memory. That ends by itself: this waits up to `PATIENCE_S` seconds.
    """
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "sealed files are Linux's")
    import fcntl

    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() >= until:
                raise
        else:
            return
        time.sleep(PAUSE_S)
