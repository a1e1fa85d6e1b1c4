"""Borders of tensors: their pieces in memory, and the code that writes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from penstock.compiler import interpreter
from penstock.compiler.checks import check
from penstock.compiler.expression import identity
from penstock.compiler.program import Access, Border, Kernel, Position, Program, Tensor, along
from penstock.drivers.llvm.emit.borders import Pieces, pattern, pieces
from penstock.drivers.llvm.isa import Isa
from penstock.ir import DType
from tests.support_generated import Runner, sets_here, values_for

VALUES: dict[DType, Any] = {
    DType.UINT8: 131, DType.INT8: -7, DType.INT16: -300, DType.FLOAT32: 1.5, DType.BOOL: True,
}  # fmt: skip

SHAPES = (
    ((5,), (1,), (2,)),
    ((4, 3), (1, 2), (1, 0)),
    ((1, 6, 5, 3), (0, 1, 1, 0), (0, 1, 1, 0)),
    ((1, 6, 5, 70), (0, 0, 0, 0), (0, 1, 1, 0)),
    ((2, 3, 4, 33), (0, 2, 1, 0), (0, 1, 3, 0)),
    ((2, 3, 4, 2), (1, 0, 1, 1), (0, 1, 0, 2)),
    ((1, 1, 40, 16), (0, 0, 9, 0), (0, 0, 9, 0)),
)  # fmt: skip
"""The middle of a tensor, and how many elements are before and behind it along each axis."""


def bordered() -> Program:
    """Copies of inputs into the middle of larger outputs, of every type and shape."""
    tensors: list[Tensor] = []
    kernels, inputs, outputs = [], [], []
    for dtype, value in VALUES.items():
        for shape, before, behind in SHAPES:
            sizes = tuple(a + n + b for a, n, b in zip(before, shape, behind, strict=True))
            source, target = len(tensors), len(tensors) + 1
            tensors += [Tensor(dtype, shape), Tensor(dtype, sizes)]
            axes = tuple(Position(a, ((loop, 1),)) for loop, a in enumerate(before))
            read = Access(source, along(*range(len(shape))))
            plain = identity(dtype)
            border = Border(before, behind, value)
            kernels.append(
                Kernel(
                    "copy", shape, (read,), plain, plain, Access(target, axes), sums=dtype,
                    border=border,
                )
            )  # fmt: skip
            inputs.append(source)
            outputs.append(target)
    return Program(tuple(tensors), {}, tuple(kernels), tuple(inputs), tuple(outputs), {})


def test_pieces_are_the_bytes_of_the_border() -> None:
    program = bordered()
    check(program)
    for kernel in program.kernels:
        tensor, border = program.tensors[kernel.write.tensor], kernel.border
        assert border is not None
        written = np.zeros(tensor.shape, tensor.dtype.numpy)
        flat = written.reshape(-1).view(np.uint8)
        word = np.array([pattern(tensor, border)]).view(np.uint8)
        for piece in pieces(tensor, border):
            for number in range(piece.count):
                begin = piece.begin + number * piece.pitch
                flat[begin : begin + piece.size] = np.resize(word, piece.size)
        source = kernel.reads[0].tensor
        zeros = np.zeros(program.tensors[source].shape, tensor.dtype.numpy)
        part = replace(program, kernels=(kernel,), inputs=(source,), outputs=())
        expected = interpreter.Run(part, [zeros]).evaluated(kernel.write.tensor)
        np.testing.assert_array_equal(written, expected)


def test_ends_of_adjacent_rows_are_one_piece() -> None:
    border = Border((0, 1, 1, 0), (0, 1, 1, 0), 0)
    found = list(pieces(Tensor(DType.INT8, (1, 12, 12, 8)), border))
    assert found == [
        Pieces(0, 104, 1, 0), Pieces(13 * 8 + 80, 16, 9, 96), Pieces(11 * 96 - 8, 104, 1, 0),
    ]  # fmt: skip


@pytest.mark.parametrize("isa", sets_here(), ids=lambda isa: isa.name)
def test_code_writes_borders_of_every_type_and_shape(isa: Isa) -> None:
    program = bordered()
    inputs = values_for(program)
    runner = Runner(program, isa)
    wanted = interpreter.run(program, inputs)
    for got, expected in zip(runner(inputs), wanted, strict=True):
        np.testing.assert_array_equal(got, expected)
    runner.close()
