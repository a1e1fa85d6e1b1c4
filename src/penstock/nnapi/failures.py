"""`NnapiError`, and the result code of every error that Penstock raises (NNAPI section 1.2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from penstock.errors import (
    ClosedError,
    DriverError,
    ErrorStatus,
    InputError,
    ModelError,
    PenstockError,
    PlacementError,
    StateError,
    driver_error_classes,
)
from penstock.nnapi.codes import ResultCode


class NnapiError(PenstockError):
    """A call of NNAPI's object model that does not answer NO_ERROR; *code* is what it answers."""

    def __init__(self, code: ResultCode, message: str) -> None:
        self.code, self.message = code, message
        super().__init__(f"{code.name}: {message}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.message)


STATUS_CODES: Final[Mapping[ErrorStatus, ResultCode]] = {
    ErrorStatus.NONE: ResultCode.NO_ERROR,
    ErrorStatus.DEVICE_UNAVAILABLE: ResultCode.UNAVAILABLE_DEVICE,
    ErrorStatus.GENERAL_FAILURE: ResultCode.OP_FAILED,
    ErrorStatus.OUTPUT_INSUFFICIENT_SIZE: ResultCode.OUTPUT_INSUFFICIENT_SIZE,
    ErrorStatus.INVALID_ARGUMENT: ResultCode.BAD_DATA,
    ErrorStatus.MISSED_DEADLINE_TRANSIENT: ResultCode.MISSED_DEADLINE_TRANSIENT,
    ErrorStatus.MISSED_DEADLINE_PERSISTENT: ResultCode.MISSED_DEADLINE_PERSISTENT,
    ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT: ResultCode.RESOURCE_EXHAUSTED_TRANSIENT,
    ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT: ResultCode.RESOURCE_EXHAUSTED_PERSISTENT,
    ErrorStatus.DEAD_OBJECT: ResultCode.DEAD_OBJECT,
}
"""The result code of each HAL status."""


def code_of(error: PenstockError | MemoryError) -> ResultCode:
    """The result code that stands for *error*; OP_FAILED for what has none of its own."""
    if isinstance(error, NnapiError):
        return error.code
    if isinstance(error, DriverError):
        return STATUS_CODES[error.status]
    if isinstance(error, ModelError | InputError | PlacementError):
        return ResultCode.BAD_DATA
    if isinstance(error, StateError | ClosedError):
        return ResultCode.BAD_STATE
    if isinstance(error, MemoryError):
        return ResultCode.OUT_OF_MEMORY
    return ResultCode.OP_FAILED


def driver_error(error: NnapiError) -> DriverError:
    """The driver's error that *error* is told as where no result codes are known: `GeneralFailure`
    for most.
    """
    statuses = {
        code: status for status, code in STATUS_CODES.items() if status is not ErrorStatus.NONE
    }
    kind = driver_error_classes()[statuses.get(error.code, ErrorStatus.GENERAL_FAILURE)]
    return kind(error.message)


@contextmanager
def translated() -> Iterator[None]:
    """Raises the `NnapiError` of whatever `PenstockError` the block raises, or OUT_OF_MEMORY."""
    try:
        yield
    except NnapiError:
        raise
    except (PenstockError, MemoryError) as error:
        raise NnapiError(code_of(error), str(error) or "no memory is left") from error


def unexpected_null(what: str) -> NnapiError:
    return NnapiError(ResultCode.UNEXPECTED_NULL, f"{what} is None")


def bad_data(message: str) -> NnapiError:
    return NnapiError(ResultCode.BAD_DATA, message)


def bad_state(message: str) -> NnapiError:
    return NnapiError(ResultCode.BAD_STATE, message)
