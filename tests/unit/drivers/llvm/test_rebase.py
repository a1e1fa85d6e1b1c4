"""Kernels relative to where they begin: equal work elsewhere is one function."""

from __future__ import annotations

import numpy as np

from penstock.compiler.expression import identity
from penstock.compiler.interpreter import run
from penstock.compiler.memory import plan
from penstock.compiler.program import Access, Kernel, Position, Program, Tensor, along
from penstock.drivers.llvm.emit.module import generate
from penstock.drivers.llvm.emit.rebase import rebased
from penstock.drivers.llvm.isa import RECORDS
from penstock.ir import DType

F32 = DType.FLOAT32
SAME = identity(F32)


def copies(fill: float | None = None) -> Program:
    """Copies two rows of [6, 4] each to another place of [8, 4]."""
    tensors = Tensor(F32, (6, 4)), Tensor(F32, (8, 4))
    kernels = []
    for first, to in ((0, 2), (2, 4), (4, 0), (1, 6)):
        read = Access(0, (Position(first, ((0, 1),)), *along(1)), fill)
        write = Access(1, (Position(to, ((0, 1),)), *along(1)))
        kernels.append(Kernel("copy", (2, 4), (read,), SAME, SAME, write))
    return Program(tensors, {}, tuple(kernels), (0,), (1,), {})


def test_kernels_that_begin_elsewhere_are_equal() -> None:
    program = copies()
    found = [rebased(program, kernel) for kernel in program.kernels]
    assert len({repr(kernel) for kernel, _ in found}) == 1
    moves = [(moved.get(0, 0), moved.get(1, 0)) for _, moved in found]
    assert moves == [(0, 8), (8, 16), (16, 0), (4, 24)]
    assert generate(plan(program), RECORDS["avx2"]).functions == 1


def test_relative_kernels_read_and_write_as_before() -> None:
    program = copies()
    data = np.arange(24, dtype=np.float32).reshape(6, 4)
    (wanted,) = run(program, [data])
    made = np.zeros(32, np.float32)
    for kernel in program.kernels:
        relative, moved = rebased(program, kernel)
        given = np.append(data.reshape(-1)[moved.get(0, 0) :], np.zeros(24, np.float32))[:24]
        part = Program(program.tensors, {}, (relative,), (0,), (1,), {})
        (out,) = run(part, [given.reshape(6, 4)])
        made[moved.get(1, 0) :][:8] = out.reshape(-1)[:8]
    np.testing.assert_array_equal(made.reshape(8, 4), wanted)


def test_reads_outside_a_tensor_and_constants_stay() -> None:
    tensors = Tensor(F32, (6, 4)), Tensor(F32, (8, 4)), Tensor(F32, (6, 4))
    outside = Access(0, (Position(3, ((0, 1),)), *along(1)), 0.0)
    constant = Access(2, (Position(2, ((0, 1),)), *along(1)))
    write = Access(1, (Position(1, ((0, 1),)), *along(1)))
    zeros = np.zeros((6, 4), np.float32)
    for read in (outside, constant):
        kernel = Kernel("copy", (4, 4), (read,), SAME, SAME, write)
        program = Program(tensors, {2: zeros}, (kernel,), (0,), (1,), {})
        relative, moved = rebased(program, kernel)
        assert relative.reads == kernel.reads
        assert moved == {1: 4}
