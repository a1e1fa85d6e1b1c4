"""A small network for tests of the compiler, with a kernel of every kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from penstock.ir import DType, Model, ModelBuilder, Quantization

DATA: Final = Quantization((0.05,), (3,))
WEIGHTS: Final = Quantization((0.02,), (0,))
BIASES: Final = Quantization((0.001,), (0,))
SHARES: Final = Quantization((1 / 256,), (-128,))

CONVOLUTION: Final[Mapping[str, Any]] = {
    "padding": "SAME", "stride_w": 1, "stride_h": 1, "fused_activation_function": "RELU",
}  # fmt: skip
POOL: Final[Mapping[str, Any]] = {
    "padding": "VALID", "stride_w": 2, "stride_h": 2, "filter_width": 2, "filter_height": 2,
}  # fmt: skip


def small_network() -> Model:
    """int8: a padded convolution, mirrored padding (a table of positions), a pool, LOGISTIC (a
    table of values), a reshape (an alias), softmax (reductions), and the concatenation of both.
    """
    rng = np.random.default_rng(7)
    builder = ModelBuilder()

    def add(
        kind: str, inputs: list[int], shape: tuple[int, ...], q: Quantization, **at: Any
    ) -> int:
        return builder.operation(kind, inputs, [(DType.INT8, shape, q)], at)[0]

    x = builder.input(DType.INT8, (1, 6, 6, 4), "x", quantization=DATA)
    w = builder.constant(rng.integers(-127, 128, (4, 3, 3, 4)).astype(np.int8), "w", WEIGHTS)
    b = builder.constant(rng.integers(-500, 500, 4).astype(np.int32), "b", BIASES)
    pads = builder.constant(np.array([[0, 0], [1, 1], [1, 1], [0, 0]], np.int32), "pads")
    flat = builder.constant(np.array([1, 64], np.int32), "flat")
    conv = add("CONV_2D", [x, w, b], (1, 6, 6, 4), DATA, **CONVOLUTION)
    mirrored = add("MIRROR_PAD", [conv, pads], (1, 8, 8, 4), DATA, mode="REFLECT")
    pooled = add("MAX_POOL_2D", [mirrored], (1, 4, 4, 4), DATA, **POOL)
    logistic = add("LOGISTIC", [pooled], (1, 4, 4, 4), SHARES)
    row = add("RESHAPE", [logistic, flat], (1, 64), SHARES)
    shares = add("SOFTMAX", [row], (1, 64), SHARES, beta=1.0)
    joined = add("CONCATENATION", [row, shares], (1, 128), SHARES, axis=1)
    return builder.build([joined])
