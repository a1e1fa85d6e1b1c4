"""Separates the images of a batch: finds out whether a program computes them independently.

A program of N images is separable if every tensor that depends on an input has N parts along axis
0, of equal size, and every kernel has a loop whose N parts each read and write one part of these
tensors, the same of all. Such a program is that of one image, N times. A driver then compiles one
image, and the number of images is a value of the run.

A layer that multiplies few rows of an image with its weights reads all of them for these rows.
Where most products are of such layers, a part has some images together, and reads the weights once.
"""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.compiler.program import Access, Kernel, Program, Tensor
from penstock.ir import DType

FEW_ROWS: Final = 4
"""With fewer rows the reading of weights takes longer than the products."""

MOST_TOGETHER: Final = 16
"""Images of a part at most: more rows gain nothing, and fewer batches have the part in common."""

SHORT_SUMS: Final = frozenset({DType.FLOAT32, DType.INT32})
"""Types of sums for which processors have instructions that serve several rows."""


class Batch(Struct, frozen=True, eq=False):
    """The program of one part of a batch, of one image or more, and the number of parts."""

    program: Program
    parts: int


def divided(program: Program) -> Batch | None:
    """*program* in parts of one image, or of several where the weights are then read once for all
    of them; None if it is one part, or if images are not independent.
    """
    batch = separated(program)
    if batch is None or not _is_thin(batch.program):
        return batch
    sizes = range(FEW_ROWS, MOST_TOGETHER + 1)
    return separated(program, max((n for n in sizes if batch.parts % n == 0), default=batch.parts))


def _is_thin(program: Program) -> bool:
    """Whether most products are of constants that are used for few rows, in `SHORT_SUMS`."""
    thin = whole = 0
    for kernel in program.kernels:
        weights = [a for a in kernel.reads if program.root(a.tensor) in program.constants]
        if kernel.combine != "sum" or not weights:
            continue
        used = {loop for access in weights for loop in access.loops()}
        rows = math.prod(size for loop, size in enumerate(kernel.loops) if loop not in used)
        work = math.prod(kernel.sizes)
        whole += work
        thin += work if rows < FEW_ROWS and kernel.sums in SHORT_SUMS else 0
    return 2 * thin > whole


def separated(program: Program, together: int = 1) -> Batch | None:
    """The program of one image of *program*, or of so many *together*, which divide them; None if
    there is one part, or if images are not independent.

    There are as many images as axis 0 of every input and output has in common.
    """
    ports = (*program.inputs, *program.outputs)
    shapes = [program.tensors[t].shape for t in ports]
    common = _common(program)
    if not shapes or not all(shapes) or any(program.root(t) in common for t in ports):
        return None
    images = math.gcd(*(shape[0] for shape in shapes)) // together
    if images < 2:
        return None
    kernels = []
    for kernel in program.kernels:
        shared = program.root(kernel.write.tensor) in common
        part = kernel if shared else _part_of(program, kernel, images, common)
        if part is None:
            return None
        kernels.append(part)
    tensors = _parts_of_tensors(program, images, common)
    if tensors is None:
        return None
    made = replace(program, tensors=tensors, kernels=tuple(kernels))
    return Batch(made, images)


def _common(program: Program) -> frozenset[int]:
    """The tensors that depend on no input: constants, and what is computed from them alone."""
    varied = {program.root(t) for t in program.inputs}
    before = -1
    while len(varied) != before:
        before = len(varied)
        for kernel in program.kernels:
            if any(program.root(t) in varied for t in kernel.tensors_read):
                varied.add(program.root(kernel.write.tensor))
    written = {program.root(k.write.tensor) for k in program.kernels}
    return frozenset((written | set(program.constants)) - varied)


def _parts_of_tensors(
    program: Program, images: int, common: frozenset[int]
) -> tuple[Tensor, ...] | None:
    """The tensors of one image; None if one does not have equal parts."""
    used = {t for k in program.kernels for t in (k.write.tensor, *k.tensors_read)}
    used |= {*program.inputs, *program.outputs, *program.aliases}
    used |= {program.root(t) for t in used}
    tensors = list(program.tensors)
    for number in used:
        tensor = tensors[number]
        if program.root(number) in common:
            continue
        if not tensor.shape or tensor.shape[0] % images:
            return None
        shape = (tensor.shape[0] // images, *tensor.shape[1:])
        tensors[number] = replace(tensor, shape=shape)
    return tuple(tensors)


def _part_of(
    program: Program, kernel: Kernel, images: int, common: frozenset[int]
) -> Kernel | None:
    """*kernel* for one image; None if there is no such loop."""
    if not kernel.write.axes:
        return None
    through = [p.through for a in kernel.accesses for p in a.axes if p.through is not None]
    tables = (*kernel.body.tables, *kernel.finish.tables, *through)
    if any(program.root(t) not in common for t in tables):
        return None
    for loop, _ in kernel.write.axes[0].steps:
        if loop >= len(kernel.loops) or kernel.loops[loop] % images:
            continue
        size = kernel.loops[loop] // images
        sizes = (*kernel.loops[:loop], size, *kernel.sizes[loop + 1 :])
        accesses = (kernel.write, *kernel.accesses)
        if all(_keeps_to_part(program, a, loop, sizes, images, common) for a in accesses):
            return replace(kernel, loops=sizes[: len(kernel.loops)])
    return None


def _keeps_to_part(
    program: Program,
    access: Access,
    loop: int,
    sizes: tuple[int, ...],
    images: int,
    common: frozenset[int],
) -> bool:
    """Whether part i of *loop*, which leaves *sizes*, accesses part i of the tensor alone."""
    if program.root(access.tensor) in common:
        # All images read the same elements.
        return loop not in access.loops()
    shape = program.tensors[access.tensor].shape
    if not shape or shape[0] % images or any(
        other == loop for position in access.axes[1:] for other, _ in position.steps
    ):  # fmt: skip
        return False
    rows, first = shape[0] // images, access.axes[0]
    if first.through is not None or dict(first.steps).get(loop, 0) * sizes[loop] != rows:
        return False
    low, high = first.span(sizes)
    return low >= 0 and high < rows
