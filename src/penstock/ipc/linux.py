"""Calls of Linux that isolation is made of, typed alike on every platform: elsewhere each raises `OSError`."""

from __future__ import annotations

import errno
import mmap
import os
import sys
from typing import Final

LINUX_ONLY: Final = "drivers run in processes of their own on Linux only"


def memory_file(name: str, *, sealable: bool = False) -> int:
    """A descriptor of new anonymous memory, closed in children; see memfd_create(2)."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, LINUX_ONLY)
    flags = os.MFD_CLOEXEC | (os.MFD_ALLOW_SEALING if sealable else 0)
    return os.memfd_create(name, flags)


def is_memory(fd: int) -> bool:
    """Whether a descriptor is of memory, rather than of a file, a pipe or a device: reading it waits for nobody."""
    if sys.platform != "linux":
        return False
    import fcntl

    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS) >= 0
    except OSError:
        return False


def event() -> int:
    """A descriptor that becomes readable by `signal_event`; see eventfd(2)."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, LINUX_ONLY)
    return os.eventfd(0, os.EFD_CLOEXEC)


def signal_event(fd: int) -> None:
    """Makes an event readable."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, LINUX_ONLY)
    os.eventfd_write(fd, 1)


def open_process(pid: int) -> int:
    """A descriptor of a process, which no later process of its number can take over; see pidfd_open(2)."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, LINUX_ONLY)
    return os.pidfd_open(pid)


def kill_process(pidfd: int) -> None:
    """Ends the process of a descriptor at once. Raises `ProcessLookupError` where it has ended."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, LINUX_ONLY)
    import signal

    signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def current_user() -> int:
    """The user whose rights this process has."""
    if sys.platform == "win32":
        raise OSError(errno.ENOSYS, LINUX_ONLY)
    return os.geteuid()


def map_to_read(fd: int, nbytes: int) -> mmap.mmap:
    """Memory of a descriptor, shared with whoever writes it."""
    if sys.platform == "win32":
        raise OSError(errno.ENOSYS, LINUX_ONLY)
    return mmap.mmap(fd, nbytes, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)
