"""The row of extension operations: what NNAPI's vendors define and their drivers alone compute
(NNAPI section 8.6).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import InvalidAttribute
from penstock.ir.extension import EXTENSION, code_fault, name_fault
from penstock.ir.operand import Operand
from penstock.ir.operation import Operation
from penstock.ir.operations.rules import declared
from penstock.ir.operations.spec import AttributeSpec, OperationSpec, Port


def _require_name(operation: Operation, *_: Sequence[Operand]) -> None:
    """The attributes name an operation. What it takes and gives is between its vendor and the
    driver.
    """
    attributes = operation.attributes
    fault = name_fault(attributes.text("extension")) or code_fault(
        attributes.integer("code"), "the number of an extension's operation"
    )
    if fault:
        raise InvalidAttribute(fault)


ROWS: Final = (
    OperationSpec(
        EXTENSION,
        (Port("inputs", optional=True, variadic=True),),
        (Port("results", variadic=True),),
        declared,
        (AttributeSpec("extension", "str"), AttributeSpec("code", "int")),
        require=_require_name,
        vocabulary="extension",
        feature_level=3,
        doc="Operation *code* of the vendor's extension of that name; shapes are those the model declares.",
    ),
)
