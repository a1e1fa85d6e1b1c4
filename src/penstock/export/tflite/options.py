"""Operations to operators: codes, versions, options, and scales of blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.errors import NotExportable, Place
from penstock.export.tflite.fields import OPTIONS_OF_OPERATOR, TFLITE, Field, Kind
from penstock.ir.operation import AttributeValue, Operation

PLACEHOLDER: Final = 127

INTERMEDIATES: Final = frozenset({"intermediate_scales", "intermediate_zero_points"})
"""Attributes that TFLite keeps outside the options: they are tensors of the operator."""


class OperatorCodes:
    """Collects the operator codes of a file, each once."""

    def __init__(self) -> None:
        self.tables: list[dict[str, Any]] = []
        self._known: dict[tuple[int, int, str], int] = {}

    def index(self, operation: Operation, where: Place) -> int:
        """The index of the code of *operation*; `NotExportable` when TFLite has no such operator."""
        number = TFLITE.numbers("BuiltinOperator").get(operation.type)
        if number is None:
            raise NotExportable(f"TFLite has no operator {operation.key}", where=where)
        origin = operation.origin
        version = (
            origin.version
            if origin is not None and origin.opcode == number and origin.version
            else 1
        )
        custom = operation.attributes.text("custom_code") if operation.type == "CUSTOM" else ""
        return self.add(operation.type, version, custom)

    def add(self, kind: str, version: int = 1, custom: str = "") -> int:
        """The index of the code of operator type *kind*."""
        number = TFLITE.number("BuiltinOperator", kind)
        key = (number, version, custom)
        if key not in self._known:
            self._known[key] = len(self.tables)
            self.tables.append({
                "deprecated_builtin_code": min(number, PLACEHOLDER),
                "custom_code": custom or None,
                "version": version,
                "builtin_code": number,
            })  # fmt: skip
        return self._known[key]


def options(
    operation: Operation, subgraphs: Mapping[str, AttributeValue], where: Place
) -> dict[str, Any]:
    """The fields of an operator table that carry the attributes of *operation*.

    *subgraphs* has the file's subgraph index for each attribute that refers to one, or to several.
    """
    attributes: dict[str, AttributeValue] = {**operation.attributes, **subgraphs}
    if operation.type == "CUSTOM":
        return {"custom_options": attributes.get("custom_options") or None}
    name = OPTIONS_OF_OPERATOR.get(operation.type)
    if name is None:
        return {}
    fields = TFLITE.table(name).by_name
    for attribute in attributes:
        if attribute not in fields and attribute not in INTERMEDIATES:
            raise NotExportable(
                f"TFLite's {operation.type} has no attribute {attribute!r}", where=where
            )
    values = {k: _value(fields[k], v, where) for k, v in attributes.items() if k in fields}
    second = name in TFLITE.unions["BuiltinOptions2"]
    union, field = (
        ("BuiltinOptions2", "builtin_options2") if second else ("BuiltinOptions", "builtin_options")
    )
    return {f"{field}_type": TFLITE.unions[union].index(name), field: values}


def _value(field: Field, value: AttributeValue, where: Place) -> Any:
    if field.enum and field.kind is Kind.SCALAR:
        number = TFLITE.numbers(field.enum).get(str(value))
        if number is None:
            raise NotExportable(f"{field.name} {value!r} is not a {field.enum}", where=where)
        return number
    return value


BLOCK_SCALED: Final[Mapping[str, int]] = {"EMBEDDING_LOOKUP": 2, "FULLY_CONNECTED": 3}
"""Operations that take scales of blocks, and the position of these among their inputs; the weights'
is 1.
"""


def blockwise(scales: int, size: int) -> dict[str, Any]:
    """The `QuantizationParameters` of a tensor in blocks of *size* elements, whose scales are
    tensor *scales*.
    """
    return {
        "details_type": TFLITE.unions["QuantizationDetails"].index("BlockwiseQuantization"),
        "details": {"scales": scales, "zero_points": -1, "block_size": size},
    }
