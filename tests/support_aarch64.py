"""Runs generated aarch64 code under qemu: a static executable, linked by Penstock's own loader.

The executable has no library. It starts with a few instructions that call `run`, write the outputs
and end; they are encoded here, because llvmlite assembles for the processor of this machine alone.
A second thread is started by clone(2).
"""

from __future__ import annotations

import math
import os
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from msgspec import Struct

from penstock.compiler import interpreter
from penstock.compiler.memory import plan
from penstock.compiler.program import Program
from penstock.drivers.llvm.backend import compile_object
from penstock.drivers.llvm.emit.module import Generated, generate
from penstock.drivers.llvm.emit.team import BOX_BYTES, TEAM_BYTES, Team as Places
from penstock.drivers.llvm.frame import SLOT_BYTES, WHOLE, WORDS, Word
from penstock.drivers.llvm.isa import RECORDS, Isa
from penstock.drivers.llvm.load.elf import parse
from penstock.drivers.llvm.load.relocate import place, relocated
from penstock.ir import Model, NDArray
from tests.support_compiler import differences
from tests.support_generated import compiled, values_for

QEMU: Final = "qemu-aarch64-static"

SETS: Final = ("neon-dot", "neon")
"""The instruction sets of aarch64."""

PAGE: Final = 1 << 16
START: Final = 0x0800_0000
CODE: Final = 0x1000_0000
DATA: Final = 0x2000_0000
STACK: Final = 1 << 16
SPINS: Final = 1000

CLONE: Final = 0x50F00
"""CLONE_VM, CLONE_FS, CLONE_FILES, CLONE_SIGHAND, CLONE_THREAD and CLONE_SYSVSEM."""


def skip_without_qemu() -> None:
    """Skips the test if qemu is not installed; in continuous integration it has to be."""
    if not _found() and "CI" not in os.environ:
        pytest.skip(f"{QEMU} is not installed")


def _found() -> str | None:
    return shutil.which(QEMU) or shutil.which("qemu-aarch64")


def find_qemu() -> str:
    """The path of qemu; raises if it is not installed."""
    found = _found()
    if found is None:
        raise RuntimeError(
            f"{QEMU} is not installed (Debian and Ubuntu: apt install qemu-user-static)"
        )
    return found


class _Data:
    """The writable bytes of the executable."""

    def __init__(self) -> None:
        self.content = bytearray()

    @property
    def end(self) -> int:
        """The address behind the last byte."""
        return DATA + len(self.content)

    def add(self, content: bytes) -> int:
        """The address of *content*."""
        self.content.extend(b"\0" * (-len(self.content) % 64))
        address = DATA + len(self.content)
        self.content.extend(content)
        return address


X0, X8, X9, X19 = 0, 8, 9, 19


def _moved(register: int, value: int) -> list[int]:
    """movz and movk."""
    parts = [(value >> 16 * place & 0xFFFF, place) for place in range(4)]
    words = [0xD2800000 | parts[0][0] << 5 | register]
    return words + [0xF2800000 | p << 21 | v << 5 | register for v, p in parts[1:] if v]


def _system(number: int, *arguments: int | None) -> list[int]:
    """A system call; None is a register that has its value."""
    given = [w for r, a in enumerate(arguments) if a is not None for w in _moved(r, a)]
    return [*given, *_moved(X8, number), 0xD4000001]


def _called(function: int, *arguments: int) -> list[int]:
    given = [w for r, a in enumerate(arguments) for w in _moved(r, a)]
    return [*given, *_moved(X9, function), 0xD63F0000 | X9 << 5]


SYSCALL: Final = [
    0xAA0003E8, *(0xAA0003E0 | source << 16 | source - 1 for source in range(1, 7)),
    0xD4000001, 0xD65F03C0,
]  # fmt: skip
"""`syscall(number, ...)` of the C library: moves the number to x8, the others down by one."""


class Team(Struct, frozen=True):
    """What a second thread needs: a stack, the team's memory, and the functions for it."""

    stack: int
    memory: int
    worker: int
    dismiss: int

    @property
    def box(self) -> int:
        """The memory of the second thread."""
        return self.memory + TEAM_BYTES


def _start(run: int, frame: int, got: tuple[int, int], team: Team | None) -> list[int]:
    """The code that starts: it calls *run*, writes the bytes *got*, (address, length), and ends
    with what `run` returned.
    """
    words: list[int] = []
    if team is not None:
        second = [*_called(team.worker, team.memory, team.box), *_system(93, 0)]
        # cbnz x0, behind it: the first thread goes on there.
        words += [*_system(220, CLONE, team.stack, 0, 0, 0), 0xB5000000 | (len(second) + 1) << 5]
        words += second
    words += [*_called(run, frame), 0x2A0003E0 | X0 << 16 | X19]
    if team is not None:
        words += _called(team.dismiss, team.memory, team.box)
    words += _system(64, 1, *got)
    return [*words, 0x2A0003E0 | X19 << 16 | X0, *_system(94, None)]


def executable(segments: Sequence[tuple[int, int, bytes]], entry: int) -> bytes:
    """A static executable of *segments*: (address, flags, bytes) each."""
    headers, content, at = b"", b"", PAGE
    for address, flags, data in segments:
        headers += struct.pack(
            "<IIQQQQQQ", 1, flags, at + len(content), address, address, len(data), len(data), PAGE
        )
        content += data + b"\0" * (-len(data) % PAGE)
    head = struct.pack(
        "<4sBBBB8xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 0, 2, 183, 1, entry, 64, 0,
        0, 64, 56, len(segments), 64, 0, 0,
    )  # fmt: skip
    return (head + headers).ljust(PAGE, b"\0") + content


