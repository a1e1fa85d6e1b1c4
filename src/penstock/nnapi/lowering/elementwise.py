"""Functions of one tensor, element by element, and conversions between element types."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.ir import DType
from penstock.nnapi.description import OperandType
from penstock.nnapi.lowering.registry import lowers
from penstock.nnapi.lowering.site import Site
from penstock.nnapi.lowering.windows import signed, signed_type

UNARY: Final = "x:T -> y:T"


OLD: Final = {"FLOOR", "TANH", "LOGISTIC", "RELU", "RELU1", "RELU6", "DEQUANTIZE"}
"""Operations for tensors of rank 4 and less."""


def _input(site: Site) -> int:
    if site.type in OLD:
        site.require_rank("x", 1, 4)
    return site.tensor("x")


def _unary(site: Site) -> None:
    site.finish(site.type, [_input(site)])


for _name, _level, _types in (
    ("FLOOR", 1, "f32 f16@3"),
    ("ABS", 3, "f16 f32 i32@4"),
    ("EXP", 3, "f16 f32"),
    ("LOG", 3, "f16 f32"),
    ("NEG", 3, "f16 f32 i32"),
    ("SIN", 3, "f16 f32"),
    ("SQRT", 3, "f16 f32"),
    ("HARD_SWISH", 4, "f16 f32 q8 q8s"),
):
    lowers(_name, level=_level, form=UNARY, T=_types)(_unary)


@lowers("RSQRT", level=3, form=UNARY, T="f16 f32 q8@7 q8s@7")
def rsqrt(site: Site) -> None:
    """The IR has it for signed 8-bit values: unsigned ones are moved there and back."""
    x, result = site.tensor("x"), site.result_type()
    if site.types["T"] is OperandType.TENSOR_QUANT8_ASYMM:
        moved = site.emit("RSQRT", [signed(site, x)], signed_type(result))
        site.finish("QUANTIZE", [moved])
    else:
        site.finish("RSQRT", [x])


@lowers("TANH", level=1, form=UNARY, T="f32 q8@3 f16@3 q8s@4")
def tanh(site: Site) -> None:
    site.require_quantization("y", 1 / 128, 0 if site.types["T"].dtype is DType.INT8 else 128)
    site.finish("TANH", [_input(site)])


@lowers("LOGISTIC", level=1, form=UNARY, T="f32 q8 f16@3 q8s@4")
def logistic(site: Site) -> None:
    site.require_quantization("y", 1 / 256, -128 if site.types["T"].dtype is DType.INT8 else 0)
    site.finish("LOGISTIC", [_input(site)])


def _relu(site: Site) -> None:
    site.require_same_quantization("x", "y")
    site.finish("RELU_N1_TO_1" if site.type == "RELU1" else site.type, [_input(site)])


for _name in ("RELU", "RELU1", "RELU6"):
    lowers(_name, level=1, form=UNARY, T="f32 q8 f16@3 q8s@4")(_relu)


@lowers("ELU", level=4, form="x:T alpha:real -> y:T", T="f16 f32")
def elu(site: Site) -> None:
    """The IR's ELU has alpha 1; for another: relu(x) + alpha * elu(min(x, 0))."""
    x, alpha = site.tensor("x"), site.real("alpha")
    if alpha == 1:
        site.finish("ELU", [x])
        return
    below = site.emit("ELU", [site.emit("MINIMUM", [x, site.number(0, x)])])
    scaled = site.emit("MUL", [below, site.number(alpha, x)])
    site.finish("ADD", [site.emit("RELU", [x]), scaled])


@lowers("QUANTIZE", level=3, form="x:S -> y:T", S="f16 f32", T="q8 q8s@4")
def quantize(site: Site) -> None:
    site.finish("QUANTIZE", [site.tensor("x")])


@lowers("DEQUANTIZE", level=1, form="x:S -> y:T", S="q8 q8y@3 pc@3 q8s@4", T="f32 f16@3")
def dequantize(site: Site) -> None:
    site.finish("DEQUANTIZE", [_input(site)])


@lowers(
    "CAST",
    level=3,
    form="x:S -> y:T",
    S="f16 f32 i32 q8 b8@4 q8s@4 q8y@4 pc@4 q16y@4 q16a@4",
    T="f16 f32 i32 q8 b8@4 q8s@4 q8y@4 pc@4 q16y@4 q16a@4",
)
def cast(site: Site) -> None:
    """Numbers beyond the range of unsigned 8-bit values saturate; scale and zero point do not
    count.
    """
    basic = {
        OperandType.TENSOR_FLOAT16,
        OperandType.TENSOR_FLOAT32,
        OperandType.TENSOR_INT32,
        OperandType.TENSOR_QUANT8_ASYMM,
    }
    source, target = site.types["S"], site.types["T"]
    site.require(
        source is target or {source, target} <= basic,
        f"there is no conversion from {source.name} to {target.name}",
    )
    x, result = site.tensor("x"), site.result_type()
    if source is target and site.value_type(x) == result:
        site.bind(0, x)
        return
    if target is OperandType.TENSOR_QUANT8_ASYMM and source is not target:
        dtype = site.dtype(x).numpy
        low, high = (site.graph.constant(np.array(v, dtype)) for v in (0, 255))
        x = site.emit("MINIMUM", [site.emit("MAXIMUM", [x, low]), high])
    site.finish(
        "CAST",
        [x],
        in_data_type=site.dtype(x).value.upper(),
        out_data_type=result[0].value.upper(),
    )
