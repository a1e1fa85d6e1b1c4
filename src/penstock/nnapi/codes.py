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

    NO_ERROR, OUT_OF_MEMORY, INCOMPLETE, UNEXPECTED_NULL, BAD_DATA, OP_FAILED, BAD_STATE = range(7)
    UNMAPPABLE, OUTPUT_INSUFFICIENT_SIZE, UNAVAILABLE_DEVICE = range(7, 10)
    MISSED_DEADLINE_TRANSIENT, MISSED_DEADLINE_PERSISTENT = range(10, 12)
    RESOURCE_EXHAUSTED_TRANSIENT, RESOURCE_EXHAUSTED_PERSISTENT, DEAD_OBJECT = range(12, 15)


class FeatureLevel(IntEnum):
    """Feature levels 1 to 8; the first five are Android's API levels, and the gap is deliberate."""

    LEVEL_1, LEVEL_2, LEVEL_3, LEVEL_4, LEVEL_5 = range(27, 32)
    LEVEL_6, LEVEL_7, LEVEL_8 = range(1000006, 1000009)

    @classmethod
    def of(cls, level: int) -> FeatureLevel:
        """The code of level 1 to 8; a higher level counts as this runtime's highest."""
        return list(cls)[min(level, len(cls)) - 1]


class Preference(IntEnum):
    """What a compilation is optimised for."""

    LOW_POWER, FAST_SINGLE_ANSWER, SUSTAINED_SPEED = range(3)


class Priority(IntEnum):
    """The priority of a compilation's work."""

    LOW, MEDIUM, HIGH = 90, 100, 110


class DeviceType(IntEnum):
    """Types of devices; UNKNOWN is never reported."""

    UNKNOWN, OTHER, CPU, GPU, ACCELERATOR = range(5)


class DurationCode(IntEnum):
    """What `Execution.get_duration` measures: time on the device or in its driver.

    The FENCED codes exclude the wait for dependencies.
    """

    ON_HARDWARE, IN_DRIVER, FENCED_ON_HARDWARE, FENCED_IN_DRIVER = range(4)


class FuseCode(IntEnum):
    """Fused activation functions: none, at least 0, in [-1, 1], in [0, 6]."""

    NONE, RELU, RELU1, RELU6 = range(4)


class PaddingCode(IntEnum):
    """Implicit padding schemes."""

    SAME, VALID = 1, 2


EXPERIMENTAL: Final = 9
"""The level of experimental operations: above every feature level."""

LAST_OPERATIONS: Final = {1: 28, 2: 37, 3: 94, 4: 101, 6: 103, 7: 105, EXPERIMENTAL: 20000}
"""The greatest number of an operation of each feature level."""


class OperationCode(IntEnum):
    """Operations by number. No model may use OEM_OPERATION (deprecated) and DENSIFY."""

    ADD, AVERAGE_POOL_2D, CONCATENATION, CONV_2D, DEPTHWISE_CONV_2D, DEPTH_TO_SPACE = range(6)
    DEQUANTIZE, EMBEDDING_LOOKUP, FLOOR, FULLY_CONNECTED, HASHTABLE_LOOKUP = range(6, 11)
    L2_NORMALIZATION, L2_POOL_2D, LOCAL_RESPONSE_NORMALIZATION, LOGISTIC = range(11, 15)
    LSH_PROJECTION, LSTM, MAX_POOL_2D, MUL, RELU, RELU1, RELU6, RESHAPE = range(15, 23)
    RESIZE_BILINEAR, RNN, SOFTMAX, SPACE_TO_DEPTH, SVDF, TANH = range(23, 29)
    BATCH_TO_SPACE_ND, DIV, MEAN, PAD, SPACE_TO_BATCH_ND, SQUEEZE, STRIDED_SLICE = range(29, 36)
    SUB, TRANSPOSE = range(36, 38)
    ABS, ARGMAX, ARGMIN, AXIS_ALIGNED_BBOX_TRANSFORM, BIDIRECTIONAL_SEQUENCE_LSTM = range(38, 43)
    BIDIRECTIONAL_SEQUENCE_RNN, BOX_WITH_NMS_LIMIT, CAST, CHANNEL_SHUFFLE = range(43, 47)
    DETECTION_POSTPROCESSING, EQUAL, EXP, EXPAND_DIMS, GATHER, GENERATE_PROPOSALS = range(47, 53)
    GREATER, GREATER_EQUAL, GROUPED_CONV_2D, HEATMAP_MAX_KEYPOINT = range(53, 57)
    INSTANCE_NORMALIZATION, LESS, LESS_EQUAL, LOG, LOGICAL_AND, LOGICAL_NOT = range(57, 63)
    LOGICAL_OR, LOG_SOFTMAX, MAXIMUM, MINIMUM, NEG, NOT_EQUAL, PAD_V2, POW, PRELU = range(63, 72)
    QUANTIZE, QUANTIZED_16BIT_LSTM, RANDOM_MULTINOMIAL, REDUCE_ALL, REDUCE_ANY = range(72, 77)
    REDUCE_MAX, REDUCE_MIN, REDUCE_PROD, REDUCE_SUM, ROI_ALIGN, ROI_POOLING, RSQRT = range(77, 84)
    SELECT, SIN, SLICE, SPLIT, SQRT, TILE, TOPK_V2, TRANSPOSE_CONV_2D = range(84, 92)
    UNIDIRECTIONAL_SEQUENCE_LSTM, UNIDIRECTIONAL_SEQUENCE_RNN = range(92, 94)
    RESIZE_NEAREST_NEIGHBOR, QUANTIZED_LSTM, IF, WHILE, ELU, HARD_SWISH, FILL = range(94, 101)
    RANK, BATCH_MATMUL, PACK, MIRROR_PAD, REVERSE = range(101, 106)
    OEM_OPERATION, DENSIFY = 10000, 20000

    @property
    def feature_level(self) -> int:
        """The level that introduced the operation; `EXPERIMENTAL` for DENSIFY."""
        return next(level for level, last in LAST_OPERATIONS.items() if self <= last)


class NnapiError(errors.PenstockError):
    """The error of an NNAPI call; *code* is its result code."""

    def __init__(self, code: ResultCode, message: str) -> None:
        self.code, self.message = code, message
        super().__init__(f"{code.name}: {message}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.message)


_OTHER_NAMES: Final = {
    "NONE": "NO_ERROR",
    "DEVICE_UNAVAILABLE": "UNAVAILABLE_DEVICE",
    "GENERAL_FAILURE": "OP_FAILED",
    "INVALID_ARGUMENT": "BAD_DATA",
}

STATUS_CODES: Final[Mapping[errors.ErrorStatus, ResultCode]] = {
    status: ResultCode[_OTHER_NAMES.get(status.name, status.name)] for status in errors.ErrorStatus
}
"""The result code of each HAL status: that of its name, except for `_OTHER_NAMES`."""


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
    statuses = {code.value: status for status, code in STATUS_CODES.items() if code.value}
    status = statuses.get(error.code.value, errors.ErrorStatus.GENERAL_FAILURE)
    return errors.driver_error_classes()[status](error.message)


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
