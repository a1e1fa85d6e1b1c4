"""System calls that Python has no function for."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import sys
from typing import Any, Final

from penstock.ipc.sandbox.syscalls import ARCHITECTURES, Architecture

PIVOT_ROOT: Final = (155, 41)

PR_SET_NO_NEW_PRIVS: Final = 38
PR_GET_NO_NEW_PRIVS: Final = 39


def architecture() -> Architecture | None:
    """That of this process; None for one that there are no tables of, and beside Linux."""
    if sys.platform != "linux" or sys.maxsize <= 2**32 or sys.byteorder != "little":
        return None
    return ARCHITECTURES.get(platform.machine())


def prctl(option: int, *arguments: object) -> int:
    """`prctl(2)`; raises `OSError`."""
    given = [_word(a) for a in (*arguments, *(0,) * (4 - len(arguments)))]
    return _checked(_library().prctl(ctypes.c_int(option), *given))


def syscall(number: int, *arguments: object) -> int:
    """`syscall(2)`; raises `OSError`."""
    return _checked(_library().syscall(ctypes.c_long(number), *map(_word, arguments)))


def unshare(flags: int) -> None:
    """`unshare(2)`; raises `OSError`."""
    _checked(_library().unshare(ctypes.c_int(flags)))


def mount(source: str, target: str, kind: str, flags: int) -> None:
    """`mount(2)`; raises `OSError`."""
    given = [os.fsencode(text) for text in (source, target, kind)]
    try:
        _checked(_library().mount(*given, ctypes.c_ulong(flags), None))
    except OSError as error:
        raise OSError(error.errno, error.strerror, target) from None


def unmount(target: str, flags: int) -> None:
    """`umount2(2)`; raises `OSError`."""
    _checked(_library().umount2(os.fsencode(target), ctypes.c_int(flags)))


def pivot_root(new: str, old: str) -> None:
    """`pivot_root(2)`; raises `OSError`."""
    found = architecture()
    if found is None:
        raise OSError(errno.ENOSYS, "no table of system calls for this system and processor")
    syscall(PIVOT_ROOT[found.column], os.fsencode(new), os.fsencode(old))


def capset(header: Any, data: bytes) -> None:
    """`capset(2)`; raises `OSError`."""
    _checked(_library().capset(header, data))


def _word(value: object) -> Any:
    return ctypes.c_ulong(value) if isinstance(value, int) else value


def _library() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    return library


def _checked(result: int) -> int:
    if result == -1:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


PR_SET_PDEATHSIG: Final = 1


def die_with_parent() -> None:
    """As `die_with`, of whoever is the parent now."""
    if sys.platform != "win32":
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def die_with(parent: int) -> None:
    """From now on the kernel kills this process when *parent* ends: see prctl(2), PR_SET_PDEATHSIG,
    which the sandbox's list of calls does not have.
    """
    if sys.platform == "win32":
        return
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)
