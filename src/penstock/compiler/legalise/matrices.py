"""Fully connected layers and matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from penstock.compiler.expression import Expression
from penstock.compiler.legalise import hybrid
from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.products import (
    F32,
    Form,
    Layer,
    Products,
    emit_layer,
    emit_product,
    hybrid_total,
    number_of,
    weight_tensor,
)
from penstock.compiler.legalise.quantised import STORED, Finish, limits_of, rescaled, scale_of
from penstock.compiler.program import Position, along
from penstock.driverkit.checks import require_rows
from penstock.driverkit.site import require
from penstock.ir import DType


@legal("FULLY_CONNECTED")
def fully_connected(operation: Operation) -> None:
    """The rows of the input times weights [units, depth]."""
    site = operation.site
    require_rows(site)
    weights, output = site.shape(1), site.output_shape()
    units, depth = weights
    rows = math.prod(output) // units if units else 0
    require(rows * depth == math.prod(site.shape()), "an input that does not make rows")
    source = operation.build.alias((rows, depth), operation.tensor())
    target = operation.target()
    flat = operation.build.tensor(site.output().dtype, (rows, units))
    operation.build.aliases[target] = flat
    inner = Flat(operation, source, flat)
    products = Products((rows, units), (depth,), along(0, 2), along(1, 2), along(0, 1), *along(1))
    layer = Layer(real=True, asymmetric=site.flag("asymmetric_quantize_inputs"))
    emit_layer(inner, "fully_connected", layer, products)


class Flat(Operation):
    """An operation whose first input and output are other tensors."""

    def __init__(self, operation: Operation, source: int, target: int) -> None:
        super().__init__(operation.build, operation.site)
        self._within, self._source, self._target = operation, source, target

    def tensor(self, position: int = 0) -> int:
        return self._source if position == 0 else self._within.tensor(position)

    def target(self, position: int = 0) -> int:
        return self._target


@legal("BATCH_MATMUL")
def batch_matmul(operation: Operation) -> None:
    """The last two dimensions multiplied, the others broadcast. Attributes transpose a side."""
    site = operation.site
    a, b, output = site.shape(0), site.shape(1), site.output_shape()
    require(min(len(a), len(b)) >= 2, "a factor that is no matrix")
    left, right, made = site.input(0), site.input(1), site.output()
    part = _matrix_product(a, b, output, (site.flag("adj_x"), site.flag("adj_y")))
    tensors = operation.tensor(0), operation.tensor(1)
    dtypes = {left.dtype, right.dtype, made.dtype}

    def plain(_part: Products, finish: Finish) -> Expression:
        scope = finish.scope()
        return scope.finish(scope.argument(0).cast(made.dtype))

    if dtypes == {F32}:
        form = Form(*tensors, F32, (None, None), plain)
    elif len(dtypes) == 1 and left.dtype in {DType.INT32, DType.INT64}:
        form = Form(*tensors, left.dtype, (None, None), plain)
    elif left.dtype is right.dtype is DType.INT8 and made.dtype is DType.INT32:
        form = Form(*tensors, DType.INT32, (None, None), plain)
    elif left.dtype is made.dtype is F32 and right.dtype in hybrid.WEIGHTS:
        form = _hybrid(operation, adjoint=site.flag("adj_x"))
    elif (
        left.dtype is made.dtype and left.dtype in STORED and right.dtype in hybrid.WEIGHTS | STORED
    ):
        form = _quantised(operation)
    else:
        site.refuse_types()
    emit_product(operation, "matmul", form, part)


def _matrix_product(
    a: Sequence[int], b: Sequence[int], output: tuple[int, ...], adjoint: tuple[bool, bool]
) -> Products:
    rank, depth = len(output), a[-2] if adjoint[0] else a[-1]
    row, column, inner = rank - 2, rank - 1, rank

    def positions(shape: Sequence[int], last: tuple[int, int]) -> tuple[Position, ...]:
        first = rank - len(shape)
        batch = [
            Position() if size == 1 else Position(0, ((first + axis, 1),))
            for axis, size in enumerate(shape[:-2])
        ]
        return (*batch, *along(*last))

    left = positions(a, (inner, row) if adjoint[0] else (row, inner))
    right = positions(b, (column, inner) if adjoint[1] else (inner, column))
    return Products(output, (depth,), left, right, along(*range(rank)), *along(column))


def _quantised(operation: Operation) -> Form:
    """Scales are multiplied in float32; sums of 16-bit values have 64 bits.

    TFLite's kernel knows one scale of each operand, and reads several of the right one as 0: every
    product is then 0.
    """
    site = operation.site
    made = scale_of(site.output(), "a product")
    given, other = scale_of(site.input(0), "a factor"), site.input(1).quantization
    require(other is not None, "a right side without a scale")
    wide = site.input(0).dtype is DType.INT16
    sums = DType.INT64 if wide else DType.INT32
    limits = limits_of("NONE", site.output())
    real = 0.0
    if other is not None and not other.per_channel:
        real = float(np.float32(given.scale) * np.float32(other.scale)) / made.scale

    def finish_of(_part: Products, finish: Finish) -> Expression:
        dtype, multipliers = site.output().dtype, np.array([real])
        return rescaled(finish, multipliers, None, limits, made.zero_point, dtype, wide=wide)

    zeros = given.zero_point, other.zero_point if other is not None and real else 0
    tensors = operation.tensor(0), weight_tensor(operation, 1)
    return Form(*tensors, sums, zeros, finish_of, zeros[0])


def _hybrid(operation: Operation, *, adjoint: bool) -> Form:
    """Each row of the left factor is quantised over its own range. Several scales of the right one
    are those of the product's columns, in order.
    """
    site = operation.site
    quantization = site.input(1).quantization
    require(quantization is not None, "a right side without a scale")
    columns = site.output_shape()[-1]
    scales = np.array(quantization.scales if quantization else (1.0,), np.float32)
    enough = scales.size == 1 or scales.size >= columns
    require(enough, f"{scales.size} scales of {columns} columns")
    scales = scales[:columns]
    require(not adjoint, "a transposed left side that is quantised when it runs")
    rank = len(site.shape()) - 1
    rows = hybrid.quantised_rows(
        operation,
        operation.tensor(0),
        rank,
        asymmetric=site.flag("asymmetric_quantize_inputs"),
    )
    weights = weight_tensor(operation, 1, as_bytes=True)

    def finish_of(part: Products, finish: Finish) -> Expression:
        real = hybrid_total(operation, finish, part, rows, weights, joined=True)
        vector = finish.vector(scales, F32)

        value = real(number_of(vector, float(scales[0])))
        return value.scope.finish(value)

    return Form(rows.values, weights, DType.INT32, (None, None), finish_of, 0, rows.before)
