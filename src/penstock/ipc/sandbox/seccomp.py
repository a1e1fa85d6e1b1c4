"""A seccomp filter: a system call that is not on the list of `syscalls` fails with EPERM.

The filter is a program of the kernel's classic packet filter over `struct seccomp_data`. It finds
the call's number by binary search, since every call passes it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.ipc.sandbox import kernel, syscalls
from penstock.ipc.sandbox.kernel import Measure

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
    architecture: syscalls.Architecture, pid: int, *, listed: bool = False
) -> list[Instruction]:
    """The filter for process *pid*; a *listed* one reports rejected calls to another process."""
    refused, absent = _answer(ERRNO | errno.EPERM), _answer(ERRNO | errno.ENOSYS)
    if listed:
        refused = _answer(USER_NOTIF)
    column = architecture.column
    decisions: dict[int | None, list[Instruction]] = {syscalls.CLONE3[column]: absent}
    decisions |= {numbers[column]: _answer(ALLOW) for numbers in syscalls.ALLOWED.values()}
    for numbers, uses in syscalls.CHECKED.values():
        decisions[numbers[column]] = _uses(uses, pid, refused)
    # The decision differs from that for the number before.
    borders: list[tuple[int, list[Instruction]]] = []
    for number in range(architecture.last + 1):
        decision = decisions.get(number, refused)
        if not borders or borders[-1][1] != decision:
            borders.append((number, decision))
    borders.append((architecture.last + 1, absent))
    if architecture.audit == syscalls.X86_64:
        borders += [(syscalls.X32_BIT, _answer(KILL)), (2 * syscalls.X32_BIT, absent)]
    return [
        (LOAD, 0, 0, ARCHITECTURE_AT),
        (EQUAL, 1, 0, architecture.audit),
        *_answer(KILL),
        (LOAD, 0, 0, NUMBER_AT),
        *_halved(borders),
    ]


def _halved(borders: list[tuple[int, list[Instruction]]]) -> list[Instruction]:
    """The filter's decision from each border on, for the loaded number."""
    if len(borders) == 1:
        return borders[0][1]
    middle = len(borders) // 2
    below, above = _halved(borders[:middle]), _halved(borders[middle:])
    return [(AT_LEAST, 0, 1, borders[middle][0]), (JUMP, 0, 0, len(below)), *below, *above]


def _uses(uses: syscalls.Uses, pid: int, otherwise: list[Instruction]) -> list[Instruction]:
    """Allows the call if all checks of one of *uses* pass."""
    program: list[Instruction] = []
    for use in uses:
        passed = _answer(ALLOW)
        for check in reversed(use):
            passed = _check(check, pid, passed)
        program += passed
    return [*program, *otherwise]


def _check(check: syscalls.Check, pid: int, passed: list[Instruction]) -> list[Instruction]:
    """*passed*, which returns, if the check passes; else the following instructions."""
    values = [pid if value == syscalls.OWN else value for value in check.values]
    # The offset of 32 bits of an argument, on little-endian processors.
    offset = 16 + 8 * check.argument + 4 * check.high
    program: list[Instruction] = [(LOAD, 0, 0, offset)]
    if check.mask != syscalls.WHOLE:
        program.append((AND, 0, 0, check.mask))
    for at, value in enumerate(values):
        program.append((EQUAL, len(values) - at, 0, value))
    if check.refused:
        program.append((JUMP, 0, 0, 1))
    return [*program, (JUMP, 0, 0, len(passed)), *passed]


def _answer(value: int) -> list[Instruction]:
    return [(RETURN, 0, 0, value)]


