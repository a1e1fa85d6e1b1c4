"""Fused activations of real recurrent cells and of SVDF."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from penstock.drivers.reference.ops.kernel import Unsupported
from penstock.drivers.reference.ops.numerics.activation_range import BOUNDS, clamp_in_place
from penstock.ir import NDArray

Activation: TypeAlias = Callable[[NDArray], NDArray]
"""Real values to real values of the same shape; may destroy its argument."""


def logistic(x: NDArray) -> NDArray:
    """1 / (1 + exp(-x)), in place."""
    # NumPy 2.4's `negative` reads the wrong elements where it writes onto a view of one element a
    # row.
    np.multiply(x, np.float32(-1), out=x)
    np.exp(x, out=x)
    x += np.float32(1)
    return np.reciprocal(x, out=x)


def _tanh(x: NDArray) -> NDArray:
    return np.tanh(x, out=x)


def _sign_bit(x: NDArray) -> NDArray:
    return np.signbit(x).astype(np.float32)


FUNCTIONS: Final[dict[str, Activation]] = {
    "TANH": _tanh,
    "SIGMOID": logistic,
    "SIGN_BIT": _sign_bit,
}
"""Activations that are not clamps. SIGMOID is NNAPI's, SIGN_BIT TFLite's."""


def activation_function(name: str) -> Activation:
    """The fused activation of this name; `Unsupported` for an unknown one."""
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    if name not in BOUNDS:
        raise Unsupported(f"the fused activation {name}")
    return lambda values: clamp_in_place(values, name)
