"""One valid model of every operation that `test_channels`, `test_detection` and `test_recurrent` do
not have.
"""

from __future__ import annotations

from typing import Final

from penstock.nnapi.description import NnapiOperand, OperandType
from tests.unit.nnapi.lowering.one import b, constant, f, i, t

Sample = tuple[list[NnapiOperand], list[NnapiOperand]]

PADS = [i(1), i(0), i(1), i(0)]
BIAS = t("i32", 4, scale=0.25)
NUMBER = NnapiOperand(OperandType.INT32)
IMAGE = t("f32", 1, 4, 4, 2)


def _unary(kind: str = "f32") -> Sample:
    return [t(kind, 2, 3)], [t(kind, 2, 3)]


def _pair(*more: NnapiOperand, kind: str = "f32", result: str = "") -> Sample:
    return [t(kind, 2, 3), t(kind, 3), *more], [t(result or kind, 2, 3)]


def _reduction(kind: str, keep: NnapiOperand) -> Sample:
    return [t(kind, 2, 3), constant("i32", [1]), keep], [t(kind, 2)]


def _pool(kind: str) -> Sample:
    return [t(kind, 1, 4, 4, 2), *PADS, i(1), i(1), i(2), i(2), i(0)], [t(kind, 1, 4, 4, 2)]


