"""NNAPI's numbers (NNAPI sections 1.1 and 1.2), and the error that carries a result code.

Values are those of NNAPI's C header, so that ports may pass them unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, Final

from penstock import errors

MAX_SIZE_OF_IMMEDIATELY_COPIED_VALUES: Final = 128
"""Values up to this size are copied by `Model.set_operand_value` at once."""

MAX_NUMBER_OF_OPERANDS: Final = 0xFFFFFFFE
"""The maximum for one model, also of operations."""


class ResultCode(IntEnum):
    """The result of an NNAPI call (NNAPI section 1.2)."""

    NO_ERROR = 0
    OUT_OF_MEMORY = 1
    INCOMPLETE = 2
    UNEXPECTED_NULL = 3
    BAD_DATA = 4
    OP_FAILED = 5
    BAD_STATE = 6
    UNMAPPABLE = 7
    OUTPUT_INSUFFICIENT_SIZE = 8
    UNAVAILABLE_DEVICE = 9
    MISSED_DEADLINE_TRANSIENT = 10
    MISSED_DEADLINE_PERSISTENT = 11
    RESOURCE_EXHAUSTED_TRANSIENT = 12
    RESOURCE_EXHAUSTED_PERSISTENT = 13
    DEAD_OBJECT = 14


class FeatureLevel(IntEnum):
    """Feature levels 1 to 8; the first five are Android's API levels, and the gap is deliberate."""

    LEVEL_1 = 27
    LEVEL_2 = 28
    LEVEL_3 = 29
    LEVEL_4 = 30
    LEVEL_5 = 31
    LEVEL_6 = 1000006
    LEVEL_7 = 1000007
    LEVEL_8 = 1000008

    @classmethod
    def of(cls, level: int) -> FeatureLevel:
        """The code of level 1 to 8; a higher level counts as this runtime's highest."""
        return list(cls)[min(level, len(cls)) - 1]


class Preference(IntEnum):
    """What a compilation is optimised for."""

    LOW_POWER = 0
    FAST_SINGLE_ANSWER = 1
    SUSTAINED_SPEED = 2


class Priority(IntEnum):
    """The priority of a compilation's work."""

    LOW = 90
    MEDIUM = 100
    HIGH = 110


class DeviceType(IntEnum):
    """Types of devices; UNKNOWN is never reported."""

    UNKNOWN = 0
    OTHER = 1
    CPU = 2
    GPU = 3
    ACCELERATOR = 4


class DurationCode(IntEnum):
    """What `Execution.get_duration` measures: time on the device or in its driver.

    The FENCED codes exclude the wait for dependencies.
    """

    ON_HARDWARE = 0
    IN_DRIVER = 1
    FENCED_ON_HARDWARE = 2
    FENCED_IN_DRIVER = 3


class FuseCode(IntEnum):
    """Fused activation functions: none, at least 0, in [-1, 1], in [0, 6]."""

    NONE = 0
    RELU = 1
    RELU1 = 2
    RELU6 = 3


class PaddingCode(IntEnum):
    """Implicit padding schemes."""

    SAME = 1
    VALID = 2


class OperationCode(IntEnum):
    """Operations by number. No model may use OEM_OPERATION (deprecated) and DENSIFY."""

    ADD = 0
    AVERAGE_POOL_2D = 1
    CONCATENATION = 2
    CONV_2D = 3
    DEPTHWISE_CONV_2D = 4
    DEPTH_TO_SPACE = 5
    DEQUANTIZE = 6
    EMBEDDING_LOOKUP = 7
    FLOOR = 8
    FULLY_CONNECTED = 9
    HASHTABLE_LOOKUP = 10
    L2_NORMALIZATION = 11
    L2_POOL_2D = 12
    LOCAL_RESPONSE_NORMALIZATION = 13
    LOGISTIC = 14
    LSH_PROJECTION = 15
    LSTM = 16
    MAX_POOL_2D = 17
    MUL = 18
    RELU = 19
    RELU1 = 20
    RELU6 = 21
    RESHAPE = 22
    RESIZE_BILINEAR = 23
    RNN = 24
    SOFTMAX = 25
    SPACE_TO_DEPTH = 26
    SVDF = 27
    TANH = 28
    BATCH_TO_SPACE_ND = 29
    DIV = 30
    MEAN = 31
    PAD = 32
    SPACE_TO_BATCH_ND = 33
    SQUEEZE = 34
    STRIDED_SLICE = 35
    SUB = 36
    TRANSPOSE = 37
    ABS = 38
    ARGMAX = 39
    ARGMIN = 40
    AXIS_ALIGNED_BBOX_TRANSFORM = 41
    BIDIRECTIONAL_SEQUENCE_LSTM = 42
    BIDIRECTIONAL_SEQUENCE_RNN = 43
    BOX_WITH_NMS_LIMIT = 44
    CAST = 45
    CHANNEL_SHUFFLE = 46
    DETECTION_POSTPROCESSING = 47
    EQUAL = 48
    EXP = 49
    EXPAND_DIMS = 50
    GATHER = 51
    GENERATE_PROPOSALS = 52
    GREATER = 53
    GREATER_EQUAL = 54
    GROUPED_CONV_2D = 55
    HEATMAP_MAX_KEYPOINT = 56
    INSTANCE_NORMALIZATION = 57
    LESS = 58
    LESS_EQUAL = 59
    LOG = 60
    LOGICAL_AND = 61
    LOGICAL_NOT = 62
    LOGICAL_OR = 63
    LOG_SOFTMAX = 64
    MAXIMUM = 65
    MINIMUM = 66
    NEG = 67
    NOT_EQUAL = 68
    PAD_V2 = 69
    POW = 70
    PRELU = 71
    QUANTIZE = 72
    QUANTIZED_16BIT_LSTM = 73
    RANDOM_MULTINOMIAL = 74
    REDUCE_ALL = 75
    REDUCE_ANY = 76
    REDUCE_MAX = 77
    REDUCE_MIN = 78
    REDUCE_PROD = 79
    REDUCE_SUM = 80
    ROI_ALIGN = 81
    ROI_POOLING = 82
    RSQRT = 83
    SELECT = 84
    SIN = 85
    SLICE = 86
    SPLIT = 87
    SQRT = 88
    TILE = 89
    TOPK_V2 = 90
    TRANSPOSE_CONV_2D = 91
    UNIDIRECTIONAL_SEQUENCE_LSTM = 92
    UNIDIRECTIONAL_SEQUENCE_RNN = 93
    RESIZE_NEAREST_NEIGHBOR = 94
    QUANTIZED_LSTM = 95
    IF = 96
    WHILE = 97
    ELU = 98
    HARD_SWISH = 99
    FILL = 100
    RANK = 101
    BATCH_MATMUL = 102
    PACK = 103
    MIRROR_PAD = 104
    REVERSE = 105
    OEM_OPERATION = 10000
    DENSIFY = 20000


