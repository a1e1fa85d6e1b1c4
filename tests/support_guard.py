"""Buffers between pages that nobody may touch, and runs of generated code in them.

    python -m tests.support_guard FAMILY FIRST LAST

A read or write outside a buffer ends the process. It prints the name of each case before it runs.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import re
import subprocess
import sys

import numpy as np

from penstock.compiler import interpreter
from penstock.compiler.program import Program
from penstock.drivers.llvm.isa import Isa
from penstock.ir import NDArray
from tests.support_compiler import differences
from tests.support_generated import Runner, compiled, sets_here
from tests.support_layers import supported_layers

NONE = 0
ALIGNMENT = 64


class Guarded:
    """*size* bytes between two pages without access: their last byte lies before one of them, or,
    with *first*, their first byte behind one. Of *aligned* bytes the end may be up to 63 bytes off.
    """

    def __init__(self, size: int, *, first: bool, aligned: bool = False) -> None:
        page = mmap.PAGESIZE
        room = -(-max(size, 1) // page) * page
        self._map = mmap.mmap(-1, room + 2 * page)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        library = ctypes.CDLL(None, use_errno=True)
        for place in (base, base + page + room):
            if library.mprotect(ctypes.c_void_p(place), ctypes.c_size_t(page), NONE):
                raise OSError(ctypes.get_errno(), "mprotect")
        offset = 0 if first else room - (-(-size // ALIGNMENT) * ALIGNMENT if aligned else size)
        self.address = base + page + offset
        whole = np.frombuffer(self._map, np.uint8, room, page)
        self.bytes: NDArray = whole[offset : offset + size]
        whole[:] = 0xA5


def run_guarded(runner: Runner, inputs: list[NDArray], *, first: bool) -> list[NDArray]:
    """The outputs of a run whose every buffer is guarded."""
    program, generated = runner.program, runner.generated
    buffers = []
    for array in inputs:
        buffers.append(Guarded(array.nbytes, first=first))
        buffers[-1].bytes[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    outputs = []
    for number in program.outputs:
        tensor = program.tensors[number]
        size = math.prod(tensor.shape) * tensor.dtype.numpy.itemsize
        outputs.append((Guarded(size, first=first), tensor))
    arena = Guarded(generated.arena, first=first, aligned=True)
    constants = Guarded(len(generated.constants), first=first, aligned=True)
    constants.bytes[:] = np.frombuffer(generated.constants, np.uint8)
    ports = [b.address for b in (*buffers, *(o for o, _ in outputs))]
    runner.call(ports, arena.address, constants.address)
    return [o.bytes.view(t.dtype.numpy).reshape(t.shape).copy() for o, t in outputs]


def wrong(program: Program, isa: Isa, inputs: list[NDArray]) -> list[str]:
    """What differs from the interpreter, run between guard pages on both sides."""
    wanted = interpreter.run(program, inputs)
    runner = Runner(program, isa)
    found = []
    for first in (False, True):
        found += differences(wanted, run_guarded(runner, inputs, first=first))
    runner.close()
    return found


def say(text: str) -> None:
    """Writes a line that a fault cannot lose."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def failures(isa: Isa, family: str, seeds: range) -> int:
    """How many results of the layers of *seeds* are wrong."""
    count = failed = 0
    for seed, model, inputs in supported_layers(family, seeds):
        program = compiled(model, isa)
        kernels = ", ".join(k.name for k in program.kernels)
        say(f"{family} {seed} on {isa.name}: {kernels}")
        for difference in wrong(program, isa, inputs):
            say(f"WRONG {difference}")
            failed += 1
        count += 1
    say(f"{count} cases on {isa.name}")
    return failed


def tried(family: str, count: int, timeout: float | None = None) -> tuple[dict[str, int], str]:
    """The cases of *count* layers of *family* in another process, by instruction set, and how the
    process failed; empty if it did not.
    """
    done = subprocess.run(
        [sys.executable, "-m", __name__, family, "0", str(count)],
        capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    found = re.findall(r"^(\d+) cases on (\S+)$", done.stdout, re.MULTILINE)
    failure = ""
    if done.returncode:
        lines = done.stdout.splitlines()[-3:]
        failure = f"{lines} ended with {done.returncode}: {done.stderr[-800:]}"
    return {name: int(number) for number, name in found}, failure


def main(arguments: list[str]) -> int:
    family, first, last = arguments
    seeds = range(int(first), int(last))
    # Asking what the processor has also asks Linux for the registers of tiles.
    return 1 if sum(failures(isa, family, seeds) for isa in sets_here()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
