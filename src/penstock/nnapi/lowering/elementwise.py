"""Element-by-element functions of one, two or three tensors, and conversions of element types."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.ir import DType
from penstock.nnapi.description import OperandType
from penstock.nnapi.lowering.operation import OperationLowering
from penstock.nnapi.lowering.registry import MANY, OLD, lowers, maps
from penstock.nnapi.lowering.windows import signed, signed_type

FUSED: Final = "a:T/0-4 b:T/0-4 activation:i -> result:T"
PAIR: Final = "a:T b:T -> result:T"
UNARY: Final = "x:T -> y:T"
UNARY_4: Final = "x:T/1-4 -> y:T"
"""Operations of the first levels take tensors of rank 4 and less."""

maps("FLOOR", UNARY_4, T="f32 f16@3")
maps("ABS", UNARY, T="f16 f32 i32@4")
maps("EXP LOG SIN SQRT", UNARY, T="f16 f32")
maps("NEG", UNARY, T="f16 f32 i32")
maps("HARD_SWISH", UNARY, T="f16 f32 q8 q8s")
maps("POW", PAIR, T="f16 f32")
maps("PRELU", PAIR, T="f16 f32 q8 q8s@4")
maps("RELU RELU6", UNARY_4, same="x y", T=OLD)
maps("RELU1", UNARY_4, to="RELU_N1_TO_1", same="x y", T=OLD)
maps("LOGICAL_NOT", "a:b8 -> truth:b8")
maps("LOGICAL_AND LOGICAL_OR", "a:b8 b:b8 -> truth:b8")
maps("QUANTIZE", "x:S -> y:T", S="f16 f32", T="q8 q8s@4")
maps("DEQUANTIZE", "x:S/1-4 -> y:T", S="q8 q8y@3 pc@3 q8s@4", T="f32 f16@3")
# A quantised result covers exactly the function's range: [-1, 1) or [0, 1).
maps("TANH", "x:T/1-4 -> y:T=1/128,128", T="f32 q8@3 f16@3 q8s@4")
maps("LOGISTIC", "x:T/1-4 -> y:T=1/256,0", T=OLD)


def _require_plain(op: OperationLowering) -> None:
    if op.types["T"] is OperandType.TENSOR_INT32:
        op.require(op.activation() == "NONE", "INT32 tensors take no fused activation")


@lowers("ADD", FUSED, T=f"{OLD} i32@4")
@lowers("SUB", FUSED, T="f32 f16@3 q8@3 q8s@4 i32@4")
def _fused(op: OperationLowering) -> None:
    _require_plain(op)
    op.pass_through()


@lowers("MUL", FUSED, T=f"{OLD} i32@4")
def mul(op: OperationLowering) -> None:
    a, b, result = (op.operand(name) for name in ("a", "b", "result"))
    if a.type.is_quantized:
        op.require(
            result.scale > a.scale * b.scale,
            f"the output's scale {result.scale:g} must be above {a.scale * b.scale:g}, "
            "the product of the inputs'",
        )
    _fused(op)


@lowers("DIV", FUSED, T="f32 f16@3 i32@4")
def div(op: OperationLowering) -> None:
    """Integer division rounds down. Divisors of 0 are replaced by 1.

    A division by zero must not fail, and its quotient is undefined.
    """
    _require_plain(op)
    if op.types["T"] is not OperandType.TENSOR_INT32:
        op.pass_through()
        return
    a, b = op.named_tensors("ab")
    known = op.constant("b")
    if known is None or not known.all():
        zero, one = op.number(0, b), op.number(1, b)
        is_zero = op.emit("EQUAL", [b, zero], (DType.BOOL, None))
        b = op.emit("SELECT_V2", [is_zero, one, b], op.value_type(b))
    op.finish("FLOOR_DIV", [a, b])


@lowers("MAXIMUM MINIMUM", PAIR, T=MANY)
def _extreme(op: OperationLowering) -> None:
    """Quantised operands are first converted to the result's scale, which preserves their order."""
    result = op.result_type()
    op.finish(op.type, [op.requantized(x, result) for x in op.named_tensors("ab")])


