"""INSTANCE_NORMALIZATION: each channel of each image to one mean and variance (NNAPI)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel
from penstock.drivers.reference.ops.layers.image_layout import channels_first
from penstock.drivers.reference.ops.numerics.weights import REAL, given
from penstock.errors import ShapeMismatch
from penstock.ir import NDArray


@kernel("INSTANCE_NORMALIZATION")
def instance_normalization(site: Site) -> Kernel:
    """(x - mean) * gamma / sqrt(variance + epsilon) + beta (Ulyanov et al., 2016), computed in
    float64.
    """
    dtype = site.output().dtype
    if site.input(0).dtype is not dtype or dtype not in REAL:
        raise site.unsupported_types()
    gamma, beta, epsilon = (site.attributes.number(name) for name in ("gamma", "beta", "epsilon"))
    axes = (2, 3) if channels_first(site) else (1, 2)

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        x = given(inputs[0])
        if x.ndim != 4:
            raise ShapeMismatch(f"an image batch of shape {x.shape}, which is not of rank 4")
        if not x.size:
            return (x,)
        centred = x.astype(np.float64)
        centred -= centred.mean(axis=axes, keepdims=True)
        variance = np.square(centred).mean(axis=axes, keepdims=True)
        centred *= gamma / np.sqrt(variance + epsilon)
        centred += beta
        return (centred.astype(dtype.numpy),)

    return run
