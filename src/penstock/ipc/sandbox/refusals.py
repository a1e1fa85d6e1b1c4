"""A list of the system calls that a driver was refused, for whoever finds out what an engine needs
(seccomp_unotify(2)).

The filter hands what it would refuse to another process, which says so once and has it refused all
the same. What Landlock refuses is not in it.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from contextlib import suppress
from typing import Final

from penstock.ipc.sandbox import kernel
from penstock.ipc.sandbox.syscalls import ALLOWED, CHECKED, CLONE3

RECEIVE: Final = 0xC050_2100
SEND: Final = 0xC018_2101
"""SECCOMP_IOCTL_NOTIF_RECV and SECCOMP_IOCTL_NOTIF_SEND."""

NOTICE: Final = struct.Struct("=QIIiIQ6Q")
"""Its number, the process, flags, and the call: number, architecture, instruction and arguments."""
ANSWER: Final = struct.Struct("=QqiI")

MOST_SAID: Final = 1024
"""Different refusals that are listed."""


def list_refusals(listener: int) -> None:
    """Answers each notice of the descriptor *listener* with EPERM, and writes the first of its kind
    to the standard error, until no process has that filter any more. Closes the descriptor.
    """
    if sys.platform == "win32":
        raise OSError(errno.ENOSYS, "seccomp is Linux's")
    import fcntl

    said: set[tuple[int, int, int]] = set()
    try:
        while True:
            notice = bytearray(NOTICE.size)
            try:
                fcntl.ioctl(listener, RECEIVE, notice)
            except InterruptedError:
                continue
            number, _, _, call, _, _, first, second, *_ = NOTICE.unpack(notice)
            kind = (call, first & 0xFFFF_FFFF, second & 0xFFFF_FFFF if call in _checked() else 0)
            if kind not in said and len(said) < MOST_SAID:
                said.add(kind)
                told = f"penstock.ipc: the sandbox refuses {name_of(call)} ({first:#x}, {second:#x}, ...)\n"
                os.write(2, told.encode())
            # Whoever made the call may have ended meanwhile.
            with suppress(FileNotFoundError):
                fcntl.ioctl(listener, SEND, ANSWER.pack(number, 0, -errno.EPERM, 0))
    except OSError:
        # Nobody has the filter any more.
        pass
    finally:
        os.close(listener)


def name_of(number: int) -> str:
    """The call by name where the list has it, for some of its uses; else by number."""
    found = kernel.architecture()
    if found is None:
        return f"system call {number}"
    known = {numbers[found.column]: name for name, numbers in ALLOWED.items()}
    known |= {
        numbers[found.column]: f"this use of {name}" for name, (numbers, _) in CHECKED.items()
    }
    known[CLONE3[found.column]] = "clone3"
    return known.get(number, f"system call {number}")


def _checked() -> set[int | None]:
    found = kernel.architecture()
    return set() if found is None else {numbers[found.column] for numbers, _ in CHECKED.values()}
