"""Checks of element types, scales and activations that the rules of any engine share."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from penstock.driverkit.site import QUANTIZED, Refused, Site, require
from penstock.hal import AccuracyClass
from penstock.ir import DType, Operand

F32: Final = DType.FLOAT32

CLAMPS: Final = {"RELU6": (0.0, 6.0), "RELU_N1_TO_1": (-1.0, 1.0), "RELU_0_TO_1": (0.0, 1.0)}
ACTIVATIONS: Final = ("NONE", "RELU", "RELU6", "RELU_N1_TO_1")
"""The fused activations that engines compute."""

LEAST_SCALE: Final = 1e-9
GREATEST_SCALE: Final = 1e4
"""The range of scales in networks, with orders of magnitude to spare. Beyond it kernels overflow,
or end the process.
"""

GREATEST_RATIO: Final = 2.0**20
"""Greatest ratio of input to output scale: products of 8-bit values stay within 32 bits."""


def one_scale(operand: Operand) -> tuple[float, int]:
    """Scale and zero point of a per-tensor quantised activation. Refuses any other."""
    quantization = operand.quantization
    if quantization is None:
        raise Refused(f"{operand.dtype.value} values without a scale are not computed here")
    require(not quantization.per_channel, "activations quantised by channel are not computed here")
    is_usual = LEAST_SCALE <= quantization.scale <= GREATEST_SCALE
    require(is_usual, f"values of the scale {quantization.scale:g}, which no network has")
    return quantization.scale, quantization.zero_point


SHARES: Final = {
    DType.INT8: (1 / 256, -128),
    DType.UINT8: (1 / 256, 0),
    DType.INT16: (1 / 32768, 0),
}
"""The scale and zero point that TFLite's SOFTMAX assumes for its quantised output, by type."""


def require_shares(output: Operand) -> None:
    """Refuses a quantised SOFTMAX whose output is not in the scale of `SHARES`."""
    expected = one_scale(output) == SHARES.get(output.dtype)
    require(expected, "shares that are not in the scale TFLite has for them")


def one_scale_a_channel(site: Site, weights: int) -> None:
    """Refuses weights at input *weights* unless they have one scale, or one per output channel."""
    quantization = site.input(weights).quantization
    if quantization is not None:
        count = len(quantization.scales)
        require(count in {1, site.output_shape()[-1]}, f"{count} scales of weights")


def _check_multiplier(given: Sequence[Operand], made: Sequence[Operand]) -> None:
    """Refuses scales so far apart that TFLite's fixed-point arithmetic overflows; that of engines
    does not.
    """
    scales = [one_scale(o)[0] for o in given]
    greatest = max([math.prod(scales), *scales])
    for operand in made:
        ratio = greatest / one_scale(operand)[0]
        require(ratio < GREATEST_RATIO, "scales so far apart that TFLite's arithmetic overflows")


def activation(site: Site, known: Iterable[str]) -> str:
    """The fused activation, which must be one of *known*."""
    fused = site.attributes.text("fused_activation_function")
    require(fused in known, f"no fused activation {fused}")
    return fused


def activations(
    site: Site, positions: Iterable[int] | None = None, quantized: AccuracyClass = "stepwise"
) -> AccuracyClass:
    """The class of an operation whose inputs at *positions* (None: all) and outputs are all
    float32, or all quantised in 8 bits per tensor.

    Float32 is faithful. Quantised operations are of the class *quantized*: stepwise where the
    engine rounds more than single values differently, since such steps add up through a network.
    """
    given = site.inputs if positions is None else [site.input(p) for p in positions]
    operands = [o for o in (*given, *site.outputs) if o is not None]
    if all(o.dtype is F32 for o in operands):
        return "faithful"
    for operand in operands:
        if operand.dtype not in QUANTIZED:
            site.refuse_types()
    _check_multiplier([o for o in given if o is not None], site.outputs)
    return quantized


def numbers(
    site: Site, whole: Collection[DType], quantized: AccuracyClass = "stepwise"
) -> AccuracyClass:
    """As `activations` of all operands; exact if all have one of the types *whole*."""
    operands = [o for o in (*site.inputs, *site.outputs) if o is not None]
    if len({o.dtype for o in operands}) == 1 and operands[0].dtype in whole:
        return "exact"
    return activations(site, quantized=quantized)