@lowers(
    "EQUAL NOT_EQUAL GREATER GREATER_EQUAL LESS LESS_EQUAL", "a:T b:T -> truth:b8", T=f"b8 {MANY}"
)
def _compare(op: OperationLowering) -> None:
    """The IR compares numbers only, so booleans become integers."""
    pair = op.named_tensors("ab")
    if op.types["T"] is OperandType.TENSOR_BOOL8 and op.type not in {"EQUAL", "NOT_EQUAL"}:
        pair = [op.cast(x, DType.INT32) for x in pair]
    op.finish(op.type, pair)


@lowers("SELECT", "condition:b8 a:T b:T -> result:T", T=MANY)
def select(op: OperationLowering) -> None:
    """Condition and values have one shape. Quantised values first take the result's scale."""
    shapes = [op.shape(name) for name in ("condition", "a", "b")]
    known = {s for s in shapes if s is not None and None not in s}
    op.require(len(known) <= 1, "condition and values have one shape")
    result = op.result_type()
    values = [op.requantized(x, result) for x in op.named_tensors("ab")]
    op.finish("SELECT", [op.tensor("condition"), *values])


@lowers("RSQRT", UNARY, T="f16 f32 q8@7 q8s@7")
def rsqrt(op: OperationLowering) -> None:
    """The IR supports signed 8-bit values only. Unsigned ones are converted there and back."""
    x, result = op.tensor("x"), op.result_type()
    if op.types["T"] is OperandType.TENSOR_QUANT8_ASYMM:
        moved = op.emit("RSQRT", [signed(op, x)], signed_type(result))
        op.finish("QUANTIZE", [moved])
    else:
        op.finish("RSQRT", [x])


@lowers("ELU", "x:T alpha:real -> y:T", T="f16 f32")
def elu(op: OperationLowering) -> None:
    """The IR's ELU has alpha 1; for another: relu(x) + alpha * elu(min(x, 0))."""
    x, alpha = op.tensor("x"), op.real("alpha")
    if alpha == 1:
        op.finish("ELU", [x])
        return
    below = op.emit("ELU", [op.emit("MINIMUM", [x, op.number(0, x)])])
    scaled = op.emit("MUL", [below, op.number(alpha, x)])
    op.finish("ADD", [op.emit("RELU", [x]), scaled])


CASTS: Final = "f16 f32 i32 q8 b8@4 q8s@4 q8y@4 pc@4 q16y@4 q16a@4"
NUMBERS: Final = frozenset(
    OperandType[f"TENSOR_{name}"] for name in ("FLOAT16", "FLOAT32", "INT32", "QUANT8_ASYMM")
)


@lowers("CAST", "x:S -> y:T", S=CASTS, T=CASTS)
def cast(op: OperationLowering) -> None:
    """Numbers outside an unsigned 8-bit range saturate; scale and zero point do not count."""
    source, target = op.types["S"], op.types["T"]
    op.require(
        source is target or {source, target} <= NUMBERS,
        f"there is no conversion from {source.name} to {target.name}",
    )
    x, result = op.tensor("x"), op.result_type()
    if source is target and op.value_type(x) == result:
        op.bind(0, x)
        return
    if target is OperandType.TENSOR_QUANT8_ASYMM and source is not target:
        dtype = op.dtype(x).numpy
        low, high = (op.graph.constant(np.array(v, dtype)) for v in (0, 255))
        x = op.emit("MINIMUM", [op.emit("MAXIMUM", [x, low]), high])
    types = {"in_data_type": op.dtype(x), "out_data_type": result[0]}
    op.finish("CAST", [x], **{name: dtype.value.upper() for name, dtype in types.items()})
