"""Checks that every element is written once, before it is read."""

from __future__ import annotations

import math

import numpy as np

from penstock.compiler.checks.elements import border_of, first_of, reached
from penstock.compiler.checks.failing import BrokenProgram, kernel_name, tensor_name
from penstock.compiler.program import Program
from penstock.compiler.rewriting import Uses, is_whole
from penstock.interrupts import polled


def check_writes(program: Program) -> None:
    """Raises `BrokenProgram` unless every element of a tensor that kernels write is written once,
    and every element that is read or returned was written, is constant or an input.
    """
    uses = Uses(program)
    given = {*program.constants, *(program.root(t) for t in program.inputs)}
    for root, writers in uses.writers.items():
        if root in given:
            kind = "a constant" if root in program.constants else "an input"
            raise BrokenProgram(
                f"{kernel_name(program, writers[0])} writes {tensor_name(program, root)}, {kind}"
            )
    for root in polled(uses.writers):
        _check_tensor(program, uses, root)
    for root, readers in uses.readers.items():
        if root not in given and root not in uses.writers:
            raise BrokenProgram(
                f"{kernel_name(program, readers[0])} reads {tensor_name(program, root)}, "
                "which nothing writes"
            )
    for tensor in program.outputs:
        root = program.root(tensor)
        if root not in given and root not in uses.writers:
            raise BrokenProgram(f"nothing writes the output {tensor_name(program, tensor)}")


def _check_tensor(program: Program, uses: Uses, root: int) -> None:
    """Checks the writers of one tensor, and readers that run before the last of them."""
    writers = uses.writers[root]
    early = [r for r in uses.readers[root] if r <= writers[-1]]
    if len(writers) == 1 and not early:
        kernel = program.kernels[writers[0]]
        shape = program.tensors[kernel.write.tensor].shape
        if kernel.border is None and is_whole(kernel.write, kernel.loops, shape):
            return
    written: dict[int, int] = {}
    every = 0
    for writer in writers:
        kernel = program.kernels[writer]
        if kernel.routine is not None:
            # What a routine leaves out has no meaning, and nothing reads it.
            elements, inside = _all(program, root), True
        else:
            elements = reached(program, kernel.write, kernel.loops)
            inside = elements.bit_count() == math.prod(kernel.loops)
        if kernel.border is not None:
            around = border_of(program.tensors[kernel.write.tensor].shape, kernel.border)
            inside &= not elements & around
            elements |= around
        if not inside:
            raise BrokenProgram(
                f"{kernel_name(program, writer)} writes an element of "
                f"{tensor_name(program, kernel.write.tensor)} more than once"
            )
        if elements & every:
            element = first_of(elements & every)
            other = next(w for w, e in written.items() if e >> element & 1)
            raise BrokenProgram(
                f"{kernel_name(program, writer)} writes {_element(program, root, element)}, "
                f"which {kernel_name(program, other)} has written"
            )
        written[writer] = elements
        every |= elements
    size = math.prod(program.tensors[root].shape)
    if every.bit_count() != size:
        element = first_of(~every)
        names = ", ".join(kernel_name(program, w) for w in writers[:3])
        raise BrokenProgram(
            f"nothing writes {_element(program, root, element)}; written by {names}"
        )
    for reader in early:
        before = sum(e for w, e in written.items() if w < reader)
        _check_reader(program, root, reader, before)


def _check_reader(program: Program, root: int, reader: int, before: int) -> None:
    """Checks that a kernel reads only elements of *root* that are written *before* it runs."""
    kernel = program.kernels[reader]
    if kernel.routine is not None and (missing := _all(program, root) & ~before):
        element = _element(program, root, first_of(missing))
        raise BrokenProgram(f"{kernel_name(program, reader)} reads {element} before it is written")
    sized = [(a, kernel.sizes) for a in kernel.reads] + [(a, kernel.loops) for a in kernel.extras]
    for access, sizes in sized:
        if program.root(access.tensor) != root:
            continue
        missing = reached(program, access, sizes) & ~before
        if missing:
            element = _element(program, root, first_of(missing))
            raise BrokenProgram(
                f"{kernel_name(program, reader)} reads {element} before it is written"
            )


def _all(program: Program, root: int) -> int:
    """Every element of a tensor."""
    return (1 << math.prod(program.tensors[root].shape)) - 1


def _element(program: Program, root: int, element: int) -> str:
    """Element number *element* of a tensor in the words of an error."""
    place = [int(i) for i in np.unravel_index(element, program.tensors[root].shape)]
    return f"element {place} of {tensor_name(program, root)}"
