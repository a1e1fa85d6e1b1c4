"""The operations of the sample driver, in float32, and what it says about those it lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np

from penstock.hal import SUPPORTED, Support
from penstock.ir import Attributes, DType, NDArray, Operation, Subgraph

Kernel: TypeAlias = Callable[[Attributes, Sequence[NDArray]], NDArray]
"""Attributes and inputs (omitted ones left out) to the one output."""

ACTIVATIONS: Final = {
    "NONE": (-np.inf, np.inf),
    "RELU": (0.0, np.inf),
    "RELU6": (0.0, 6.0),
    "RELU_N1_TO_1": (-1.0, 1.0),
}
"""The fused activations of TFLite's options that only clamp: least and greatest value."""


def add(attributes: Attributes, inputs: Sequence[NDArray]) -> NDArray:
    a, b = inputs
    return activate(attributes, np.add(a, b))


def multiply(attributes: Attributes, inputs: Sequence[NDArray]) -> NDArray:
    a, b = inputs
    return activate(attributes, np.multiply(a, b))


def relu(_: Attributes, inputs: Sequence[NDArray]) -> NDArray:
    return np.maximum(inputs[0], np.float32(0))


def fully_connected(attributes: Attributes, inputs: Sequence[NDArray]) -> NDArray:
    """Rows of the input times the transposed weights [units, depth], plus the bias [units]."""
    x, weights, *bias = inputs
    rows = x if attributes.flag("keep_num_dims") else x.reshape(-1, weights.shape[1])
    product = rows @ weights.T
    return activate(attributes, product + bias[0] if bias else product)


def activate(attributes: Attributes, x: NDArray) -> NDArray:
    low, high = ACTIVATIONS[attributes.text("fused_activation_function")]
    return np.clip(x, np.float32(low), np.float32(high))


KERNELS: Final[dict[str, Kernel]] = {
    "ADD": add,
    "MUL": multiply,
    "RELU": relu,
    "FULLY_CONNECTED": fully_connected,
}


def support(subgraph: Subgraph, operation: Operation) -> Support:
    """Whether there is a kernel for *operation* as it stands, or a sentence that says why not."""
    if operation.type not in KERNELS:
        return Support(False, f"the sample driver has no {operation.type}")
    for index in (*operation.inputs, *operation.outputs):
        operand = subgraph.operands[index]
        if operand.has_value and operand.dtype is not DType.FLOAT32:
            return Support(
                False, f"{operand.name or f'operand {index}'} is {operand.dtype.value}, not float32"
            )
    if len(operation.outputs) != 1:
        return Support(False, f"{len(operation.outputs)} outputs; one is possible")
    activation = operation.attributes.get("fused_activation_function", "NONE")
    if activation not in ACTIVATIONS:
        return Support(False, f"no fused activation {activation!r}")
    if operation.attributes.get("weights_format", "DEFAULT") != "DEFAULT":
        return Support(False, "shuffled weights are not read")
    return SUPPORTED
