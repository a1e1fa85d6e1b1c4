"""Folds what needs no kernel of its own: constants, and copies that pad or shift."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.compiler.aliases import fold_aliases
from penstock.compiler.interpreter import Run
from penstock.compiler.program import Access, Kernel, Position, Program
from penstock.compiler.rewriting import Uses, is_copy, is_whole, moved, rebuilt
from penstock.compiler.simplify import simplify
from penstock.interrupts import polled


def fold(program: Program) -> Program:
    """*program* without kernels on constants, without padding that readers can do themselves, and
    without aliases and kernels that nobody needs.
    """
    return fold_unused(simplify(fold_padding(fold_constants(fold_aliases(program)))))


def fold_constants(program: Program) -> Program:
    """Computes every kernel whose operands are all constant."""
    constants, kernels = dict(program.constants), []
    written: dict[int, list[Kernel]] = {}
    for kernel in program.kernels:
        written.setdefault(program.root(kernel.write.tensor), []).append(kernel)
    for kernel in polled(program.kernels):
        target = program.root(kernel.write.tensor)
        known = all(program.root(t) in constants for t in kernel.tensors_read)
        if not known or len(written[target]) > 1 or not kernel.tensors_read:
            kernels.append(kernel)
            continue
        part = replace(program, constants=constants, kernels=(kernel,), inputs=(), outputs=())
        constants[target] = Run(part, []).values[target]
    return replace(program, constants=constants, kernels=tuple(kernels))


def fold_padding(program: Program) -> Program:
    """Removes copies that only shift and surround a tensor: their readers read the tensor itself,
    and the surrounding value outside of it.
    """
    uses = Uses(program)
    kernels: list[Kernel | None] = list(program.kernels)
    for index in range(len(kernels)):
        # What it reads may be another tensor by now.
        kernel = kernels[index]
        if kernel is None:
            continue
        target = kernel.write.tensor
        shape = program.tensors[target].shape
        if not is_copy(kernel) or target in program.aliases or target in uses.aliased:
            continue
        source = kernel.reads[0]
        shifts = all(
            p.through is None and p.steps == ((axis, 1),) for axis, p in enumerate(source.axes)
        )
        if not shifts or target in uses.outputs or not is_whole(kernel.write, kernel.loops, shape):
            continue
        changed = _readers(program, kernels, uses.readers[target], target, source)
        if changed is not None:
            for reader, new in changed.items():
                kernels[reader] = new
            kernels[index] = None
    return rebuilt(program, [k for k in kernels if k is not None])


def _readers(
    program: Program,
    kernels: list[Kernel | None],
    readers: list[int],
    target: int,
    source: Access,
) -> dict[int, Kernel] | None:
    """The readers of *target* with *source* read in its place; None if one of them cannot."""
    changed: dict[int, Kernel] = {}
    for reader in readers:
        kernel = kernels[reader]
        if kernel is None or target not in {a.tensor for a in kernel.accesses}:
            return None
        reads = [_composed(program, a, target, source, kernel.sizes) for a in kernel.reads]
        extras = [_composed(program, a, target, source, kernel.loops) for a in kernel.extras]
        if None in reads or None in extras:
            return None
        changed[reader] = replace(
            kernel,
            reads=tuple(a for a in reads if a is not None),
            extras=tuple(a for a in extras if a is not None),
        )
    return changed


def _composed(
    program: Program, access: Access, target: int, source: Access, sizes: tuple[int, ...]
) -> Access | None:
    """*access* of the copied tensor as an access of what it was copied from."""
    if access.tensor != target:
        return access
    inner = program.tensors[source.tensor].shape
    outer = program.tensors[target].shape
    covers = all(
        p.offset <= 0 and size + p.offset >= other
        for p, size, other in zip(source.axes, outer, inner, strict=True)
    )
    if access.fill is not None and not (
        covers and (source.fill is None or source.fill == access.fill)
    ):
        return None
    found = moved(Access(source.tensor, source.axes, source.fill), access.axes)
    if found is None:
        return None
    fill = access.fill if access.fill is not None else source.fill
    inside = all(
        p.through is not None or (p.span(sizes)[0] >= 0 and p.span(sizes)[1] < size)
        for p, size in zip(found.axes, inner, strict=True)
    )
    return replace(found, fill=None if inside else fill)


def fold_unused(program: Program) -> Program:
    """Removes kernels whose results nobody reads."""
    needed = {program.root(t) for t in program.outputs}
    kept: list[Kernel] = []
    for kernel in reversed(program.kernels):
        if program.root(kernel.write.tensor) in needed:
            kept.append(kernel)
            needed.update(program.root(t) for t in kernel.tensors_read)
    return rebuilt(program, reversed(kept))


__all__ = ["Position", "fold", "fold_constants", "fold_padding", "fold_unused"]
