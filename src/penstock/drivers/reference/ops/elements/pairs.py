"""What kernels of two broadcast operands share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

import numpy as np

from penstock.drivers.reference.ops.kernel import Kernel, Site
from penstock.drivers.reference.ops.numerics.parts import by_parts
from penstock.ir import DType, NDArray

SHORT_FLOATS: Final = frozenset({DType.FLOAT16.numpy, DType.BFLOAT16.numpy})

Pair = Callable[[NDArray, NDArray], NDArray]


def with_pair(compute: Pair, *, whole: bool = False) -> Kernel:
    """The kernel of an elementwise function of two arrays, which broadcasts them. 16-bit floats are
    computed as float32, of which they are rounded. A *whole* one looks at more than the elements at
    one place.
    """
    apply = _whole if whole else by_parts

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        a, b = np.asarray(inputs[0]), np.asarray(inputs[1])
        if a.dtype not in SHORT_FLOATS:
            return (apply(compute, a, b),)
        result = apply(compute, a.astype(np.float32), b.astype(np.float32))
        return (result.astype(a.dtype) if result.dtype == np.float32 else result,)

    return run


def _whole(compute: Pair, a: NDArray, b: NDArray) -> NDArray:
    return np.asarray(compute(a, b))


def check_types(site: Site, types: Collection[DType]) -> DType:
    """The one type of both inputs and the output; `Unsupported` unless it is one of *types*."""
    dtypes = {site.input(0).dtype, site.input(1).dtype, site.output().dtype}
    if len(dtypes) != 1 or not dtypes <= set(types):
        raise site.unsupported_types()
    return site.output().dtype