def apply(hand_over: Callable[[int], None] | None = None) -> Measure:
    """Permanently filters the calls of every thread of this process. With *hand_over*, which sends
    a descriptor, another process lists rejected calls; this one then has one thread.
    """
    architecture = kernel.architecture()
    if architecture is None:
        return Measure(NAME, False, "no table of system calls for this system and processor")
    program = instructions(architecture, os.getpid(), listed=hand_over is not None)
    content = b"".join(INSTRUCTION.pack(*each) for each in program)
    given = _Program(len(program), content)
    try:
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        number = syscalls.SECCOMP_CALL[architecture.column]
        flags = FILTER_FLAG_TSYNC if hand_over is None else FILTER_FLAG_NEW_LISTENER
        failed = kernel.syscall(number, SET_MODE_FILTER, flags, ctypes.byref(given))
        if hand_over is not None:
            listener, failed = failed, 0
            try:
                hand_over(listener)
            finally:
                # A process that keeps this descriptor could allow its own calls.
                os.close(listener)
    except OSError as error:
        return Measure(NAME, False, f"the kernel refuses the filter: {error}")
    if failed:
        return Measure(NAME, False, f"thread {failed} has a filter of its own")
    column = architecture.column
    listed = sum(numbers[column] is not None for numbers in syscalls.ALLOWED.values())
    checked = sum(numbers[column] is not None for numbers, _ in syscalls.CHECKED.values())
    detail = f"{listed} system calls allowed, {checked} in some uses, no others"
    return Measure(NAME, True, detail)


def detect() -> Measure:
    """Whether the kernel supports what `apply` needs."""
    if kernel.architecture() is None:
        return Measure(NAME, False, "no table of system calls for this system and processor")
    try:
        actions = Path("/proc/sys/kernel/seccomp/actions_avail").read_text("ascii").split()
    except OSError as error:
        return Measure(NAME, False, f"the kernel does not list its actions: {error.strerror}")
    if not {"errno", "allow"} <= set(actions):
        return Measure(NAME, False, f"the kernel offers only {' '.join(actions)}")
    return Measure(NAME, True, "available")


RECEIVE: Final = 0xC050_2100
SEND: Final = 0xC018_2101
"""SECCOMP_IOCTL_NOTIF_RECV and SECCOMP_IOCTL_NOTIF_SEND."""

NOTICE: Final = struct.Struct("=QIIiIQ6Q")
"""Its number, the process, flags, and the call: number, architecture, instruction and arguments."""
ANSWER: Final = struct.Struct("=QqiI")

MOST_SAID: Final = 1024
"""Most different rejections that are listed."""


def list_refusals(listener: int) -> None:
    """Answers each notification of the descriptor *listener* with EPERM.

    Writes the first of each kind to the standard error. Ends when no process has that filter any
    more, and closes the descriptor.
    """
    if sys.platform == "win32":
        raise OSError(errno.ENOSYS, "seccomp is Linux's")
    import fcntl

    said: set[tuple[int, int, int]] = set()
    found = kernel.architecture()
    column = None if found is None else found.column
    checked = () if column is None else [n[column] for n, _ in syscalls.CHECKED.values()]
    try:
        while True:
            notice = bytearray(NOTICE.size)
            try:
                fcntl.ioctl(listener, RECEIVE, notice)
            except InterruptedError:
                continue
            number, _, _, call, _, _, first, second, *_ = NOTICE.unpack(notice)
            kind = (call, first & 0xFFFF_FFFF, second & 0xFFFF_FFFF if call in checked else 0)
            if kind not in said and len(said) < MOST_SAID:
                said.add(kind)
                arguments = f"({first:#x}, {second:#x}, ...)"
                line = f"penstock.ipc: the sandbox refuses {name_of(call)} {arguments}\n"
                os.write(2, line.encode())
            # The calling process may have ended meanwhile.
            with suppress(FileNotFoundError):
                fcntl.ioctl(listener, SEND, ANSWER.pack(number, 0, -errno.EPERM, 0))
    except OSError:
        return  # No process has the filter any more.
    finally:
        os.close(listener)


def name_of(number: int) -> str:
    """The call by name if the list has it, for some of its uses; else by number."""
    found = kernel.architecture()
    known: dict[int | None, str] = {}
    if found is not None:
        column = found.column
        known |= {numbers[column]: name for name, numbers in syscalls.ALLOWED.items()}
        for name, (numbers, _) in syscalls.CHECKED.items():
            known[numbers[column]] = f"this use of {name}"
        known[syscalls.CLONE3[column]] = "clone3"
    return known.get(number, f"system call {number}")
