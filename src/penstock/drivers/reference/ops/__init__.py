"""The operations of the reference driver, one file an operation family, imported when first needed."""

from collections.abc import Mapping
from typing import Final

MODULES: Final[Mapping[str, str]] = {
    "control_flow": "IF WHILE STABLEHLO_WHILE STABLEHLO_CASE CALL STABLEHLO_COMPOSITE",
    "detection.box_nms": "BOX_WITH_NMS_LIMIT",
    "detection.box_transform": "AXIS_ALIGNED_BBOX_TRANSFORM",
    "detection.heatmap": "HEATMAP_MAX_KEYPOINT",
    "detection.nnapi_postprocessing": "DETECTION_POSTPROCESSING",
    "detection.proposals": "GENERATE_PROPOSALS",
    "detection.roi_align": "ROI_ALIGN",
    "detection.roi_pooling": "ROI_POOLING",
    "detection.suppression": "NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5",
    "detection.tflite_postprocessing": "CUSTOM:TFLite_Detection_PostProcess",
    "elements.arithmetic": "ADD SUB MUL DIV",
    "elements.comparison": (
        "EQUAL NOT_EQUAL LESS LESS_EQUAL GREATER GREATER_EQUAL LOGICAL_AND LOGICAL_OR "
        "LOGICAL_NOT SELECT SELECT_V2"
    ),
    "elements.elementwise": (
        "MAXIMUM MINIMUM SQUARED_DIFFERENCE POW FLOOR_DIV FLOOR_MOD ATAN2 BITWISE_XOR "
        "RIGHT_SHIFT ADD_N"
    ),
    "elements.instance_normalization": "INSTANCE_NORMALIZATION",
    "elements.normalization": "L2_NORMALIZATION LOCAL_RESPONSE_NORMALIZATION",
    "elements.quantization": "QUANTIZE DEQUANTIZE FAKE_QUANT",
    "elements.reduction": (
        "MEAN SUM REDUCE_MAX REDUCE_MIN REDUCE_PROD REDUCE_ANY REDUCE_ALL ARG_MAX ARG_MIN CUMSUM"
    ),
    "elements.relu": "RELU RELU6 RELU_N1_TO_1 RELU_0_TO_1 LEAKY_RELU PRELU HARD_SWISH",
    "elements.sigmoid": "LOGISTIC TANH ELU GELU",
    "elements.softmax": "SOFTMAX LOG_SOFTMAX",
    "elements.unary": "NEG ABS EXP LOG RSQRT SQRT SQUARE SIN COS FLOOR CEIL ROUND SIGN",
    "elements.verification": "CUSTOM:NumericVerify",
    "layers.attention": "CUSTOM:aeq.hadamard_rotation CUSTOM:odml.scaled_dot_product_attention",
    "layers.batch_matmul": "BATCH_MATMUL",
    "layers.convolution": "CONV_2D",
    "layers.convolution_3d": "CONV_3D CONV_3D_TRANSPOSE",
    "layers.depthwise": "DEPTHWISE_CONV_2D",
    "layers.fully_connected": "FULLY_CONNECTED",
    "layers.grouped_convolution": "GROUPED_CONV_2D",
    "layers.mediapipe": (
        "CUSTOM:Convolution2DTransposeBias CUSTOM:MaxPoolingWithArgmax2D CUSTOM:MaxUnpooling2D"
    ),
    "layers.pooling": "MAX_POOL_2D AVERAGE_POOL_2D L2_POOL_2D",
    "layers.resize": "RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR",
    "layers.transpose_convolution": "TRANSPOSE_CONV",
    "lookup.embedding": "EMBEDDING_LOOKUP EMBEDDING_LOOKUP_SPARSE HASHTABLE_LOOKUP",
    "lookup.hash_tables": "HASHTABLE_FIND HASHTABLE_SIZE",
    "lookup.projection": "LSH_PROJECTION",
    "lookup.random": "RANDOM_UNIFORM RANDOM_STANDARD_NORMAL MULTINOMIAL",
    "lookup.random_multinomial": "RANDOM_MULTINOMIAL",
    "lookup.skip_gram": "SKIP_GRAM",
    "recurrent.lstm": "LSTM UNIDIRECTIONAL_SEQUENCE_LSTM BIDIRECTIONAL_SEQUENCE_LSTM",
    "recurrent.lstm_basic": "QUANTIZED_16BIT_LSTM",
    "recurrent.lstm_integer": "QUANTIZED_LSTM",
    "recurrent.rnn": "RNN UNIDIRECTIONAL_SEQUENCE_RNN BIDIRECTIONAL_SEQUENCE_RNN",
    "recurrent.svdf": "SVDF",
    "sound.signal": "RFFT2D COMPLEX_ABS REAL IMAG",
    "sound.spectrogram": "CUSTOM:AudioSpectrogram CUSTOM:Mfcc",
    "stablehlo.elementwise": (
        "STABLEHLO_ABS STABLEHLO_NEGATE STABLEHLO_CBRT STABLEHLO_COSINE STABLEHLO_EXPONENTIAL "
        "STABLEHLO_FLOOR STABLEHLO_LOG STABLEHLO_LOGISTIC STABLEHLO_RSQRT STABLEHLO_TANH "
        "STABLEHLO_ADD STABLEHLO_SUBTRACT STABLEHLO_MULTIPLY STABLEHLO_DIVIDE "
        "STABLEHLO_REMAINDER STABLEHLO_POWER STABLEHLO_MAXIMUM STABLEHLO_MINIMUM STABLEHLO_AND "
        "STABLEHLO_OR STABLEHLO_SHIFT_LEFT STABLEHLO_COMPARE STABLEHLO_CONVERT STABLEHLO_CLAMP "
        "STABLEHLO_SELECT"
    ),
    "stablehlo.indexing": "STABLEHLO_GATHER STABLEHLO_SCATTER",
    "stablehlo.products": "STABLEHLO_DOT_GENERAL STABLEHLO_CONVOLUTION",
    "stablehlo.random": "STABLEHLO_RNG_BIT_GENERATOR",
    "stablehlo.reduction": "STABLEHLO_REDUCE STABLEHLO_REDUCE_WINDOW REDUCE_WINDOW",
    "stablehlo.sort": "STABLEHLO_SORT",
    "stablehlo.structure": (
        "STABLEHLO_RESHAPE STABLEHLO_BROADCAST_IN_DIM STABLEHLO_CONCATENATE STABLEHLO_SLICE "
        "STABLEHLO_DYNAMIC_SLICE STABLEHLO_DYNAMIC_UPDATE_SLICE STABLEHLO_PAD "
        "STABLEHLO_TRANSPOSE STABLEHLO_IOTA"
    ),
    "structure.channel_shuffle": "CHANNEL_SHUFFLE",
    "structure.creation": "CAST BITCAST FILL ZEROS_LIKE RANGE",
    "structure.densify_levels": "DENSIFY_LEVELS",
    "structure.gathering": (
        "GATHER GATHER_ND SCATTER_ND SPARSE_TO_DENSE ONE_HOT WHERE UNIQUE TOPK_V2 BUCKETIZE "
        "SEGMENT_SUM UNSORTED_SEGMENT_SUM UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX "
        "UNSORTED_SEGMENT_MIN"
    ),
    "structure.joining": "CONCATENATION PACK UNPACK SPLIT SPLIT_V",
    "structure.layout": (
        "TRANSPOSE PAD PADV2 MIRROR_PAD TILE DILATE REVERSE_V2 REVERSE_SEQUENCE SPACE_TO_DEPTH "
        "DEPTH_TO_SPACE SPACE_TO_BATCH_ND BATCH_TO_SPACE_ND"
    ),
    "structure.matrix_diagonal": "MATRIX_DIAG MATRIX_SET_DIAG",
    "structure.shape": (
        "RESHAPE SQUEEZE EXPAND_DIMS SHAPE RANK BROADCAST_TO BROADCAST_ARGS DENSIFY"
    ),
    "structure.slicing": "SLICE STRIDED_SLICE DYNAMIC_UPDATE_SLICE",
}
"""Every module that has builders, and the rows of the operation table that they are for."""
