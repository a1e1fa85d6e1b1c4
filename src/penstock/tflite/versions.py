"""The operator versions that LiteRT registers kernels for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from penstock.errors import UnknownOperator
from penstock.loaders.tflite.operators import OperatorCode

_OPERATORS: Final[Mapping[int, str]] = {
    2: (
        "DEPTH_TO_SPACE L2_NORMALIZATION SPACE_TO_DEPTH DIV SQUEEZE EXP LOG_SOFTMAX GREATER "
        "LESS_EQUAL SIN LOG SUM SQRT FAKE_QUANT REDUCE_PROD FLOOR_MOD RANGE LEAKY_RELU "
        "SQUARED_DIFFERENCE COS WHERE SELECT_V2 SIGN"
    ),
    3: (
        "AVERAGE_POOL_2D LOGISTIC MAX_POOL_2D RELU RELU6 RNN TANH UNIDIRECTIONAL_SEQUENCE_RNN "
        "MEAN BIDIRECTIONAL_SEQUENCE_RNN TOPK_V2 BIDIRECTIONAL_SEQUENCE_LSTM ARG_MAX LESS "
        "GREATER_EQUAL SPARSE_TO_DENSE TILE RSQRT ARG_MIN REDUCE_MAX REDUCE_MIN FLOOR_DIV "
        "MIRROR_PAD SPLIT_V GELU"
    ),
    4: (
        "LSTM RESIZE_BILINEAR SOFTMAX SVDF BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND "
        "UNIDIRECTIONAL_SEQUENCE_LSTM MAXIMUM MINIMUM SELECT NOT_EQUAL "
        "RESIZE_NEAREST_NEIGHBOR REVERSE_V2 BATCH_MATMUL BROADCAST_TO"
    ),
    5: ("EMBEDDING_LOOKUP SUB SPLIT TRANSPOSE_CONV EQUAL PACK FILL ABS"),
    6: ("ADD PAD PADV2 UNPACK GATHER_ND QUANTIZE DYNAMIC_UPDATE_SLICE"),
    7: ("CONCATENATION DEPTHWISE_CONV_2D"),
    8: ("CONV_2D MUL GATHER STRIDED_SLICE SLICE"),
    9: ("DEQUANTIZE TRANSPOSE CAST"),
    14: ("FULLY_CONNECTED"),
}
"""The operators that have more than one version, by their newest one in ai-edge-litert 2.3.0."""

NEWEST: Final = {name: version for version, names in _OPERATORS.items() for name in names.split()}


def check(codes: Iterable[OperatorCode]) -> None:
    """Raises `ValueError`, with LiteRT's words, for an operator in a version that none has a kernel
    for: what it means has changed since. Custom operators have no such limit.
    """
    for code in codes:
        newest = NEWEST.get(code.type, 1)
        if code.type != "CUSTOM" and not 1 <= code.version <= newest:
            reason = f"version {code.version} of {code.type} is not known, 1 to {newest} are"
            raise ValueError(
                f"Didn't find op for builtin opcode '{code.type}' version '{code.version}'. An older version "
                "of this builtin might be supported. Are you using an old TFLite binary with a newer model?\n"
                f"Registration failed.\n{reason}"
            ) from UnknownOperator(reason)
