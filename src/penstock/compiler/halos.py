"""Stores the padding of sums of products around the tensor that they read.

The tensor becomes larger by a border, which the first of its writers writes too. A tensor that
cannot be larger is copied into one that is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from penstock.compiler.expression import identity
from penstock.compiler.interpreter import product_of
from penstock.compiler.program import Access, Border, Kernel, Position, Program, Tensor, along
from penstock.compiler.rewriting import Uses, of_routines, rebuilt


class _Padded(Struct):
    """What is read with padding of one value: the tensor, its readers, and how far they go beyond
    each axis.
    """

    tensor: int
    readers: list[int]
    border: Border


def halos(program: Program) -> Program:
    """*program* without sums of products that read outside the tensor of their data."""
    uses = Uses(program)
    fixed = {program.root(t) for t in (*program.inputs, *program.outputs)}
    fixed.update(program.constants)
    counted = of_routines(program)
    tensors, kernels = list(program.tensors), list(program.kernels)
    copies: dict[int, list[Kernel]] = {}
    wanted = _wanted(program)
    several = {p.tensor for k, p in enumerate(wanted) for q in wanted[:k] if p.tensor == q.tensor}
    for padded in wanted:
        tensor, border = padded.tensor, padded.border
        free = tensor not in program.aliases and tensor not in uses.aliased
        free = free and tensor not in fixed and tensor not in several and tensor not in counted
        if free and _can_grow(program, padded):
            first = min(uses.writers[tensor])
            for index in {*uses.writers[tensor], *uses.readers[tensor]}:
                kernels[index] = _moved(kernels[index], tensor, border)
            kernels[first] = replace(kernels[first], border=border)
            tensors[tensor] = _grown(tensors[tensor], border)
            continue
        value = tensors[tensor]
        copy = len(tensors)
        tensors.append(_grown(replace(value, name=f"{value.name}, padded"), border))
        copies.setdefault(padded.readers[0], []).append(_copy(value, tensor, copy, border))
        for index in padded.readers:
            data, weights = kernels[index].reads
            data = replace(_behind(data, border), tensor=copy, fill=None)
            kernels[index] = replace(kernels[index], reads=(data, weights))
    ordered = [k for i, kernel in enumerate(kernels) for k in (*copies.get(i, ()), kernel)]
    return rebuilt(replace(program, tensors=tuple(tensors)), ordered)


def _wanted(program: Program) -> list[_Padded]:
    """The tensors that sums of products read with padding, once for each value of it."""
    found: dict[tuple[int, str], list[tuple[int, Access]]] = {}
    for index, kernel in enumerate(program.kernels):
        product = product_of(kernel)
        if product is not None and product[0].fill is not None:
            access = product[0]
            found.setdefault((access.tensor, repr(access.fill)), []).append((index, access))
    return [_padded(program, readers) for readers in found.values()]


def _padded(program: Program, readers: Sequence[tuple[int, Access]]) -> _Padded:
    access = readers[0][1]
    shape = program.tensors[access.tensor].shape
    before, behind = [0] * len(shape), [0] * len(shape)
    for index, read in readers:
        sizes = program.kernels[index].sizes
        for axis, position in enumerate(read.axes):
            least, most = position.span(sizes)
            before[axis] = max(before[axis], -least)
            behind[axis] = max(behind[axis], most - shape[axis] + 1)
    border = Border(tuple(before), tuple(behind), access.fill or 0)
    return _Padded(access.tensor, [index for index, _ in readers], border)


def _can_grow(program: Program, padded: _Padded) -> bool:
    """Whether every kernel finds the same values in the tensor with its border: none goes through a
    table along an axis that grows, nor reads where the border has another value.
    """
    shape, border = program.tensors[padded.tensor].shape, padded.border
    axes = [axis for axis in range(len(shape)) if border.before[axis] or border.behind[axis]]
    for access, sizes in _accesses_of(program, padded.tensor):
        for axis in axes:
            position = access.axes[axis]
            low, high = position.span(sizes)
            inside = low >= 0 and high < shape[axis]
            bordered = (
                access.fill == border.value
                and low >= -border.before[axis]
                and high < shape[axis] + border.behind[axis]
            )
            if position.through is not None or not (inside or bordered):
                return False
    return True


def _accesses_of(program: Program, tensor: int) -> Iterator[tuple[Access, tuple[int, ...]]]:
    """The accesses of *tensor*, with the sizes of the loops that they go through."""
    for kernel in program.kernels:
        inner = [(a, kernel.sizes) for a in kernel.reads]
        outer = [(a, kernel.loops) for a in (*kernel.extras, kernel.write)]
        yield from ((a, sizes) for a, sizes in (*inner, *outer) if a.tensor == tensor)


def _grown(tensor: Tensor, border: Border) -> Tensor:
    sizes = zip(border.before, tensor.shape, border.behind, strict=True)
    return replace(tensor, shape=tuple(map(sum, sizes)))


def _moved(kernel: Kernel, tensor: int, border: Border) -> Kernel:
    """*kernel* with its accesses of *tensor* behind the border."""

    def moved(access: Access) -> Access:
        return _behind(access, border) if access.tensor == tensor else access

    reads, extras = (tuple(map(moved, part)) for part in (kernel.reads, kernel.extras))
    if product_of(kernel) is not None and reads[0].tensor == tensor:
        reads = (replace(reads[0], fill=None), *reads[1:])
    return replace(kernel, reads=reads, extras=extras, write=moved(kernel.write))


def _behind(access: Access, border: Border) -> Access:
    axes = zip(access.axes, border.before, strict=True)
    return replace(access, axes=tuple(replace(p, offset=p.offset + n) for p, n in axes))


def _copy(value: Tensor, source: int, target: int, border: Border) -> Kernel:
    axes = tuple(Position(n, ((loop, 1),)) for loop, n in enumerate(border.before))
    plain = identity(value.dtype)
    return Kernel(
        "padding", value.shape, (Access(source, along(*range(len(axes)))),), plain, plain,
        Access(target, axes), sums=value.dtype, border=border,
    )  # fmt: skip


__all__ = ["halos"]
