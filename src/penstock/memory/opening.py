"""Opening the files that users name, without waiting for what may never come."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys

_DESCRIPTORS = ("/dev/", "/proc/")
"""Where descriptors that are open already have a path: `/dev/stdin`, `/dev/fd/N`, `/proc/self/fd/N`."""


def open_file(name: str) -> io.FileIO:
    """The file at *name*, open for reading: a regular file, or a pipe that this process was handed as a descriptor.

    Raises `OSError`; with EINVAL for a device, which may never end, and for a named pipe, which may never be written.
    """
    # Without O_NONBLOCK, opening a named pipe waits until somebody opens its other end.
    file = open(name, "rb", buffering=0, opener=_without_waiting)  # noqa: SIM115  # the caller closes it
    try:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise OSError(errno.EINVAL, "is a device, not a file", name)
        if stat.S_ISFIFO(mode) and not _is_descriptor(name):
            raise OSError(
                errno.EINVAL,
                "is a named pipe, not a regular file; pipe what it gives through /dev/stdin",
                name,
            )
        if sys.platform != "win32":
            os.set_blocking(file.fileno(), True)
    except BaseException:
        file.close()
        raise
    return file


def _without_waiting(name: str, flags: int) -> int:
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))


def _is_descriptor(name: str) -> bool:
    return any(p.startswith(_DESCRIPTORS) for p in (os.path.abspath(name), os.path.realpath(name)))
