"""Lays the second factors of products of two computed tensors out by columns.

A product that sums along adjacent elements of its second factor has no vector of columns to read.
That factor is copied first, with the axis of the columns last.
"""

from __future__ import annotations

from msgspec.structs import replace

from penstock.compiler.expression import identity
from penstock.compiler.interpreter import product_of
from penstock.compiler.program import Access, Kernel, Program, Tensor, along
from penstock.ir import DType

LEAST_ROWS = 4
"""With fewer rows, the copy takes longer than it spares."""


def by_columns(program: Program) -> Program:
    """*program* with such copies."""
    tensors, kernels = list(program.tensors), list[Kernel]()
    for kernel in program.kernels:
        axis = _column_axis(program, kernel)
        if axis is None:
            kernels.append(kernel)
            continue
        first, second = kernel.reads
        value = tensors[second.tensor]
        order = [i for i in range(len(value.shape)) if i != axis] + [axis]
        shape = tuple(value.shape[i] for i in order)
        tensors.append(Tensor(value.dtype, shape, f"{value.name}, by columns"))
        source = [0] * len(order)
        for place, i in enumerate(order):
            source[i] = place
        kernels.append(
            Kernel(
                "columns",
                shape,
                (Access(second.tensor, along(*source)),),
                identity(value.dtype),
                identity(value.dtype),
                Access(len(tensors) - 1, along(*range(len(order)))),
                sums=value.dtype,
            )
        )
        moved = Access(len(tensors) - 1, tuple(second.axes[i] for i in order))
        kernels.append(replace(kernel, reads=(first, moved)))
    return replace(program, tensors=tuple(tensors), kernels=tuple(kernels))


def _column_axis(program: Program, kernel: Kernel) -> int | None:
    """The axis of the second factor that columns of the result go along, if it is not the last."""
    found = product_of(kernel)
    if found is None or kernel.sums is not DType.FLOAT32:
        return None
    first, second = found[:2]
    if program.root(second.tensor) in program.constants or second.fill is not None:
        return None
    written = kernel.write.axes[-1].steps if kernel.write.axes else ()
    if len(written) != 1 or written[0][1] != 1 or written[0][0] in first.loops():
        return None
    rows = 1
    for loop, size in enumerate(kernel.loops):
        rows *= 1 if loop in second.loops() else size
    column = written[0][0]
    axes = [i for i, p in enumerate(second.axes) if column in {loop for loop, _ in p.steps}]
    if len(axes) != 1 or axes[0] == len(second.axes) - 1 or rows < LEAST_ROWS:
        return None
    single = second.axes[axes[0]]
    plain = single.through is None and single.steps == ((column, 1),)
    return axes[0] if plain else None
