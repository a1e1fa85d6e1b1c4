"""Sets of element types that rows of the operation table name."""

from __future__ import annotations

from typing import Final

from penstock.ir.types import FLOATS, INTEGERS, DType

FLOAT: Final = frozenset({DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64})
QUANT8: Final = frozenset({DType.INT8, DType.UINT8})
QUANT: Final = frozenset({DType.INT8, DType.UINT8, DType.INT16, DType.UINT16})
WEIGHTS: Final = FLOAT | QUANT | {DType.INT4, DType.UINT4, DType.INT2}
INT: Final = INTEGERS
INDEX: Final = frozenset({DType.INT32, DType.INT64})
BOOL: Final = frozenset({DType.BOOL})
NUMBER: Final = FLOATS | INTEGERS
COMPLEX: Final = frozenset({DType.COMPLEX64, DType.COMPLEX128})
ANY_NUMBER: Final = NUMBER | COMPLEX | BOOL
STRING: Final = frozenset({DType.STRING})
