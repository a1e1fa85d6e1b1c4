"""Options of preparation and execution: every argument except models and data."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

import msgspec

from penstock.errors import Cancelled
from penstock.hal.capabilities import AccuracyClass, ExtensionAttribute

Preference: TypeAlias = Literal["low_power", "fast_single_answer", "sustained_speed"]
Priority: TypeAlias = Literal["low", "medium", "high"]

PREFERENCES: Final[tuple[Preference, ...]] = ("low_power", "fast_single_answer", "sustained_speed")
PRIORITIES: Final[tuple[Priority, ...]] = ("low", "medium", "high")

BYTE_SIZE_OF_CACHE_TOKEN: Final = 32
MAX_NUMBER_OF_CACHE_FILES: Final = 32

NO_TOKEN: Final = bytes(BYTE_SIZE_OF_CACHE_TOKEN)
"""The token if cache-handle lists are empty; drivers ignore it (NNAPI section 2.3)."""


class CancelToken:
    """A flag for running work to check. It can be set again, but not cleared."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Requests cancellation: calls that hold this token raise `Cancelled` soon afterwards."""
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()

    def check(self) -> None:
        """Raises `Cancelled` once the token is set."""
        if self._event.is_set():
            raise Cancelled("the cancel token was set")


class ProgressEvent(msgspec.Struct, frozen=True):
    """Progress: *stage* ("compile"), the subject of the work, and *done* of *total* units."""

    stage: str
    subject: str
    done: int
    total: int


ProgressCallback: TypeAlias = Callable[[ProgressEvent], None]


class CacheHandle:
    """An open cache file, read-write, borrowed for the call (NNAPI section 2.3).

    A driver that keeps it duplicates *fd*. It does not rely on the file offset, and truncates
    before it writes. No message contains *fd* as a number, so this is not a struct.
    """

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CacheHandle) and other.fd == self.fd

    def __hash__(self) -> int:
        return hash(self.fd)

    def __repr__(self) -> str:
        return f"CacheHandle(fd={self.fd})"


class PrepareConfig(
    msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True
):
    """Arguments of `Device.prepare_model` and `prepare_model_from_cache`.

    *deadline_ns* is a `time.monotonic_ns()` value. *token* names the entry in the cache files, and
    *binding* is the digest of every derived ingredient of the cache key. Both are 32 bytes, and
    meaningless while the handle lists are empty. *lock* is the entry's lock file, opened for this
    driver alone. A driver that keeps handles to write later also duplicates the lock, and locks it
    while it writes (`penstock.sealed.LateWriter`). It is None if late writes are forbidden.

    *accuracy* is the requested class. *num_threads* None leaves the number to the driver.
    *attributes* are hints to this device for extensions that it offers. *progress* and *cancel* are
    handles.
    """

    preference: Preference = "fast_single_answer"
    priority: Priority = "medium"
    deadline_ns: int | None = None
    token: bytes = NO_TOKEN
    binding: bytes = NO_TOKEN
    model_cache: tuple[CacheHandle, ...] = ()
    data_cache: tuple[CacheHandle, ...] = ()
    lock: CacheHandle | None = None
    accuracy: AccuracyClass = "faithful"
    num_threads: int | None = None
    options: tuple[tuple[str, str], ...] = ()
    attributes: tuple[ExtensionAttribute, ...] = ()
    progress: ProgressCallback | None = None
    cancel: CancelToken | None = None


PORTABLE: Final = "portable"
"""The option in `PrepareConfig.options` that names the baseline of a portable artefact."""


def portable_of(config: PrepareConfig) -> str:
    """The baseline that a device compiles for instead of the processor; "" for the processor.

    A device gets it only if its `Capabilities.baselines` have it.
    """
    return dict(config.options).get(PORTABLE, "")


class ExecutionConfig(
    msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True
):
    """Arguments of one execution.

    *deadline_ns* is a `time.monotonic_ns()` value. *loop_timeout_ns* bounds each evaluation of a
    WHILE separately; with None only the deadline and *cancel* end a loop. *measure* requests timing
    in the result. *attributes* are hints as in `PrepareConfig`, for this execution.
    """

    deadline_ns: int | None = None
    loop_timeout_ns: int | None = None
    measure: bool = False
    priority: Priority = "medium"
    attributes: tuple[ExtensionAttribute, ...] = ()
    cancel: CancelToken | None = None