SAMPLES: Final[dict[str, Sample]] = {
    **{n: _pair(i(1)) for n in ("ADD", "SUB", "DIV")},
    "MUL": ([t("q8", 2, 3), t("q8", 3), i(0)], [t("q8", 2, 3, scale=1.0)]),
    **{n: _pair() for n in ("POW", "PRELU", "MAXIMUM", "MINIMUM")},
    **{
        n: _pair(result="b8")
        for n in ("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL")
    },
    **{n: _pair(kind="b8") for n in ("LOGICAL_AND", "LOGICAL_OR")},
    "LOGICAL_NOT": _unary("b8"),
    "SELECT": ([t("b8", 2, 3), t("i32", 2, 3), t("i32", 2, 3)], [t("i32", 2, 3)]),
    **{
        n: _unary()
        for n in (
            "ABS", "EXP", "FLOOR", "HARD_SWISH", "LOG", "NEG", "RELU", "RELU1", "RELU6", "RSQRT",
            "SIN", "SQRT",
        )
    },
    "TANH": ([t("q8", 2, 3)], [t("q8", 2, 3, scale=1 / 128, zero=128)]),
    "LOGISTIC": ([t("q8s", 2, 3)], [t("q8s", 2, 3, scale=1 / 256, zero=-128)]),
    "ELU": ([t("f32", 2, 3), f(0.5)], [t("f32", 2, 3)]),
    "QUANTIZE": ([t("f32", 2, 3)], [t("q8s", 2, 3)]),
    "DEQUANTIZE": ([t("q8y", 2, 3)], [t("f32", 2, 3)]),
    "CAST": ([t("f32", 2, 3)], [t("q8", 2, 3)]),
    "CONV_2D": (
        [t("q8", 1, 2, 4, 4), t("q8", 4, 3, 3, 2), BIAS, i(1), i(1), i(1), i(1), b(True), i(2),
            i(2)],
        [t("q8", 1, 4, 4, 4)],
    ),
    "DEPTHWISE_CONV_2D": (
        [IMAGE, t("f32", 1, 3, 3, 4), t("f32", 4), *PADS, i(1), i(1), i(2), i(3), b(False)],
        [t("f32", 1, 3, 3, 4)],
    ),
    "TRANSPOSE_CONV_2D": (
        [IMAGE, t("f32", 4, 3, 3, 2), t("f32", 4), *PADS, i(2), i(2), i(0), b(False)],
        [t("f32", 1, 8, 8, 4)],
    ),
    "AVERAGE_POOL_2D": _pool("q8"),
    "MAX_POOL_2D": _pool("f32"),
    "L2_POOL_2D": _pool("f32"),
    "SOFTMAX": ([t("f32", 2, 3), f(1.5), i(0)], [t("f32", 2, 3)]),
    "LOG_SOFTMAX": ([t("f32", 2, 3), f(1.0), i(-1)], [t("f32", 2, 3)]),
    "L2_NORMALIZATION": ([t("q8", 2, 3), i(1)], [t("q8", 2, 3, scale=1 / 128, zero=128)]),
    "LOCAL_RESPONSE_NORMALIZATION": (
        [t("f32", 2, 3), i(1), f(1.0), f(0.5), f(0.5), i(0)],
        [t("f32", 2, 3)],
    ),
    "FULLY_CONNECTED": (
        [t("q8", 2, 3), t("q8", 4, 3), BIAS, i(0)],
        [t("q8", 2, 4)],
    ),
    "BATCH_MATMUL": ([t("f32", 2, 3), t("f32", 4, 3), b(False), b(True)], [t("f32", 2, 4)]),
    "MEAN": _reduction("f32", i(0)),
    **{n: _reduction("f32", b(False)) for n in ("REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD",
        "REDUCE_SUM")},
    **{n: _reduction("b8", b(False)) for n in ("REDUCE_ALL", "REDUCE_ANY")},
    "ARGMAX": ([t("f32", 2, 3), i(-1)], [t("i32", 2)]),
    "ARGMIN": ([t("f32", 3), i(0)], [t("i32", 1)]),
    "TOPK_V2": ([t("f32", 2, 3), i(2)], [t("f32", 2, 2), t("i32", 2, 2)]),
    "RESHAPE": ([t("f32", 2, 3), constant("i32", [3, -1])], [t("f32", 3, 2)]),
    "SQUEEZE": ([t("f32", 2, 1, 3), constant("i32", [1])], [t("f32", 2, 3)]),
    "EXPAND_DIMS": ([t("f32", 2, 3), i(-1)], [t("f32", 2, 3, 1)]),
    "TRANSPOSE": ([t("f32", 2, 3), constant("i32", [1, 0])], [t("f32", 3, 2)]),
    "PAD": ([t("f32", 2, 3), constant("i32", [[0, 1], [1, 0]])], [t("f32", 3, 4)]),
    "PAD_V2": ([t("q8", 2, 3), constant("i32", [[0, 1], [1, 0]]), i(9)], [t("q8", 3, 4)]),
    "MIRROR_PAD": ([t("f32", 2, 3), constant("i32", [[0, 1], [1, 0]]), i(1)], [t("f32", 3, 4)]),
    "SPACE_TO_BATCH_ND": (
        [IMAGE, constant("i32", [2, 2]), constant("i32", [[0, 0], [0, 0]])],
        [t("f32", 4, 2, 2, 2)],
    ),
    "BATCH_TO_SPACE_ND": ([t("f32", 4, 2, 2, 2), constant("i32", [2, 2])], [IMAGE]),
    "SPACE_TO_DEPTH": ([IMAGE, i(2), b(False)], [t("f32", 1, 2, 2, 8)]),
    "DEPTH_TO_SPACE": ([t("f32", 1, 2, 2, 8), i(2), b(False)], [IMAGE]),
    "SLICE": (
        [t("f32", 2, 3), constant("i32", [0, 1]), constant("i32", [2, -1])],
        [t("f32", 2, 2)],
    ),
    "STRIDED_SLICE": (
        [
            t("f32", 2, 3),
            constant("i32", [0, 1]),
            constant("i32", [2, 2]),
            constant("i32", [1, 1]),
            i(0),
            i(0),
            i(2),
        ],
        [t("f32", 2)],
    ),
    "CONCATENATION": ([t("f32", 2, 3), t("f32", 2, 1), i(1)], [t("f32", 2, 4)]),
    "SPLIT": ([t("f32", 2, 4), i(-1), i(2)], [t("f32", 2, 2), t("f32", 2, 2)]),
    "PACK": ([i(1), t("f32", 2, 3), t("f32", 2, 3)], [t("f32", 2, 2, 3)]),
    "TILE": ([t("f32", 2, 3), constant("i32", [2, 1])], [t("f32", 4, 3)]),
    "GATHER": ([t("f32", 2, 3), i(1), constant("i32", [0, 2])], [t("f32", 2, 2)]),
    "REVERSE": ([t("f32", 2, 3), constant("i32", [1])], [t("f32", 2, 3)]),
    "FILL": ([constant("i32", [2, 3]), NnapiOperand(OperandType.FLOAT32)], [t("f32", 2, 3)]),
    "RANK": ([t("f32", 2, 3)], [NUMBER]),
    "RESIZE_BILINEAR": ([IMAGE, i(8), i(6), b(False), b(False), b(True)], [t("f32", 1, 6, 8, 2)]),
    "RESIZE_NEAREST_NEIGHBOR": ([IMAGE, f(2.0), f(0.5), b(False)], [t("f32", 1, 2, 8, 2)]),
    "EMBEDDING_LOOKUP": ([t("i32", 2), t("f32", 4, 3)], [t("f32", 2, 3)]),
    "HASHTABLE_LOOKUP": (
        [t("i32", 2), t("i32", 4), t("f32", 4, 3)],
        [t("f32", 2, 3), t("q8", 2, scale=1.0)],
    ),
    "LSH_PROJECTION": ([t("f32", 4, 2), t("i32", 3, 2), t("f32", 3), i(3)], [t("i32", 4)]),
}  # fmt: skip
