"""Which of a layer's computations its types ask for: float, quantised or hybrid."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from penstock.drivers.reference.ops.kernel import Kernel, Site
from penstock.drivers.reference.ops.numerics.hybrid import NARROW
from penstock.drivers.reference.ops.numerics.weights import QUANTIZED, REAL, Prepare, layer_kernel
from penstock.ir import DType

Form: TypeAlias = Callable[[Site], Prepare]
"""One way to compute a layer where it stands."""


def layer_by_types(site: Site, real: Form, quantized: Form, hybrid: Form | None = None) -> Kernel:
    """The kernel of a layer (image, weights, optional bias) in the form that its types ask for.

    Raises `Unsupported` where they ask for none of those given.
    """
    source, weights, target = site.input(0), site.input(1), site.output()
    if source.dtype in REAL and weights.dtype is source.dtype is target.dtype:
        return layer_kernel(site, real(site))
    if source.dtype in QUANTIZED and target.dtype is source.dtype:
        return layer_kernel(site, quantized(site))
    if (
        hybrid is not None
        and source.dtype is target.dtype is DType.FLOAT32
        and weights.dtype in NARROW
    ):
        return layer_kernel(site, hybrid(site))
    raise site.unsupported_types()
