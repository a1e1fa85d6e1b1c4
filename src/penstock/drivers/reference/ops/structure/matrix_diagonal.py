"""MATRIX_DIAG and MATRIX_SET_DIAG: the diagonals of batches of matrices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel
from penstock.drivers.reference.ops.numerics.weights import given
from penstock.drivers.reference.ops.structure.shape import checked
from penstock.errors import ShapeMismatch
from penstock.ir import DType, NDArray

OPAQUE = frozenset({DType.STRING, DType.RESOURCE, DType.VARIANT})


@kernel("MATRIX_DIAG")
def matrix_diag(site: Site) -> Kernel:
    """Square matrices with the last dimension of the input on their diagonals, zeros elsewhere."""
    if site.input(0).dtype in OPAQUE:
        raise site.unsupported_types()

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        diagonal = given(inputs[0])
        if not diagonal.ndim:
            raise ShapeMismatch("a scalar is no diagonal")
        size = diagonal.shape[-1]
        result = np.zeros(checked((*diagonal.shape, size), "a diagonal matrix"), diagonal.dtype)
        _write(result, diagonal)
        return (result,)

    return run


@kernel("MATRIX_SET_DIAG")
def matrix_set_diag(site: Site) -> Kernel:
    """The matrices with their diagonals, as long as the shorter side, replaced."""
    if site.input(0).dtype in OPAQUE:
        raise site.unsupported_types()

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        result, diagonal = np.array(inputs[0], order="C"), given(inputs[1])
        if result.ndim < 2:
            raise ShapeMismatch(f"a matrix of shape {result.shape}")
        if not result.size:
            return (result,)
        shape = (*result.shape[:-2], min(result.shape[-2:]))
        if diagonal.shape != shape:
            raise ShapeMismatch(f"a diagonal of {diagonal.shape}, where {shape} is needed")
        _write(result, diagonal)
        return (result,)

    return run


def _write(matrices: NDArray, diagonal: NDArray) -> None:
    places = np.arange(diagonal.shape[-1])
    matrices[..., places, places] = diagonal
