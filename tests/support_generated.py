"""Compiled programs for tests: models through every pass, generated code, objects, runs of them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from penstock.compiler.interpreter import as_declared
from penstock.compiler.legalise import legalise
from penstock.compiler.memory import plan
from penstock.compiler.outputs import with_own_outputs
from penstock.compiler.pipeline import upto
from penstock.compiler.program import Program
from penstock.drivers.llvm.backend import compile_object
from penstock.drivers.llvm.emit.module import Generated, generate
from penstock.drivers.llvm.frame import WHOLE, WORDS, Word
from penstock.drivers.llvm.isa import RECORDS, Isa
from penstock.drivers.llvm.load import Image, load
from penstock.drivers.llvm.processor import missing
from penstock.ir import Model, NDArray

ALIGNMENT: Final = 64


def compiled(model: Model, isa: Isa) -> Program:
    """The program of a model after every pass, for *isa*."""
    return with_own_outputs(upto(legalise(model), "tabulate", isa.target))


def sets_here() -> tuple[Isa, ...]:
    """The instruction sets that this machine can run."""
    return tuple(isa for isa in RECORDS.values() if not missing(isa))


def aligned(size: int) -> NDArray:
    """*size* bytes of zeros, aligned to a cache line."""
    made = np.zeros(size + ALIGNMENT, np.uint8)
    start = -made.ctypes.data % ALIGNMENT
    return made[start : start + size]


class Runner:
    """A program in executable memory, with its constants, arena and outputs. *changed* is applied
    to the text of the code. A run ends soon after `stop` is set.
    """

    def __init__(
        self, program: Program, isa: Isa, changed: Callable[[str], str] | None = None
    ) -> None:
        self.program = program
        planned = plan(program)
        self.generated: Generated = generate(planned, isa)
        text = self.generated.text if changed is None else changed(self.generated.text)
        self.image: Image = load(compile_object(text, isa))
        self._run = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self.image.address("run"))
        self._constants = aligned(len(self.generated.constants))
        self._constants[:] = np.frombuffer(self.generated.constants, np.uint8)
        self._arena, self.stop = aligned(self.generated.arena), np.zeros(1, np.int32)

    def __call__(self, inputs: Sequence[NDArray], shares: int = 1) -> list[NDArray]:
        """The outputs, computed in so many *shares* of each kernel, one run each."""
        program = self.program
        inputs = [np.ascontiguousarray(a) for a in inputs]
        outputs = [
            np.zeros(program.tensors[t].shape, program.tensors[t].dtype.numpy)
            for t in program.outputs
        ]
        self.call([a.ctypes.data for a in (*inputs, *outputs)], shares=shares)
        named = zip(program.outputs, outputs, strict=True)
        return [as_declared(program.tensors[t], array) for t, array in named]

    def call(
        self, ports: Sequence[int], arena: int | None = None, constants: int | None = None,
        shares: int = 1,
    ) -> None:  # fmt: skip
        """Runs with the given addresses, once for each of *shares*."""
        table = np.array(ports, np.uint64)
        frame = np.zeros(WORDS, np.uint64)
        frame[Word.PORTS] = table.ctypes.data
        frame[Word.ARENA] = self._arena.ctypes.data if arena is None else arena
        frame[Word.CONSTANTS] = self._constants.ctypes.data if constants is None else constants
        frame[Word.STOP] = self.stop.ctypes.data
        frame[Word.THREADS], frame[Word.IMAGES] = 1, 1
        for share in range(shares):
            frame[Word.LOW], frame[Word.HIGH] = (WHOLE * s // shares for s in (share, share + 1))
            status = self._run(frame.ctypes.data)
            if status:
                raise RuntimeError(f"the generated code returned {status}")

    def close(self) -> None:
        """Unmaps the code."""
        self.image.close()


def values_for(program: Program, seed: int = 0) -> list[NDArray]:
    """Random inputs, with values at both ends of integer types."""
    rng, made = np.random.default_rng(seed), []
    for number in program.inputs:
        tensor = program.tensors[number]
        dtype = tensor.dtype.numpy
        if dtype.kind == "f":
            made.append(rng.standard_normal(tensor.shape).astype(dtype))
        elif dtype == np.bool_:
            made.append(rng.random(tensor.shape) > 0.5)  # a fair coin
        elif dtype.itemsize < 4:  # bytes
            info = np.iinfo(dtype)
            made.append(rng.integers(info.min, info.max, tensor.shape, dtype, endpoint=True))
        else:
            made.append(rng.integers(0, 5, tensor.shape, endpoint=True).astype(dtype))
    return made


def largest_difference(got: NDArray, wanted: NDArray) -> float:
    """0 if equal; for floats the greatest difference, as a part of the largest wanted value."""
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return float("inf")
    if got.dtype.kind != "f":
        return float(np.count_nonzero(got != wanted))
    if not np.array_equal(np.isfinite(got), np.isfinite(wanted)):
        return float("inf")
    finite = np.isfinite(wanted)
    scale = float(np.abs(wanted[finite]).max(initial=0)) or 1.0
    return float(np.abs(got[finite] - wanted[finite]).max(initial=0)) / scale