class NnapiError(errors.PenstockError):
    """The error of an NNAPI call; *code* is its result code."""

    def __init__(self, code: ResultCode, message: str) -> None:
        self.code, self.message = code, message
        super().__init__(f"{code.name}: {message}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.message)


STATUS_CODES: Final[Mapping[errors.ErrorStatus, ResultCode]] = {
    errors.ErrorStatus.NONE: ResultCode.NO_ERROR,
    errors.ErrorStatus.DEVICE_UNAVAILABLE: ResultCode.UNAVAILABLE_DEVICE,
    errors.ErrorStatus.GENERAL_FAILURE: ResultCode.OP_FAILED,
    errors.ErrorStatus.OUTPUT_INSUFFICIENT_SIZE: ResultCode.OUTPUT_INSUFFICIENT_SIZE,
    errors.ErrorStatus.INVALID_ARGUMENT: ResultCode.BAD_DATA,
    errors.ErrorStatus.MISSED_DEADLINE_TRANSIENT: ResultCode.MISSED_DEADLINE_TRANSIENT,
    errors.ErrorStatus.MISSED_DEADLINE_PERSISTENT: ResultCode.MISSED_DEADLINE_PERSISTENT,
    errors.ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT: ResultCode.RESOURCE_EXHAUSTED_TRANSIENT,
    errors.ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT: ResultCode.RESOURCE_EXHAUSTED_PERSISTENT,
    errors.ErrorStatus.DEAD_OBJECT: ResultCode.DEAD_OBJECT,
}
"""The result code of each HAL status."""


def code_of(error: errors.PenstockError | MemoryError) -> ResultCode:
    """The result code of *error*; OP_FAILED for an error without a code."""
    if isinstance(error, NnapiError):
        return error.code
    if isinstance(error, errors.DriverError):
        return STATUS_CODES[error.status]
    if isinstance(error, errors.ModelError | errors.InputError | errors.PlacementError):
        return ResultCode.BAD_DATA
    if isinstance(error, errors.StateError | errors.ClosedError):
        return ResultCode.BAD_STATE
    if isinstance(error, MemoryError):
        return ResultCode.OUT_OF_MEMORY
    return ResultCode.OP_FAILED


def driver_error(error: NnapiError) -> errors.DriverError:
    """The driver error that represents *error* outside NNAPI: `GeneralFailure` for most codes."""
    statuses = {
        code: status
        for status, code in STATUS_CODES.items()
        if status is not errors.ErrorStatus.NONE
    }
    kind = errors.driver_error_classes()[
        statuses.get(error.code, errors.ErrorStatus.GENERAL_FAILURE)
    ]
    return kind(error.message)


@contextmanager
def translated() -> Iterator[None]:
    """Converts a `PenstockError` to an `NnapiError`, and `MemoryError` to OUT_OF_MEMORY."""
    try:
        yield
    except NnapiError:
        raise
    except (errors.PenstockError, MemoryError) as error:
        raise NnapiError(code_of(error), str(error) or "no memory is left") from error


def unexpected_null(what: str) -> NnapiError:
    return NnapiError(ResultCode.UNEXPECTED_NULL, f"{what} is None")


def bad_data(message: str) -> NnapiError:
    return NnapiError(ResultCode.BAD_DATA, message)


def bad_state(message: str) -> NnapiError:
    return NnapiError(ResultCode.BAD_STATE, message)
