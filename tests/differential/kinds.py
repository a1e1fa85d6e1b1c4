"""Kinds of models that generators of well-formed operations do not draw by themselves.

Converters, damaged files and files made by hand have them: quantisation parameters where nobody
reads them, outputs declared with the wrong type, dimensions of zero, values at the edges of their
type. A drawn model is of one kind or of none; the generators ask for some kinds while they draw
(`Draw.has`), `give` makes the others of a drawn model.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from msgspec.structs import replace

from penstock.ir import DType, Model, NDArray, Operand, Quantization
from penstock.ir.builder import pack
from penstock.ir.operand import Lifetime
from penstock.ir.operations import OPERATIONS
from penstock.ir.subgraph import constant_array
from penstock.ir.types import INTEGERS, PACKED, static_shape

if TYPE_CHECKING:
    from tests.differential.draw import Draw


class Kind(enum.Enum):
    """What is unusual in a drawn model."""

    EDGES = "infinities, not-a-numbers and the ends of integer types among the values"
    SCALES = "scales from 1e-30 to 1e30"
    STRAY = "quantisation parameters of an operand that has no use for them"
    PER_CHANNEL = "a scale a channel where one is usual"
    STALE = "a wrong type declared for an output"
    EMPTY = "a dimension of zero"
    UNDECLARED = (
        "a computed value whose dimensions are not declared, sometimes with a scale a channel"
    )
    INDEX_TYPE = "plain integers in another integer type"
    BIAS_SHAPE = "a bias of more than one dimension"
    BIAS_TYPE = "a bias of another type than is usual"
    BIAS_SCALE = "a bias without a scale, or with another one"
    SHUFFLED = "weights in the shuffled format"
    SETTINGS = "attributes at the edges of what they may be"
    STALE_INPUT = "a wrong type declared for an input of a branch or of a loop's body"
    NESTED = "branches within branches, and subgraphs that several of them enter"


GENERAL: Final = (
    Kind.EDGES,
    Kind.SCALES,
    Kind.STRAY,
    Kind.PER_CHANNEL,
    Kind.STALE,
    Kind.EMPTY,
    Kind.INDEX_TYPE,
    Kind.UNDECLARED,
)
"""Kinds that any operation may be drawn in. The others belong to some operations
(`registry.cases`).
"""

GIVEN: Final = (
    Kind.STRAY,
    Kind.PER_CHANNEL,
    Kind.STALE,
    Kind.EMPTY,
    Kind.INDEX_TYPE,
    Kind.UNDECLARED,
)
"""Kinds that `give` makes of a model of any size."""

OTHERS: Final = (
    DType.FLOAT32,
    DType.INT32,
    DType.INT64,
    DType.INT8,
    DType.UINT8,
    DType.INT16,
    DType.BOOL,
    DType.FLOAT16,
    DType.UINT32,
)
"""Types that an output, or an input of a branch, is declared with by mistake."""

PLAIN: Final = (DType.INT32, DType.INT64)
"""Types of integers that say where or how many."""


@dataclass(frozen=True)
class Stale:
    """An output of a model that is declared *wrong* and should be *right*."""

    output: int
    right: DType
    wrong: DType


Change: TypeAlias = "Callable[[Draw, list[Operand], Model], bool]"
"""Changes operands of a model's main subgraph in place; False where it has none to change."""


def give(draw: Draw, model: Model) -> Model:
    """*model* with what `draw.kind` asks for; unchanged where no operand of it can have that."""
    change = CHANGES.get(draw.kind) if draw.kind is not None else None
    if change is None or draw.kind is None:
        return model
    operands = list(model.entry.operands)
    if not change(draw, operands, model):
        return model
    draw.has(draw.kind)
    subgraphs = list(model.subgraphs)
    subgraphs[model.main] = replace(model.entry, operands=tuple(operands))
    return replace(model, subgraphs=tuple(subgraphs))


def _used(model: Model) -> list[int]:
    """The operands that operations read or write, each once."""
    used = (i for o in model.entry.operations for i in (*o.inputs, *o.outputs))
    return [i for i in dict.fromkeys(used) if model.entry.operands[i].has_value]


def _stale(draw: Draw, operands: list[Operand], model: Model) -> bool:
    computed = {i for o in model.entry.operations for i in o.outputs}
    written = [p for p, i in enumerate(model.entry.ordinary_outputs) if i in computed]
    if not written:
        return False
    position = draw.pick(written)
    index = model.entry.ordinary_outputs[position]
    same = [d for d in OTHERS if d.bits == operands[index].dtype.bits]
    others = [d for d in (same if draw.chance(0.5) else OTHERS) if d is not operands[index].dtype]
    if not others:
        return False
    wrong = draw.pick(others)
    draw.stale = Stale(position, operands[index].dtype, wrong)
    operands[index] = replace(
        operands[index], dtype=wrong, quantization=_within(operands[index].quantization, wrong)
    )
    return True


def _within(quantization: Quantization | None, dtype: DType) -> Quantization | None:
    """*quantization* with zero points that *dtype* has."""
    if quantization is None or not dtype.is_integer or (dtype.bits or 64) > 16:
        return quantization
    least = 0 if dtype.value.startswith("u") else -(1 << ((dtype.bits or 8) - 1))
    most = least + (1 << (dtype.bits or 8)) - 1
    points = tuple(max(least, min(z, most)) for z in quantization.zero_points)
    return replace(quantization, zero_points=points)


