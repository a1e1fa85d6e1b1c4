"""Small routines for tests."""

from __future__ import annotations

from collections.abc import Callable

from penstock.compiler.legalise.builder import Builder
from penstock.compiler.legalise.routines import RoutineWriter
from penstock.compiler.program import Program
from penstock.ir import DType, ModelBuilder


def routine_program(
    dtype: DType, size: int, words: int, write: Callable[[RoutineWriter, int], None]
) -> Program:
    """A program of one routine, which *write* writes: it reads a vector of *size* elements of
    *dtype*, whose tensor it gets, and its *words* words of memory are the output.
    """
    model = ModelBuilder()
    x = model.input(dtype, (size,), "x")
    build = Builder(model.build([x]))
    given = build.operand(x)
    w = RoutineWriter(build, words)
    write(w, given)
    w.emit("routine", size)
    return Program(
        tuple(build.tensors), build.constants, tuple(build.kernels), (given,), (w.memory,), {}
    )
