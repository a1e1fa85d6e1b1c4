"""Sets of element types that rows of the operation table name.

A row admits what the preparation of TFLite's kernels, or NNAPI, admits: a table that refused more
would refuse files that run. What one driver's kernels cover is that driver's to say.
"""

from __future__ import annotations

from typing import Final

from penstock.ir.types import FLOATS, INTEGERS, DType

FLOAT: Final = FLOATS
QUANT8: Final = frozenset({DType.INT8, DType.UINT8})
QUANT: Final = frozenset({DType.INT8, DType.UINT8, DType.INT16, DType.UINT16})
ACTIVATION: Final = FLOAT | QUANT
"""What flows between the layers of a network: floats or quantised integers."""

WEIGHTS: Final = ACTIVATION | {DType.INT4, DType.UINT4, DType.INT2}
"""Filters: integers beside float activations make a hybrid operation."""

INT: Final = INTEGERS
BIAS: Final = FLOAT | {DType.INT32, DType.INT64, DType.INT16, DType.INT8}
INDEX: Final = frozenset({DType.INT32, DType.INT64})
SIZES: Final = INDEX | {DType.INT16}
INT32: Final = frozenset({DType.INT32})
FLOAT32: Final = frozenset({DType.FLOAT32})
BOOL: Final = frozenset({DType.BOOL})
NUMBER: Final = FLOATS | INTEGERS
COMPLEX: Final = frozenset({DType.COMPLEX64, DType.COMPLEX128})
ANY_NUMBER: Final = NUMBER | COMPLEX | BOOL
STRING: Final = frozenset({DType.STRING})
VALUE: Final = ANY_NUMBER | STRING
RESOURCE: Final = frozenset({DType.RESOURCE, DType.INT32})
"""Handles; files of older converters type them int32."""
