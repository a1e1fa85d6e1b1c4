"""Custom operators of language models: rotation by Hadamard matrices, and attention."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel
from penstock.drivers.reference.ops.numerics.weights import given
from penstock.errors import ShapeMismatch
from penstock.ir import DType, NDArray
from penstock.ir.operations.custom_options import dot_product_attention, hadamard_size


@kernel("CUSTOM:aeq.hadamard_rotation")
def hadamard_rotation(site: Site) -> Kernel:
    """The fast Walsh-Hadamard transform of every group of elements, times one over the root of its
    size.
    """
    size = hadamard_size(site.attributes)
    if site.input(0).dtype is not DType.FLOAT32:
        raise site.unsupported_types()
    factor = np.float32(1 / math.sqrt(size))

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        x = given(inputs[0])
        if not x.ndim or x.shape[-1] % size:
            raise ShapeMismatch(f"rows of shape {x.shape} are no multiple of {size} elements")
        values = x.reshape(-1)
        half = 1
        while half < size:
            pairs = values.reshape(-1, 2, half)
            sums, differences = pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]
            values = np.stack([sums, differences], axis=1)
            half *= 2
        return ((values * factor).reshape(x.shape),)

    return run


@kernel("CUSTOM:odml.scaled_dot_product_attention")
def scaled_dot_product_attention(site: Site) -> Kernel:
    """Attention of heads; each head of keys and values may serve several that follow each other. A
    cap bends the scaled products by its hyperbolic tangent before the mask is added.
    """
    options = dot_product_attention(site.attributes)
    cap = np.float32(options.logit_cap)

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        query, key, value = (given(x).transpose(0, 2, 1, 3) for x in inputs[:3])
        group = query.shape[1] // max(key.shape[1], 1)
        key, value = (np.repeat(x, group, axis=1) for x in (key, value))
        mask = inputs[3] if len(inputs) > 3 else None
        scale = 1 / math.sqrt(query.shape[3]) if options.scale is None else options.scale
        logits = (query * np.float32(scale)) @ key.swapaxes(2, 3)
        if cap:
            logits = np.tanh(logits / cap) * cap
        if mask is not None:
            logits = logits + mask
        if logits.shape[:2] != query.shape[:2] or not logits.shape[3]:
            raise ShapeMismatch(f"attention to logits of shape {logits.shape}")
        parts = np.exp(logits - logits.max(axis=-1, keepdims=True))
        parts /= parts.sum(axis=-1, keepdims=True)
        return (np.ascontiguousarray((parts @ value).transpose(0, 2, 1, 3)),)

    return run
