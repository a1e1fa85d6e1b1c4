"""Divides long reductions in two: parts that many threads compute, and what they come to.

One thread that reduces a whole image is slow. It may also end early: Mesa's software adapter, up
to version 22 at least, leaves the loops of a thread after 65,535 iterations without an error.
"""

from __future__ import annotations

import math
from typing import Final

from msgspec.structs import replace

from penstock.compiler.expression import identity
from penstock.compiler.program import Access, Kernel, Position, Program, Tensor, along
from penstock.interrupts import polled

MOST_ITERATIONS: Final = 65_535
"""Iterations of all loops of a thread that every device does."""

LONGEST: Final = 8192
"""Points of a reduction that are not divided."""


def in_parts(program: Program) -> Program:
    """*program* with such reductions divided."""
    tensors, kernels = list(program.tensors), list[Kernel]()
    for kernel in polled(program.kernels):
        kernels += _divided(tensors, kernel)
    return replace(program, tensors=tuple(tensors), kernels=tuple(kernels))


def _divided(tensors: list[Tensor], kernel: Kernel) -> list[Kernel]:
    reduced = math.prod(kernel.reduced)
    if kernel.combine == "none" or kernel.ordered or reduced <= LONGEST or 0 in kernel.sizes:
        return [kernel]
    split = _with_two_loops(kernel)
    if split is None:
        return [kernel]
    kernel, count = split
    # The first *count* reduced loops become outer ones.
    outer = len(kernel.loops)
    parts = kernel.reduced[:count]
    tensors.append(Tensor(kernel.sums, (*kernel.loops, *parts), f"parts of {kernel.name}"))
    made, every = len(tensors) - 1, range(outer + count)
    first = replace(
        kernel, loops=(*kernel.loops, *parts), reduced=kernel.reduced[count:], extras=(),
        finish=identity(kernel.sums), write=Access(made, along(*every)), border=None,
    )  # fmt: skip
    second = replace(
        kernel, reads=(Access(made, along(*every)),), body=identity(kernel.sums), reduced=parts,
    )  # fmt: skip
    return [first, second]


def _with_two_loops(kernel: Kernel) -> tuple[Kernel, int] | None:
    """*kernel* and how many of its reduced loops its parts are counted by: as few as leave each
    part short. One long loop is written as two. None if its size has no suitable divisor.
    """
    sizes = kernel.reduced
    for count in range(1, len(sizes)):
        if math.prod(sizes[count:]) <= LONGEST and math.prod(sizes[:count]) <= LONGEST:
            return kernel, count
    long = max(range(len(sizes)), key=sizes.__getitem__)
    most = LONGEST // math.prod(sizes[long + 1 :])
    inner = next((k for k in range(most, 1, -1) if sizes[long] % k == 0), None)
    if inner is None or sizes[long] // inner > MOST_ITERATIONS:
        return None
    at = len(kernel.loops) + long

    def moved(access: Access) -> Access:
        return replace(access, axes=tuple(_position(p, at, inner) for p in access.axes))

    loops = (*sizes[:long], sizes[long] // inner, inner, *sizes[long + 1 :])
    whole = replace(kernel, reduced=loops, reads=tuple(moved(a) for a in kernel.reads))
    count = long + 1
    return (whole, count) if math.prod(loops[:count]) <= MOST_ITERATIONS else None


def _position(position: Position, at: int, inner: int) -> Position:
    """*position* where loop *at* is two: itself, by *inner* iterations, and the one behind it."""
    steps = list[tuple[int, int]]()
    for loop, step in position.steps:
        if loop == at:
            steps += [(loop, step * inner), (loop + 1, step)]
        else:
            steps.append((loop + (loop > at), step))
    return replace(position, steps=tuple(steps))
