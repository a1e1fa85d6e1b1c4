"""Plans the memory of a program: an offset in one arena for every tensor that kernels write.

Two tensors share bytes only if the last kernel that reads the one runs before the first kernel that
writes the other. An element-wise kernel may write over its input, element by element.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from penstock.compiler.program import Program
from penstock.compiler.rewriting import Uses, is_whole

ALIGNMENT: Final = 64


class Plan(Struct, frozen=True, eq=False):
    """The byte offset of each tensor in an arena of *size* bytes. Inputs, outputs and constants are
    elsewhere.
    """

    program: Program
    offsets: Mapping[int, int]
    size: int


def nbytes(program: Program, tensor: int) -> int:
    """The bytes of a tensor, dense."""
    value = program.tensors[tensor]
    return math.prod(value.shape) * value.dtype.numpy.itemsize


def plan(program: Program, alignment: int = ALIGNMENT) -> Plan:
    """Gives every tensor that kernels write, but outputs, the lowest offset that is free for as
    long as it lives. The largest tensors choose first. Offsets are multiples of *alignment*.
    """
    uses = Uses(program)
    elsewhere = set(program.constants) | {program.root(t) for t in program.inputs}
    elsewhere |= {program.root(t) for t in program.outputs}
    lives: dict[int, tuple[int, int]] = {}
    for tensor, writers in uses.writers.items():
        if tensor not in elsewhere:
            readers = uses.readers[tensor]
            lives[tensor] = min(writers), max([*writers, *readers])
    merged = _in_place(program, uses, lives)
    groups: dict[int, list[int]] = {}
    for tensor in lives:
        groups.setdefault(_last(merged, tensor), []).append(tensor)
    spans = {
        group: (min(lives[t][0] for t in members), max(lives[t][1] for t in members))
        for group, members in groups.items()
    }
    sizes = {
        group: max(-(-nbytes(program, t) // alignment) * alignment for t in members)
        for group, members in groups.items()
    }
    placed: dict[int, int] = {}
    for group in sorted(groups, key=lambda g: (-sizes[g], spans[g])):
        taken = sorted(
            (placed[other], placed[other] + sizes[other])
            for other in placed
            if spans[other][0] <= spans[group][1] and spans[group][0] <= spans[other][1]
        )
        offset = 0
        for begin, end in taken:
            if offset + sizes[group] <= begin:
                break
            offset = max(offset, end)
        placed[group] = offset
    offsets = {t: placed[g] for g, members in groups.items() for t in members}
    size = max((placed[g] + sizes[g] for g in groups), default=0)
    return Plan(program, offsets, size)


def _last(merged: Mapping[int, int], tensor: int) -> int:
    while tensor in merged:
        tensor = merged[tensor]
    return tensor


def _in_place(program: Program, uses: Uses, lives: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    """Tensors that lie where their only reader, an element-wise kernel, writes its result."""
    merged: dict[int, int] = {}
    for index, kernel in enumerate(program.kernels):
        target = program.root(kernel.write.tensor)
        if target not in lives or kernel.combine != "none" or len(uses.writers[target]) > 1:
            continue
        if not is_whole(kernel.write, kernel.loops, program.tensors[kernel.write.tensor].shape):
            continue
        for access in kernel.reads:
            source = program.root(access.tensor)
            fits = (
                source in lives
                and source not in merged
                and lives[source][1] == index
                and source != target
                and nbytes(program, source) == nbytes(program, target)
                and access.axes == kernel.write.axes
                and access.fill is None
                and program.tensors[source].dtype.numpy.itemsize
                == program.tensors[target].dtype.numpy.itemsize
                and sum(program.root(a.tensor) == source for a in kernel.accesses) == 1
            )
            if fits:
                merged[source] = target
                break
    return merged
