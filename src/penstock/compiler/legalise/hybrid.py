"""Hybrid (dynamic-range) layers: float32 data is quantised when it runs, for integer weights.

Each row is one element of the batch, and has a scale of its own, and an offset if it is quantised
asymmetrically. Sums are integers; both scales convert them to floats (TFLite's quantised tensor
utilities). A row with an infinity or NaN is undefined in TFLite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from penstock.compiler.expression import Expression, Scope, Value
from penstock.compiler.legalise.builder import Operation
from penstock.compiler.program import Access, Position, along
from penstock.compiler.rewriting import renumbered
from penstock.ir import DType

F32: Final = DType.FLOAT32
F64: Final = DType.FLOAT64

WEIGHTS: Final = frozenset({DType.INT8, DType.UINT8, DType.INT4, DType.INT2})
"""Types of the integer weights of a hybrid layer. The bytes of uint8 weights are int8 weights."""

GREATEST: Final = 127.0

MOST_REAL: Final = 2**24 // (255 * 128)
"""The most products of a value less its offset and a weight whose sums float32 has exactly."""


class Rows(Struct, frozen=True):
    """Quantised rows: the tensors of the int8 *values*, of a float32 scale for each row, and of an
    int32 offset for each row (None: quantised symmetrically).

    *before* is how many elements surround the values before each axis: they stand for 0.
    """

    values: int
    scales: int
    offsets: int | None
    before: tuple[int, ...]


def quantised_rows(
    operation: Operation,
    source: int,
    rank: int,
    *,
    asymmetric: bool,
    before: Sequence[int] = (),
    after: Sequence[int] = (),
    real: bool = False,
) -> Rows:
    """As `quantised_part`, of all of the tensor *source*. Its first *rank* axes are rows. Elements
    that stand for 0 surround asymmetric values: *before* and *after* each axis.
    """
    shape = operation.shape(source)
    edges = (tuple(before), tuple(after)) if asymmetric and before and not real else None
    whole = operation.whole(source)
    return quantised_part(
        operation, whole, shape, rank, asymmetric=asymmetric, edges=edges, real=real
    )


def quantised_part(
    operation: Operation,
    source: Access,
    shape: tuple[int, ...],
    rank: int,
    *,
    asymmetric: bool,
    edges: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
    real: bool = False,
) -> Rows:
    """Emits the kernels that quantise what loops of *shape* read by *source*. The first *rank*
    loops are rows. *edges* are as many elements as surround the values before and after each axis.

    *real* values are float32, less their row's offset: the result has no offsets.
    """
    build = operation.build
    rows, rest = shape[:rank], shape[rank:]
    reads = [source]

    def extreme(name: str, combine: str, body: Expression) -> int:
        target = build.tensor(F32, rows)
        build.emit(
            name, rows, reads, body, Access(target, along(*range(rank))),
            reduced=rest, combine=combine, sums=F32,  # type: ignore[arg-type]
        )  # fmt: skip
        return target

    def computed(name: str, dtype: DType, body: Expression, *sources: int) -> int:
        target = build.tensor(dtype, rows)
        operation.elementwise(name, body, sources, target)
        return target

    dtype = build.tensors[source.tensor].dtype
    scope = Scope(dtype)
    value = scope.argument(0).cast(F32)
    if not asymmetric:
        reach = extreme("greatest magnitude", "maximum", scope.finish(value.apply("abs")))
        scales = computed("scale", F32, _symmetric(inverted=False), reach)
        factors, offsets = [computed("inverse", F32, _symmetric(inverted=True), reach)], None
    else:
        ends = [
            extreme("least", "minimum", scope.finish(value)),
            extreme("greatest", "maximum", scope.finish(value)),
        ]
        scales = computed("scale", F32, _asymmetric(scaled=True), *ends)
        offsets = computed("offset", DType.INT32, _asymmetric(scaled=False), *ends)
        factors = [computed("inverse", F32, _inverse(), scales), offsets]
    begin, end = edges or ((0,) * len(shape), (0,) * len(shape))
    sizes = tuple(a + size + b for a, size, b in zip(begin, shape, end, strict=True))
    stored = F32 if real else DType.INT8
    values = build.tensor(stored, sizes)
    if sizes != shape:
        axes = tuple(Position(-edge, ((axis, 1),)) for axis, edge in enumerate(begin))
        source = Access(source.tensor, axes, 0.0)
    build.emit(
        "quantise rows",
        sizes,
        [source, *(Access(factor, along(*range(rank))) for factor in factors)],
        _asymmetric_values(dtype, stored) if asymmetric else _symmetric_values(dtype, stored),
        Access(values, along(*range(len(sizes)))),
    )
    return Rows(values, scales, None if real else offsets, begin)


def _reach(scope: Scope, argument: int) -> Value:
    """The greatest magnitude of a row; that of a row of zeros counts as `GREATEST`."""
    reach = scope.argument(argument)
    zero = scope.compare("equal", reach, 0.0)
    return scope.select(zero, scope.constant(GREATEST, F32), reach)


def _symmetric(*, inverted: bool) -> Expression:
    """The scale of a row, or its inverse, from the greatest magnitude in the row."""
    scope = Scope(F32)
    reach = _reach(scope, 0)
    return scope.finish(scope.constant(GREATEST, F32) / reach if inverted else reach / GREATEST)


def _symmetric_values(dtype: DType, stored: DType) -> Expression:
    scope = Scope(dtype, F32)
    value = rounded(scope.argument(0).cast(F32) * scope.argument(1))
    return scope.finish(value.clamp(-GREATEST, GREATEST).cast(stored))


def _asymmetric(*, scaled: bool) -> Expression:
    """The scale of a row, or its offset, from its least and greatest value. As TFLite, the range is
    computed in float32, the offset in float64.
    """
    scope = Scope(F32, F32)
    low = scope.argument(0).apply("minimum", 0.0)
    high = scope.argument(1).apply("maximum", 0.0)
    empty = scope.compare("equal", low, high)
    step = (high - low).cast(F64) / 255.0
    steps = scope.select(empty, scope.constant(1.0, F64), step)
    if scaled:
        return scope.finish(steps.cast(F32))
    below, above = low.cast(F64) / steps, high.cast(F64) / steps
    nearer = below.apply("abs") + 128.0 < above.apply("abs") + 127.0
    from_low = scope.constant(-128.0, F64) - below
    from_high = scope.constant(127.0, F64) - above
    offset = scope.select(nearer, from_low, from_high).clamp(-128.0, 127.0).apply("round_away")
    return scope.finish(scope.select(empty, scope.constant(0.0, F64), offset).cast(DType.INT32))


def _inverse() -> Expression:
    """The inverse of the scale of a row; 0 for a scale of 0."""
    scope = Scope(F32)
    scale = scope.argument(0)
    none = scope.compare("equal", scale, 0.0)
    one = scope.constant(1.0, F32)
    return scope.finish(scope.select(none, scope.constant(0.0, F32), one / scale))


def _asymmetric_values(dtype: DType, stored: DType) -> Expression:
    """The values of a row, from its inverse scale and its offset; less the offset if they are
    *stored* as float32.
    """
    scope = Scope(dtype, F32, DType.INT32)
    value = rounded(scope.argument(0).cast(F32) * scope.argument(1))
    offset = scope.argument(2).cast(F32)
    value = (value + offset).clamp(-128.0, GREATEST)
    return scope.finish(value - offset if stored is F32 else value.cast(stored))


def rounded(value: Value) -> Value:
    """The nearest whole number, halves away from zero, as TFLite's utilities compute it: 0.49999997
    becomes 1, because its sum with one half is rounded before it is truncated.
    """
    scope = value.scope
    half = scope.select(value < 0.0, scope.constant(-0.5, F32), 0.5)
    return (value + half).apply("trunc")


def weight_sums(
    operation: Operation,
    sizes: tuple[tuple[int, ...], tuple[int, ...]],
    weights: Access,
    channel: Position,
    channels: int,
) -> int:
    """A vector of the sum of each channel's weights, int32: a kernel that is folded if they are
    constant. *sizes* are the outer and the reduced loops of the product.
    """
    build, (loops, reduced) = operation.build, sizes
    used = sorted(loop for loop in weights.loops() if loop < len(loops))
    names = {loop: index for index, loop in enumerate(used)}
    names |= {len(loops) + i: len(used) + i for i in range(len(reduced))}
    scope = Scope(build.tensors[weights.tensor].dtype)
    target = build.tensor(DType.INT32, (channels,))
    build.emit(
        "sums of weights",
        [loops[loop] for loop in used],
        [renumbered(weights, names.__getitem__)],
        scope.finish(scope.argument(0).cast(DType.INT32)),
        renumbered(Access(target, (channel,)), names.__getitem__),
        reduced=reduced,
        combine="sum",
    )
    return target
