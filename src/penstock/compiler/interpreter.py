"""Evaluates a program in NumPy: what each pass must keep.

Integer sums are exact. Sums of float32 are taken in float64 and rounded once, as the reference
device takes those of its layers, unless their order is given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from msgspec.structs import replace
from numpy.lib.stride_tricks import as_strided

from penstock.compiler.arithmetic import evaluate
from penstock.compiler.program import NEUTRAL, Access, Border, Kernel, Position, Program, Tensor
from penstock.compiler.routine_run import RoutineRun
from penstock.errors import GeneralFailure
from penstock.interrupts import polled
from penstock.ir import DType, NDArray

CHUNK: Final = 1 << 24
"""The most points of a nest that are evaluated at once."""


def run(program: Program, inputs: Sequence[NDArray]) -> list[NDArray]:
    """The outputs of the model for arrays in the shapes of its inputs. Raises `GeneralFailure` with
    the message of a flag that is true.
    """
    done = Run(program, inputs)
    for flag, message in zip(program.flags, program.failures, strict=True):
        if done.evaluated(flag).any():
            raise GeneralFailure(message)
    return [as_declared(program.tensors[i], done.evaluated(i)) for i in program.results]


def as_declared(tensor: Tensor, array: NDArray) -> NDArray:
    """The value of *tensor* as the model declares it: complex numbers from their parts."""
    if not tensor.is_complex:
        return array
    return np.ascontiguousarray(array).view(np.complex64).reshape(tensor.shape[:-1])


class Run:
    """One evaluation. *values* has the array of every tensor, aliases apart."""

    def __init__(self, program: Program, inputs: Sequence[NDArray]) -> None:
        self.program = program
        self.values: dict[int, NDArray] = dict(program.constants)
        for index, array in zip(program.inputs, inputs, strict=True):
            given = np.ascontiguousarray(array).view(program.tensors[index].dtype.numpy)
            self.values[index] = given.reshape(program.tensors[index].shape)
        for kernel in polled(program.kernels):
            self._run(kernel)

    def evaluated(self, tensor: int) -> NDArray:
        """The array of *tensor*, in its shape."""
        return self.values[self.program.root(tensor)].reshape(self.program.tensors[tensor].shape)

    def _run(self, kernel: Kernel) -> None:
        root = self.program.root(kernel.write.tensor)
        if root not in self.values:
            tensor = self.program.tensors[root]
            self.values[root] = np.zeros(tensor.shape, tensor.dtype.numpy)
        if kernel.routine is not None:
            RoutineRun(kernel.routine, self.values[root], self.evaluated)
            return
        if kernel.border is not None:
            _surround(self.evaluated(kernel.write.tensor), kernel.border)
        outer = math.prod(kernel.loops)
        inner = max(1, math.prod(kernel.reduced))
        parts = min(max(1, kernel.loops[0]) if kernel.loops else 1, -(-outer * inner // CHUNK))
        if parts <= 1:
            self._compute(kernel)
            return
        step = -(-kernel.loops[0] // parts)
        for first in polled(range(0, kernel.loops[0], step)):
            self._compute(part_of(kernel, first, min(step, kernel.loops[0] - first)))

    def _compute(self, kernel: Kernel) -> None:
        if 0 in kernel.loops:
            return
        result = self._combined(kernel)
        extras = [self.read(a, kernel.loops) for a in kernel.extras]
        values = evaluate(kernel.finish, [result, *extras], self.values.__getitem__)
        target = self._view(self.evaluated(kernel.write.tensor), kernel.write.axes, kernel.loops)
        target[...] = np.broadcast_to(values, kernel.loops)

    def _combined(self, kernel: Kernel) -> NDArray:
        """The value of each point of the outer loops before `finish`."""
        product = _product_of(kernel)
        if product is not None:
            return self._multiplied(kernel, *product)
        reads = [self.read(a, kernel.sizes) for a in kernel.reads]
        values = np.broadcast_to(
            evaluate(kernel.body, reads, self.values.__getitem__), kernel.sizes
        )
        if kernel.combine == "none":
            return values
        axes = tuple(range(len(kernel.loops), len(kernel.sizes)))
        return _reduced(kernel, values, axes)

    def _multiplied(self, kernel: Kernel, a: Access, b: Access, zeros: tuple[int, int]) -> NDArray:
        """A sum of products as one matrix product. Float64 is exact for factors of 16 bits."""
        narrow = all(self.program.tensors[f.tensor].dtype.bits in {8, 16} for f in (a, b))
        real = narrow or kernel.sums.is_float
        wide: np.dtype[Any] = np.dtype(np.float64 if real else np.int64)
        outer = len(kernel.loops)
        loops = [a.loops(), b.loops()]
        batch = [i for i in range(outer) if i in loops[0] and i in loops[1]]
        rows = [i for i in range(outer) if i in loops[0] and i not in loops[1]]
        columns = [i for i in range(outer) if i not in loops[0]]
        inner = list(range(outer, len(kernel.sizes)))
        left = self._matrix(kernel, a, (batch, rows, inner), zeros[0], wide)
        right = self._matrix(kernel, b, (batch, columns, inner), zeros[1], wide)
        order = [*batch, *rows, *columns]
        if kernel.ordered:
            shape = (*left.shape[:2], right.shape[1])
            total = np.zeros(shape, np.float32)
            if kernel.order == "fused":
                start = np.broadcast_to(self.read(kernel.extras[0], kernel.loops), kernel.loops)
                total += start.transpose(order).reshape(shape)
            product = _added(total, left, right, rounded=kernel.order == "ordered")
        else:
            product = np.matmul(left, right.swapaxes(1, 2))
        shaped = product.reshape([kernel.loops[i] for i in order])
        result = shaped.transpose(np.argsort(order)) if order else shaped.reshape(())
        return _stored(result, kernel.sums)

    def _matrix(
        self,
        kernel: Kernel,
        access: Access,
        groups: tuple[list[int], list[int], list[int]],
        zero: int,
        dtype: np.dtype[Any],
    ) -> NDArray:
        view = self.read(access, kernel.sizes)
        order = [i for group in groups for i in group]
        # Loops that the access does not use have one element in the view.
        moved = view.transpose([*order, *(i for i in range(view.ndim) if i not in order)])
        sizes = [math.prod(kernel.sizes[i] for i in group) for group in groups]
        full = np.broadcast_to(
            moved, [*(kernel.sizes[i] for i in order), *(1,) * (view.ndim - len(order))]
        )
        return np.asarray(full.astype(dtype).reshape(sizes) - zero)

    def read(self, access: Access, sizes: tuple[int, ...]) -> NDArray:
        """The values that *access* reads: an axis for each loop, of one element where the position
        does not depend on the loop.
        """
        array = self.evaluated(access.tensor)
        axes = list(access.axes)
        for axis, position in enumerate(axes):
            if position.through is not None:
                chosen = self.evaluated(position.through)
                array = np.take(array, chosen, axis, mode="clip")
                axes[axis] = Position(position.offset, position.steps)
        if access.fill is not None:
            spans = [p.span(sizes) for p in axes]
            pads = [
                (max(0, -low), max(0, high - size + 1))
                for (low, high), size in zip(spans, array.shape, strict=True)
            ]
            array = np.pad(array, pads, constant_values=access.fill)
            axes = [
                Position(p.offset + before, p.steps)
                for p, (before, _) in zip(axes, pads, strict=True)
            ]
        used = access.loops()
        view = self._view(array, tuple(axes), sizes)
        index = tuple(slice(None) if loop in used else slice(0, 1) for loop in range(len(sizes)))
        return view[index]

    @staticmethod
    def _view(array: NDArray, axes: Sequence[Position], sizes: tuple[int, ...]) -> NDArray:
        """A view of *array* with an axis for each loop."""
        strides = [0] * len(sizes)
        start = []
        for axis, position in enumerate(axes):
            low, high = position.span(sizes)
            if not 0 <= low <= high < array.shape[axis]:
                raise IndexError(
                    f"positions {low} to {high} along axis {axis} of {array.shape[axis]} elements"
                )
            start.append(position.offset)
            for loop, step in position.steps:
                strides[loop] += step * array.strides[axis]
        if 0 in array.shape:
            return np.zeros(sizes, array.dtype)
        origin = array[tuple(slice(s, s + 1) for s in start)] if start else array.reshape(1)
        return as_strided(origin, sizes, strides)


def _added(total: NDArray, left: NDArray, right: NDArray, *, rounded: bool) -> NDArray:
    """*total*, of float32, plus products in order, each *rounded* or added before it is. Sums in
    float64 differ from that only within 2**-29 of a tie.
    """
    for tap in polled(range(left.shape[2])):
        product = left[:, :, tap, None] * right[:, None, :, tap]
        if rounded:
            total += product.astype(np.float32)
        else:
            np.add(product, total, out=total, casting="same_kind")
    return total


def _surround(array: NDArray, border: Border) -> None:
    """Writes *border* into *array*."""
    for axis, (before, behind) in enumerate(zip(border.before, border.behind, strict=True)):
        along = np.moveaxis(array, axis, 0)
        along[:before] = border.value
        along[len(along) - behind :] = border.value


def constant_elements(program: Program, access: Access, sizes: tuple[int, ...]) -> NDArray:
    """The elements of a constant tensor that *access* reads: an axis for each loop of *sizes*, of
    one element where the position does not depend on the loop.
    """
    part = replace(program, kernels=(), inputs=(), outputs=())
    return Run(part, []).read(access, sizes)


def part_of(kernel: Kernel, first: int, count: int) -> Kernel:
    """The *count* iterations of the first outer loop from *first* on."""

    def moved(access: Access) -> Access:
        axes = tuple(
            Position(p.offset + first * sum(s for loop, s in p.steps if loop == 0), p.steps)
            if p.through is None
            else replace(p, offset=p.offset + first * sum(s for loop, s in p.steps if loop == 0))
            for p in access.axes
        )
        return replace(access, axes=axes)

    return replace(
        kernel,
        loops=(count, *kernel.loops[1:]),
        reads=tuple(moved(a) for a in kernel.reads),
        extras=tuple(moved(a) for a in kernel.extras),
        write=moved(kernel.write),
    )


def _product_of(kernel: Kernel) -> tuple[Access, Access, tuple[int, int]] | None:
    """The factors of a sum of products and the numbers that are subtracted from them, or None."""
    found = product_of(kernel)
    if found is None or not kernel.reduced:
        return None
    return found


def product_of(kernel: Kernel) -> tuple[Access, Access, tuple[int, int]] | None:
    """(first factor, second factor, their zero points) if the kernel sums such products."""
    if kernel.combine != "sum" or len(kernel.reads) != 2:
        return None
    steps = kernel.body.steps
    count = len(kernel.body.arguments)
    if not steps or kernel.body.result != count + len(steps) - 1 or steps[-1].operation != "mul":
        return None
    zeros: list[int] = []
    for side, value in enumerate(steps[-1].arguments):
        zero = _centred(kernel, value, side)
        if zero is None:
            return None
        zeros.append(zero)
    return kernel.reads[0], kernel.reads[1], (zeros[0], zeros[1])


def _centred(kernel: Kernel, value: int, argument: int) -> int | None:
    """The zero point if *value* is the argument, converted, minus a constant (or nothing)."""
    count, zero = len(kernel.body.arguments), 0
    while value >= count:
        step = kernel.body.steps[value - count]
        if step.operation == "sub" and not zero:
            constant = kernel.body.steps[step.arguments[1] - count]
            if step.arguments[1] < count or constant.operation != "constant":
                return None
            zero = int(constant.value or 0)
        elif step.operation != "cast":
            return None
        value = step.arguments[0]
    return zero if value == argument else None


def _reduced(kernel: Kernel, values: NDArray, axes: tuple[int, ...]) -> NDArray:
    if kernel.combine == "sum":
        wide = np.float64 if values.dtype.kind == "f" else np.int64
        return _stored(np.add.reduce(values, axes, wide), kernel.sums)
    if kernel.combine == "product":
        return np.asarray(np.multiply.reduce(values, axes, values.dtype))
    if kernel.combine in {"any", "all"}:
        truth = np.logical_or if kernel.combine == "any" else np.logical_and
        return np.asarray(truth.reduce(values, axes))
    extreme = np.fmax if kernel.combine == "maximum" else np.fmin
    return np.asarray(extreme.reduce(values, axes, initial=least_of(kernel)))


def least_of(kernel: Kernel) -> Any:
    """The value that a reduction of *kernel* begins with."""
    if kernel.combine in NEUTRAL:
        return kernel.sums.numpy.type(NEUTRAL[kernel.combine])
    limits: Any = np.finfo if kernel.sums.is_float else np.iinfo
    bounds = limits(kernel.sums.numpy)
    if kernel.sums.is_float:
        return kernel.sums.numpy.type(-np.inf if kernel.combine == "maximum" else np.inf)
    return kernel.sums.numpy.type(bounds.min if kernel.combine == "maximum" else bounds.max)


def _stored(values: NDArray, dtype: DType) -> NDArray:
    """Sums as the type that the kernel sums in; integers wrap."""
    if dtype.is_integer and values.dtype.kind == "f":
        values = values.astype(np.int64)
    return np.asarray(values.astype(dtype.numpy))
