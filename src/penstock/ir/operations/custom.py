"""Rows of custom operators."""

from __future__ import annotations

from typing import Final

from penstock.ir.operations.rules import declared
from penstock.ir.operations.spec import AttributeSpec, OperationSpec, Port

CODE: Final = AttributeSpec("custom_code", "str", "")
OPTIONS: Final = AttributeSpec("custom_options", "bytes", b"")

ROWS: Final = (
    OperationSpec(
        "CUSTOM",
        (Port("inputs", variadic=True, optional=True),),
        (Port("results", variadic=True),),
        declared,
        (CODE, OPTIONS),
        vocabulary="custom",
        doc="An operator outside the vocabulary, by name; shapes are those the model declares.",
    ),
)
