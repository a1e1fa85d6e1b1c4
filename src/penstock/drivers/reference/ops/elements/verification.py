"""NumericVerify: how far a quantised model is from its float original."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel, tensor_quantization
from penstock.drivers.reference.ops.numerics.weights import given
from penstock.errors import GeneralFailure, ShapeMismatch
from penstock.ir import DType, NDArray
from penstock.ir.operations.custom_options import numeric_verify

LEAST_TOLERANCE: Final = 0.1
"""Below it, differences are given, but never fail."""


@kernel("CUSTOM:NumericVerify")
def numeric_verify_kernel(site: Site) -> Kernel:
    """The dequantised input less the reference. With `log_if_failed` a difference of more than
    `tolerance` quantisation steps (of 0 for float16) fails the run.
    """
    options = numeric_verify(site.attributes)
    operand = site.input(0)
    scale, zero_point = 0.0, 0
    if operand.dtype is not DType.FLOAT16:
        quantization = tensor_quantization(operand, "the input")
        scale, zero_point = quantization.scale, quantization.zero_point
    strict = options.log_if_failed and options.tolerance >= LEAST_TOLERANCE
    most = options.tolerance * scale

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        stored, reference = given(inputs[0]), given(inputs[1])
        if stored.shape != reference.shape:
            raise ShapeMismatch(f"shapes {stored.shape} and {reference.shape}")
        if scale:
            real = (scale * (stored.astype(np.int64) - zero_point)).astype(np.float32)
        else:
            real = stored.astype(np.float32)
        difference = real - reference
        if strict and np.any(np.abs(difference) > most):
            at = int(np.argmax(np.abs(difference) > most))
            raise GeneralFailure(
                f"NumericVerify: {real.flat[at]} stands for {reference.flat[at]}, "
                f"which is more than {options.tolerance} quantisation steps away"
            )
        return [difference][: len(site.outputs)]

    return run
