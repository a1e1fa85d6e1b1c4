"""Rows of conversions between quantised and real values, and from sparse to dense."""

from __future__ import annotations

from typing import Final

from penstock.ir.operations.attributes import flag, integer, real
from penstock.ir.operations.requirements import quantized_output
from penstock.ir.operations.rules import like
from penstock.ir.operations.spec import OperationSpec, Port
from penstock.ir.operations.types import FLOAT, INT, NUMBER, VALUE

ROWS: Final = (
    OperationSpec(
        "QUANTIZE",
        (Port("input", NUMBER),),
        (Port("output", INT | FLOAT),),
        like(0),
        require=quantized_output,
        feature_level=3,
        doc="Real values rounded to the output's quantisation, or quantised ones requantised to it.",
    ),
    OperationSpec(
        "DEQUANTIZE",
        (Port("input", INT | FLOAT),),
        (Port("output", FLOAT),),
        like(0),
        feature_level=1,
        doc="scale * (stored - zero point); float16 widened to float32.",
    ),
    OperationSpec(
        "FAKE_QUANT",
        (Port("input", FLOAT, "T"),),
        (Port("output", FLOAT, "T"),),
        like(0),
        (real("min"), real("max"), integer("num_bits"), flag("narrow_range")),
        doc="Floats rounded to what a quantisation of min..max to num_bits could hold.",
    ),
    OperationSpec(
        "DENSIFY",
        (Port("input", VALUE, "T"),),
        (Port("output", VALUE, "T"),),
        like(0),
        doc="A sparse constant as a dense one; constants are dense here, so the values are the input's.",
    ),
)
