"""The operation table: one row for every operation of TFLite and of NNAPI, driver or no driver.

`OPERATIONS` maps a row's key (the operation type, or `CUSTOM:<code>` for a custom operator that has
a row of its own) to its `OperationSpec`. Rows stand in one file an operation family. Every
operation of a vendor's extension has the row EXTENSION.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Final

from penstock.errors import UnknownOperator
from penstock.ir.operation import Operation
from penstock.ir.operations.spec import (
    AttributeSpec,
    FoldRule,
    OperationSpec,
    Port,
    Requirement,
    ShapeContext,
    ShapeRule,
)

__all__ = [
    "FAMILIES",
    "OPERATIONS",
    "AttributeSpec",
    "FoldRule",
    "OperationSpec",
    "Port",
    "Requirement",
    "ShapeContext",
    "ShapeRule",
    "spec_of",
]

FAMILIES: Final[Mapping[str, str]] = {
    "convolution": "CONV_2D DEPTHWISE_CONV_2D TRANSPOSE_CONV CONV_3D CONV_3D_TRANSPOSE",
    "arithmetic": (
        "ADD SUB MUL DIV FLOOR_DIV FLOOR_MOD POW MAXIMUM MINIMUM SQUARED_DIFFERENCE ADD_N ATAN2 "
        "BITWISE_XOR RIGHT_SHIFT"
    ),
    "activation": (
        "RELU RELU_N1_TO_1 RELU_0_TO_1 RELU6 TANH LOGISTIC ELU HARD_SWISH LEAKY_RELU GELU PRELU "
        "SOFTMAX LOG_SOFTMAX"
    ),
    "shape": "RESHAPE SQUEEZE EXPAND_DIMS SHAPE RANK BROADCAST_TO BROADCAST_ARGS FILL RANGE",
    "pooling": "AVERAGE_POOL_2D MAX_POOL_2D L2_POOL_2D REDUCE_WINDOW",
    "matmul": "FULLY_CONNECTED BATCH_MATMUL MATRIX_DIAG MATRIX_SET_DIAG",
    "quantization": "QUANTIZE DEQUANTIZE FAKE_QUANT DENSIFY",
    "layout": (
        "TRANSPOSE PAD PADV2 MIRROR_PAD TILE DILATE SPACE_TO_BATCH_ND BATCH_TO_SPACE_ND "
        "SPACE_TO_DEPTH DEPTH_TO_SPACE"
    ),
    "joining": "CONCATENATION PACK UNPACK SPLIT SPLIT_V",
    "reduction": (
        "MEAN SUM REDUCE_PROD REDUCE_MAX REDUCE_MIN REDUCE_ANY REDUCE_ALL ARG_MAX ARG_MIN CUMSUM"
    ),
    "slicing": "SLICE STRIDED_SLICE DYNAMIC_UPDATE_SLICE REVERSE_V2 REVERSE_SEQUENCE",
    "unary": (
        "ABS NEG SIGN FLOOR CEIL ROUND EXP LOG SQRT RSQRT SQUARE SIN COS ZEROS_LIKE CAST "
        "BITCAST REAL IMAG COMPLEX_ABS"
    ),
    "image": "RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR",
    "comparison": (
        "EQUAL NOT_EQUAL GREATER GREATER_EQUAL LESS LESS_EQUAL LOGICAL_AND LOGICAL_OR "
        "LOGICAL_NOT SELECT SELECT_V2"
    ),
    "gather_scatter": (
        "GATHER GATHER_ND SCATTER_ND SPARSE_TO_DENSE ONE_HOT WHERE UNIQUE SEGMENT_SUM "
        "UNSORTED_SEGMENT_SUM UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_MIN "
        "TOPK_V2 BUCKETIZE"
    ),
    "recurrent": (
        "LSTM UNIDIRECTIONAL_SEQUENCE_LSTM BIDIRECTIONAL_SEQUENCE_LSTM RNN "
        "UNIDIRECTIONAL_SEQUENCE_RNN BIDIRECTIONAL_SEQUENCE_RNN SVDF"
    ),
    "control_flow": "IF WHILE CALL CALL_ONCE DELEGATE",
    "normalization": "L2_NORMALIZATION LOCAL_RESPONSE_NORMALIZATION",
    "resource": (
        "VAR_HANDLE READ_VARIABLE ASSIGN_VARIABLE HASHTABLE HASHTABLE_IMPORT HASHTABLE_FIND "
        "HASHTABLE_SIZE"
    ),
    "lookup": (
        "EMBEDDING_LOOKUP EMBEDDING_LOOKUP_SPARSE HASHTABLE_LOOKUP LSH_PROJECTION SKIP_GRAM "
        "CONCAT_EMBEDDINGS"
    ),
    "detection": "NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5",
    "signal": "RFFT2D",
    "random": "RANDOM_UNIFORM RANDOM_STANDARD_NORMAL MULTINOMIAL",
    "stablehlo_region": (
        "STABLEHLO_CONVOLUTION STABLEHLO_DOT_GENERAL STABLEHLO_GATHER STABLEHLO_SCATTER "
        "STABLEHLO_REDUCE STABLEHLO_REDUCE_WINDOW STABLEHLO_SORT STABLEHLO_WHILE STABLEHLO_CASE "
        "STABLEHLO_COMPOSITE"
    ),
    "stablehlo": (
        "STABLEHLO_ABS STABLEHLO_NEGATE STABLEHLO_CBRT STABLEHLO_COSINE STABLEHLO_EXPONENTIAL "
        "STABLEHLO_FLOOR STABLEHLO_LOG STABLEHLO_LOGISTIC STABLEHLO_RSQRT STABLEHLO_TANH "
        "STABLEHLO_ADD STABLEHLO_SUBTRACT STABLEHLO_MULTIPLY STABLEHLO_DIVIDE "
        "STABLEHLO_REMAINDER STABLEHLO_POWER STABLEHLO_MAXIMUM STABLEHLO_MINIMUM STABLEHLO_AND "
        "STABLEHLO_OR STABLEHLO_SHIFT_LEFT STABLEHLO_COMPARE STABLEHLO_CONVERT STABLEHLO_CLAMP "
        "STABLEHLO_SELECT STABLEHLO_RESHAPE STABLEHLO_BROADCAST_IN_DIM STABLEHLO_CONCATENATE "
        "STABLEHLO_SLICE STABLEHLO_DYNAMIC_SLICE STABLEHLO_DYNAMIC_UPDATE_SLICE STABLEHLO_PAD "
        "STABLEHLO_TRANSPOSE STABLEHLO_IOTA STABLEHLO_RNG_BIT_GENERATOR STABLEHLO_CUSTOM_CALL"
    ),
    "custom": (
        "CUSTOM CUSTOM:TFLite_Detection_PostProcess CUSTOM:Convolution2DTransposeBias "
        "CUSTOM:MaxPoolingWithArgmax2D CUSTOM:MaxUnpooling2D CUSTOM:AudioSpectrogram "
        "CUSTOM:Mfcc CUSTOM:NumericVerify CUSTOM:aeq.hadamard_rotation "
        "CUSTOM:odml.scaled_dot_product_attention"
    ),
    "nnapi": (
        "CHANNEL_SHUFFLE GROUPED_CONV_2D INSTANCE_NORMALIZATION RANDOM_MULTINOMIAL "
        "QUANTIZED_16BIT_LSTM QUANTIZED_LSTM DENSIFY_LEVELS"
    ),
    "extension": "EXTENSION",
    "nnapi_detection": (
        "ROI_ALIGN ROI_POOLING AXIS_ALIGNED_BBOX_TRANSFORM BOX_WITH_NMS_LIMIT "
        "DETECTION_POSTPROCESSING GENERATE_PROPOSALS HEATMAP_MAX_KEYPOINT"
    ),
}
"""Modules of the rows, and the rows that each has, in order."""


class _Table(Mapping[str, OperationSpec]):
    """The rows by key. A family is imported when one of its rows is first asked for: a table of
    everything would be a third of the start-up time, and networks use few families.
    """

    def __init__(self) -> None:
        self._homes = {key: family for family, keys in FAMILIES.items() for key in keys.split()}
        self._rows: dict[str, OperationSpec] = {}
        self._families: dict[str, tuple[OperationSpec, ...]] = {}

    def family(self, name: str) -> tuple[OperationSpec, ...]:
        """The rows of one of `FAMILIES`, in their order."""
        if name not in self._families:
            rows: tuple[OperationSpec, ...] = import_module(f"{__name__}.{name}").ROWS
            self._rows.update({row.name: row for row in rows})
            self._families[name] = rows
        return self._families[name]

    def __getitem__(self, key: str) -> OperationSpec:
        if key not in self._rows:
            self.family(self._homes[key])
        return self._rows[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)


OPERATIONS: Final = _Table()


def spec_of(operation: Operation) -> OperationSpec:
    """The row of *operation*; a custom operator without one of its own gets the row CUSTOM.

    Raises `UnknownOperator` for a type outside the vocabulary.
    """
    row = OPERATIONS.get(operation.key)
    if row is None:
        row = OPERATIONS.get(operation.type)
    if row is None:
        raise UnknownOperator(f"{operation.type!r} is not an operation of the vocabulary")
    return row
