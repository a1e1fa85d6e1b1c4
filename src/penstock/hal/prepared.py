"""A prepared model: the result of a driver's compilation, which can run often and concurrently."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from penstock.errors import DriverError, GeneralFailure, MissedDeadlineTransient
from penstock.hal.config import ExecutionConfig, PrepareConfig
from penstock.hal.request import ExecutionResult, Request
from penstock.hal.validate import validate_fenced
from penstock.ir import Model, NDArray

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from penstock.hal.fence import Fence


class Burst(Protocol):
    """A series of executions on one prepared model, one at a time, which reuses resources."""

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        """As `PreparedModel.execute`; `GeneralFailure` if another run of this burst is active."""

    def close(self) -> None: ...


class ReusableExecution(Protocol):
    """A request that is bound once and executed often, one run at a time."""

    def execute(self, config: ExecutionConfig) -> ExecutionResult: ...

    def close(self) -> None: ...


class CacheReport(msgspec.Struct, frozen=True):
    """State of the cache files that a prepared model was given.

    *save* is "saved", "failed" (with the *reason*, `<Name>: sentence`), or "none" if no save was
    requested or the driver reports nothing. *later* means that the driver kept duplicates of the
    handles and may write when a compilation or optimisation ends. *artefact* names the form that it
    executes, for a driver with several ("baseline", "optimised").
    """

    save: Literal["none", "saved", "failed"] = "none"
    reason: str = ""
    later: bool = False
    artefact: str = ""


NO_CACHE_REPORT: Final[CacheReport] = CacheReport()


def report_of(prepared: object) -> CacheReport:
    """The cache report of a driver's object; the empty report for an object without one."""
    report: CacheReport = getattr(prepared, "cache_report", NO_CACHE_REPORT)
    return report


class PreparedModel(Protocol):
    """The result of `Device.prepare_model`.

    Holds no network state: equal requests give equal results in any order and from any thread.
    `PreparedModelBase` has every optional method with its default.
    """

    @property
    def cache_report(self) -> CacheReport:
        """State of the cache files of its preparation."""

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        """Runs once, in the calling thread, and returns when every output is written.

        Input memory is only read; output memory is written only within its length. Raises
        `InvalidArgument` for a request that `penstock.hal.validate_request` rejects,
        `OutputInsufficientSize` with every output's true shape if one does not fit,
        `MissedDeadline*` or `Cancelled` if it is stopped, and `GeneralFailure` for other errors.
        After any error the content of the outputs is undefined. A driver need not notice a deadline
        or a cancellation within an operation.
        """

    def execute_fenced(
        self,
        request: Request,
        wait_for: Sequence[Fence],
        config: ExecutionConfig,
        timeout_after_fence_ns: int | None = None,
    ) -> Fence:
        """Starts once every fence of *wait_for* has signalled; the returned fence signals the end.

        If an input fence fails, the execution and its fence fail with `GeneralFailure`. Outputs of
        unknown shape raise `InvalidArgument`. Nothing is written after the returned fence signals,
        except to device buffers, where later uses see what was written before them. The fence's
        `copies`, if it has that attribute, are those that the driver made.
        """

    def configure_burst(self) -> Burst:
        """A new burst on this model."""

    def create_reusable_execution(self, request: Request) -> ReusableExecution:
        """Validates and binds *request* for many runs."""

    def close(self) -> None:
        """Releases the driver's resources, with its bursts and executions.

        A second call does nothing.
        """


