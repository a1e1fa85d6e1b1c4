"""Fuses kernels: element-wise kernels join the kernel that makes their input, or each other.

A fused value is never stored. The expressions are inlined into one, so results stay bit for bit
the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from penstock.compiler.expression import Expression, Scope, Value, identity
from penstock.compiler.interpreter import product_of
from penstock.compiler.program import Access, Kernel, Position, Program
from penstock.compiler.rewriting import Uses, moved, rebuilt
from penstock.compiler.tabulate import BYTES
from penstock.interrupts import polled
from penstock.ir import DType

MOST_STEPS: Final = 96
"""The most steps of a fused expression: beyond it, values no longer fit in registers."""

FEW_STEPS: Final = 4
"""The most steps that are computed anew for each of several readers of an element."""

MOST_OPERANDS: Final = 12
"""The most tensors that a fused kernel reads."""


def fuse(program: Program) -> Program:
    """*program* with every element-wise kernel fused that can be."""
    kernels: list[Kernel | None] = list(program.kernels)
    uses = Uses(program)
    # Which kernel a tensor is made by now, after fusions.
    makers = {t: w[0] for t, w in uses.writers.items() if len(w) == 1}
    for index in polled(range(len(kernels))):
        kernel = kernels[index]
        if kernel is None:
            continue
        changed = True
        while changed:
            changed = False
            for access in dict.fromkeys(a.tensor for a in (*kernel.reads, *kernel.extras)):
                through = {p.through for a in kernel.accesses for p in a.axes}
                if access in program.aliases or access in through or not uses.is_private(access):
                    continue
                maker = kernels[makers[access]] if access in makers else None
                if maker is None or makers[access] == index or maker.routine is not None:
                    continue
                fused = _after(program, maker, kernel, access) or _before(maker, kernel, access)
                if fused is not None and _fits(fused):
                    kernels[makers[access]] = None
                    kernels[index] = kernel = _plain(fused)
                    changed = True
                    break
    return rebuilt(program, [k for k in kernels if k is not None])


def _plain(kernel: Kernel) -> Kernel:
    """An element-wise *kernel* as one expression of its reads, each read once: kernels that make
    its other operands can then join it too.
    """
    if kernel.combine != "none":
        return kernel
    accesses = tuple(dict.fromkeys(kernel.accesses))
    places = [accesses.index(a) for a in kernel.accesses]
    dtypes = (*kernel.body.arguments, *kernel.finish.arguments[1:])
    scope = Scope(*(dtypes[places.index(i)] for i in range(len(accesses))))
    values = [scope.argument(i) for i in places]
    count = len(kernel.reads)
    made = scope.inline(kernel.body, *values[:count])
    body = scope.finish(scope.inline(kernel.finish, made, *values[count:]))
    return replace(
        kernel, reads=accesses, extras=(), body=body, finish=identity(body.dtype), sums=body.dtype
    )


def _fits(kernel: Kernel) -> bool:
    steps = len(kernel.body.steps) + len(kernel.finish.steps)
    return steps <= MOST_STEPS and len(kernel.accesses) <= MOST_OPERANDS


def _after(program: Program, maker: Kernel, kernel: Kernel, tensor: int) -> Kernel | None:
    """*kernel*, which is element-wise, as the end of *maker*, which makes *tensor*."""
    if kernel.combine != "none":
        return None
    reads = [a for a in kernel.reads if a.tensor == tensor]
    if any(a != reads[0] for a in reads) or kernel.extras or kernel.body.tables:
        return None
    loops = _inverse(reads[0], kernel.loops, program.tensors[tensor].shape)
    if loops is None:
        return None
    # Loop i of the kernel goes along axis loops[i] of the tensor, at which the maker writes.
    places = [maker.write.axes[axis] for axis in loops]
    write = moved(kernel.write, places)
    others = [a for a in kernel.reads if a.tensor != tensor]
    extras = [moved(a, places) for a in others]
    if write is None or None in extras:
        return None
    kept = tuple(a for a in extras if a is not None)
    dtypes = [program.tensors[a.tensor].dtype for a in kept]
    if product_of(maker) is not None and not (
        _joins_product(program, maker, kept) and _keeps_channels(program, maker, write)
    ):
        return None
    count = len(maker.finish.arguments)
    scope = Scope(*maker.finish.arguments, *dtypes)
    made = scope.inline(maker.finish, *(scope.argument(i) for i in range(count)))
    result = _inlined(scope, kernel, tensor, made, count)
    return replace(
        maker,
        name=_joined(maker, kernel),
        finish=scope.finish(result),
        extras=(*maker.extras, *kept),
        write=write,
        origin=(*maker.origin, *kernel.origin),
    )


def _joins_product(program: Program, maker: Kernel, extras: Sequence[Access]) -> bool:
    """Whether the sum of products *maker* can end with a kernel that reads *extras*: each at plain
    positions, since templates read them with the results. Only channels, the last axis, may lie
    outside. 8-bit results are packed many at a time, which other data of 8 bits would slow down.
    """
    for access in extras:
        shape = program.tensors[access.tensor].shape
        spans = [p.span(maker.loops) for p in access.axes]
        if any(p.through is not None for p in access.axes) or any(
            low < 0 or high >= size
            for (low, high), size in zip(spans[:-1], shape[:-1], strict=True)
        ):
            return False
    if maker.sums is not DType.INT32 or maker.finish.dtype not in BYTES:
        return True
    return all(program.root(a.tensor) in program.constants for a in extras)


def _keeps_channels(program: Program, maker: Kernel, write: Access) -> bool:
    """Whether the channels of the sum of products *maker* lie side by side in *write* too: results
    are stored many channels at a time.
    """
    last = maker.write.axes[-1].steps
    if len(last) != 1 or maker.loops[last[0][0]] == 1:
        return True
    shape = program.tensors[write.tensor].shape
    strides = (math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    channel = last[0][0]
    step = sum(
        stride * along
        for stride, position in zip(strides, write.axes, strict=True)
        for loop, along in position.steps
        if loop == channel
    )
    return abs(step) == 1


def _inlined(scope: Scope, kernel: Kernel, tensor: int, made: Value, first: int) -> Value:
    """The result of an element-wise *kernel* in *scope*: *made* in the place of *tensor*."""
    values, number = [], first
    for access in kernel.reads:
        if access.tensor == tensor:
            values.append(made)
        else:
            values.append(scope.argument(number))
            number += 1
    return scope.inline(kernel.finish, scope.inline(kernel.body, *values))


def _inverse(access: Access, loops: Sequence[int], shape: Sequence[int]) -> list[int] | None:
    """The axis of the tensor along which each loop goes, if the loops go through it once."""
    if len(loops) != len(shape) or access.fill is not None:
        return None
    found: list[int | None] = [None] * len(loops)
    for axis, position in enumerate(access.axes):
        if position.through is not None or position.offset or len(position.steps) != 1:
            if shape[axis] == 1 and position == Position():
                continue
            return None
        ((loop, step),) = position.steps
        if step != 1 or found[loop] is not None or loops[loop] != shape[axis]:
            return None
        found[loop] = axis
    # Axes of one element have no loop; loops of one element take the axes that are left.
    left = [axis for axis in range(len(shape)) if axis not in found]
    for loop, place in enumerate(found):
        if place is None:
            if loops[loop] != 1:
                return None
            found[loop] = left.pop(0)
    return [axis for axis in found if axis is not None]


def _before(maker: Kernel, kernel: Kernel, tensor: int) -> Kernel | None:
    """*kernel* with *maker*, which is element-wise and makes *tensor*, computed at each read."""
    if maker.combine != "none" or product_of(kernel) is not None:
        return None
    if any(a.tensor == tensor for a in kernel.extras) or maker.body.tables:
        return None
    reads = [a for a in kernel.reads if a.tensor == tensor]
    if any(a != reads[0] for a in reads) or reads[0].fill is not None:
        return None
    plain = all(p.offset == 0 and p.through is None and len(p.steps) <= 1 for p in maker.write.axes)
    loops = [_loop_of(maker, loop) for loop in range(len(maker.loops))]
    if not plain or None in loops:
        return None
    places = [reads[0].axes[axis] for axis in loops if axis is not None]
    steps = len(maker.body.steps) + len(maker.finish.steps)
    if (kernel.combine != "none" or steps > FEW_STEPS) and _repeats(kernel, reads[0]):
        return None
    sources = [moved(a, places) for a in maker.reads]
    extras = [moved(a, places) for a in maker.extras]
    if None in sources or None in extras or maker.extras:
        return None
    kept = tuple(a for a in sources if a is not None)
    others = [a for a in kernel.reads if a.tensor != tensor]
    dtypes = [
        d for a, d in zip(kernel.reads, kernel.body.arguments, strict=True) if a.tensor != tensor
    ]
    scope = Scope(*maker.body.arguments, *dtypes)
    count = len(maker.body.arguments)
    made = scope.inline(maker.body, *(scope.argument(i) for i in range(count)))
    made = scope.inline(maker.finish, made)
    values, number = [], count
    for access in kernel.reads:
        if access.tensor == tensor:
            values.append(made)
        else:
            values.append(scope.argument(number))
            number += 1
    return replace(
        kernel,
        name=_joined(maker, kernel),
        reads=(*kept, *others),
        body=scope.finish(scope.inline(kernel.body, *values)),
        origin=(*maker.origin, *kernel.origin),
    )


def _repeats(kernel: Kernel, access: Access) -> bool:
    """Whether a kernel reads an element more than once: then it is computed once, and kept."""
    used = access.loops()
    return any(loop not in used for loop in range(len(kernel.sizes))) or any(
        len(p.steps) > 1 for p in access.axes
    )


def _loop_of(maker: Kernel, loop: int) -> int | None:
    """The axis of the written tensor along which *loop* goes."""
    for axis, position in enumerate(maker.write.axes):
        if position.steps == ((loop, 1),):
            return axis
    return None


def _joined(first: Kernel, second: Kernel) -> str:
    return f"{first.name}+{second.name}"


__all__ = ["Expression", "fuse", "identity"]
