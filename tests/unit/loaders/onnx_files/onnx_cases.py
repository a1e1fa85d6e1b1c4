"""One-node models, operator by operator: (name, operator, inputs, attributes, options)."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.ir import NDArray
from tests.support_onnx import ML, Const

RNG = np.random.default_rng(7)
F = np.float32


def f(*shape: int) -> NDArray:
    return RNG.uniform(-2, 2, shape).astype(F)


def p(*shape: int) -> NDArray:
    """Positive floats."""
    return RNG.uniform(0.1, 2, shape).astype(F)


def ints(*shape: int, low: int = -9, high: int = 9, dtype: Any = np.int64) -> NDArray:
    return RNG.integers(low, high, shape).astype(dtype)


def b(*shape: int) -> NDArray:
    return RNG.integers(0, 2, shape).astype(bool)


def c(value: Any, dtype: Any = np.int64) -> Const:
    return Const(value, dtype)


def text(*items: str) -> NDArray:
    found = np.empty(len(items), object)
    found[:] = items
    return found


Row = tuple[str, list[Any], dict[str, Any], dict[str, Any]]
X = f(2, 3, 4, 5)

ROWS: list[Row] = []

attributes: dict[str, Any] = {}
weights: list[Const] = []
values: list[float] = []
outputs = 1


def add(
    op: str, inputs: list[Any], attributes: dict[str, Any] | None = None, **options: Any
) -> None:
    ROWS.append((op, inputs, attributes or {}, options))


for op in ("Add", "Sub", "Mul", "Div"):
    add(op, [f(2, 3, 4), f(3, 1)])
    add(op, [f(2, 3), Const(p(3))], opset=9)
    add(op, [ints(2, 3, dtype=np.int32), c([[3], [5]], np.int32)])
    add(op, [ints(2, 3), c([3, 5, 2])])
    add(op, [f(2, 3).astype(np.float64), p(3).astype(np.float64)])
add("Add", [f(2, 3, 4), f(3)], {"broadcast": 1, "axis": 1}, opset=6, judge=False)
add("Pow", [p(2, 3), f(3)])
add("Pow", [f(2, 3), Const(2.0, F)])
add("Pow", [p(2, 3), Const(0.5, F)])
add("Pow", [f(2, 3), c([3])])
add("Mod", [ints(2, 5), c([3, -4, 5, 2, -7])])
add("Mod", [ints(2, 5, dtype=np.int32), c([3, -4, 5, 2, -7], np.int32)], {"fmod": 1})
add("Mod", [f(2, 5), Const(p(5))], {"fmod": 1})
for op in ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"):
    add(op, [ints(3, 4, low=0, high=3), ints(4, low=0, high=3)])
    add(op, [f(3, 4), Const(0.0, F)])
    add(op, [ints(3, 4, low=0, high=3, dtype=np.int32), ints(4, low=0, high=3, dtype=np.int32)])
add("Equal", [b(3, 4), b(4)])
for op in ("And", "Or", "Xor"):
    add(op, [b(2, 4), b(4)])
add("Not", [b(2, 4)])
for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
    add(op, [ints(2, 4, dtype=np.int32), ints(4, dtype=np.int32)], opset=18)
    add(op, [ints(2, 4), ints(4)], opset=18)
add("BitwiseNot", [ints(2, 4, dtype=np.int32)], opset=18)
add("BitwiseNot", [ints(2, 4, low=0, dtype=np.uint8)], opset=18)
for direction in ("LEFT", "RIGHT"):
    add("BitShift",
        [ints(2, 4, low=0, high=99, dtype=np.uint32), ints(4, low=0, high=5, dtype=np.uint32)],
        {"direction": direction})  # fmt: skip
for op in ("Neg", "Abs", "Exp", "Floor", "Ceil", "Round", "Sin", "Cos", "Sign", "Reciprocal", "Tan",
           "Sinh", "Cosh", "Atan", "Asinh", "Erf", "Relu", "Sigmoid", "Tanh", "Softplus",
           "Softsign", "Elu", "Selu", "LeakyRelu", "ThresholdedRelu", "HardSigmoid", "HardSwish",
           "Identity", "Celu"):  # fmt: skip
    add(op, [f(2, 3, 4)])
    add(op, [f(2, 6)], unknown=True)
for op in ("Log", "Sqrt"):
    add(op, [p(2, 3)])
for op in ("Neg", "Abs", "Sign"):
    add(op, [ints(2, 3, dtype=np.int32)])
for op in ("Neg", "Abs"):
    add(op, [ints(2, 3)])
    add(op, [ints(2, 3, dtype=np.int8)])
for op in ("Exp", "Log", "Sigmoid", "Tanh", "Floor"):
    add(op, [p(2, 3).astype(np.float64)])
add("Erf", [np.linspace(-5, 5, 201).astype(F)])
for op in ("Asin", "Acos", "Atanh"):
    add(op, [RNG.uniform(-0.9, 0.9, (3, 5)).astype(F)])
add("Acosh", [RNG.uniform(1.01, 5, (3, 5)).astype(F)])
add("Mish", [f(3, 4)], opset=18)
add("Gelu", [f(3, 4)], opset=20)
add("Gelu", [f(3, 4)], {"approximate": "tanh"}, opset=20)
add("Elu", [f(3, 4)], {"alpha": 0.3})
add("Celu", [f(3, 4)], {"alpha": 0.7})
add("Celu", [f()])
add("LeakyRelu", [f(3, 4)], {"alpha": 0.3})
add("HardSigmoid", [f(3, 4)], {"alpha": 0.3, "beta": 0.4})
add("ThresholdedRelu", [f(3, 4)], {"alpha": 0.5})
add("Shrink", [f(3, 4)], {"lambd": 0.5, "bias": 0.25})
add("Swish", [f(3, 4)], opset=24, judge=False)
add("Relu", [ints(3, 4, dtype=np.int32)])
add("PRelu", [f(2, 3, 4), Const(p(3, 1))])
add("PRelu", [f(2, 3, 4), Const(p(4))])
add("PRelu", [f(2, 3, 4), Const(p(1))])
for op in ("Softmax", "LogSoftmax"):
    for opset in (11, 13):
        for axis in (0, 1, 2, -1):
            add(op, [f(2, 3, 4)], {"axis": axis}, opset=opset)
    add(op, [f(2, 6)], unknown=True)
add("Hardmax", [f(2, 5)])
add("Hardmax", [f(2, 5, 3)], {"axis": 1})
for op in ("Sum", "Max", "Min", "Mean"):
    add(op, [f(2, 3), f(3), f(2, 1)])
    add(op, [f(2, 3)])
add("Max", [ints(2, 3), ints(3)])
add("Min", [ints(2, 3, dtype=np.int8), ints(3, dtype=np.int8)])
add("Where", [b(2, 1), f(2, 3), f(3)])
add("Where", [b(3), ints(2, 3), ints(2, 1)])
add("Clip", [f(3, 4), Const(-0.5, F), Const(0.7, F)])
add("Clip", [f(3, 4), None, Const(0.7, F)])
add("Clip", [4 * f(3, 4), Const(0, F), Const(6, F)])
add("Clip", [4 * f(3, 4), Const(0, F)])
add("Clip", [4 * f(3, 4)], {"min": -1.0, "max": 1.0}, opset=9)
add("Clip", [f(3, 4), np.array(-0.5, F), np.array(0.7, F)])
add("Clip", [ints(3, 4, dtype=np.int32), c(-2, np.int32), c(3, np.int32)])
odd = np.array([1, np.nan, np.inf, -np.inf, 0], F)
add("IsNaN", [odd])
add("IsInf", [odd])
add("IsInf", [odd], {"detect_negative": 0})
for to, source in ((1, ints(2, 3)), (7, f(2, 3)), (6, f(2, 3)), (9, ints(2, 3)), (1, b(2, 3)),
                   (10, f(2, 3)), (11, f(2, 3)), (3, f(2, 3)), (2, p(2, 3)),
                   (6, ints(2, 3))):  # fmt: skip
    add("Cast", [source], {"to": to})
add("CastLike", [f(2, 3), ints(1)])
add("Dropout", [f(2, 3)])
add("Dropout", [f(2, 3)], outputs=2)
# Shapes
add("Shape", [f(2, 3, 4)])
add("Shape", [f(2, 3, 4)], unknown=True)
add("Shape", [f(2, 3, 4)], {"start": 1, "end": -1}, unknown=True)
add("Size", [f(2, 3, 4)], unknown=True)
add("Reshape", [f(2, 3, 4), c([4, 6])])
add("Reshape", [f(2, 3, 4), c([0, -1])], unknown=True)
add("Reshape", [f(2, 3, 4), c([-1, 6])], unknown=True)
add("Reshape", [f(2, 3, 4), np.array([0, 6, -1])])
add("Reshape", [f(2, 3, 4), np.array([0, 6, 0, 1, -1])[[0, 1, 4]]], unknown=True)
add("Flatten", [f(2, 3, 4)])
add("Flatten", [f(2, 3, 4)], {"axis": 2}, unknown=True)
add("Flatten", [f(2, 3, 4)], {"axis": 0})
add("Flatten", [f(2, 3, 4)], {"axis": -1})
add("Squeeze", [f(1, 3, 1, 4)])
add("Squeeze", [f(1, 3, 1, 4), c([0, -2])])
add("Squeeze", [f(1, 3, 1, 4)], {"axes": [2]}, opset=11, unknown=True)
add("Unsqueeze", [f(3, 4), c([0, -1])])
add("Unsqueeze", [f(3, 4)], {"axes": [1]}, opset=11, unknown=True)
add("Transpose", [X])
add("Transpose", [X], {"perm": [0, 2, 3, 1]})
add("Expand", [f(3, 1), c([2, 1, 4])])
add("Expand", [f(3, 1), np.array([2, 1, 4])])
add("Expand", [f(3, 1), c([3, 4])], unknown=True)
add("Tile", [f(2, 3), c([2, 2])])
add("Tile", [f(2, 3), np.array([1, 3])])
add("ConstantOfShape", [np.array([2, 3])])
add("EyeLike", [f(3, 4)], {"k": 1})
add("Concat", [f(2, 3), f(2, 1)], {"axis": 1})
add("Concat", [f(2, 3), f(1, 3), f(4, 3)], {"axis": -2})
add("Split", [f(2, 6)], {"axis": 1}, outputs=3, opset=11)
add("Split", [f(2, 6), c([1, 3, 2])], {"axis": 1}, outputs=3)
add("Split", [f(2, 7)], {"axis": 1, "num_outputs": 3}, outputs=3, opset=18)
for mode in ("constant", "reflect", "edge"):
    add("Pad", [f(2, 3, 4), c([0, 1, 2, 0, 2, 1])], {"mode": mode})
add("Pad", [f(2, 3, 4), c([0, 0, 3, 0, 0, 5])], {"mode": "wrap"}, opset=19)
add("Pad", [f(2, 3, 4), c([0, 0, -1, 0, 1, -1]), Const(1.5, F)])
add("Pad", [f(2, 3, 4), c([1, 1]), Const(1.5, F), c([2])], opset=18)
add("Pad", [f(2, 3)], {"pads": [0, 1, 1, 0], "value": 2.0}, opset=9)
add("DepthToSpace", [f(1, 8, 2, 3)], {"blocksize": 2})
add("DepthToSpace", [f(1, 8, 2, 3)], {"blocksize": 2, "mode": "CRD"})
add("SpaceToDepth", [f(1, 2, 4, 6)], {"blocksize": 2})
# Picking
add("Slice", [f(5, 6), c([1, 0]), c([4, 100]), c([0, 1]), c([1, 2])])
add("Slice", [f(5, 6), c([-1, 4]), c([-100, 1]), c([0, 1]), c([-1, -2])])
add("Slice", [f(5, 6), c([-3]), c([-1]), c([1])])
add("Slice", [f(5, 6), c([1]), c([2**63 - 1]), c([0])], unknown=True)
add("Slice", [f(5, 6), c([-1]), c([-(2**63) + 1]), c([0]), c([-1])], unknown=True)
add("Slice", [f(5, 6)], {"starts": [1, 2], "ends": [3, -1]}, opset=9)
add("Slice", [f(5, 6), np.array([1]), np.array([4]), c([0])])
add("Slice", [f(5, 6), np.array([1, -4]), np.array([4, 100])])
add("Gather", [f(5, 6), c([[0, -1], [2, 3]])])
add("Gather", [f(5, 6), ints(2, 3, low=-6, high=6)], {"axis": 1})
add("Gather", [f(5, 6), np.array(-2)], unknown=False)
add("GatherElements", [f(3, 4), ints(3, 2, low=-4, high=4)], {"axis": 1})
add("GatherElements", [f(3, 4), c([[0, 1, 2, 0]])], {"axis": 0})
add("GatherND", [f(3, 4, 2), c([[0, 1], [2, -1]])])
add("GatherND", [f(2, 3, 4), ints(2, 2, 1, low=0, high=3)], {"batch_dims": 1})
add("ScatterND", [f(5, 3), c([[1], [-1]]), f(2, 3)])
add("ScatterND", [f(5, 3), c([[1], [1]]), f(2, 3)], {"reduction": "add"}, opset=16)
add("ScatterND", [f(5, 3), c([[1], [1]]), f(2, 3)], {"reduction": "max"}, opset=18)
add("ScatterElements", [f(3, 4), c([[1, 0, 2, -1]]), f(1, 4)], {"axis": 0})
add(
    "ScatterElements",
    [f(3, 4), c([[1, 1], [0, 0], [2, 2]]), f(3, 2)],
    {"axis": 1, "reduction": "mul"},
    opset=16,
)
add("OneHot", [ints(2, 3, low=-4, high=4), c(4), Const([0.5, 2], F)])
add("OneHot", [ints(2, 3, low=0, high=4), c(4), c([0, 1], np.int64)], {"axis": 0})
add("OneHot", [ints(2, 3, low=0, high=4), np.array([4]), Const([0, 1], F)], {"axis": 1})
add("NonZero", [b(3, 4)])
add("TopK", [f(3, 7), c([3])], outputs=2)
add("TopK", [f(3, 7), c([2])], {"largest": 0, "axis": 0}, outputs=2)
add("Compress", [f(4, 3), np.array([True, False, True, True])], {"axis": 0})
add("Compress", [f(4, 3), np.array([True, False, True, True, True])])
add("Range", [np.array(1, F), np.array(8, F), np.array(1.5, F)])
add("Range", [np.array(9), np.array(0), np.array(-2)])
add("ReverseSequence", [f(4, 3, 2), c([1, 4, 2])])
add("Trilu", [f(4, 5)])
add("Trilu", [f(2, 4, 5), c(-1)], {"upper": 0})
# Reductions
for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1",
           "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"):  # fmt: skip
    source = p(2, 3, 4)
    add(op, [source], {"axes": [1]}, opset=11)
    add(op, [source], {"axes": [-1, 0], "keepdims": 0}, opset=11)
    add(op, [source], {}, opset=11)
    add(op, [source, c([1])], {"keepdims": 0}, opset=18)
add("ReduceSum", [ints(2, 3), c([0])], opset=13)
add("ReduceSum", [f(2, 3)], {"noop_with_empty_axes": 1}, opset=13)
add("ReduceMax", [ints(2, 3, dtype=np.int32)], {"axes": [1]})
for op in ("ArgMax", "ArgMin"):
    add(op, [f(3, 5)], {"axis": 1})
    add(op, [ints(3, 5, low=0, high=2, dtype=np.int32)], {"axis": 0, "keepdims": 0})
    add(
        op,
        [ints(3, 5, low=0, high=2, dtype=np.int32)],
        {"axis": 1, "select_last_index": 1},
        opset=13,
    )
add("CumSum", [f(3, 4), c(1)])
add("CumSum", [f(3, 4), c([-2])], {"exclusive": 1, "reverse": 1})
# Products
for left, right in (((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((4,), (4, 5)),
                    ((3, 4), (4,)),
                    ((2, 1, 3, 4), (5, 4, 2)), ((4,), (4,))):  # fmt: skip
    add("MatMul", [f(*left), f(*right)])
    add("MatMul", [f(*left), Const(f(*right))])
add("MatMul", [f(2, 3).astype(np.float64), f(3, 2).astype(np.float64)])
add("MatMul", [ints(2, 3, dtype=np.int32), ints(3, 2, dtype=np.int32)])
add("MatMul", [f(3, 4), Const(f(4, 5))], unknown=True)
for extra in ({}, {"transA": 1}, {"transB": 1}, {"alpha": 0.5, "beta": 2.0}):
    shape_a = (4, 3) if extra.get("transA") else (3, 4)
    shape_b = (5, 4) if extra.get("transB") else (4, 5)
    add("Gemm", [f(*shape_a), Const(f(*shape_b)), Const(f(5))], extra)
    add("Gemm", [f(*shape_a), f(*shape_b), f(3, 5)], extra)
add("Gemm", [f(3, 4), Const(f(4, 5))])
add("Gemm", [f(3, 4), Const(f(4, 5)), Const(f(3, 1))])
for equation, shapes in (("ij,jk->ik", [(2, 3), (3, 4)]), ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
                         ("bhqd,bhkd->bhqk", [(1, 2, 3, 4), (1, 2, 5, 4)]), ("ij->ji", [(2, 3)]),
                         ("ij->i", [(2, 3)]),
                         ("i,j->ij", [(2,), (3,)]), ("ij,ij->", [(2, 3), (2, 3)])):  # fmt: skip
    add("Einsum", [f(*s) for s in shapes], {"equation": equation})
# Windows
for attributes in ({}, {"pads": [1, 1, 1, 1]}, {"strides": [2, 2], "pads": [0, 1, 1, 0]},
                   {"dilations": [2, 1]},
                   {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
                   {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
                   {"auto_pad": "VALID"}):  # fmt: skip
    add("Conv", [f(2, 3, 7, 8), Const(f(4, 3, 3, 3)), Const(f(4))], attributes)
add("Conv", [f(1, 4, 7, 8), Const(f(4, 1, 3, 3))], {"group": 4, "pads": [1, 1, 1, 1]})
add("Conv", [f(1, 4, 7, 8), Const(f(8, 1, 3, 3)), Const(f(8))], {"group": 4})
add("Conv", [f(1, 4, 7, 8), Const(f(6, 2, 3, 3)), Const(f(6))], {"group": 2})
add("Conv", [f(1, 3, 9), Const(f(4, 3, 3))], {"pads": [1, 1], "strides": [2]})
add("Conv", [f(1, 2, 5, 6, 7), Const(f(3, 2, 2, 3, 3)), Const(f(3))], {"pads": [1, 0, 1, 0, 1, 1]})
add("Conv", [f(1, 4, 5, 6, 7), Const(f(4, 2, 2, 3, 3))], {"group": 2})
add("Conv", [f(2, 3, 7, 8), f(4, 3, 3, 3)], {})
add("Conv", [f(2, 3, 7, 8), Const(f(4, 3, 3, 3))], {"pads": [1, 1, 1, 1]}, unknown=True)
for attributes in ({}, {"strides": [2, 2]}, {"strides": [2, 2], "pads": [1, 1, 1, 1]},
                   {"strides": [2, 3], "output_padding": [1, 1]}, {"dilations": [2, 1]},
                   {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
                   {"strides": [2, 2], "auto_pad": "SAME_LOWER"},
                   {"strides": [2, 2], "output_shape": [9, 10]}):  # fmt: skip
    add("ConvTranspose", [f(1, 3, 4, 5), Const(f(3, 2, 3, 3)), Const(f(2))], attributes)
add("ConvTranspose", [f(1, 4, 4, 5), Const(f(4, 2, 3, 3))], {"group": 2, "strides": [2, 2]})
add("ConvTranspose", [f(1, 3, 6), Const(f(3, 2, 3))], {"strides": [2]})
add("ConvTranspose", [f(2, 3, 3, 3, 3), Const(f(3, 2, 2, 2, 2))], {"strides": [2, 2, 2]})
add("ConvTranspose", [f(2, 3, 4, 5), Const(f(3, 2, 3, 3))], {"strides": [2, 2]}, unknown=True)
for op in ("MaxPool", "AveragePool"):
    for attributes in ({}, {"strides": [2, 2]}, {"pads": [1, 1, 1, 1], "strides": [2, 2]},
                       {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
                       {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
                       {"ceil_mode": 1, "strides": [2, 2]}, {"pads": [0, 1, 1, 0]}):  # fmt: skip
        add(op, [f(1, 3, 7, 8)], {"kernel_shape": [3, 3], **attributes}, opset=12)
    add(op, [f(1, 3, 9)], {"kernel_shape": [2], "strides": [2]}, opset=12)
    add(op, [f(1, 3, 5, 6, 7)], {"kernel_shape": [2, 2, 2], "pads": [1, 0, 0, 0, 1, 1]}, opset=12)
add("MaxPool", [f(1, 3, 7, 8)], {"kernel_shape": [2, 2], "dilations": [2, 2]})
add("MaxPool", [f(2, 3, 7, 8)], {"kernel_shape": [3, 3], "strides": [2, 2]}, unknown=True)
for attributes in ({"pads": [1, 1, 1, 1]}, {"pads": [1, 0, 1, 1], "strides": [2, 2]}):
    add(
        "AveragePool",
        [f(1, 3, 7, 8)],
        {"kernel_shape": [3, 3], "count_include_pad": 1, **attributes},
    )
add("AveragePool", [f(1, 3, 7, 8)], {"kernel_shape": [2, 2], "dilations": [2, 2]}, opset=19)
add("LpPool", [f(1, 3, 7, 8)], {"kernel_shape": [2, 2], "strides": [2, 2]})
add("LpPool", [f(1, 3, 7, 8)], {"kernel_shape": [2, 2], "p": 3})
for op in ("GlobalAveragePool", "GlobalMaxPool"):
    add(op, [X])
    add(op, [f(2, 3, 4)])
add("GlobalLpPool", [X], {"p": 2})
# Normalisations
add("BatchNormalization", [X, Const(p(3)), Const(f(3)), Const(f(3)), Const(p(3))])
add("BatchNormalization", [X, p(3), f(3), f(3), p(3)])
add(
    "BatchNormalization",
    [f(4, 3), Const(p(3)), Const(f(3)), Const(f(3)), Const(p(3))],
    unknown=True,
)
add("InstanceNormalization", [X, Const(p(3)), Const(f(3))])
add("LayerNormalization", [X, Const(p(5)), Const(f(5))])
add("LayerNormalization", [X, Const(p(4, 5))], {"axis": 2})
add("RMSNormalization", [X, Const(p(5))], opset=23, judge=False)
add("GroupNormalization", [f(2, 4, 3, 3), Const(p(4)), Const(f(4))], {"num_groups": 2}, opset=21)
add("LRN", [f(1, 5, 3, 3)], {"size": 3})
add("LRN", [f(1, 5, 3, 3)], {"size": 5, "alpha": 0.1, "beta": 0.5, "bias": 2.0})
add("LpNormalization", [f(3, 4)])
add("LpNormalization", [f(3, 4)], {"p": 1, "axis": 0})
add("MeanVarianceNormalization", [X])
# Resizing
for mode in ("nearest", "linear", "cubic"):
    for where in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"):
        add(
            "Resize",
            [f(1, 2, 4, 5), None, None, c([1, 2, 7, 9])],
            {"mode": mode, "coordinate_transformation_mode": where},
            opset=13,
        )
        add(
            "Resize",
            [f(1, 2, 6, 8), None, Const([1, 1, 0.5, 0.75], F)],
            {"mode": mode, "coordinate_transformation_mode": where},
            opset=13,
        )
for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
    add(
        "Resize",
        [f(1, 2, 4, 5), None, Const([1, 1, 2, 3], F)],
        {"mode": "nearest", "nearest_mode": rounding},
        opset=13,
    )
add("Resize", [f(1, 2, 4, 5), Const([1, 1, 2, 2], F)], {"mode": "nearest"}, opset=10)
add("Upsample", [f(1, 2, 4, 5), Const([1, 1, 2, 2], F)], {"mode": "nearest"}, opset=9)
add("Upsample", [f(1, 2, 4, 5), Const([1, 1, 2, 2], F)], {"mode": "linear"}, opset=9)
# Quantised
s, z = Const(0.03, F), c(3, np.int8)
add("QuantizeLinear", [f(3, 4), s, z])
add("QuantizeLinear", [np.arange(-40, 40, dtype=F) / 4, Const(0.5, F), c(0, np.uint8)])
add("QuantizeLinear", [f(3, 4), Const(p(4)), c([1, 2, 3, 4], np.uint8)], {"axis": 1})
add("DequantizeLinear", [ints(3, 4, dtype=np.int8), s, z])
add(
    "DequantizeLinear", [ints(3, 4, dtype=np.int8), Const(p(3)), c([1, 2, 3], np.int8)], {"axis": 0}
)
add("DequantizeLinear", [ints(3, 4, dtype=np.int32), s])
add("DynamicQuantizeLinear", [f(3, 4)], outputs=3)
add(
    "QLinearMatMul",
    [
        ints(3, 4, dtype=np.int8),
        s,
        z,
        Const(ints(4, 5, dtype=np.int8)),
        Const(0.0117, F),
        c(0, np.int8),
        Const(0.043, F),
        c(-5, np.int8),
    ],
)
add(
    "QLinearMatMul",
    [
        ints(3, 4, low=0, high=255, dtype=np.uint8),
        s,
        c(120, np.uint8),
        ints(4, 5, low=0, high=255, dtype=np.uint8),
        Const(0.0117, F),
        c(128, np.uint8),
        Const(0.043, F),
        c(100, np.uint8),
    ],
)
add(
    "QLinearConv",
    [
        ints(1, 3, 6, 6, low=-128, high=127, dtype=np.int8),
        Const(0.031, F),
        c(4, np.int8),
        Const(ints(4, 3, 3, 3, low=-128, high=127, dtype=np.int8)),
        Const([0.011, 0.012, 0.007, 0.02], F),
        c([0, 0, 0, 0], np.int8),
        Const(0.21, F),
        c(-3, np.int8),
        Const(ints(4, low=-900, high=900, dtype=np.int32)),
    ],
    {"pads": [1, 1, 1, 1]},
)
add(
    "QLinearConv",
    [
        ints(1, 3, 6, 6, low=0, high=255, dtype=np.uint8),
        Const(0.031, F),
        c(120, np.uint8),
        Const(ints(4, 3, 3, 3, low=0, high=255, dtype=np.uint8)),
        Const(0.0117, F),
        c(128, np.uint8),
        Const(0.21, F),
        c(100, np.uint8),
    ],
    {},
)
add(
    "MatMulInteger",
    [ints(3, 4, low=0, high=255, dtype=np.uint8), Const(ints(4, 5, dtype=np.int8)), c(3, np.uint8)],
)
add(
    "ConvInteger",
    [
        ints(1, 2, 5, 5, low=0, high=255, dtype=np.uint8),
        Const(ints(3, 2, 3, 3, low=0, high=255, dtype=np.uint8)),
        c(3, np.uint8),
    ],
)
# Recurrent
for op, gates, default in (("LSTM", 4, 3), ("GRU", 3, 2), ("RNN", 1, 1)):
    for direction in ("forward", "reverse", "bidirectional"):
        d = 2 if direction == "bidirectional" else 1
        weights = [Const(f(d, gates * 3, 2) / 2), Const(f(d, gates * 3, 3) / 2)]
        attributes = {"hidden_size": 3, "direction": direction}
        outputs = 3 if op == "LSTM" else 2
        add(op, [f(5, 2, 2), *weights], attributes, outputs=outputs, opset=14)
        bias, states = Const(f(d, 2 * gates * 3) / 2), [f(d, 2, 3)] * (outputs - 1)
        add(op, [f(5, 2, 2), *weights, bias, None, *states], attributes, outputs=outputs, opset=14)
    add(op, [f(5, 2, 2), *weights], attributes, outputs=outputs, opset=14, unknown=True)
    add(op, [f(5, 2, 2), *weights], {**attributes, "clip": 0.5}, outputs=outputs, opset=14)
    names = ["Sigmoid", "Relu", "Tanh"][-default:] * 2
    add(op, [f(5, 2, 2), *weights], {**attributes, "activations": names}, outputs=outputs, opset=14)
add(
    "GRU",
    [f(5, 2, 2), Const(f(1, 9, 2)), Const(f(1, 9, 3)), Const(f(1, 18))],
    {"hidden_size": 3, "linear_before_reset": 1},
    outputs=2,
    opset=14,
)
add(
    "LSTM",
    [
        f(5, 2, 2),
        Const(f(1, 12, 2)),
        Const(f(1, 12, 3)),
        Const(f(1, 24)),
        None,
        f(1, 2, 3),
        f(1, 2, 3),
        Const(f(1, 9)),
    ],
    {"hidden_size": 3},
    outputs=3,
    opset=14,
)
add(
    "LSTM",
    [f(5, 2, 2), Const(f(1, 12, 2)), Const(f(1, 12, 3))],
    {"hidden_size": 3, "input_forget": 1},
    outputs=3,
    opset=14,
)
# Strings
add("StringNormalizer", [text("a", "b", "a", "c")], {"is_case_sensitive": 1, "stopwords": ["a"]})
add("StringNormalizer", [text("a", "a")], {"is_case_sensitive": 1, "stopwords": ["a"]})
# ai.onnx.ml
TREE = {
    "nodes_treeids": [0, 0, 0, 0, 0, 1, 1, 1],
    "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
    "nodes_featureids": [0, 0, 1, 0, 0, 2, 0, 0],
    "nodes_modes": [
        "BRANCH_LEQ",
        "LEAF",
        "BRANCH_LEQ",
        "LEAF",
        "LEAF",
        "BRANCH_LEQ",
        "LEAF",
        "LEAF",
    ],
    "nodes_values": [0.1, 0, -0.3, 0, 0, 0.5, 0, 0],
    "nodes_truenodeids": [1, 0, 3, 0, 0, 1, 0, 0],
    "nodes_falsenodeids": [2, 0, 4, 0, 0, 2, 0, 0],
}
LEAVES = {"treeids": [0, 0, 0, 1, 1], "nodeids": [1, 3, 4, 1, 2]}


def leaves(prefix: str, ids: list[int], weights: list[float]) -> dict[str, Any]:
    rows = {**LEAVES, "ids": ids, "weights": weights}
    return {f"{prefix}_{name}": value for name, value in rows.items()}


add(
    "TreeEnsembleRegressor",
    [f(6, 3)],
    {**TREE, **leaves("target", [0] * 5, [1, 2, 3, 4, 5.5]), "n_targets": 1},
    domain=ML,
)
add(
    "TreeEnsembleRegressor",
    [f(6, 3)],
    {
        **TREE,
        **leaves("target", [0, 1, 0, 1, 1], [1, 2, 3, 4, 5.5]),
        "n_targets": 2,
        "base_values": [0.5, -1.0],
    },
    domain=ML,
    unknown=True,
)
add(
    "TreeEnsembleRegressor",
    [f(6, 3)],
    {
        **TREE,
        **leaves("target", [0] * 5, [1, 2, 3, 4, 5.5]),
        "n_targets": 1,
        "aggregate_function": "AVERAGE",
    },
    domain=ML,
)
for how in ("NONE", "SOFTMAX", "LOGISTIC"):
    add("TreeEnsembleClassifier", [f(6, 3)],
        {**TREE, **leaves("class", [0, 1, 2, 1, 2], [0.4, 0.2, 0.3, 0.1, 0.5]),
            "classlabels_int64s": [3, 5, 7], "post_transform": how},
        domain=ML, outputs=2)  # fmt: skip
    add("TreeEnsembleClassifier", [f(6, 3)],
        {**TREE, **leaves("class", [1] * 5, [0.4, -0.2, 0.3, -0.1, 0.5]),
            "classlabels_int64s": [0, 1], "post_transform": how}, domain=ML, outputs=2)  # fmt: skip
    add("LinearClassifier", [f(6, 3)],
        {"coefficients": f(9).tolist(), "intercepts": [0.1, 0.2, 0.3],
            "classlabels_ints": [3, 5, 7], "post_transform": how},
        domain=ML, outputs=2)  # fmt: skip
    for ids in ([0] * 5, [0, 1, 0, 1, 0]):
        for shift in (0.0, 0.3):
            values = [w - shift for w in (0.4, 0.2, 0.3, 0.1, 0.5)]
            add("TreeEnsembleClassifier", [f(9, 3)],
                {**TREE, **leaves("class", ids, values), "classlabels_strings": ["a", "b"],
                    "post_transform": how}, domain=ML, outputs=2)  # fmt: skip
    add("TreeEnsembleClassifier", [f(9, 3)],
        {**TREE, **leaves("class", [0] * 5, values), "classlabels_int64s": [4, 2],
            "base_values": [0.25], "post_transform": how}, domain=ML, outputs=2)  # fmt: skip
    add("LinearClassifier", [f(6, 3)],
        {"coefficients": f(3).tolist(), "intercepts": [0.1], "classlabels_ints": [0, 1],
            "post_transform": how}, domain=ML, outputs=2)  # fmt: skip
add(
    "LinearClassifier",
    [f(6, 3)],
    {
        "coefficients": f(9).tolist(),
        "intercepts": [0.1, 0.2, 0.3],
        "classlabels_strings": ["a", "b", "c"],
    },
    domain=ML,
    outputs=2,
)
add(
    "LinearRegressor",
    [f(6, 3)],
    {"coefficients": f(6).tolist(), "intercepts": [0.1, 0.2], "targets": 2},
    domain=ML,
)
for how in ("MAX", "L1", "L2"):
    add("Normalizer", [f(6, 3)], {"norm": how}, domain=ML)
add("Scaler", [f(6, 3)], {"offset": [1.0, 2.0, 3.0], "scale": [0.5, 1.0, 2.0]}, domain=ML)
add("Binarizer", [f(6, 3)], {"threshold": 0.5}, domain=ML)
add(
    "Imputer",
    [np.array([[1, np.nan], [np.nan, 2]], F)],
    {"imputed_value_floats": [5.0, 6.0], "replaced_value_float": float("nan")},
    domain=ML,
)
add("ArrayFeatureExtractor", [f(3, 5), c([4, 0])], domain=ML)
add("FeatureVectorizer", [f(3, 2), f(3, 1)], {"inputdimensions": [2, 1]}, domain=ML)
add(
    "LabelEncoder",
    [ints(2, 3, low=0, high=4)],
    {"keys_int64s": [1, 2, 3], "values_floats": [0.5, 1.5, 2.5], "default_float": -1.0},
    domain=ML,
)
add(
    "LabelEncoder",
    [text("a", "x", "c")],
    {"keys_strings": ["a", "b", "c"], "values_int64s": [7, 8, 9]},
    domain=ML,
)
add("OneHotEncoder", [ints(4, low=0, high=5)], {"cats_int64s": [1, 3, 4]}, domain=ML)
# Detection
corners = np.sort(RNG.uniform(0, 1, (2, 9, 2, 2)).astype(F), axis=2).reshape(2, 9, 4)
limits = [c([3]), Const([0.4], F), Const([0.2], F)]
add("NonMaxSuppression", [corners, RNG.uniform(0, 1, (2, 2, 9)).astype(F), *limits])
add(
    "NonMaxSuppression",
    [corners, RNG.uniform(0, 1, (2, 2, 9)).astype(F), c([100]), Const([0.1], F)],
)
add(
    "NonMaxSuppression",
    [p(1, 9, 4), RNG.uniform(0, 1, (1, 3, 9)).astype(F), *limits],
    {"center_point_box": 1},
)
add("NonMaxSuppression", [corners, RNG.uniform(0, 1, (2, 2, 9)).astype(F)])
for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceLogSumExp"):
    add(op, [p(2, 3, 4).astype(np.float64)], {"axes": [0, 2]}, opset=11)
