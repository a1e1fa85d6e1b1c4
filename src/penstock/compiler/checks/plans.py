"""Checks of a plan of memory."""

from __future__ import annotations

from penstock.compiler.checks.failing import BrokenProgram, kernel_name, tensor_name
from penstock.compiler.memory import ALIGNMENT, Plan, nbytes
from penstock.compiler.program import Kernel, Program
from penstock.compiler.rewriting import Uses


def check_plan(plan: Plan) -> None:
    """Raises `BrokenProgram` unless every tensor that kernels write, other than outputs, lies in
    the arena, aligned, and shares bytes with no tensor that lives at the same time; an element-wise
    kernel may write where it reads.
    """
    program, uses = plan.program, Uses(plan.program)
    elsewhere = {*program.constants, *(program.root(t) for t in program.inputs)} | uses.outputs
    wanted = {root for root in uses.writers if root not in elsewhere}
    for tensor in sorted(wanted ^ plan.offsets.keys()):
        if tensor in wanted:
            raise BrokenProgram(f"{tensor_name(program, tensor)} has no place in the arena")
        raise BrokenProgram(f"{tensor_name(program, tensor)} has a place, and needs none")
    spans: dict[int, tuple[int, int]] = {}
    for tensor, offset in plan.offsets.items():
        end = offset + nbytes(program, tensor)
        if offset % ALIGNMENT:
            raise BrokenProgram(
                f"{tensor_name(program, tensor)} lies at {offset}, no multiple of {ALIGNMENT}"
            )
        if offset < 0 or end > plan.size:
            raise BrokenProgram(
                f"{tensor_name(program, tensor)} lies at {offset} to {end} of an arena of "
                f"{plan.size} bytes"
            )
        spans[tensor] = offset, end
    _check_sharing(program, uses, spans)


def _check_sharing(program: Program, uses: Uses, spans: dict[int, tuple[int, int]]) -> None:
    """Checks tensors by the order of their first writers; *alive* are those that live still."""
    first = {t: uses.writers[t][0] for t in spans}
    last = {t: max([*uses.writers[t], *uses.readers[t]]) for t in spans}
    alive: list[int] = []
    for tensor in sorted(spans, key=lambda t: first[t]):
        alive = [other for other in alive if last[other] >= first[tensor]]
        for other in alive:
            begin, end = spans[other]
            shared = spans[tensor][0] < end and begin < spans[tensor][1]
            if shared and not _in_place(program, uses, other, tensor, spans):
                raise BrokenProgram(
                    f"{tensor_name(program, tensor)} lies over {tensor_name(program, other)}, "
                    f"which {kernel_name(program, last[other])} uses later"
                )
        alive.append(tensor)


def _in_place(
    program: Program, uses: Uses, source: int, target: int, spans: dict[int, tuple[int, int]]
) -> bool:
    """Whether one kernel, the last that reads *source*, writes each element of *target* where it
    alone reads it.
    """
    (writer, *others), readers = uses.writers[target], uses.readers[source]
    if others or not readers or max([*readers, *uses.writers[source]]) != writer:
        return False
    return spans[source] == spans[target] and _element_by_element(
        program, program.kernels[writer], source
    )


def _element_by_element(program: Program, kernel: Kernel, source: int) -> bool:
    found = [a for a in kernel.accesses if program.root(a.tensor) == source]
    write = kernel.write
    shapes = {program.tensors[a.tensor].shape for a in (*found, write)}
    items = {program.tensors[a.tensor].dtype.numpy.itemsize for a in (*found, write)}
    return (
        kernel.combine == "none"
        and kernel.border is None
        and len(shapes) == len(items) == 1
        and all(a.axes == write.axes and a.fill is None for a in found)
        and source not in {program.root(t) for t in _tables(kernel)}
    )


def _tables(kernel: Kernel) -> tuple[int, ...]:
    through = [p.through for a in kernel.accesses for p in a.axes if p.through is not None]
    return (*through, *kernel.body.tables, *kernel.finish.tables)
