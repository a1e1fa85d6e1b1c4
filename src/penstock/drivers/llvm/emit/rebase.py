"""Kernels relative to where they begin in each tensor: equal work elsewhere is then one function.

The steps of a sequence, and the phases of a transposed convolution, differ in where they begin
alone. The caller adds that to the pointers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec.structs import replace

from penstock.compiler.program import Access, Kernel, Program


def rebased(program: Program, kernel: Kernel) -> tuple[Kernel, Mapping[int, int]]:
    """*kernel* with the first elements that it touches at the beginning of their tensors, and how
    many elements each tensor, by its root, is moved.

    Tensors stay as they are if they are constant, have several shapes here, or are read outside
    their bounds or through a table of positions.
    """
    used: dict[int, list[tuple[Access, tuple[int, ...]]]] = {}
    inner = [(a, kernel.sizes) for a in kernel.reads]
    outer = [(a, kernel.loops) for a in (*kernel.extras, kernel.write)]
    for access, sizes in (*inner, *outer):
        used.setdefault(program.root(access.tensor), []).append((access, sizes))
    firsts: dict[int, tuple[int, ...]] = {}
    moved: dict[int, int] = {}
    for root, accesses in used.items():
        first = _first(program, root, accesses)
        if first is not None and any(first):
            tensor = accesses[0][0].tensor
            shape = program.tensors[tensor].shape
            strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
            firsts[tensor] = first
            moved[root] = sum(n * stride for n, stride in zip(first, strides, strict=True))
    if not firsts:
        return kernel, {}

    def relative(access: Access) -> Access:
        first = firsts.get(access.tensor)
        if first is None:
            return access
        axes = zip(access.axes, first, strict=True)
        return replace(access, axes=tuple(replace(p, offset=p.offset - n) for p, n in axes))

    reads, extras = (tuple(map(relative, part)) for part in (kernel.reads, kernel.extras))
    return replace(kernel, reads=reads, extras=extras, write=relative(kernel.write)), moved


def _first(
    program: Program, root: int, accesses: list[tuple[Access, tuple[int, ...]]]
) -> tuple[int, ...] | None:
    """The least position along each axis; None if the tensor is to stay as it is."""
    if root in program.constants or len({access.tensor for access, _ in accesses}) > 1:
        return None
    shape = program.tensors[accesses[0][0].tensor].shape
    least = list(shape)
    for access, sizes in accesses:
        for axis, (position, size) in enumerate(zip(access.axes, shape, strict=True)):
            low, high = position.span(sizes)
            if position.through is not None or low < 0 or high >= size:
                return None
            least[axis] = min(least[axis], low)
    return tuple(least)
