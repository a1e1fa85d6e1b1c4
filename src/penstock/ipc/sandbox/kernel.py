"""System calls that Python has no function for."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from typing import Any, Final

from penstock.ipc.sandbox.syscalls import ARCHITECTURES, Architecture

PR_SET_NO_NEW_PRIVS: Final = 38
PR_GET_NO_NEW_PRIVS: Final = 39
PR_SET_SECCOMP: Final = 22
PR_GET_SECCOMP: Final = 21


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
