"""Attributes that several families share, with the names and defaults of TFLite's options tables."""

from __future__ import annotations

from typing import Final

from penstock.ir.operations.spec import AttributeSpec

TENSOR_TYPES: Final = (
    "FLOAT32", "FLOAT16", "INT32", "UINT8", "INT64", "STRING", "BOOL", "INT16", "COMPLEX64", "INT8",
    "FLOAT64", "COMPLEX128", "UINT64", "RESOURCE", "VARIANT", "UINT32", "UINT16", "INT4", "BFLOAT16",
    "INT2", "UINT4", "FLOAT8_E4M3FN", "FLOAT8_E5M2",
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
    """An enumeration; the first choice, whose number is 0, is the default."""
    return AttributeSpec(name, "enum", choices[0], choices)


def tensor_type(name: str, default: str = "FLOAT32") -> AttributeSpec:
    return AttributeSpec(name, "enum", default, TENSOR_TYPES)


def subgraph(name: str) -> AttributeSpec:
    return AttributeSpec(name, "subgraph", 0)


def subgraphs(name: str) -> AttributeSpec:
    return AttributeSpec(name, "subgraphs", ())
