"""Checks of single kernels: their expressions, positions and reductions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.compiler.checks.expressions import fault_of, value_fits
from penstock.compiler.checks.failing import BrokenProgram, kernel_name, tensor_name
from penstock.compiler.checks.routines import routine_fault
from penstock.compiler.interpreter import least_of, product_of
from penstock.compiler.program import NEUTRAL, Access, Border, Kernel, Position, Program, Tensor
from penstock.interrupts import polled
from penstock.ir import DType, NDArray


def check_kernels(program: Program) -> None:
    """Raises `BrokenProgram` unless every kernel of *program* is sound by itself."""
    for index in polled(range(len(program.kernels))):
        fault = _fault(program, program.kernels[index])
        if fault is not None:
            raise BrokenProgram(f"{kernel_name(program, index)} {fault}")


def _fault(program: Program, kernel: Kernel) -> str | None:
    """What is wrong with *kernel*; None if nothing is."""
    if any(size < 0 for size in kernel.sizes):
        return "has a loop of negative size"
    for access in (*kernel.accesses, kernel.write):
        if not 0 <= access.tensor < len(program.tensors):
            return f"accesses tensor {access.tensor}: the program has {len(program.tensors)}"
    sized = [(a, kernel.sizes) for a in kernel.reads]
    sized += [(a, kernel.loops) for a in (*kernel.extras, kernel.write)]
    for access, sizes in sized:
        fault = _access_fault(program, access, sizes)
        if fault is not None:
            return f"accesses {tensor_name(program, access.tensor)} {fault}"
    if kernel.routine is not None:
        return routine_fault(program, kernel, kernel.routine)
    if kernel.write.fill is not None:
        return f"writes {tensor_name(program, kernel.write.tensor)} with a fill"
    tables = [p.through for p in kernel.write.axes if p.through is not None]
    if any(program.root(table) not in program.constants for table in tables):
        return f"writes {tensor_name(program, kernel.write.tensor)} at positions of a run"
    fault = _border_fault(program.tensors[kernel.write.tensor], kernel.border)
    if fault is not None:
        return f"writes {tensor_name(program, kernel.write.tensor)} with a border {fault}"
    return (
        _expression_fault(program, kernel)
        or _reduction_fault(kernel)
        or _order_fault(program, kernel)
    )


def _border_fault(tensor: Tensor, border: Border | None) -> str | None:
    """What is wrong with the border of a tensor; None if nothing is."""
    if border is None:
        return None
    ends = (border.before, border.behind)
    if any(len(end) != len(tensor.shape) for end in ends):
        return f"along {len(border.before)} and {len(border.behind)} axes"
    for axis, (size, before, behind) in enumerate(zip(tensor.shape, *ends, strict=True)):
        if min(before, behind) < 0 or before + behind > size:
            return f"of {before} and {behind} elements of {size}, along axis {axis}"
    if not value_fits(border.value, tensor.dtype):
        return f"of {border.value!r}, which is no {tensor.dtype.value}"
    return None


def _expression_fault(program: Program, kernel: Kernel) -> str | None:
    def types(accesses: Sequence[Access]) -> list[DType]:
        return [program.tensors[a.tensor].dtype for a in accesses]

    fault = fault_of(program, kernel.body, types(kernel.reads))
    if fault is not None:
        return f"has a body that is wrong: it {fault}"
    fault = fault_of(program, kernel.finish, [kernel.sums, *types(kernel.extras)])
    if fault is not None:
        return f"has a finish that is wrong: it {fault}"
    written = program.tensors[kernel.write.tensor]
    if kernel.finish.dtype is not written.dtype:
        name = tensor_name(program, kernel.write.tensor)
        return f"writes {kernel.finish.dtype.value} to {name}"
    return None


def _reduction_fault(kernel: Kernel) -> str | None:
    combine, body, sums = kernel.combine, kernel.body.dtype, kernel.sums
    if (combine == "none") != (not kernel.reduced):
        return f"combines by {combine!r} over {len(kernel.reduced)} reduced loops"
    if combine == "none":
        return None if body is sums else f"has a body of {body.value} and sums of {sums.value}"
    if combine in {"any", "all"}:
        right = body is sums is DType.BOOL
    else:
        right = body is sums and sums is not DType.BOOL
    if not right:
        return f"combines {body.value} by {combine!r} to {sums.value}"
    if combine not in NEUTRAL and combine not in {"maximum", "minimum"}:
        return f"combines by {combine!r}, which begins with no known value"
    if least_of(kernel).dtype != sums.numpy:
        return f"combines by {combine!r} from a value of another type than {sums.value}"
    return None


def _order_fault(program: Program, kernel: Kernel) -> str | None:
    if not kernel.ordered:
        return None
    if product_of(kernel) is None or kernel.sums is not DType.FLOAT32:
        return "adds in order, and is no sum of products of float32"
    if kernel.order == "ordered":
        return None
    if not kernel.extras or program.tensors[kernel.extras[0].tensor].dtype is not DType.FLOAT32:
        return "adds in order from no float32"
    return None


def _access_fault(program: Program, access: Access, sizes: tuple[int, ...]) -> str | None:
    shape = program.tensors[access.tensor].shape
    if len(access.axes) != len(shape):
        return f"by {len(access.axes)} positions"
    for axis, position in enumerate(access.axes):
        loops = [loop for loop, _ in position.steps]
        if any(not 0 <= loop < len(sizes) for loop in loops):
            return f"by a loop that it does not have there, along axis {axis}"
        if loops != sorted(set(loops)):
            return f"by loops out of order, along axis {axis}"
    if 0 in sizes:
        return None
    for axis, position in enumerate(access.axes):
        fault = _position_fault(
            program, position, shape[axis], sizes, filled=access.fill is not None
        )
        if fault is not None:
            return f"{fault} along axis {axis}"
    return None


def _position_fault(
    program: Program, position: Position, size: int, sizes: tuple[int, ...], *, filled: bool
) -> str | None:
    """What is wrong with a position along an axis of *size* elements."""
    low, high = position.span(sizes)
    if position.through is None:
        inside = filled or 0 <= low <= high < size
        return None if inside else f"at positions {low} to {high} of {size}"
    if not 0 <= position.through < len(program.tensors):
        return f"through table {position.through}, which is no tensor,"
    table = program.constants.get(program.root(position.through))
    name = tensor_name(program, position.through)
    tensor = program.tensors[position.through]
    if tensor.dtype is not DType.INT32 or len(tensor.shape) != 1:
        return f"through {name}, which is no vector of int32,"
    count = tensor.shape[0]
    if not filled and not 0 <= low <= high < count:
        return f"through elements {low} to {high} of {name}"
    if table is None or not count:
        return None
    reached = elements_reached(position, sizes)
    used = table.reshape(-1)[reached[(reached >= 0) & (reached < count)]]
    if used.size and not 0 <= int(used.min()) <= int(used.max()) < size:
        return f"at positions {used.min()} to {used.max()} of {size}, from {name},"
    return None


def elements_reached(position: Position, sizes: tuple[int, ...]) -> NDArray:
    """The numbers that the sum of *position* takes over loops of *sizes*, each once."""
    reached = np.array([position.offset])
    for loop, step in position.steps:
        moves = step * np.arange(sizes[loop])
        reached = np.unique(reached[:, None] + moves[None, :])
    return reached
