"""Operations on shapes, and tensors that are made of a few numbers."""

from __future__ import annotations

import math

import numpy as np

from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.elementwise import MOVED
from penstock.compiler.legalise.moving import fail_unless_equal
from penstock.compiler.program import Access, Position
from penstock.driverkit.site import require
from penstock.ir import DType, NDArray
from penstock.ir.types import static_shape


def write_constant(operation: Operation, array: NDArray) -> None:
    """Makes the output a constant."""
    output = operation.site.output()
    require(output.dtype in MOVED, f"{output.dtype.value} values are not moved here")
    require(array.shape == operation.site.output_shape(), "a result of another shape")
    dtype = output.dtype
    made = operation.build.constant(dtype, array.shape, lambda: array)
    operation.rename(made)


@legal("SHAPE", "RANK")
def shape_of(operation: Operation) -> None:
    """The shape of a tensor, or the number of its axes, where it is known."""
    site = operation.site
    shape = static_shape(site.input().shape)
    require(shape is not None, "the shape of input 0 is known only when it runs")
    found = np.array(shape) if site.operation.type == "SHAPE" else np.array(len(shape or ()))
    write_constant(operation, found.astype(site.output().dtype.numpy))


@legal("BROADCAST_ARGS")
def broadcast_args(operation: Operation) -> None:
    """The shape that two constant shapes broadcast to."""
    site = operation.site
    shapes = [site.integers(i, "a shape") for i in (0, 1)]
    try:
        found = np.broadcast_shapes(*map(tuple, shapes))
    except ValueError:
        found = ()
        require(condition=False, reason=f"shapes {shapes} that do not broadcast")
    write_constant(operation, np.array(found, site.output().dtype.numpy))


@legal("FILL")
def fill(operation: Operation) -> None:
    """One scalar, in a shape that is known."""
    site = operation.site
    dtype, shape = site.output().dtype, site.output_shape()
    require(site.input(1).dtype is dtype in MOVED, "types of this operation")
    require(math.prod(site.shape(1)) == 1, "a value of several elements")
    fail_unless_equal(operation, 0, shape, f"a shape that is not {list(shape)}")
    source = operation.tensor(1)
    read = Access(source, (Position(),) * len(operation.shape(source)))
    target = operation.target()
    operation.build.copy("fill", read, operation.whole(target), shape)


@legal("ZEROS_LIKE")
def zeros_like(operation: Operation) -> None:
    """Zeros in the shape of a tensor."""
    site = operation.site
    require(site.output().dtype in MOVED, "types of this operation")
    write_constant(operation, np.zeros(site.output_shape(), site.output().dtype.numpy))


@legal("RANGE")
def arange(operation: Operation) -> None:
    """Start, start + delta, ... below a limit, all of them constant."""
    site = operation.site
    dtype = site.output().dtype
    require(dtype in {DType.FLOAT32, DType.INT32, DType.INT64}, "types of this operation")
    first, _, delta = (site.value(i, "a bound of a range") for i in range(3))
    (count,) = site.output_shape()
    terms = np.full(count, delta.reshape(()), dtype.numpy)
    terms[0] = first.reshape(())
    # Floats add delta repeatedly.
    write_constant(operation, np.add.accumulate(terms, dtype=dtype.numpy))
