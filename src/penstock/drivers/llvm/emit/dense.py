"""The template of matrix products: convolutions, fully connected layers.

A tile of *rows* positions by *columns* vectors of channels is held in registers. Weights are packed
in the order in which a tile reads them. Data of 8 bits is multiplied a group of taps at a time,
floats one by one.
"""

from __future__ import annotations

import numpy as np

from penstock.compiler.program import Kernel, Program
from penstock.drivers.llvm.emit.apart import few
from penstock.drivers.llvm.emit.assembler import Function
from penstock.drivers.llvm.emit.flat import Flat
from penstock.drivers.llvm.emit.matrix import Loop, Matrix, Shape
from penstock.drivers.llvm.emit.matrix_code import Code
from penstock.drivers.llvm.emit.product import Product, elements, product, scaling
from penstock.drivers.llvm.isa import Isa


def match(program: Program, kernel: Kernel, isa: Isa) -> Dense | None:
    """*kernel* as a matrix product with constant weights, or None."""
    found = product(program, kernel, isa)
    if found is None:
        return None
    if found.streamed is not None:
        return _streamed(program, kernel, isa, found, found.streamed)
    n = _channel_loop(kernel, found)
    if n is None:
        return None
    taps = _taps(kernel, found.data)
    if taps is None:
        return None
    order, segments, length = taps
    if kernel.ordered and not _in_order(kernel, found, n, order):
        return None
    weights = elements(program, kernel, found.weights, [n, *order])
    weights = weights.reshape(kernel.loops[n], -1, length)
    scale = None
    if not found.is_float:
        scale = scaling(program, kernel, found, weights, isa, few)
        if scale is None:
            return None
    shape = Shape(_positions(kernel, found, n), kernel.loops[n], n, segments, length)
    return Dense(program, kernel, isa, found, shape, weights, scale)


def _streamed(
    program: Program, kernel: Kernel, isa: Isa, found: Product, weights: Flat
) -> Dense | None:
    """A product of two tensors: weights lie contiguous along the channels, with one step between
    taps.
    """
    outer = len(kernel.loops)
    reduced = [i for i in range(outer, len(kernel.sizes)) if kernel.sizes[i] > 1]
    loops = [
        i
        for i, size in enumerate(kernel.loops)
        if size > 1 and weights.steps[i] == 1 and not found.data.steps[i]
    ]
    if len(reduced) != 1 or len(loops) != 1 or found.write.steps[loops[0]] != 1:
        return None
    if kernel.ordered and not _in_order(kernel, found, loops[0], reduced):
        return None
    n, taps = loops[0], reduced[0]
    if any(e.axes or e.steps[n] not in {0, 1} for e in found.extras):
        return None
    size, step = kernel.sizes[taps], found.data.steps[taps]
    segments, length = ((), size) if step == 1 else (((size, step),), 1)
    # The positions of a tile have the same weights.
    positions = sorted(_positions(kernel, found, n), key=lambda loop: not loop.weights)
    if positions[-1].weights:
        positions.append(Loop(1, 0, 0, (0,) * len(found.extras)))
    shape = Shape(tuple(positions), kernel.loops[n], n, segments, length, weights.steps[taps])
    return Dense(program, kernel, isa, found, shape, np.zeros((0, 0, 0), np.float32), None)


def _channel_loop(kernel: Kernel, found: Product) -> int | None:
    """The one loop along which weights differ; the result lies contiguous along it."""
    used = found.weights.loops()
    loops = [i for i, size in enumerate(kernel.loops) if i in used and size > 1]
    loops = loops or [i for i, size in enumerate(kernel.loops) if size == 1][-1:]
    if len(loops) != 1:
        return None
    n = loops[0]
    if kernel.loops[n] > 1 and (found.data.steps[n] or found.write.steps[n] != 1):
        return None
    for extra in found.extras:
        if kernel.loops[n] > 1 and extra.steps[n] not in {0, 1}:
            return None
        # Positions outside are known from the channel alone.
        if any(axis.through is not None or axis.steps != ((n, 1),) for axis in extra.axes):
            return None
    return n


def _taps(kernel: Kernel, data: Flat) -> tuple[list[int], tuple[tuple[int, int], ...], int] | None:
    """The reduced loops in order, and the taps as (size, step) of outer ones and a length of
    adjacent ones.
    """
    reduced = range(len(kernel.loops), len(kernel.sizes))
    order = sorted(reduced, key=lambda loop: -data.steps[loop])
    length = 1
    segments: list[tuple[int, int]] = []
    for loop in reversed(order):
        size, step = kernel.sizes[loop], data.steps[loop]
        if step < 0:
            return None
        if size == 1:
            continue
        if step == length and not segments:
            length *= size
        else:
            segments.insert(0, (size, step))
    return order, tuple(segments), length


def _in_order(kernel: Kernel, found: Product, n: int, order: list[int]) -> bool:
    """Whether taps in *order* are those of an ordered sum. One that is fused begins with a value of
    each channel, or one for all.
    """
    taps = [loop for loop in order if kernel.sizes[loop] > 1]
    if kernel.order == "ordered":
        return taps == sorted(taps)
    start = found.extras[0]
    return taps == sorted(taps) and not start.axes and start.loops() <= {n}


def _positions(kernel: Kernel, found: Product, n: int) -> tuple[Loop, ...]:
    """The loops over positions, adjacent ones merged where all steps agree."""
    data, write, extras = found.data, found.write, found.extras
    loops: list[Loop] = []
    for loop, size in enumerate(kernel.loops):
        if loop == n or size == 1:
            continue
        step = 0 if found.streamed is None else found.streamed.steps[loop]
        this = Loop(
            size, data.steps[loop], write.steps[loop], tuple(e.steps[loop] for e in extras), step
        )
        if loops:
            last = loops[-1]
            outer, inner = (
                (last.data, last.write, last.weights, *last.extras),
                (this.data, this.write, this.weights, *this.extras),
            )
            if all(a == b * size for a, b in zip(outer, inner, strict=True)):
                loops[-1] = Loop(last.size * size, this.data, this.write, this.extras, this.weights)
                continue
        loops.append(this)
    return tuple(loops) or (Loop(1, 0, 0, (0,) * len(extras)),)


class Dense(Matrix):
    """A matrix product, with its code."""

    def write(self, name: str) -> Function:
        function = Function(name, self.arguments)
        Code(self, function).write()
        return function
