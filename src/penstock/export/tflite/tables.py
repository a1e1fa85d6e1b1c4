"""Values of hash tables of which only the keys are known."""

from __future__ import annotations

import numpy as np

from penstock.ir.builder import pack_strings
from penstock.ir.operand import Lifetime, Operand
from penstock.ir.types import DType, element_count


def unasked_values(keys: Operand) -> Operand:
    """As many values as *keys*, which nobody asks for, of the type that TFLite's tables have beside
    them: int64 for strings, strings for int64.
    """
    shape = tuple(d or 0 for d in keys.shape or ())
    count = element_count(shape)
    if keys.dtype is DType.STRING:
        return Operand(DType.INT64, shape, Lifetime.CONSTANT_COPY, value=bytes(8 * count))
    value = pack_strings(np.full(count, b"", object))
    return Operand(DType.STRING, shape, Lifetime.CONSTANT_COPY, value=value)
