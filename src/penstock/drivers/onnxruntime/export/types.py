"""Which element types a rule takes, and the accuracy that follows from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.engines.site import QUANTIZED, Site
from penstock.engines.types import one_scale
from penstock.hal import AccuracyClass
from penstock.ir import DType, Operand

F32: Final = DType.FLOAT32
PLAIN: Final = frozenset({F32, DType.INT32, DType.INT64, DType.BOOL})
"""Element types that are moved as they are."""

WHOLE: Final = frozenset({DType.INT32, DType.INT64})


def activations(
    site: Site, positions: Iterable[int] | None = None, quantized: AccuracyClass = "relaxed"
) -> AccuracyClass:
    """The class of an operation whose inputs at *positions* (None: all) and outputs are float32, or all
    quantised in 8 bits with one scale each: then it is *quantized*. Each such operation alone is within one step;
    what rounds otherwise than TFLite's kernels in more than single places is relaxed all the same, for through a
    network its steps add up.
    """
    given = site.inputs if positions is None else [site.input(p) for p in positions]
    operands = [o for o in (*given, *site.outputs) if o is not None]
    if all(o.dtype is F32 for o in operands):
        return "faithful"
    for operand in operands:
        if operand.dtype not in QUANTIZED:
            site.refuse_types()
        one_scale(operand)
    return quantized


def numbers(site: Site, quantized: AccuracyClass = "relaxed") -> AccuracyClass:
    """As `activations`, of all operands; int32 and int64 are computed too, exactly."""
    operands = [o for o in (*site.inputs, *site.outputs) if o is not None]
    for dtype in WHOLE:
        if all(o.dtype is dtype for o in operands):
            return "exact"
    return activations(site, quantized=quantized)


def moves(site: Site, position: int = 0, *, unscaled: bool = False) -> AccuracyClass:
    """The class of an operation that moves values of input *position* and changes none. *unscaled*: also 8-bit
    values that are numbers by themselves.
    """
    return moved(site, [site.input(position)], unscaled=unscaled)


def moved(site: Site, operands: Iterable[Operand], *, unscaled: bool = False) -> AccuracyClass:
    """As `moves`, of *operands*: exact, relaxed where a quantised value gets another scale."""
    given = list(operands)
    bare = unscaled and all(o.quantization is None for o in (*given, *site.outputs))
    for operand in (*given, *site.outputs):
        if operand.dtype in QUANTIZED and not bare:
            one_scale(operand)
        elif operand.dtype not in PLAIN | QUANTIZED:
            site.refuse_types()
    if any(o.dtype is not site.output().dtype for o in given):
        site.refuse_types()
    same = all(o.quantization == t.quantization for o in given for t in site.outputs)
    return "exact" if same else "relaxed"
