"""Sums of products, as templates see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from penstock.compiler.interpreter import constant_elements, product_of
from penstock.compiler.program import Access, Kernel, Program
from penstock.drivers.llvm.emit import epilogue
from penstock.drivers.llvm.emit.flat import Flat, flat
from penstock.drivers.llvm.isa import Instructions, Isa
from penstock.drivers.llvm.proof.requantise import Proof, solve
from penstock.ir import DType, NDArray

F32, I32 = DType.FLOAT32, DType.INT32


class Product(Struct, frozen=True, eq=False):
    """A sum of products over data and weights: the accesses in elements of their tensors, and the
    zero points of both factors. *streamed*: weights, of floats, that are not constant.
    """

    data: Flat
    weights: Access
    write: Flat
    extras: tuple[Flat, ...]
    zeros: tuple[int, int]
    is_float: bool
    streamed: Flat | None = None


def product(program: Program, kernel: Kernel, isa: Isa) -> Product | None:
    """*kernel* as a product that the templates of *isa* can compute; None if it is none."""
    found = product_of(kernel)
    if found is None or kernel.sums not in {F32, I32}:
        return None
    a, b, zeros = found
    if a.fill is not None or b.fill is not None:
        return None
    data, write = flat(program, a, kernel.sizes), flat(program, kernel.write, kernel.loops)
    extras = tuple(flat(program, e, kernel.loops) for e in kernel.extras)
    if data.axes or write.axes:
        return None
    is_float = data.dtype is F32
    stored = DType.INT8 if isa.target.bytes == "signed" else DType.UINT8
    if is_float != (kernel.sums is F32) or (not is_float and data.dtype is not stored):
        return None
    if is_float and zeros != (0, 0):
        return None
    streamed = None
    if program.root(b.tensor) not in program.constants:
        streamed = flat(program, b, kernel.sizes)
        if streamed.dtype is not F32 or not is_float or streamed.axes:
            return None
    return Product(data, b, write, extras, zeros, is_float, streamed)


def elements(program: Program, kernel: Kernel, access: Access, order: Sequence[int]) -> NDArray:
    """The constant elements that *access* reads, an axis for each loop of *order*."""
    view = constant_elements(program, access, kernel.sizes)
    others = [i for i in range(view.ndim) if i not in order]
    moved = view.transpose([*order, *others]).reshape([view.shape[i] for i in order])
    return np.ascontiguousarray(np.broadcast_to(moved, [kernel.sizes[i] for i in order]))


class Scaling(Struct, frozen=True, eq=False):
    """How sums of 8-bit products become results.

    *weights* are those that the template multiplies by, [channels, ...]; *start* is what each sum
    begins with. Weights may be too large for the instructions: *rest* is then what a few of them
    lack, in the shape of *weights*; or *surplus* times the sum of the data is added to each sum.

    With a *proof*, *scaled* is the requantisation that it proves, and *offset* what is then added
    to give a stored byte (None: the finish computes no byte). *value* is that byte, which the rest
    of the finish, if there is any, is computed from.
    """

    weights: NDArray
    start: NDArray
    surplus: int
    rest: NDArray | None = None
    scaled: epilogue.Scaled | None = None
    proof: Proof | None = None
    offset: int | None = None
    value: int = -1


def scaling(
    program: Program, kernel: Kernel, product: Product, weights: NDArray, isa: Isa,
    few: Callable[[NDArray], bool],
) -> Scaling | None:  # fmt: skip
    """The scaling of a product of 8 bits with *weights* [channels, ...], as they are stored; None
    if they do not fit the instructions. *few* says whether the template multiplies by a *rest*.
    """
    data = product.data.dtype
    narrow = np.int16 if weights.dtype.itemsize == 1 else np.int64
    wide = np.subtract(weights, product.zeros[1], dtype=narrow)
    sums = _summed(wide)
    start = -product.zeros[0] * sums
    scaled = epilogue.find(program, kernel)
    proof, offset, value = None, None, -1
    if scaled is not None:
        proof = _proved(scaled, wide, sums, start, data, isa)
        if proof.proved.all():
            start = start + scaled.bias
            if proof.lifted is not None:
                start = start + proof.lifted.start
            found = epilogue.byte_of(kernel.finish, scaled)
            if found is not None:
                value, offset = found
        else:
            scaled = proof = None
    surplus, rest = 0, None
    bounds = np.iinfo(Instructions(isa).weight_type)
    if not _fits(wide, bounds):
        clipped = np.clip(wide, bounds.min, bounds.max)
        rest = wide - clipped
        if _fits(rest, bounds) and few(rest):
            wide = clipped
        else:
            # Stored bytes minus 128 fit; the data's own sum makes up for the rest.
            rest, surplus = None, 128 - product.zeros[1]
            wide = wide - surplus
            if not _fits(wide, bounds):
                return None
    return Scaling(wide, start, surplus, rest, scaled, proof, offset, value)


def _fits(weights: NDArray, bounds: np.iinfo[Any]) -> bool:
    return bool(weights.min(initial=0) >= bounds.min and weights.max(initial=0) <= bounds.max)


def _summed(weights: NDArray) -> NDArray:
    """The sum of the weights of each channel, int64."""
    return np.asarray(weights.reshape(len(weights), -1).sum(axis=1, dtype=np.int64))


def _proved(
    scaled: epilogue.Scaled, weights: NDArray, sums: NDArray, start: NDArray, data: DType, isa: Isa
) -> Proof:
    low, high = (-128, 127) if data is DType.INT8 else (0, 255)
    begin = start + np.broadcast_to(scaled.bias, len(weights))
    raised = _summed(np.maximum(weights, 0))
    lowered = sums - raised
    least = begin + raised * low + lowered * high
    greatest = begin + raised * high + lowered * low
    m, s = (np.broadcast_to(v, len(weights)) for v in (scaled.mantissas, scaled.shifts))
    given = m, s, scaled.zero_point, scaled.limits, least, greatest
    return solve(*given, down=isa.rounds_down, lines=False)
