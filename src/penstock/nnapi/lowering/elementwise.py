"""Arithmetic, comparisons and logic of two tensors, broadcast, and choice between them. | Functions of one tensor, element by element, and conversions between element types."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.ir import DType
from penstock.nnapi.description import OperandType
from penstock.nnapi.lowering.registry import lowers
from penstock.nnapi.lowering.site import Site
from penstock.nnapi.lowering.windows import signed, signed_type

FUSED = "a:T b:T activation:i -> result:T"
PAIR = "a:T b:T -> result:T"
MAX_RANK = 4


def _pair(site: Site) -> list[int]:
    for name in ("a", "b"):
        site.require_rank(name, 0, MAX_RANK)
    return [site.tensor("a"), site.tensor("b")]


def _fused(site: Site, kind: str) -> None:
    pair, activation = _pair(site), site.activation()
    if site.types["T"] is OperandType.TENSOR_INT32:
        site.require(activation == "NONE", "INT32 tensors take no fused activation")
    site.finish(kind, pair, fused_activation_function=activation)


@lowers("ADD", level=1, form=FUSED, T="f32 q8 f16@3 q8s@4 i32@4")
def add(site: Site) -> None:
    _fused(site, "ADD")


@lowers("SUB", level=2, form=FUSED, T="f32 f16@3 q8@3 q8s@4 i32@4")
def sub(site: Site) -> None:
    _fused(site, "SUB")


@lowers("MUL", level=1, form=FUSED, T="f32 q8 f16@3 q8s@4 i32@4")
def mul(site: Site) -> None:
    a, b, result = site.operand("a"), site.operand("b"), site.output("result")
    if a.type.is_quantized:
        site.require(
            result.scale > a.scale * b.scale,
            f"the output's scale {result.scale:g} must be above {a.scale * b.scale:g}, the product of the inputs'",
        )
    _fused(site, "MUL")


@lowers("DIV", level=2, form=FUSED, T="f32 f16@3 i32@4")
def div(site: Site) -> None:
    """Integers are divided rounding down; by zero they have a quotient that nothing is said of, and
    no failure: zeros among divisors become ones.
    """
    if site.types["T"] is not OperandType.TENSOR_INT32:
        _fused(site, "DIV")
        return
    site.require(site.activation() == "NONE", "INT32 tensors take no fused activation")
    a, b = _pair(site)
    known = site.constant("b")
    if known is None or not known.all():
        zero, one = site.number(0, b), site.number(1, b)
        b = site.emit(
            "SELECT_V2",
            [site.emit("EQUAL", [b, zero], (DType.BOOL, None)), one, b],
            site.value_type(b),
        )
    site.finish("FLOOR_DIV", [a, b])


@lowers("POW", level=3, form="a:T b:T -> result:T", T="f16 f32")
def power(site: Site) -> None:
    site.finish("POW", [site.tensor("a"), site.tensor("b")])


@lowers("PRELU", level=3, form=PAIR, T="f16 f32 q8 q8s@4")
def prelu(site: Site) -> None:
    site.finish("PRELU", [site.tensor("a"), site.tensor("b")])


def _extreme(site: Site, kind: str) -> None:
    """Quantised operands are brought to the result's scale first, which keeps their order."""
    result = site.result_type()
    pair = [site.requantized(site.tensor(name), result) for name in ("a", "b")]
    site.finish(kind, pair)


@lowers("MAXIMUM", level=3, form=PAIR, T="f16 f32 i32 q8 q8s@4")
def maximum(site: Site) -> None:
    _extreme(site, "MAXIMUM")


@lowers("MINIMUM", level=3, form=PAIR, T="f16 f32 i32 q8 q8s@4")
def minimum(site: Site) -> None:
    _extreme(site, "MINIMUM")


def _compare(site: Site) -> None:
    """The IR orders numbers: booleans become some."""
    pair = [site.tensor("a"), site.tensor("b")]
    if site.types.get("T") is OperandType.TENSOR_BOOL8 and "EQUAL" not in {
        site.type,
        site.type[4:],
    }:
        pair = [site.cast(x, DType.INT32) for x in pair]
    site.finish(site.type, pair)


for _name in ("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"):
    lowers(_name, level=3, form="a:T b:T -> truth:b8", T="b8 f16 f32 i32 q8 q8s@4")(_compare)

for _name in ("LOGICAL_AND", "LOGICAL_OR"):
    lowers(_name, level=3, form="a:b8 b:b8 -> truth:b8")(_compare)


@lowers("LOGICAL_NOT", level=3, form="a:b8 -> truth:b8")
def logical_not(site: Site) -> None:
    site.finish("LOGICAL_NOT", [site.tensor("a")])


@lowers("SELECT", level=3, form="condition:b8 a:T b:T -> result:T", T="f16 f32 i32 q8 q8s@4")
def select(site: Site) -> None:
    """Condition and values have one shape. Quantised values take the result's scale first."""
    shapes = [site.shape(site.tensor(name)) for name in ("condition", "a", "b")]
    known = {s for s in shapes if s is not None and None not in s}
    site.require(len(known) <= 1, "condition and values have one shape")
    result = site.result_type()
    values = [site.requantized(site.tensor(name), result) for name in ("a", "b")]
    site.finish("SELECT", [site.tensor("condition"), *values])


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