class PreparedModelBase:
    """The optional methods of `PreparedModel`; a driver's class inherits it and adds `execute`."""

    model: Model
    """The model it was prepared from. Optional; `execute_fenced` checks its outputs."""

    cache_report: CacheReport = NO_CACHE_REPORT
    """Optional. The default reports nothing."""

    compute: Callable[[Sequence[NDArray], Sequence[NDArray]], None] | None = None
    """Optional: a shorter way to run, `compute(inputs, outputs)`, without a request.

    The arrays are C-contiguous, of the operands' element types and shapes, all of them known; every
    output is wanted. There are no limits, attributes or times. Inputs are only read. Raises as
    `execute`. The runtime uses it for a model that is a single step, in the same process.
    """

    loops: bool = True
    """Optional: whether a run may loop a number of times that depends on its data.

    If so, a host process gives each run of a model loaded from a cache a cancel token, which is set
    when the client disconnects.
    """

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        """Required."""
        raise GeneralFailure(f"{type(self).__name__} has no execute")

    def execute_fenced(
        self,
        request: Request,
        wait_for: Sequence[Fence],
        config: ExecutionConfig,
        timeout_after_fence_ns: int | None = None,
    ) -> Fence:
        """Optional. The default waits in this thread, executes, and returns a signalled fence."""
        return execute_fenced(self, request, wait_for, config, timeout_after_fence_ns)

    def configure_burst(self) -> Burst:
        """Optional. The default executes each request separately."""
        return DefaultBurst(self)

    def create_reusable_execution(self, request: Request) -> ReusableExecution:
        """Optional. The default validates and executes the request each time."""
        return DefaultExecution(self, request)

    def close(self) -> None:
        """Optional. The default does nothing."""


Opened: TypeAlias = "Callable[[PrepareConfig], AbstractContextManager[PrepareConfig]]"
"""Opens the files of a cache entry: adds them, the token and the binding to a configuration. They
are closed at the end. Raises `CacheError` if there is no such entry.
"""


class OutOfProcessModel(Protocol):
    """A `PreparedModel` that is prepared again after its driver's process has ended."""

    def retain(self, model: Model) -> None:
        """Keeps a reference to the source model; a model that was loaded from a cache has none."""

    def retain_entry(self, opened: Opened) -> None:
        """Keeps what opens the model's cache entry: it is loaded from there, if it can be."""


def retain_model(prepared: Any, model: Model) -> None:
    """Gives *model* to *prepared* if that is an `OutOfProcessModel`."""
    if (retain := getattr(prepared, "retain", None)) is not None:
        retain(model)


def retain_entry(prepared: Any, opened: Opened) -> None:
    """Gives *opened* to *prepared* if that is an `OutOfProcessModel`."""
    if (retain := getattr(prepared, "retain_entry", None)) is not None:
        retain(opened)


def execute_fenced(
    prepared: PreparedModelBase,
    request: Request,
    wait_for: Sequence[Fence],
    config: ExecutionConfig,
    timeout_after_fence_ns: int | None = None,
) -> Fence:
    """Waits in the calling thread, executes, and returns a signalled fence."""
    from penstock.hal.fence import EventFence

    if (model := getattr(prepared, "model", None)) is not None:
        validate_fenced(model)
    done = EventFence()
    try:
        await_fences(wait_for, config)
        if timeout_after_fence_ns is not None:
            latest = time.monotonic_ns() + timeout_after_fence_ns
            deadline = latest if config.deadline_ns is None else min(latest, config.deadline_ns)
            config = replace(config, deadline_ns=deadline)
        result: object = prepared.execute(request, config)
    except DriverError as error:
        done.copies = error.copies
        done.signal(error)
    else:
        if isinstance(result, ExecutionResult):
            done.copies = result.copies
        done.signal()
    return done


def await_fences(wait_for: Sequence[Fence], config: ExecutionConfig) -> None:
    """Waits for the fences of a fenced execution. Raises `GeneralFailure` if one of them failed,
    `MissedDeadlineTransient`, `Cancelled`.
    """
    from penstock.hal.fence import signals_in_time

    for fence in wait_for:
        if not signals_in_time(fence, config):
            raise MissedDeadlineTransient("a fence did not signal before the deadline")
        if (failure := fence.error()) is not None:
            raise GeneralFailure(f"a fence this execution waits for failed: {failure}")


class DefaultBurst:
    """`Burst` over plain executions."""

    def __init__(self, prepared: PreparedModelBase) -> None:
        self._prepared = prepared
        self._running = threading.Lock()

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        if not self._running.acquire(blocking=False):
            raise GeneralFailure("this burst is executing already")
        try:
            return self._prepared.execute(request, config)
        finally:
            self._running.release()

    def close(self) -> None:
        """Does nothing."""


class DefaultExecution:
    """`ReusableExecution` over plain executions."""

    def __init__(self, prepared: PreparedModelBase, request: Request) -> None:
        self._prepared, self._request = prepared, request

    def execute(self, config: ExecutionConfig) -> ExecutionResult:
        return self._prepared.execute(self._request, config)

    def close(self) -> None:
        """Does nothing."""
