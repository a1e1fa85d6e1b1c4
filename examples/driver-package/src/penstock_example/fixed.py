"""An extension of NNAPI: 64-bit fixed-point numbers, for which NNAPI has no operand type.

A vendor publishes these names and numbers; programs use them through `penstock.nnapi`:

    fixed = model.get_extension_operand_type(NAME, FIXED_TENSOR)
    y = model.add_operand(fixed, (10,))
    model.set_operand_extension_data(y, fraction_bits(16))
    model.add_operation(model.get_extension_operation_type(NAME, TO_FIXED), [x], [y])
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from penstock.hal import Extension, ExtensionOperandType
from penstock.ir import NDArray, Operand

NAME: Final = "com.example.fixed"
"""A reversed domain name that the vendor owns, so that extension names are unique."""

FIXED_TENSOR: Final = 0
"""Operand type: a tensor of 64-bit integers. Its extension data is `fraction_bits`."""

TO_FIXED: Final = 0
"""Operation: float32 to FIXED_TENSOR, rounded to nearest, ties to even."""

TO_FLOAT: Final = 1
"""Operation: FIXED_TENSOR to float32."""

ROUNDING: Final = 0
"""Attribute of compilations and executions: with b"down" TO_FIXED rounds down."""

MOST_BITS: Final = 52

EXTENSION: Final = Extension(NAME, (ExtensionOperandType(FIXED_TENSOR, byte_size=8),))
TO_FIXED_KEY: Final = f"EXTENSION:{NAME}:{TO_FIXED}"
TO_FLOAT_KEY: Final = f"EXTENSION:{NAME}:{TO_FLOAT}"


def fraction_bits(count: int) -> bytes:
    """The extension data of a FIXED_TENSOR with *count* fractional bits, the lowest ones."""
    return struct.pack("<I", count)


def bits_of(operand: Operand | None) -> int | None:
    """The number of fractional bits of a FIXED_TENSOR; None for another operand or invalid data."""
    kind = None if operand is None else operand.extension
    if kind is None or (kind.extension, kind.code) != (NAME, FIXED_TENSOR) or len(kind.data) != 4:
        return None
    (count,) = struct.unpack("<I", kind.data)
    return count if count <= MOST_BITS else None


def integers(array: NDArray) -> NDArray:
    """The integers of a FIXED_TENSOR, whose bytes are the last dimension of its array."""
    return array.view(np.int64)[..., 0]


def array_of(numbers: NDArray) -> NDArray:
    """The array of a FIXED_TENSOR of these integers."""
    return np.ascontiguousarray(numbers)[..., np.newaxis].view(np.uint8)
