"""Element-by-element functions of one, two or three tensors, and conversions of element types."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.ir import DType
from penstock.nnapi.description import OperandType
from penstock.nnapi.lowering.operation import OperationLowering
from penstock.nnapi.lowering.registry import lowers, maps
from penstock.nnapi.lowering.windows import signed, signed_type

FUSED: Final = "a:T/0-4 b:T/0-4 activation:i -> result:T"
PAIR: Final = "a:T b:T -> result:T"
UNARY: Final = "x:T -> y:T"
UNARY_4: Final = "x:T/1-4 -> y:T"
"""Operations of the first levels take tensors of rank 4 and less."""

MANY: Final = "f16 f32 i32 q8 q8s@4"

for _name, _level, _form, _types in (
    ("FLOOR", 1, UNARY_4, "f32 f16@3"),
    ("ABS", 3, UNARY, "f16 f32 i32@4"),
    ("EXP", 3, UNARY, "f16 f32"),
    ("LOG", 3, UNARY, "f16 f32"),
    ("NEG", 3, UNARY, "f16 f32 i32"),
    ("SIN", 3, UNARY, "f16 f32"),
    ("SQRT", 3, UNARY, "f16 f32"),
    ("HARD_SWISH", 4, UNARY, "f16 f32 q8 q8s"),
    ("POW", 3, PAIR, "f16 f32"),
    ("PRELU", 3, PAIR, "f16 f32 q8 q8s@4"),
):
    maps(_name, level=_level, form=_form, T=_types)

for _name in ("RELU", "RELU1", "RELU6"):
    maps(
        _name,
        to="RELU_N1_TO_1" if _name == "RELU1" else "",
        level=1,
        form=UNARY_4,
        same="x y",
        T="f32 q8 f16@3 q8s@4",
    )

maps("LOGICAL_NOT", level=3, form="a:b8 -> truth:b8")
maps("LOGICAL_AND", "LOGICAL_OR", level=3, form="a:b8 b:b8 -> truth:b8")
maps("QUANTIZE", level=3, form="x:S -> y:T", S="f16 f32", T="q8 q8s@4")
maps("DEQUANTIZE", level=1, form="x:S/1-4 -> y:T", S="q8 q8y@3 pc@3 q8s@4", T="f32 f16@3")


def _require_plain(op: OperationLowering) -> None:
    if op.types["T"] is OperandType.TENSOR_INT32:
        op.require(op.activation() == "NONE", "INT32 tensors take no fused activation")


def _fused(op: OperationLowering) -> None:
    _require_plain(op)
    op.pass_through()


lowers("ADD", level=1, form=FUSED, T="f32 q8 f16@3 q8s@4 i32@4")(_fused)
lowers("SUB", level=2, form=FUSED, T="f32 f16@3 q8@3 q8s@4 i32@4")(_fused)


@lowers("MUL", level=1, form=FUSED, T="f32 q8 f16@3 q8s@4 i32@4")
def mul(op: OperationLowering) -> None:
    a, b, result = op.operand("a"), op.operand("b"), op.output("result")
    if a.type.is_quantized:
        op.require(
            result.scale > a.scale * b.scale,
            f"the output's scale {result.scale:g} must be above {a.scale * b.scale:g}, "
            "the product of the inputs'",
        )
    _fused(op)


@lowers("DIV", level=2, form=FUSED, T="f32 f16@3 i32@4")
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


def _extreme(op: OperationLowering) -> None:
    """Quantised operands are first converted to the result's scale, which preserves their order."""
    result = op.result_type()
    op.finish(op.type, [op.requantized(x, result) for x in op.named_tensors("ab")])


for _name in ("MAXIMUM", "MINIMUM"):
    lowers(_name, level=3, form=PAIR, T=MANY)(_extreme)


def _compare(op: OperationLowering) -> None:
    """The IR compares numbers only, so booleans become integers."""
    pair = op.named_tensors("ab")
    if op.types["T"] is OperandType.TENSOR_BOOL8 and op.type not in {"EQUAL", "NOT_EQUAL"}:
        pair = [op.cast(x, DType.INT32) for x in pair]
    op.finish(op.type, pair)


for _name in ("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"):
    lowers(_name, level=3, form="a:T b:T -> truth:b8", T=f"b8 {MANY}")(_compare)


@lowers("SELECT", level=3, form="condition:b8 a:T b:T -> result:T", T=MANY)
def select(op: OperationLowering) -> None:
    """Condition and values have one shape. Quantised values first take the result's scale."""
    shapes = [op.shape_of(name) for name in ("condition", "a", "b")]
    known = {s for s in shapes if s is not None and None not in s}
    op.require(len(known) <= 1, "condition and values have one shape")
    result = op.result_type()
    values = [op.requantized(x, result) for x in op.named_tensors("ab")]
    op.finish("SELECT", [op.tensor("condition"), *values])


@lowers("RSQRT", level=3, form=UNARY, T="f16 f32 q8@7 q8s@7")
def rsqrt(op: OperationLowering) -> None:
    """The IR supports signed 8-bit values only. Unsigned ones are converted there and back."""
    x, result = op.tensor("x"), op.result_type()
    if op.types["T"] is OperandType.TENSOR_QUANT8_ASYMM:
        moved = op.emit("RSQRT", [signed(op, x)], signed_type(result))
        op.finish("QUANTIZE", [moved])
    else:
        op.finish("RSQRT", [x])


def _squashing(op: OperationLowering) -> None:
    """A quantised result covers exactly the function's range: [-1, 1) or [0, 1)."""
    is_signed = op.types["T"].dtype is DType.INT8
    if op.type == "TANH":
        op.require_quantization("y", 1 / 128, 0 if is_signed else 128)
    else:
        op.require_quantization("y", 1 / 256, -128 if is_signed else 0)
    op.pass_through()


lowers("TANH", level=1, form=UNARY_4, T="f32 q8@3 f16@3 q8s@4")(_squashing)
lowers("LOGISTIC", level=1, form=UNARY_4, T="f32 q8 f16@3 q8s@4")(_squashing)


@lowers("ELU", level=4, form="x:T alpha:real -> y:T", T="f16 f32")
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


@lowers("CAST", level=3, form="x:S -> y:T", S=CASTS, T=CASTS)
def cast(op: OperationLowering) -> None:
    """Numbers outside an unsigned 8-bit range saturate; scale and zero point do not count."""
    basic = {
        OperandType.TENSOR_FLOAT16,
        OperandType.TENSOR_FLOAT32,
        OperandType.TENSOR_INT32,
        OperandType.TENSOR_QUANT8_ASYMM,
    }
    source, target = op.types["S"], op.types["T"]
    op.require(
        source is target or {source, target} <= basic,
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
    op.finish(
        "CAST",
        [x],
        in_data_type=op.dtype(x).value.upper(),
        out_data_type=result[0].value.upper(),
    )
