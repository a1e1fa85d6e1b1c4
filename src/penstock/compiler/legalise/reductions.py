"""Reductions over axes."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from penstock.compiler.expression import Expression, Scope, identity
from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.elementwise import PLAIN
from penstock.compiler.legalise.quantised import GREATEST, NARROW, STORED, integer_range, scale_of
from penstock.compiler.program import Access, Combine, along
from penstock.driverkit import fixed_point
from penstock.driverkit.checks import reduced_axes
from penstock.driverkit.site import require
from penstock.ir import DType
from penstock.ir.operations.requirements import of_tensor

F32, I32 = DType.FLOAT32, DType.INT32


def reduce_axes(
    operation: Operation, combine: Combine, body: Expression, finish: Expression, sums: DType
) -> None:
    """Adds the reduction of input 0 over its constant axes."""
    shape, axes = operation.site.shape(), reduced_axes(operation.site)
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    numbers = {axis: loop for loop, axis in enumerate([*kept, *axes])}
    read = Access(operation.tensor(), along(*(numbers[axis] for axis in range(len(shape)))))
    target = operation.target()
    loops = tuple(shape[axis] for axis in kept)
    flat = operation.build.tensor(operation.site.output().dtype, loops)
    operation.build.aliases[target] = flat
    operation.build.emit(
        operation.site.operation.type.lower(),
        loops,
        [read],
        body,
        Access(flat, along(*range(len(loops)))),
        reduced=tuple(shape[axis] for axis in axes),
        combine=combine,
        sums=sums,
        finish=finish,
    )


@legal("MEAN", "SUM")
def mean_or_sum(operation: Operation) -> None:
    """Quantised ones are sums minus zero points, rescaled; a mean's divisor is in the
    multiplier.
    """
    site = operation.site
    dtype, mean = site.input().dtype, site.operation.type == "MEAN"
    require(dtype is site.output().dtype, "a result of another type")
    shape = site.shape()
    count = math.prod(shape[axis] for axis in reduced_axes(site))
    if dtype in STORED and (dtype in NARROW or site.input().quantization):
        _quantised_sum(operation, count, mean=mean)
        return
    if dtype is DType.BOOL and not mean:
        reduce_axes(operation, LOGICAL["SUM"], identity(dtype), identity(dtype), dtype)
        return
    require(dtype in PLAIN, "types of this reduction")
    if mean and dtype is not F32:
        wide = DType.INT64
        body, finish = Scope(dtype), Scope(wide)
        total = finish.argument(0) / count
        reduce_axes(
            operation, "sum", body.finish(body.argument(0).cast(wide)),
            finish.finish(total.cast(dtype)), wide,
        )  # fmt: skip
        return
    scope = Scope(dtype)
    total = scope.argument(0)
    result = total / float(np.float32(count)) if mean else total
    reduce_axes(operation, "sum", identity(dtype), scope.finish(result), dtype)


def _quantised_sum(operation: Operation, count: int, *, mean: bool) -> None:
    site = operation.site
    given, made = scale_of(site.input(), "the input"), scale_of(site.output(), "a result")
    mantissa, shift = fixed_point.quantize_multiplier(given.scale / made.scale)
    if mean:
        more = min(count.bit_length() - 1, 32, 31 + shift)
        mantissa, shift = (mantissa << more) // count, shift - more
    scope = Scope(I32)
    total = scope.argument(0) - given.zero_point * count
    factors = [scope.constant(v, I32) for v in (mantissa, shift)]
    scaled = scope.add("rescale", total, *factors, dtype=I32) + made.zero_point
    dtype = site.output().dtype
    result = scope.finish(scaled.clamp(*integer_range(dtype)).cast(dtype))
    body = Scope(dtype)
    reduce_axes(operation, "sum", body.finish(body.argument(0).cast(I32)), result, I32)


LOGICAL: Final[dict[str, Combine]] = {
    "SUM": "any",
    "REDUCE_MAX": "any",
    "REDUCE_ANY": "any",
    "REDUCE_MIN": "all",
    "REDUCE_ALL": "all",
    "REDUCE_PROD": "all",
}
"""What reductions of booleans are."""


@legal("REDUCE_MAX", "REDUCE_MIN", "REDUCE_ANY", "REDUCE_ALL", "REDUCE_PROD")
def extreme(operation: Operation) -> None:
    """The greatest or least stored value, which ignores NaN; the product of plain numbers."""
    site = operation.site
    dtype, kind = site.input().dtype, site.operation.type
    require(dtype is site.output().dtype, "a result of another type")
    if dtype is DType.BOOL:
        reduce_axes(operation, LOGICAL[kind], identity(dtype), identity(dtype), dtype)
        return
    require(kind not in {"REDUCE_ANY", "REDUCE_ALL"}, "logic of another type than bool")
    if kind == "REDUCE_PROD":
        accepted = dtype in PLAIN | STORED and site.input().quantization is None
        require(accepted, "types of this reduction")
        reduce_axes(operation, "product", identity(dtype), identity(dtype), dtype)
        return
    require(dtype in PLAIN | STORED, "types of this reduction")
    given, made = (of_tensor(o.quantization) for o in (site.input(), site.output()))
    require(given == made or dtype not in STORED, "a result in another scale")
    largest = kind == "REDUCE_MAX"
    scope = Scope(dtype)
    value = scope.argument(0)
    if dtype is F32 and len(reduced_axes(site)) < len(site.shape()):
        # Reductions of some axes begin with the least finite value, as in TFLite.
        value = value.clamp(-GREATEST, None) if largest else value.clamp(None, GREATEST)
    combine: Combine = "maximum" if largest else "minimum"
    reduce_axes(operation, combine, identity(dtype), scope.finish(value), dtype)