def _stray(draw: Draw, operands: list[Operand], model: Model) -> bool:
    bare = [i for i in _used(model) if operands[i].quantization is None]
    if not bare:
        return False
    # PAD fills with what its output says, whatever its input says: both often have the same.
    chosen = bare if draw.chance(0.5) else [draw.pick(bare)]
    scale, zero_point = draw.real(1e-3, 2), draw.integer(-100, 100)
    for index in chosen:
        quantization = _within(Quantization((scale,), (zero_point,)), operands[index].dtype)
        operands[index] = replace(operands[index], quantization=quantization)
    return True


def _per_channel(draw: Draw, operands: list[Operand], model: Model) -> bool:
    places = [
        (index, axis)
        for index in _used(model)
        if operands[index].quantization is not None or draw.chance(0.1)
        for axis, size in enumerate(operands[index].shape or ())
        if size is not None and size > 1 and _is_whole(operands[index], axis)
    ]
    if not places:
        return False
    index, axis = draw.pick(places)
    count = (operands[index].shape or ())[axis] or 0
    known = operands[index].quantization
    scales = tuple(
        float(np.float32((0.05 if known is None else known.scale) * draw.real(0.3, 1)))
        for _ in range(count)
    )
    points = (0,) * count
    operands[index] = replace(operands[index], quantization=Quantization(scales, points, axis))
    return True


def _is_whole(operand: Operand, axis: int) -> bool:
    known = operand.quantization
    return known is None or not known.per_channel or known.dimension == axis


def _empty(draw: Draw, operands: list[Operand], model: Model) -> bool:
    """One size of an input becomes zero, in all operands that have it in the same place."""
    shapes = [static_shape(operands[i].shape) for i in model.entry.inputs]
    places = [(axis, d) for s in shapes if s for axis, d in enumerate(s) if d]
    if not places:
        return False
    axis, size = draw.pick(places)
    constants = draw.chance(0.5)
    for index in _used(model):
        operand, shape = operands[index], static_shape(operands[index].shape)
        if not shape or axis >= len(shape) or shape[axis] != size:
            continue
        fed = index in model.entry.inputs[: len(draw.feeds)]
        if not fed and not (constants and operand.is_constant):
            continue
        smaller = (*shape[:axis], 0, *shape[axis + 1 :])
        if fed:
            position = model.entry.inputs.index(index)
            draw.feeds[position] = np.zeros(smaller, draw.feeds[position].dtype)
            operands[index] = replace(operand, shape=smaller)
        else:
            operands[index] = _constant(operand, np.zeros(smaller, operand.dtype.numpy))
        known = operands[index].quantization
        if known is not None and known.dimension == axis:
            single = Quantization((known.scale,), (known.zero_point,))
            operands[index] = replace(operands[index], quantization=single)
    return True


def _index_type(draw: Draw, operands: list[Operand], model: Model) -> bool:
    plain = [
        i
        for o in model.entry.operations
        for i, port in zip(o.inputs, OPERATIONS[o.key].inputs, strict=False)
        if port.types is not None
        and port.types <= INTEGERS
        and operands[i].dtype in PLAIN
        and operands[i].is_constant
    ]
    if not plain:
        return False
    index = draw.pick(plain)
    operand = operands[index]
    dtype = draw.pick([d for d in PLAIN if d is not operand.dtype])
    array = constant_array(model.pools, operand)
    operands[index] = _constant(operand, array.astype(dtype.numpy), dtype)
    return True


def _undeclared(draw: Draw, operands: list[Operand], model: Model) -> bool:
    computed = [i for o in model.entry.operations for i in o.outputs]
    if not computed:
        return False
    if draw.chance(0.5):
        _per_channel(draw, operands, model)
    for index in computed if draw.chance(0.3) else [draw.pick(computed)]:
        operands[index] = replace(operands[index], shape_declared=False)
    return True


def _constant(operand: Operand, array: NDArray, dtype: DType | None = None) -> Operand:
    """*operand* with another value, held in the model itself."""
    kind = dtype or operand.dtype
    return replace(
        operand,
        dtype=kind,
        shape=array.shape,
        lifetime=Lifetime.CONSTANT_COPY,
        value=bytes(pack(array, kind)[0]),
        location=None,
    )


CHANGES: Final[dict[Kind, Change]] = {
    Kind.STALE: _stale,
    Kind.STRAY: _stray,
    Kind.PER_CHANNEL: _per_channel,
    Kind.EMPTY: _empty,
    Kind.INDEX_TYPE: _index_type,
    Kind.UNDECLARED: _undeclared,
}


def edges(draw: Draw, dtype: DType, array: NDArray) -> NDArray:
    """*array* with some elements at the edges of *dtype*: of floats what is not finite too."""
    if dtype.is_float:
        # No greatest numbers: whether sums of them are infinite depends on their order.
        ends = [np.nan, np.inf, -np.inf, 0.0, -0.0]
    elif dtype.is_integer and dtype not in PACKED:
        info = np.iinfo(dtype.numpy)
        ends = [info.min, info.max, 0, 1, info.min + 1, -1 if info.min else 2]
    else:
        return array
    if not array.size:
        return array
    draw.has(Kind.EDGES)
    chosen = draw.rng.random(array.shape) < draw.pick((0.1, 0.3, 1.0))
    with np.errstate(all="ignore"):
        values = np.array(ends).astype(dtype.numpy)
    return np.where(chosen, values[draw.rng.integers(0, len(ends), array.shape)], array)
