"""Which operations have shaders."""

from __future__ import annotations

import math
from typing import Final

from penstock import hal
from penstock.compiler.legalise import Builder
from penstock.compiler.legalise.writing import write
from penstock.compiler.program import Kernel
from penstock.compiler.routine import Assign, statements
from penstock.driverkit.site import Site, require
from penstock.drivers.webgpu.emit.parts import MOST_ITERATIONS
from penstock.drivers.webgpu.emit.scalars import NO_TYPE, check
from penstock.drivers.webgpu.emit.steps import narrowed_routine, without_f64
from penstock.drivers.webgpu.emit.types import KNOWN
from penstock.interrupts import polled
from penstock.ir import DType

MOST_BYTES: Final = 1 << 27
"""The largest tensor: what every device lets a shader bind."""

MOST_POINTS: Final = 1 << 31
"""Points of a nest from which on they cannot be numbered by 32 bits."""

_HELD: Final = KNOWN | {DType.COMPLEX64}
"""A complex number is held as two float32."""


def judge(site: Site) -> hal.AccuracyClass:
    """The class of *site*; raises `Refused` if there are no shaders for it."""
    values = (one for one in site.inputs if one is not None and not one.is_constant)
    for operand in (*values, *site.outputs):
        # What no kernel computes, a view for example, is copied where a model ends with it.
        require(operand.dtype in _HELD, f"{operand.dtype.value}: {NO_TYPE}")
    builder = Builder(site.model, judging=True)
    write(builder, site)
    builder.require_types()
    for tensor in builder.tensors:
        size = tensor.dtype.numpy.itemsize
        for extent in tensor.shape:
            size *= extent
        require(size <= MOST_BYTES, f"a tensor of {size} bytes; {MOST_BYTES} are possible")
    for kernel in polled(builder.kernels):
        _judge_kernel(builder, kernel)
    return "exact"


def _judge_kernel(builder: Builder, kernel: Kernel) -> None:
    read = (*(a.tensor for a in kernel.accesses), kernel.write.tensor)
    if kernel.routine is not None:
        read = (*read, *kernel.routine.reads)
    for tensor in read:
        dtype = builder.tensors[tensor].dtype
        require(dtype in KNOWN, f"{dtype.value}: {NO_TYPE}")
    for expression in (kernel.body, kernel.finish):
        check(without_f64(expression, lambda _: 0))
    if kernel.routine is not None:
        turns = kernel.routine.turns
        require(
            turns <= MOST_ITERATIONS,
            f"{kernel.name} has loops of {turns} turns in one thread; {MOST_ITERATIONS} are sure",
        )
        for dtype in kernel.routine.variables:
            require(dtype in KNOWN, f"{dtype.value}: {NO_TYPE}")
        for statement in statements(narrowed_routine(kernel.routine).body):
            if isinstance(statement, Assign):
                check(statement.value)
    require(kernel.sums in KNOWN, f"{kernel.sums.value}: {NO_TYPE}")
    reduced = math.prod(kernel.reduced)
    require(
        not kernel.ordered or reduced <= MOST_ITERATIONS,
        f"{reduced} products in order; {MOST_ITERATIONS} are possible",
    )
    points = math.prod(kernel.loops)
    require(points < MOST_POINTS, f"{points} results; {MOST_POINTS} are possible")
