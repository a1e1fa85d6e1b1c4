"""A filter of system calls (seccomp): what is not on the list of `syscalls` is answered with EPERM.

The filter is a program of the kernel's classic packet filter over `struct seccomp_data`: the number
of the call, the architecture, the instruction pointer and six arguments of 64 bits. Numbers are
found by halving, as each call passes it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

from penstock.ipc.sandbox import kernel
from penstock.ipc.sandbox.report import Measure
from penstock.ipc.sandbox.syscalls import (
    ALLOWED,
    CHECKED,
    CLONE3,
    OWN,
    SECCOMP_CALL,
    WHOLE,
    X32_BIT,
    X86_64,
    Architecture,
    Check,
    Uses,
)

NAME: Final = "seccomp"

LOAD: Final = 0x20
"""Loads 32 bits at a fixed offset."""
AND: Final = 0x54
JUMP: Final = 0x05
EQUAL: Final = 0x15
AT_LEAST: Final = 0x35
RETURN: Final = 0x06

NUMBER_AT: Final = 0
ARCHITECTURE_AT: Final = 4

ALLOW: Final = 0x7FFF_0000
ERRNO: Final = 0x0005_0000
USER_NOTIF: Final = 0x7FC0_0000
"""Another process answers (`refusals`)."""
KILL: Final = 0x8000_0000
"""Ends the process, with SIGSYS."""

SET_MODE_FILTER: Final = 1
FILTER_FLAG_TSYNC: Final = 1
FILTER_FLAG_NEW_LISTENER: Final = 8

INSTRUCTION: Final = struct.Struct("=HBBI")
Instruction = tuple[int, int, int, int]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def instructions(
    architecture: Architecture, pid: int, *, listed: bool = False
) -> list[Instruction]:
    """The filter for a process *pid* of that architecture; what it refuses is told to another where
    it is *listed*.
    """
    refused, absent = _answer(ERRNO | errno.EPERM), _answer(ERRNO | errno.ENOSYS)
    if listed:
        refused = _answer(USER_NOTIF)
    column = architecture.column
    decisions: dict[int, list[Instruction]] = {CLONE3[column]: absent}
    for numbers in ALLOWED.values():
        if (number := numbers[column]) is not None:
            decisions[number] = _answer(ALLOW)
    for numbers, uses in CHECKED.values():
        if (number := numbers[column]) is not None:
            decisions[number] = _uses(uses, pid, refused)
    # Where the decision is another than for the number before.
    borders: list[tuple[int, list[Instruction]]] = []
    for number in range(architecture.last + 1):
        decision = decisions.get(number, refused)
        if not borders or borders[-1][1] != decision:
            borders.append((number, decision))
    borders.append((architecture.last + 1, absent))
    if architecture.audit == X86_64:
        borders += [(X32_BIT, _answer(KILL)), (2 * X32_BIT, absent)]
    return [
        (LOAD, 0, 0, ARCHITECTURE_AT),
        (EQUAL, 1, 0, architecture.audit),
        *_answer(KILL),
        (LOAD, 0, 0, NUMBER_AT),
        *_halved(borders),
    ]


def _halved(borders: list[tuple[int, list[Instruction]]]) -> list[Instruction]:
    """What is decided from each border on, for the number that was loaded."""
    if len(borders) == 1:
        return borders[0][1]
    middle = len(borders) // 2
    below, above = _halved(borders[:middle]), _halved(borders[middle:])
    return [
        (AT_LEAST, 0, 1, borders[middle][0]),
        (JUMP, 0, 0, len(below)),
        *below,
        *above,
    ]


def _uses(uses: Uses, pid: int, otherwise: list[Instruction]) -> list[Instruction]:
    """Allowed where all checks of one of *uses* pass."""
    program: list[Instruction] = []
    for use in uses:
        passed = _answer(ALLOW)
        for check in reversed(use):
            passed = _check(check, pid, passed)
        program += passed
    return [*program, *otherwise]


def _check(check: Check, pid: int, passed: list[Instruction]) -> list[Instruction]:
    """*passed*, which returns, where the check passes; else what comes behind it."""
    values = [pid if value == OWN else value for value in check.values]
    program: list[Instruction] = [(LOAD, 0, 0, _half(check.argument, high=check.high))]
    if check.mask != WHOLE:
        program.append((AND, 0, 0, check.mask))
    skip = (JUMP, 0, 0, len(passed))
    if check.refused:
        for at, value in enumerate(values):
            program.append((EQUAL, len(values) - at, 0, value))
        return [*program, (JUMP, 0, 0, 1), skip, *passed]
    for at, value in enumerate(values):
        program.append((EQUAL, len(values) - at, 0, value))
    return [*program, skip, *passed]


def _answer(value: int) -> list[Instruction]:
    return [(RETURN, 0, 0, value)]


def apply(hand_over: Callable[[int], None] | None = None) -> Measure:
    """Filters the calls of every thread of this process, and of those to come; not to be undone.

    What is refused is to be listed by the process that *hand_over* sends a descriptor to: this one
    has one thread then.
    """
    architecture = kernel.architecture()
    if architecture is None:
        return Measure(NAME, False, "no table of system calls for this system and processor")
    program = instructions(architecture, os.getpid(), listed=hand_over is not None)
    content = b"".join(INSTRUCTION.pack(*each) for each in program)
    given = _Program(len(program), content)
    try:
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        number = SECCOMP_CALL[architecture.column]
        flags = FILTER_FLAG_TSYNC if hand_over is None else FILTER_FLAG_NEW_LISTENER
        failed = kernel.syscall(number, SET_MODE_FILTER, flags, ctypes.byref(given))
        if hand_over is not None:
            listener, failed = failed, 0
            try:
                hand_over(listener)
            finally:
                # With it the process could allow itself what it likes.
                os.close(listener)
    except OSError as error:
        return Measure(NAME, False, f"the kernel refuses the filter: {error}")
    if failed:
        return Measure(NAME, False, f"thread {failed} has a filter of its own")
    listed = sum(numbers[architecture.column] is not None for numbers in ALLOWED.values())
    checked = sum(numbers[architecture.column] is not None for numbers, _ in CHECKED.values())
    told = f"{listed} system calls allowed, {checked} in some uses, no others"
    return Measure(NAME, True, told)


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


def _half(argument: int, *, high: bool) -> int:
    """The offset of 32 bits of an argument, on little-endian processors."""
    return 16 + 8 * argument + 4 * high
