"""What kernels of two broadcast operands share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from penstock.drivers.reference.ops.kernel import Kernel, Site
from penstock.ir import DType, NDArray

Pair = Callable[[NDArray, NDArray], NDArray]


def with_pair(compute: Pair) -> Kernel:
    """The kernel of a function of two arrays, which broadcasts them."""

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        a, b = (np.asarray(x) for x in inputs)
        with np.errstate(all="ignore"):
            return (np.asarray(compute(a, b)),)

    return run


def check_types(site: Site, types: Collection[DType]) -> DType:
    """The one type of both inputs and the output; `Unsupported` unless it is one of *types*."""
    dtypes = {site.input(0).dtype, site.input(1).dtype, site.output().dtype}
    if len(dtypes) != 1 or not dtypes <= set(types):
        raise site.unsupported_types()
    return site.output().dtype
