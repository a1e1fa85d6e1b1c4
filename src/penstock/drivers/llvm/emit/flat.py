"""Accesses in elements of their tensors, and loops merged where every access agrees."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from penstock.compiler.program import Access, Kernel, Program
from penstock.ir import DType


class Axis(Struct, frozen=True):
    """One axis of an access that is more than a stride: its positions come from a table, or lie
    outside the tensor at times. Those of a table that is *computed* are clamped to the axis.
    """

    offset: int
    steps: tuple[tuple[int, int], ...]
    size: int
    stride: int
    through: int | None
    checked: bool
    computed: bool = False

    def step_of(self, loop: int | None) -> int:
        """The step along *loop*."""
        return next((step for other, step in self.steps if other == loop), 0)


class Turn(Struct, frozen=True):
    """How elements come again along *loop*: the first *cycle* of them over and over, or each for
    *hold* turns of the loop. The other of the two is 0; both are powers of two.
    """

    loop: int
    cycle: int
    hold: int


class Flat(Struct, frozen=True):
    """An access as an offset and a step for each loop, in elements; *axes* are those that need
    their position. An access with a *turn* has no axes, and a step of 1 along its loop.
    """

    tensor: int
    dtype: DType
    offset: int
    steps: tuple[int, ...]
    axes: tuple[Axis, ...]
    fill: float | int | bool | None
    turn: Turn | None = None

    def loops(self) -> frozenset[int]:
        """The loops along which the access moves."""
        return frozenset(loop for loop, step in enumerate(self.steps) if step)


def flat(program: Program, access: Access, sizes: Sequence[int]) -> Flat:
    """*access* in elements of its tensor, which is row-major."""
    tensor = program.tensors[access.tensor]
    strides = [math.prod(tensor.shape[axis + 1 :]) for axis in range(len(tensor.shape))]
    offset, steps, axes = 0, [0] * len(sizes), []
    for position, stride, size in zip(access.axes, strides, tensor.shape, strict=True):
        if position.through is not None:
            computed = program.root(position.through) not in program.constants
            through = position.through
            axes.append(
                Axis(
                    position.offset, position.steps, size, stride, through, checked=False,
                    computed=computed,
                )
            )  # fmt: skip
            continue
        low, high = position.span(tuple(sizes))
        offset += position.offset * stride
        for loop, step in position.steps:
            steps[loop] += step * stride
        if low < 0 or high >= size:
            axes.append(Axis(position.offset, position.steps, size, stride, None, checked=True))
    return Flat(access.tensor, tensor.dtype, offset, tuple(steps), tuple(axes), access.fill)


class Loops(Struct, frozen=True):
    """The loops of a kernel and its accesses: those of *reads* go through *outer* and *reduced*,
    those of *extras* and *written* through *outer*.
    """

    outer: tuple[int, ...]
    reduced: tuple[int, ...]
    reads: tuple[Flat, ...]
    extras: tuple[Flat, ...]
    written: Flat

    @property
    def sizes(self) -> tuple[int, ...]:
        return (*self.outer, *self.reduced)

    @property
    def accesses(self) -> tuple[Flat, ...]:
        return (*self.reads, *self.extras, self.written)


def loops_of(program: Program, kernel: Kernel, width: int = 0) -> Loops:
    """The loops of *kernel*, without those of one turn; adjacent ones are one loop where every
    access goes on from the one to the other with the same step.

    A contiguous loop that is shorter than a vector of *width* bytes is one with the loop around it
    also where elements of an access come again.
    """
    loops = Loops(
        kernel.loops,
        kernel.reduced,
        tuple(flat(program, a, kernel.sizes) for a in kernel.reads),
        tuple(flat(program, a, kernel.loops) for a in kernel.extras),
        flat(program, kernel.write, kernel.loops),
    )
    for loop in reversed(range(len(kernel.sizes))):
        if loops.sizes[loop] == 1:
            loops = _without(loops, loop)
    for loop in reversed(range(1, len(loops.sizes))):
        if loop != len(loops.outer) and all(_goes_on(a, loop, loops) for a in loops.accesses):
            loops = _merged(loops, loop)
    widest = max(a.dtype.numpy.itemsize for a in loops.accesses)
    return loops if loops.reduced else _with_turns(loops, width // widest)


def _with_turns(loops: Loops, lanes: int) -> Loops:
    """*loops* with the contiguous one of fewer than *lanes* turns and that around it as one."""
    loop = next((i for i, step in enumerate(loops.written.steps) if step == 1), 0)
    size = loops.outer[loop] if loops.outer else 0
    if not loop or size >= lanes or size & (size - 1) or not _goes_on(loops.written, loop, loops):
        return loops

    def turned(access: Flat) -> Flat | None:
        if _goes_on(access, loop, loops):
            return access
        steps = access.steps[loop - 1], access.steps[loop]
        if access.axes or steps not in {(0, 1), (1, 0)}:
            return None
        turn = Turn(loop, size, 0) if steps[1] else Turn(loop, 0, size)
        moved = tuple(1 if i == loop else s for i, s in enumerate(access.steps))
        return replace(access, steps=moved, turn=turn)

    reads, extras = ([turned(a) for a in some] for some in (loops.reads, loops.extras))
    if None in reads or None in extras:
        return loops
    first, second = (tuple(a for a in some if a is not None) for some in (reads, extras))
    return _merged(Loops(loops.outer, (), first, second, loops.written), loop)


def _goes_on(access: Flat, loop: int, loops: Loops) -> bool:
    """Whether *loop* follows the loop before it."""
    if loop >= len(access.steps):
        return True
    size = loops.sizes[loop]
    return access.steps[loop - 1] == access.steps[loop] * size and all(
        axis.step_of(loop - 1) == axis.step_of(loop) * size for axis in access.axes
    )


def _merged(loops: Loops, loop: int) -> Loops:
    """*loops* with *loop* and the one before it as one."""
    sizes = list(loops.sizes)
    sizes[loop] *= sizes[loop - 1]
    outer = len(loops.outer)
    whole = replace(loops, outer=tuple(sizes[:outer]), reduced=tuple(sizes[outer:]))
    return _without(whole, loop - 1)


def _without(loops: Loops, loop: int) -> Loops:
    """*loops* without *loop*, which stays at 0."""

    def moved(access: Flat) -> Flat:
        axes = tuple(
            replace(
                axis,
                steps=tuple((i - (i > loop), step) for i, step in axis.steps if i != loop),
            )
            for axis in access.axes
        )
        steps = tuple(s for i, s in enumerate(access.steps) if i != loop)
        turn = access.turn
        if turn is not None:
            turn = replace(turn, loop=turn.loop - (turn.loop > loop))
        return replace(access, steps=steps, axes=axes, turn=turn)

    outer = len(loops.outer)
    sizes = [s for i, s in enumerate(loops.sizes) if i != loop]
    outer -= loop < outer
    return Loops(
        tuple(sizes[:outer]),
        tuple(sizes[outer:]),
        tuple(moved(a) for a in loops.reads),
        tuple(moved(a) for a in loops.extras),
        moved(loops.written),
    )


def pointers_of(program: Program, kernel: Kernel) -> list[int]:
    """The tensors that *kernel* touches, each once: the arguments of its function."""
    found = [kernel.write.tensor, *kernel.tensors_read]
    return list(dict.fromkeys(program.root(t) for t in found))
