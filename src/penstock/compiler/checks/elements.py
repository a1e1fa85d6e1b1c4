"""Sets of elements that a nest of loops reaches, as bits of one whole number.

A loop of n turns adds copies of the set, shifted by its stride. Doubling makes them in log2(n)
shifts, so that sets of millions of elements cost milliseconds and are exact: two points of a nest
reach the same element if and only if the set has fewer bits than the nest has points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from penstock.compiler.program import Access, Border, Position, Program


def spread(elements: int, step: int, count: int) -> int:
    """*elements* and its copies, shifted by step, 2 * step, ... (*count* in all)."""
    have = 1
    while have < count:
        more = min(have, count - have)
        elements |= elements << (step * more)
        have += more
    return elements


def along_axis(program: Program, position: Position, sizes: Sequence[int]) -> list[int]:
    """The positions along an axis, each once, in rising order; some may lie outside the tensor.
    *through*, if there is one, is constant.
    """
    low, high = position.span(tuple(sizes))
    reached, offset = 1, position.offset - low
    for loop, step in position.steps:
        offset += min(0, step * (sizes[loop] - 1))
        reached = spread(reached, abs(step), sizes[loop])
    reached <<= offset
    places = [low + i for i in range(high - low + 1) if reached >> i & 1]
    if position.through is None:
        return places
    table = program.constants[program.root(position.through)].reshape(-1)
    return sorted({int(table[i]) for i in places if 0 <= i < len(table)})


def reached(program: Program, access: Access, sizes: Sequence[int]) -> int:
    """The elements of a tensor that *access* reaches from loops of *sizes*, by their place in it.

    Positions are linear in the loops as a rule. Where one reads outside the tensor, or through a
    table, each axis is counted by itself: exact, unless one loop moves two axes.
    """
    if 0 in sizes:
        return 0
    shape = program.tensors[access.tensor].shape
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    if access.fill is None and all(p.through is None for p in access.axes):
        return _linear(access, strides, sizes)
    elements = 1
    for axis in reversed(range(len(shape))):
        inner, elements = elements, 0
        position = access.axes[axis]
        table = None if position.through is None else program.root(position.through)
        # Positions that a run computes may be any.
        known = table is None or table in program.constants
        places = along_axis(program, position, sizes) if known else range(shape[axis])
        for place in places:
            if 0 <= place < shape[axis]:
                elements |= inner << (place * strides[axis])
    return elements


def _linear(access: Access, strides: Sequence[int], sizes: Sequence[int]) -> int:
    offset, steps = 0, [0] * len(sizes)
    for position, stride in zip(access.axes, strides, strict=True):
        offset += position.offset * stride
        for loop, step in position.steps:
            steps[loop] += step * stride
    elements = 1
    # Short strides first: the sets stay small until the last shifts.
    for loop in sorted(access.loops(), key=lambda loop: abs(steps[loop])):
        offset += min(0, steps[loop] * (sizes[loop] - 1))
        elements = spread(elements, abs(steps[loop]), sizes[loop])
    return elements << offset


def border_of(shape: Sequence[int], border: Border) -> int:
    """The elements of *border* in a tensor of *shape*."""
    elements, stride = 0, 1
    axes = list(zip(shape, border.before, border.behind, strict=True))
    for size, before, behind in reversed(axes):
        slab = (1 << stride) - 1
        ends = spread(slab, stride, before) if before else 0
        if behind:
            ends |= spread(slab, stride, behind) << (stride * (size - behind))
        elements = ends | (spread(elements, stride, size) if size else 0)
        stride *= size
    return elements


def first_of(elements: int) -> int:
    """The least element of a set that is not empty."""
    return (elements & -elements).bit_length() - 1
