"""Rows of spectral transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import ShapeMismatch
from penstock.ir.operations.rules import agree, at_least, constant_integers, dimension, ranked
from penstock.ir.operations.spec import OperationSpec, Port, ShapeContext
from penstock.ir.operations.types import COMPLEX, FLOAT32, INT32
from penstock.ir.types import Shape


def _rfft_2d(context: ShapeContext) -> Sequence[Shape]:
    """The last two dimensions become fft_length[0] and fft_length[1] / 2 + 1; lengths are powers of
    two.
    """
    shape = at_least(context, 0, 2)
    agree(dimension(ranked(context, 1, 1), 0), 2, "number of transform lengths")
    lengths = constant_integers(context, 1)
    if lengths is not None and any(n < 1 or n & (n - 1) for n in lengths):
        raise ShapeMismatch(f"transform lengths {lengths} are not powers of two")
    if shape is None:
        return (None,)
    rows, columns = (None, None) if lengths is None else (lengths[0], lengths[1] // 2 + 1)
    return ((*shape[:-2], rows, columns),)


ROWS: Final = (
    OperationSpec(
        "RFFT2D",
        (Port("input", FLOAT32), Port("fft_length", INT32)),
        (Port("output", COMPLEX),),
        _rfft_2d,
        doc="The two-dimensional Fourier transform of real images, the redundant half of the last dimension left out.",
    ),
)
