"""How long kernels take, roughly: enough to decide which of them are worth a second thread."""

from __future__ import annotations

import math
from typing import Final

from penstock.compiler.memory import nbytes
from penstock.compiler.program import Access, Kernel, Program
from penstock.drivers.llvm.isa import Isa
from penstock.ir import DType

BYTES_A_NS: Final = 20.0
"""Bytes that a core reads or writes in a nanosecond, from its second cache."""

STEPS_A_NS: Final = 1.5
"""Vectors of scalar operations in a nanosecond."""

PRODUCTS_A_NS: Final = 4.0
"""Vectors of multiply-accumulates of float32 in a nanosecond."""

NS_A_TURN: Final = 5.0
"""Nanoseconds of a turn of a loop of a routine."""

LEAST_SHARED: Final = 5_000.0
"""Nanoseconds from which on a kernel is shared: several times what a barrier takes."""

LEAST_PROGRAM: Final = 150_000.0
"""Nanoseconds of shared kernels from which on a program is. Waking a thread takes tens of
microseconds.
"""


def products(kernel: Kernel) -> int:
    """The multiply-accumulates of a sum of products; otherwise 0."""
    steps = kernel.body.steps
    is_product = kernel.combine == "sum" and len(kernel.reads) == 2 and bool(steps)
    if not is_product or kernel.body.result != len(kernel.body.arguments) + len(steps) - 1:
        return 0
    return math.prod(kernel.sizes) if steps[-1].operation == "mul" else 0


def _bytes(program: Program, access: Access, sizes: tuple[int, ...]) -> float:
    """The bytes of the elements that *access* touches, each once."""
    tensor = program.tensors[access.tensor]
    touched = math.prod(sizes[loop] for loop in access.loops())
    return min(touched * tensor.dtype.numpy.itemsize, nbytes(program, access.tensor))


def nanoseconds(program: Program, kernel: Kernel, template: str, isa: Isa) -> float:
    """The estimated time of *kernel* on one thread."""
    if kernel.routine is not None:
        return NS_A_TURN * kernel.routine.turns
    moved = sum(_bytes(program, a, kernel.sizes) for a in (kernel.write, *kernel.accesses))
    moved /= BYTES_A_NS
    points, work = math.prod(kernel.sizes), products(kernel)
    if template != "nest" and work:
        rate = PRODUCTS_A_NS * isa.lanes
        if kernel.sums is not DType.FLOAT32:
            rate *= {"vpdpbusd": 4, "sdot": 4, "vpmaddwd": 2, "smlal": 1}[isa.dot]
        return moved + work / (rate / 4 if template == "depthwise" else rate)
    steps = points * max(1, len(kernel.body.steps))
    steps += math.prod(kernel.loops) * len(kernel.finish.steps)
    return moved + steps / (STEPS_A_NS * isa.lanes)
