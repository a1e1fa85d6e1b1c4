"""Landlock: a process gives up the file system, but for what it is allowed (Linux 5.13 and later)."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from penstock.ipc.sandbox import kernel
from penstock.ipc.sandbox.policy import SandboxPolicy
from penstock.ipc.sandbox.report import Measure
from penstock.ipc.sandbox.syscalls import (
    LANDLOCK_ADD_RULE,
    LANDLOCK_CREATE_RULESET,
    LANDLOCK_RESTRICT_SELF,
)

NAME: Final = "landlock"

EXECUTE: Final = 1 << 0
WRITE_FILE: Final = 1 << 1
READ_FILE: Final = 1 << 2
READ_DIR: Final = 1 << 3
REMOVE_DIR: Final = 1 << 4
REMOVE_FILE: Final = 1 << 5
MAKE_DIR: Final = 1 << 7
MAKE_REG: Final = 1 << 8
TRUNCATE: Final = 1 << 14
IOCTL_DEV: Final = 1 << 15

FILE_ACCESS: Final = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""Every access to files that the kernel knows, from each version of the interface on."""

TCP: Final = 0b11
"""Binding and connecting, from version 4 on."""
SCOPES: Final = 0b11
"""Abstract Unix sockets of, and signals to, processes outside, from version 6 on."""

VERSION_FLAG: Final = 1
PATH_BENEATH: Final = 1

RULESET: Final = struct.Struct("=QQQ")
RULE: Final = struct.Struct("=Qi")

OF_FILES: Final = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
"""Accesses that a rule for a file, rather than a directory, may name."""


def version() -> int:
    """The version of the kernel's interface, 0 where it has none."""
    if sys.platform != "linux":
        return 0
    try:
        return kernel.syscall(LANDLOCK_CREATE_RULESET, None, 0, VERSION_FLAG)
    except OSError:
        return 0


def detect() -> Measure:
    """Whether the kernel has it."""
    found = version()
    if not found:
        return Measure(NAME, False, "the kernel has no Landlock, or it is switched off")
    return Measure(NAME, True, f"available, version {found}")


def apply(policy: SandboxPolicy) -> Measure:
    """Takes the file system from the calling thread, and from threads that it starts later; not to
    be undone.
    """
    found = version()
    if not found:
        return detect()
    handled = FILE_ACCESS[max(v for v in FILE_ACCESS if v <= found)]
    attributes = RULESET.pack(handled, TCP if found >= 4 else 0, SCOPES if found >= 6 else 0)
    size = 24 if found >= 6 else 16 if found >= 4 else 8
    threads = _other_threads()
    try:
        ruleset = kernel.syscall(LANDLOCK_CREATE_RULESET, attributes[:size], size, 0)
    except OSError as error:
        return Measure(NAME, False, f"the kernel refuses the rules: {error}")
    reading = READ_FILE | READ_DIR
    writing = reading | WRITE_FILE | TRUNCATE | REMOVE_FILE | REMOVE_DIR | MAKE_REG | MAKE_DIR
    try:
        _allow(ruleset, policy.readable(), reading & handled)
        if policy.lists:
            _allow(ruleset, policy.listed(), READ_DIR & handled)
        _allow(ruleset, policy.writable(), writing & handled)
        _allow(ruleset, policy.usable(), (reading | WRITE_FILE | IOCTL_DEV) & handled)
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.syscall(LANDLOCK_RESTRICT_SELF, ruleset, 0)
    except OSError as error:
        return Measure(NAME, False, f"the kernel refuses the rules: {error}")
    finally:
        os.close(ruleset)
    held = "files read-only, and only what Python and engines need"
    lacks = [
        what
        for since, what in (
            (3, "truncation"),
            (4, "TCP"),
            (5, "ioctl of devices"),
            (6, "abstract sockets and signals"),
        )
        if found < since
    ]
    if lacks:
        held += f"; version {found} says nothing of {', '.join(lacks)}"
    if threads:
        held += f"; {threads} threads ran already and are not held"
    return Measure(NAME, True, held)


def _allow(ruleset: int, paths: Iterable[str], access: int) -> None:
    if sys.platform != "linux":
        return
    for path in paths:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            given = access if stat.S_ISDIR(os.fstat(fd).st_mode) else access & OF_FILES
            rule = ctypes.create_string_buffer(RULE.pack(given, fd), RULE.size)
            kernel.syscall(LANDLOCK_ADD_RULE, ruleset, PATH_BENEATH, rule, 0)
        finally:
            os.close(fd)


def _other_threads() -> int:
    try:
        return len(list(Path("/proc/self/task").iterdir())) - 1
    except OSError:
        return 0
