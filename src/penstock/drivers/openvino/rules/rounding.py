"""QUANTIZE and DEQUANTIZE, and how TFLite's integer kernels round.

OpenVINO rounds halves to even. A layer adds up thousands of values: if one in a hundred is rounded
differently, always in the same direction, the sums drift.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from penstock.driverkit.checks import F32, one_scale
from penstock.driverkit.layout import follows
from penstock.driverkit.site import QUANTIZED, Site, require
from penstock.drivers.openvino.graph import STEPPED, Graph, Node, is_above_zero, same_grid
from penstock.drivers.openvino.rules.rule import rule
from penstock.hal import AccuracyClass
from penstock.ir import DType, NDArray


def rounded_twice(site: Site, ratio: NDArray, halvings: int = 0) -> NDArray:
    """The distance below half a step from which a value already rounds away from zero: a real
    number for each *ratio*.

    A kernel multiplies a sum by *ratio* as a 32-bit mantissa and a right shift, *halvings* more
    than a mantissa in [0.5, 1) needs. It rounds after both: to 1/2**shift of a step, then to steps.
    So a value within half of such a fraction below half a step is rounded away from zero (Jacob et
    al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
    Inference", section 2.2 and appendix B).
    """
    exponent = np.frexp(ratio)[1] - halvings
    steps: NDArray = np.where(exponent < 0, np.exp2(exponent - 1.0), 0.0)
    return (steps * one_scale(site.output())[0]).astype(np.float32)


def away_from_zero(
    graph: Graph, site: Site, node: Node, distance: NDArray, fused: str = "NONE"
) -> tuple[Node, NDArray]:
    """*node* moved away from zero by *distance* and activated by *fused*; and an offset to add when
    it is rounded, which costs no time there.

    *distance* is at most a quarter of a step. It is a scalar, or has the rank of *node* with one
    element for all channels, or one for each channel on axis 1.
    """
    if not distance.any():
        return graph.activate(node, fused), NOTHING
    raised = distance
    if not is_above_zero(site.output()):
        half = np.float32(one_scale(site.output())[0]) * STEEP
        node, raised = _two_prelus(graph, node, distance, half)
    if fused == "NONE":
        return node, raised
    return graph.activate(graph.op.add(node, graph.constant(raised)), fused), NOTHING


def _two_prelus(
    graph: Graph, node: Node, distance: NDArray, half: np.float32
) -> tuple[Node, NDArray]:
    """*node* after a piecewise linear function: steep within *half* of zero, where no rounding
    changes, and shifted by *distance* elsewhere. It consists of two PReLUs: OpenVINO keeps this
    form within an 8-bit layer.
    """
    op, rank = graph.op, max(distance.ndim, 1)
    steepness = (1 + distance / half).astype(np.float32)
    for moved, slope in ((half, 1 / steepness), (-2 * half, steepness)):
        by = graph.constant(np.full((1,) * rank, moved, np.float32))
        node = op.prelu(op.add(node, by), graph.constant(slope.ravel()))
    return node, (half + distance).astype(np.float32)


def step_ratio(site: Site) -> float:
    """The ratio of the input's step to the output's step."""
    return one_scale(site.input())[0] / one_scale(site.output())[0]


def define_rescaled(graph: Graph, site: Site, node: Node, fused: str = "NONE") -> None:
    """Registers *node*, on the grid of the input, and *fused*, as the output on another grid."""
    distance = rounded_twice(site, np.array(step_ratio(site)))
    node, raised = away_from_zero(graph, site, node, distance, fused)
    graph.define(site, node, raised=raised)


def rounds_alike(ratio: float) -> bool:
    """Whether TFLite and `away_from_zero` round *ratio* times any difference of bytes alike."""
    mantissa, exponent = math.frexp(ratio)
    left = max(exponent, 0)
    distance = 2.0 ** (exponent - 1) if exponent < 0 else 0.0
    for steps in range(256):
        exact = ratio * steps + distance
        if abs(exact % 1 - 0.5) < TIE:
            return False
        first = ((steps << left) * round(mantissa * 2**31) + 2**30) >> 31
        if math.floor(first * 2.0 ** (exponent - left) + 0.5) != round(exact):
            return False
    return True


NOTHING: Final = np.zeros((), np.float32)
STEEP: Final = np.float32(0.125)
"""Fraction of a step, on both sides of zero. The steep part adds at most a quarter of a step, and
values within half a step stay zero.
"""

TIE: Final = 5e-5
"""Fraction of a step. float32 may round values this close to a half in either direction."""


def _check_quantize(site: Site) -> AccuracyClass:
    site.shape()
    source, target = site.input(), site.output()
    if target.dtype not in STEPPED or source.dtype not in {F32, *STEPPED}:
        site.refuse_types()
    one_scale(target)
    if source.dtype is not F32:
        one_scale(source)
    if DType.INT16 in {source.dtype, target.dtype}:
        return "relaxed"
    if source.dtype is F32 or same_grid(source, target):
        return "faithful"
    ratio = step_ratio(site)
    if ratio > 1:
        # For finer steps OpenVINO uses an intermediate grid, and results are up to two steps off.
        return "relaxed"
    return "faithful" if rounds_alike(ratio) else "stepwise"


@rule("QUANTIZE", check=_check_quantize, layout=follows)
def emit_quantize(graph: Graph, site: Site) -> None:
    if same_grid(site.input(), site.output()):
        graph.pass_on(site)
        return
    node = graph.get(site)
    if site.input().dtype not in QUANTIZED or not site.is_quantized:
        graph.move(site, node)
    else:
        define_rescaled(graph, site, node)


def _check_dequantize(site: Site) -> AccuracyClass:
    site.shape()
    source = site.input()
    require(site.output().dtype is F32, "an output that is not float32")
    if source.dtype is DType.FLOAT16:
        require(source.is_constant, "float16 values are converted only where they are constant")
        return "exact"
    if source.dtype not in STEPPED:
        site.refuse_types()
    one_scale(source)
    return "relaxed" if source.dtype is DType.INT16 else "faithful"


@rule("DEQUANTIZE", check=_check_dequantize, layout=follows)
def emit_dequantize(graph: Graph, site: Site) -> None:
    """DEQUANTIZE: values in the graph are real already."""
    graph.define(site, graph.get(site))
