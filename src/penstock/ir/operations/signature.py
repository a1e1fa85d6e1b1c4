"""Element types and attributes that rows share, and the notation of a row's operands.

A row accepts every type that TFLite's kernels accept when they are prepared, or that NNAPI accepts.
A stricter table would reject files that run. Each driver reports the types that it supports.
Attributes have the names and defaults of TFLite's options tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final, Literal

from penstock.ir.operations.spec import (
    AttributeSpec,
    FoldRule,
    OperationSpec,
    Port,
    Requirement,
    ShapeRule,
)
from penstock.ir.types import FLOATS, INTEGERS, DType

FLOAT: Final = FLOATS
QUANT8: Final = frozenset({DType.INT8, DType.UINT8})
QUANT: Final = frozenset({DType.INT8, DType.UINT8, DType.INT16, DType.UINT16})
ACTIVATION: Final = FLOAT | QUANT
"""Values between the layers of a network: floats or quantised integers."""

WEIGHTS: Final = ACTIVATION | {DType.INT4, DType.UINT4, DType.INT2}
"""Filters. Integer filters with float activations make a hybrid operation."""

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
"""Handles; older converters type them int32."""

TENSOR_TYPES: Final = (
    "FLOAT32", "FLOAT16", "INT32", "UINT8", "INT64", "STRING", "BOOL", "INT16", "COMPLEX64",
    "INT8", "FLOAT64", "COMPLEX128", "UINT64", "RESOURCE", "VARIANT", "UINT32", "UINT16",
    "INT4", "BFLOAT16", "INT2", "UINT4", "FLOAT8_E4M3FN", "FLOAT8_E5M2",
)  # fmt: skip
"""TFLite's TensorType by code."""

ACTIVATIONS: Final = ("NONE", "RELU", "RELU_N1_TO_1", "RELU6", "TANH", "SIGN_BIT")
PADDINGS: Final = ("SAME", "VALID")

FUSED_ACTIVATION: Final = AttributeSpec("fused_activation_function", "enum", "NONE", ACTIVATIONS)
PADDING: Final = AttributeSpec("padding", "enum", "SAME", PADDINGS)
STRIDE_W: Final = AttributeSpec("stride_w", "int", 0)
STRIDE_H: Final = AttributeSpec("stride_h", "int", 0)
ASYMMETRIC_INPUTS: Final = AttributeSpec("asymmetric_quantize_inputs", "bool", False)
QUANTIZED_BIAS_TYPE: Final = AttributeSpec("quantized_bias_type", "enum", "FLOAT32", TENSOR_TYPES)
POT_SCALE_INT16: Final = AttributeSpec("pot_scale_int16", "bool", True)


def integer(name: str, default: int = 0) -> AttributeSpec:
    return AttributeSpec(name, "int", default)


def real(name: str, default: float = 0.0) -> AttributeSpec:
    return AttributeSpec(name, "float", default)


def flag(name: str, default: bool = False) -> AttributeSpec:
    return AttributeSpec(name, "bool", default)


def integers(name: str) -> AttributeSpec:
    return AttributeSpec(name, "ints", ())


def choice(name: str, *choices: str) -> AttributeSpec:
    """An enumeration. The first choice has the number 0 and is the default."""
    return AttributeSpec(name, "enum", choices[0], choices)


def tensor_type(name: str, default: str = "FLOAT32") -> AttributeSpec:
    return AttributeSpec(name, "enum", default, TENSOR_TYPES)


def subgraph(name: str) -> AttributeSpec:
    return AttributeSpec(name, "subgraph", 0)


def subgraphs(name: str) -> AttributeSpec:
    return AttributeSpec(name, "subgraphs", ())


_TYPES: Final[Mapping[str, frozenset[DType]]] = {
    **{dtype.value: frozenset({dtype}) for dtype in DType},
    **{name.lower(): value for name, value in globals().items() if isinstance(value, frozenset)},
}
"""Element types and the sets above, by the names that signatures use."""


@cache
def port(text: str) -> Port:
    """The port that *text* describes: `name: types`, in the notation of the rows' signatures."""
    name, _, types = text.strip().partition(": ")
    types, _, var = types.partition(" ")
    admitted = (
        None
        if types == "any"
        else frozenset[DType]().union(*map(_TYPES.__getitem__, types.split("|")))
    )
    optional, variadic = name.endswith("?"), name.rstrip("?").endswith("...")
    return Port(name.rstrip("?."), admitted, var, optional, variadic)


def ports(text: str) -> tuple[Port, ...]:
    """The ports of a list separated by commas."""
    return tuple(port(each) for each in text.split(",")) if text.strip() else ()


def row(
    name: str,
    signature: str,
    infer: ShapeRule,
    attributes: tuple[AttributeSpec, ...] = (),
    *,
    fold: FoldRule | None = None,
    require: Requirement | None = None,
    vocabulary: Literal["tflite", "nnapi", "custom", "extension"] = "tflite",
    level: int | None = None,
    nnapi_name: str = "",
    versions: int = 1,
    doc: str = "",
) -> OperationSpec:
    """A row of the operation table. *signature* lists inputs and outputs as the documentation does:
    `x: number T, bias?: float -> y: number T`. A type is `any`, an element type, a set of this
    module in small letters, or several joined by `|`. Ports with the same capital letter share one
    type. `?` marks an optional port and `...` a variadic one (`Port`). The other arguments are
    fields of `OperationSpec`; *level* is its `feature_level`.
    """
    inputs, _, outputs = signature.partition("->")
    return OperationSpec(
        name,
        ports(inputs),
        ports(outputs),
        infer,
        attributes,
        fold,
        require,
        vocabulary,
        level,
        nnapi_name,
        versions,
        doc,
    )