def linked(code: bytes, data: _Data, frame: int, got: tuple[int, int], team: int = 0) -> bytes:
    """An executable that calls `run` of the object *code* once with *frame*, and writes the bytes
    *got* of *data*, (address, length). A second thread works for the team at address *team*.
    """
    parsed = parse(code)
    placed = place(parsed, PAGE)

    def address(name: str) -> int:
        symbol = parsed.symbols[name]
        return CODE + placed.starts[symbol.section] + symbol.offset

    second = None
    if team:
        stack = data.add(bytes(STACK)) + STACK
        second = Team(stack, team, address("worker"), address("dismiss"))
    start = [*SYSCALL, *_start(address("run"), frame, got, second)]
    image = relocated(placed, CODE).tobytes()
    segments = [(START, 5, struct.pack(f"<{len(start)}I", *start))]
    segments.append((CODE, 5, image[: placed.code]))
    if placed.size > placed.code:
        segments.append((CODE + placed.code, 4, image[placed.code :]))
    segments.append((DATA, 6, bytes(data.content)))
    return executable(segments, START + 4 * len(SYSCALL))


def executed(content: bytes, isa: Isa, directory: Path) -> bytes:
    """What an executable writes under qemu. Raises `RuntimeError` if it fails."""
    path = directory / "program"
    path.write_bytes(content)
    path.chmod(0o700)
    # The processor without dot products is the first one of 64 bits.
    cpu = "max" if "dotprod" in isa.features else "cortex-a57"
    done = subprocess.run(
        [find_qemu(), "-cpu", cpu, str(path)], capture_output=True, timeout=300, check=False
    )
    if done.returncode:
        raise RuntimeError(f"qemu ended with {done.returncode}: {done.stderr.decode()[-500:]}")
    return done.stdout


def run_code(text: str, isa: Isa, size: int, directory: Path) -> bytes:
    """The *size* bytes that `run` of a module writes where the first word of its frame points."""
    data = _Data()
    got = data.add(bytes(_padded(size)))
    frame = data.add(struct.pack("<8Q", got, *[0] * 7))
    return executed(linked(compile_object(text, isa), data, frame, (got, size)), isa, directory)


def _padded(size: int) -> int:
    return -(-size // 64) * 64


class Made(Struct, frozen=True, eq=False):
    """A program, its code as text and its object code."""

    program: Program
    generated: Generated
    code: bytes


def made_for(program: Program, isa: Isa) -> Made:
    """The code of *program*."""
    generated = generate(plan(program), isa)
    return Made(program, generated, compile_object(generated.text, isa))


def run(
    made: Made, isa: Isa, inputs: Sequence[NDArray], directory: Path, threads: int = 1
) -> list[NDArray]:
    """The outputs of a program, run under qemu. With two *threads* the second one helps."""
    program, generated = made.program, made.generated
    if threads > 1 and not generated.shared:
        raise ValueError("the program is too small for threads")
    data = _Data()
    words = [0] * WORDS
    words[Word.CONSTANTS] = data.add(bytes(generated.constants))
    ports = [data.add(np.ascontiguousarray(a).tobytes()) for a in inputs]
    first = data.add(b"")
    for number in program.outputs:
        tensor = program.tensors[number]
        size = math.prod(tensor.shape) * tensor.dtype.numpy.itemsize
        ports.append(data.add(bytes(_padded(size))))
    got = first, data.end - first
    words[Word.ARENA] = data.add(bytes(generated.arena))
    words[Word.PORTS] = data.add(struct.pack(f"<{len(ports)}Q", *ports))
    words[Word.STOP] = data.add(bytes(64))
    words[Word.HIGH], words[Word.THREADS], words[Word.IMAGES] = WHOLE, threads, 1
    if threads > 1:
        memory = bytearray(TEAM_BYTES + BOX_BYTES)
        for field, value in (
            (Places.SPINS, SPINS), (Places.WAIT, START), (Places.WAKE, START), (Places.COUNT, 1),
        ):  # fmt: skip
            memory[field : field + 8] = struct.pack("<Q", value)
        words[Word.TEAM] = data.add(bytes(memory))
        words[Word.SLOTS] = data.add(bytes(SLOT_BYTES * len(generated.templates)))
    frame = data.add(struct.pack(f"<{WORDS}Q", *words))
    written = executed(linked(made.code, data, frame, got, words[Word.TEAM]), isa, directory)
    outputs, at = [], 0
    for number in program.outputs:
        tensor = program.tensors[number]
        count = math.prod(tensor.shape)
        outputs.append(np.frombuffer(written, tensor.dtype.numpy, count, at).reshape(tensor.shape))
        at += _padded(outputs[-1].nbytes)
    return outputs


def wrong(
    model: Model, inputs: list[NDArray] | None, name: str, directory: Path, threads: int = 1
) -> list[str]:
    """What differs from the interpreter, run on one thread and on every number up to *threads*."""
    isa = RECORDS[name]
    program = compiled(model, isa)
    given = values_for(program) if inputs is None else inputs
    wanted = interpreter.run(program, given)
    made = made_for(program, isa)
    return [
        f"{count} threads: {difference}"
        for count in range(1, threads + 1)
        for difference in differences(wanted, run(made, isa, given, directory, count))
    ]
