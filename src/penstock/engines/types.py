"""What rules ask of an operation's types, whichever engine they translate it for."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from penstock.engines.site import QUANTIZED, Refused, Site, require
from penstock.hal import AccuracyClass
from penstock.ir import DType, Operand

F32: Final = DType.FLOAT32


def one_scale(operand: Operand) -> tuple[float, int]:
    """Scale and zero point of an activation quantised as a whole."""
    quantization = operand.quantization
    if quantization is None or quantization.scale <= 0:
        raise Refused(f"{operand.dtype.value} values without a scale are not computed here")
    require(not quantization.per_channel, "activations quantised by channel are not computed here")
    return quantization.scale, quantization.zero_point


def activation(site: Site, known: Iterable[str]) -> str:
    """The fused activation, which must be one of *known*."""
    fused = site.operation.attributes.text("fused_activation_function")
    require(fused in known, f"no fused activation {fused}")
    return fused


def activations(
    site: Site, positions: Iterable[int] | None = None, quantized: AccuracyClass = "stepwise"
) -> AccuracyClass:
    """The class of an operation whose inputs at *positions* (None: all) and outputs are float32, or all
    quantised in 8 bits with one scale each: then it is *quantized*. Each such operation alone is within one step;
    what rounds otherwise than TFLite's kernels in more than single places is stepwise, for through a
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


def numbers(
    site: Site, whole: Collection[DType], quantized: AccuracyClass = "stepwise"
) -> AccuracyClass:
    """As `activations`, of all operands; one of the types *whole* is computed too, exactly."""
    operands = [o for o in (*site.inputs, *site.outputs) if o is not None]
    if len({o.dtype for o in operands}) == 1 and operands[0].dtype in whole:
        return "exact"
    return activations(site, quantized=quantized)
