"""Errors of the command line itself, and the exit code of every error."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock import errors

DONE: Final = 0
WORK_FAILED: Final = 1
USAGE: Final = 2
BAD_FILE: Final = 3
INTERRUPTED: Final = 130


class UsageError(errors.PenstockError):
    """The command line is wrong."""


class FileError(errors.InputError):
    """A file named on the command line is missing, unreadable, or does not fit the model."""

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"{path}: {reason}")


class OutputError(errors.PenstockError):
    """A result cannot be written."""

    def __init__(self, target: object, reason: str) -> None:
        super().__init__(f"cannot write {target}: {reason}")


class Unfinished(errors.PenstockError):
    """The command has printed everything, also its JSON object, and still fails with *code*."""

    def __init__(self, text: str, code: int = WORK_FAILED) -> None:
        super().__init__(text)
        self.code = code


class Misused(errors.PenstockError):
    """The command line cannot be parsed; *kind* names the defect in `--json`."""

    def __init__(self, text: str, kind: str, code: int) -> None:
        super().__init__(text)
        self.kind, self.code = kind, code


class Interrupted(errors.PenstockError):
    """The user has pressed Ctrl-C."""


USAGES: Final = (UsageError, errors.NotAvailable, errors.UnknownSignature, errors.BadSetting)
"""Errors of what the user wrote on the command line or in a setting."""

UNWRITABLE: Final = frozenset({errno.ENOSPC, errno.EIO, errno.EBADF, errno.EDQUOT, errno.EFBIG})
"""Errors of a stream that accepts no more output."""


def exit_code(error: BaseException) -> int:
    """1: the work failed, 2: usage, 3: bad input file, 130: interrupted."""
    if isinstance(error, KeyboardInterrupt | Interrupted):
        return INTERRUPTED
    if isinstance(error, Unfinished | Misused):
        return error.code
    if isinstance(error, USAGES):
        return USAGE
    if isinstance(error, FileError | errors.ModelError):
        return BAD_FILE
    return WORK_FAILED


def message(error: BaseException) -> str:
    """The error in one line. Names the class if Penstock did not raise it deliberately."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    text = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
    if isinstance(error, errors.PenstockError):
        return text or type(error).__name__
    if of_descriptors(error):
        return f"{errors.NO_DESCRIPTOR_LEFT} ({type(error).__name__}: {text})"
    return f"internal error: {type(error).__name__}" + (f": {text}" if text else "")


def of_descriptors(error: BaseException) -> bool:
    """Whether the process has no file descriptor left. Importing a module needs one, too."""
    if isinstance(error, OSError):
        return error.errno in errors.NO_DESCRIPTOR
    return isinstance(error, ImportError) and os.strerror(errno.EMFILE) in str(error)


def of_the_output(error: BaseException) -> bool:
    """Whether *error* is about the standard output: an error about a file names the file."""
    return isinstance(error, OSError) and error.filename is None and error.errno in UNWRITABLE


def name(error: BaseException) -> str:
    """The class of the defect; for a `FileError` the class of its `ModelError`."""
    if isinstance(error, Misused):
        return error.kind
    cause = error.__cause__
    return type(cause if isinstance(cause, errors.ModelError) else error).__name__


@contextmanager
def opening(path: object, *defects: type[errors.PenstockError]) -> Iterator[None]:
    """A block that converts an `OSError`, and *defects* of the file, to a `FileError`."""
    try:
        yield
    except OSError as error:
        raise FileError(path, os_reason(error)) from None
    except defects as error:
        raise FileError(path, str(error)) from error


@contextmanager
def reading(path: object, unreadable: str) -> Iterator[None]:
    """A block that converts any exception of a library about a damaged file to a `FileError`.

    The message begins with *unreadable*. The block also silences the library's warnings.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except errors.PenstockError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise FileError(path, os_reason(error)) from None
        reason = " ".join(str(error).split())
        raise FileError(path, f"{unreadable}: {reason}" if reason else unreadable) from error


def os_reason(error: OSError) -> str:
    """The system's reason why a file could not be read, or a clearer one."""
    if error.errno == errno.EISDIR:
        return "is a directory; name a file"
    return error.strerror or str(error) or type(error).__name__
