"""Inputs that need nothing done to them, recognised without looking twice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from penstock.ir import DType, NDArray, Operand
from penstock.ir.types import static_shape


class Ready(Struct, frozen=True):
    """Recognises inputs that `arrange` and `as_array` would hand on as they are: NumPy arrays of these *kinds*.

    *names* is empty where they do not tell the inputs apart.
    """

    names: tuple[str, ...]
    kinds: tuple[tuple[np.dtype[np.generic], tuple[int, ...]], ...]

    def arrays(self, given: object) -> list[NDArray] | None:
        """The caller's arrays in order; None where they must be looked at more closely."""
        if type(given) is dict:
            if not self.names or len(given) != len(self.names):
                return None
            try:
                values = [given[name] for name in self.names]
            except KeyError:
                return None
        elif type(given) is list or type(given) is tuple:
            if len(given) != len(self.kinds):
                return None
            values = list(given)
        else:
            return None
        for value, (dtype, shape) in zip(values, self.kinds, strict=True):
            if (
                type(value) is not np.ndarray
                or value.dtype != dtype
                or value.shape != shape
                or not value.flags.c_contiguous
            ):
                return None
        return values


def ready_inputs(
    operands: Sequence[Operand], shapes: Sequence[tuple[int, ...]] | None = None
) -> Ready | None:
    """What recognises inputs for *operands*, of *shapes* where given; None where one is a string or of unknown shape."""
    if any(operand.dtype is DType.STRING for operand in operands):
        return None
    full = [static_shape(operand.shape) for operand in operands] if shapes is None else shapes
    kinds = tuple(
        (operand.dtype.numpy, shape)
        for operand, shape in zip(operands, full, strict=True)
        if shape is not None
    )
    if len(kinds) != len(operands):
        return None
    names = tuple(operand.name for operand in operands)
    return Ready(names if len(set(names)) == len(names) else (), kinds)
