"""A filter of system calls (seccomp): what a driver's process has no use for is answered with EPERM.

The filter is a program of the kernel's classic packet filter over `struct seccomp_data`: the number of the call, the
architecture, the instruction pointer and six arguments of 64 bits.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path
from typing import Final

from penstock.ipc.sandbox import kernel
from penstock.ipc.sandbox.report import Measure
from penstock.ipc.sandbox.syscalls import (
    CLONE,
    CLONE3,
    IOCTL,
    PRLIMIT,
    REFUSED,
    SECCOMP_CALL,
    TERMINAL_REQUESTS,
    TO_ITSELF,
    X32_BIT,
    Architecture,
)

NAME: Final = "seccomp"

LOAD: Final = 0x20
"""Loads 32 bits at a fixed offset."""
EQUAL: Final = 0x15
AT_LEAST: Final = 0x35
ANY_BIT: Final = 0x45
RETURN: Final = 0x06

NUMBER_AT: Final = 0
ARCHITECTURE_AT: Final = 4

ALLOW: Final = 0x7FFF_0000
ERRNO: Final = 0x0005_0000

SET_MODE_FILTER: Final = 1
FILTER_FLAG_TSYNC: Final = 1

CLONE_THREAD: Final = 0x0001_0000
MODE_FILTER: Final = 2

INSTRUCTION: Final = struct.Struct("=HBBI")
Instruction = tuple[int, int, int, int]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def instructions(architecture: Architecture, pid: int) -> list[Instruction]:
    """The filter for a process *pid* of that architecture."""
    refuse, absent = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS
    column = architecture.column
    program: list[Instruction] = [
        (LOAD, 0, 0, ARCHITECTURE_AT),
        (EQUAL, 1, 0, architecture.audit),
        (RETURN, 0, 0, refuse),
        (LOAD, 0, 0, NUMBER_AT),
        (AT_LEAST, 0, 1, X32_BIT),
        (RETURN, 0, 0, refuse),
        (AT_LEAST, 0, 1, architecture.last + 1),
        (RETURN, 0, 0, absent),
        (EQUAL, 0, 1, CLONE3[column]),
        (RETURN, 0, 0, absent),
    ]
    for numbers in REFUSED.values():
        number = numbers[column]
        if number is not None:
            program += [(EQUAL, 0, 1, number), (RETURN, 0, 0, refuse)]
    program += _where(
        CLONE[column],
        [(LOAD, 0, 0, _low(0)), (ANY_BIT, 1, 0, CLONE_THREAD), (RETURN, 0, 0, refuse)],
    )
    for numbers_of_one in TO_ITSELF.values():
        program += _where(
            numbers_of_one[column],
            [(LOAD, 0, 0, _low(0)), (EQUAL, 1, 0, pid), (RETURN, 0, 0, refuse)],
        )
    program += _where(
        PRLIMIT[column],
        [
            (LOAD, 0, 0, _low(0)),
            (EQUAL, 2, 0, 0),
            (EQUAL, 1, 0, pid),
            (RETURN, 0, 0, refuse),
        ],
    )
    typing_requests: list[Instruction] = [(LOAD, 0, 0, _low(1))]
    for request in TERMINAL_REQUESTS:
        typing_requests += [(EQUAL, 0, 1, request), (RETURN, 0, 0, refuse)]
    program += _where(IOCTL[column], typing_requests)
    return [*program, (RETURN, 0, 0, ALLOW)]


def apply() -> Measure:
    """Filters the calls of every thread of this process, and of those to come; not to be undone."""
    architecture = kernel.architecture()
    if architecture is None:
        return Measure(NAME, False, "no table of system calls for this system and processor")
    program = instructions(architecture, os.getpid())
    content = b"".join(INSTRUCTION.pack(*each) for each in program)
    given = _Program(len(program), content)
    try:
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        number = SECCOMP_CALL[architecture.column]
        failed = kernel.syscall(number, SET_MODE_FILTER, FILTER_FLAG_TSYNC, ctypes.byref(given))
    except OSError as error:
        return Measure(NAME, False, f"the kernel refuses the filter: {error}")
    if failed:
        return Measure(NAME, False, f"thread {failed} has a filter of its own")
    count = sum(numbers[architecture.column] is not None for numbers in REFUSED.values())
    return Measure(NAME, True, f"{count} system calls refused, and other instruction sets' all")


def detect() -> Measure:
    """Whether the kernel has what `apply` needs."""
    if kernel.architecture() is None:
        return Measure(NAME, False, "no table of system calls for this system and processor")
    try:
        actions = Path("/proc/sys/kernel/seccomp/actions_avail").read_text("ascii").split()
    except OSError as error:
        return Measure(NAME, False, f"the kernel does not tell of it: {error.strerror}")
    if not {"errno", "allow"} <= set(actions):
        return Measure(NAME, False, f"the kernel offers only {' '.join(actions)}")
    return Measure(NAME, True, "available")


def _where(number: int, body: list[Instruction]) -> list[Instruction]:
    """*body* for the call *number*, allowed where it returns nothing; otherwise the next instructions."""
    return [(EQUAL, 0, len(body) + 1, number), *body, (RETURN, 0, 0, ALLOW)]


def _low(argument: int) -> int:
    """The offset of an argument's low 32 bits, on little-endian processors."""
    return 16 + 8 * argument
