"""Which way TFLite's integer kernels round what OpenVINO rounds to the nearest step, halves to even.

A layer adds up thousands of values: where one in a hundred is rounded otherwise, always the same way, the sums drift.
"""

from __future__ import annotations

import numpy as np

from penstock.drivers.openvino.graph import Graph, Node
from penstock.engines.site import Site
from penstock.engines.types import one_scale
from penstock.ir import NDArray


def rounded_twice(site: Site, ratio: NDArray, halvings: int = 0) -> NDArray:
    """How much earlier than half a step a value goes on to the next step away from zero: real, one for each *ratio*.

    A kernel multiplies a sum by *ratio* as a 32-bit mantissa and a right shift, *halvings* more than the mantissa in
    [0.5, 1) asks for, and rounds after both: to 1/2**shift of a step, then to steps. So half of such a fraction below
    half a step goes up, or down below zero (Jacob et al., "Quantization and Training of Neural Networks for Efficient
    Integer-Arithmetic-Only Inference", section 2.2 and appendix B).
    """
    exponent = np.frexp(ratio)[1] - halvings
    steps: NDArray = np.where(exponent < 0, np.exp2(exponent - 1.0), 0.0)
    return (steps * one_scale(site.output())[0]).astype(np.float32)


def leave_zero(graph: Graph, site: Site, node: Node, distance: NDArray) -> Node:
    """*node* plus *distance*, where no output is below zero.

    Where some are, the two sides balance; telling them apart takes OpenVINO out of its 8-bit layers, which costs more
    than the layer.
    """
    _, zero = one_scale(site.output())
    if zero != np.iinfo(site.output().dtype.numpy).min or not distance.any():
        return node
    return graph.op.add(node, graph.constant(distance))
