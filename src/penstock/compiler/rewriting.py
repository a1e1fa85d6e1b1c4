"""What passes share: who reads and writes each tensor, and positions in terms of other loops."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from penstock.compiler.program import Access, Kernel, Position, Program


class Uses:
    """The kernels that write and read each tensor of a program, by index. Aliases count as the
    tensor whose elements they are.
    """

    def __init__(self, program: Program) -> None:
        self.writers: dict[int, list[int]] = defaultdict(list)
        self.readers: dict[int, list[int]] = defaultdict(list)
        self.aliased = {program.root(t) for t in program.aliases}
        self.outputs = {program.root(t) for t in program.outputs}
        for index, kernel in enumerate(program.kernels):
            self.writers[program.root(kernel.write.tensor)].append(index)
            for tensor in {program.root(t) for t in kernel.tensors_read}:
                self.readers[tensor].append(index)

    def is_private(self, tensor: int) -> bool:
        """Whether *tensor* has one writer and one reader, no other shape, and is no output."""
        return (
            len(self.writers[tensor]) == len(self.readers[tensor]) == 1
            and tensor not in self.aliased
            and tensor not in self.outputs
        )


def substituted(position: Position, loops: Sequence[Position]) -> Position | None:
    """*position* with loop i replaced by the position loops[i]; None if that is no position."""
    offset = position.offset
    steps: dict[int, int] = defaultdict(int)
    for loop, step in position.steps:
        inner = loops[loop]
        if inner.through is not None:
            if position.through is not None or len(position.steps) > 1 or step != 1:
                return None
            if position.offset:
                return None
            return inner
        offset += inner.offset * step
        for other, factor in inner.steps:
            steps[other] += factor * step
    kept = tuple(sorted((loop, step) for loop, step in steps.items() if step))
    return Position(offset, kept, position.through)


def moved(access: Access, loops: Sequence[Position]) -> Access | None:
    """*access* with loop i replaced by the position loops[i]; None if that is no access."""
    axes = [substituted(p, loops) for p in access.axes]
    if any(a is None for a in axes):
        return None
    tables = any(loops[loop].through is not None for loop in access.loops())
    if tables and access.fill is not None:
        # What a table names lies inside; a fill is for positions that do not.
        return None
    return replace(access, axes=tuple(a for a in axes if a is not None))


def renumbered(access: Access, number: Callable[[int], int]) -> Access:
    """*access* with other numbers for its loops."""
    axes = tuple(
        replace(p, steps=tuple(sorted((number(loop), step) for loop, step in p.steps)))
        for p in access.axes
    )
    return replace(access, axes=axes)


def is_whole(access: Access, loops: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether the loops go through all of a tensor of *shape*, axis by axis in order."""
    return tuple(loops) == tuple(shape) and all(
        p.offset == 0 and p.through is None and p.steps == ((axis, 1),)
        for axis, p in enumerate(access.axes)
    )


def is_copy(kernel: Kernel) -> bool:
    """Whether the kernel only copies elements."""
    plain = kernel.body.is_identity and kernel.finish.is_identity and not kernel.extras
    return plain and kernel.combine == "none" and len(kernel.reads) == 1


def of_routines(program: Program) -> set[int]:
    """The tensors that routines read and write, which stay as they are: routines know their
    elements by number.
    """
    kernels = [k for k in program.kernels if k.routine is not None]
    return {program.root(t) for k in kernels for t in (k.write.tensor, *k.tensors_read)}


def rebuilt(program: Program, kernels: Iterable[Kernel]) -> Program:
    """*program* with other *kernels*."""
    return replace(program, kernels=tuple(kernels))
