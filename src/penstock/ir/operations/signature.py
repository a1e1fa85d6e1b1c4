"""The notation of a row, and the element types and attributes that rows share.

A row accepts every type that TFLite's kernels accept when they are prepared, or that NNAPI accepts.
A stricter table would reject files that run. Each driver reports the types that it supports.
Attributes have the names and defaults of TFLite's options tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Final, TypeVar, cast

import msgspec

from penstock.ir.operand import EXTENSION
from penstock.ir.operation import AttributeValue
from penstock.ir.operations.spec import (
    AttributeKind,
    AttributeSpec,
    OperationSpec,
    Port,
    Vocabulary,
)
from penstock.ir.types import FLOATS, INTEGERS, DType

T = TypeVar("T")

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

_TYPES: Final[Mapping[str, frozenset[DType]]] = {
    **{dtype.value: frozenset({dtype}) for dtype in DType},
    **{name.lower(): value for name, value in globals().items() if isinstance(value, frozenset)},
}
"""Element types and the sets above, by the names that rows use."""

_DEFAULTS: Final[Mapping[str, AttributeValue]] = {
    "int": 0, "float": 0.0, "bool": False, "str": "", "bytes": b"", "ints": (), "floats": (),
    "subgraph": 0, "subgraphs": (),
}  # fmt: skip
"""The kinds of attributes but enumerations, and the default of each."""


@cache
def _port(text: str) -> Port:
    name, _, types = text.strip().partition(": ")
    types, _, var = types.partition(" ")
    sets = None if types == "any" else [_TYPES[each] for each in types.split("|")]
    admitted = None if sets is None else frozenset[DType]().union(*sets)
    optional, variadic = name.endswith("?"), name.rstrip("?").endswith("...")
    return Port(name.rstrip("?."), admitted, var, optional, variadic)


@cache
def _attribute(text: str) -> AttributeSpec:
    name, _, rest = text.strip().partition(": ")
    if not rest:
        return _SHARED[name]
    kind, _, default = rest.partition(" = ")
    if kind in _DEFAULTS:
        value = msgspec.json.decode(default) if default else _DEFAULTS[kind]
        return AttributeSpec(name, cast("AttributeKind", kind), value)
    if kind.removesuffix("!") in _DEFAULTS:
        return AttributeSpec(name, cast("AttributeKind", kind.removesuffix("!")))
    choices = TENSOR_TYPES if kind == "type" else tuple(kind.split("|"))
    return AttributeSpec(name, "enum", default or choices[0], choices)


_SHARED: Final = {
    spec.name: spec
    for spec in map(
        _attribute,
        (
            f"fused_activation_function: {'|'.join(ACTIVATIONS)}",
            "padding: SAME|VALID",
            "stride_w: int",
            "stride_h: int",
            "dilation_w_factor: int = 1",
            "dilation_h_factor: int = 1",
            "asymmetric_quantize_inputs: bool",
            "quantized_bias_type: type",
            "pot_scale_int16: bool = true",
            "data_layout: NHWC|NCHW",
            "custom_code: str",
            "custom_options: bytes",
        ),
    )
}
"""Attributes that rows name without a kind."""

_ROW: Final = re.compile(
    r"(?P<name>[^(\s]+)\((?P<inputs>[^;)]*)(?:;(?P<attributes>[^)]*))?\) ->(?P<outputs>[^;#]*)"
    r"(?:; version (?P<version>\d+) ?)?"
    r"(?:; (?P<only>only )?NNAPI(?: (?P<level>\d+))?(?: (?P<nnapi_name>\w+))? ?)?# (?P<doc>.+)"
)


def row(text: str) -> partial[OperationSpec]:
    """A row of the operation table, which is called with its rules: `row(text)(infer, fold=...,
    require=...)`. The text is a signature, facts, and the documentation behind `#`:

        REVERSE_V2(input: value T, axis: index; name: kind) -> output: value T;
        version 4; NNAPI 7 REVERSE # The input with the order of elements reversed.

    A port is `name: types`: `any`, an element type, a set of this module in small letters, or
    several joined by `|`. Ports with the same capital letter share one type. `?` marks an optional
    port and `...` a variadic one. An attribute, behind `;`, is `name: kind`, with ` = default` or
    `!` for a required one, or the name alone of one that rows share. An enumeration is its choices
    joined by `|`, and `type` is an element type. `version` is the newest that LiteRT registers.
    `NNAPI` has its feature level and its name if that differs; `only` if TFLite has no such
    operation.
    """
    match = _ROW.fullmatch(" ".join(text.split()))
    if match is None:
        raise ValueError(f"not a row of the operation table: {text}")
    name = match["name"]
    vocabulary: Vocabulary = "nnapi" if match["only"] else "tflite"
    if name == EXTENSION or name.startswith("CUSTOM"):
        vocabulary = "extension" if name == EXTENSION else "custom"
    return partial(
        OperationSpec,
        name,
        _listed(_port, match["inputs"]),
        _listed(_port, match["outputs"]),
        attributes=_listed(_attribute, match["attributes"] or ""),
        vocabulary=vocabulary,
        feature_level=int(match["level"]) if match["level"] else None,
        nnapi_name=match["nnapi_name"] or "",
        versions=int(match["version"] or 1),
        doc=match["doc"],
    )


def _listed(parse: Callable[[str], T], text: str) -> tuple[T, ...]:
    return tuple(map(parse, text.split(","))) if text.strip() else ()
