"""Models prepared in a host process that survive the death of that process (NNAPI section 5.3)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from threading import get_ident
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakSet

from msgspec.structs import replace

from penstock import errors, hal
from penstock.hal.fence import remaining_seconds
from penstock.hal.prepared import Opened
from penstock.ipc.channel import UNANSWERED, DeviceChannel, Session
from penstock.ipc.client import RemoteDevice, RemotePreparedModel
from penstock.ipc.crash_records import Underway
from penstock.ipc.deadlines import halfway_to
from penstock.ipc.pools import RemoteFence
from penstock.ipc.ring_client import NOT_ANSWERED, NOT_STOPPED
from penstock.ipc.supervision import QUARANTINE_SECONDS, Supervisor
from penstock.ir import Model
from penstock.logs import Log

log = Log(__name__)

T = TypeVar("T")

MOST_DEATHS_OF_A_MODEL: Final = 3
"""Consecutive deaths during runs of a model, before it is barred for `QUARANTINE_SECONDS`."""


class Home(Protocol):
    """The device of an isolated model: an `IsolatedDevice`."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def supervisor(self) -> Supervisor: ...

    def remote(self, deadline_ns: int | None = None) -> RemoteDevice:
        """The device in the running, or newly started, process."""

    def await_end(self, deadline_ns: int | None = None) -> None:
        """Waits until it is known how a dead process ended, or until the deadline."""

    def recording(
        self, call: str, model: Model | None, deadline_ns: int | None = None
    ) -> AbstractContextManager[None]:
        """See `Supervisor.recording`."""

    def abandon(self, why: str) -> None:
        """Kills the process."""


class IsolatedPreparedModel:
    """A prepared model that is prepared again after its process has died: from its cache entry, or
    else from the retained model. A model from a cache has to be given to `retain`; without it the
    first death is final.
    """

    def __init__(
        self,
        device: Home,
        remote: RemotePreparedModel,
        model: Model | None,
        config: hal.PrepareConfig,
    ) -> None:
        self.device = device
        # Whether to kill the process if a run has not ended at its deadline.
        self.ends_with_its_call = False
        self._remote, self._home = remote, (remote, session_of(remote))
        self._model = model
        self._opened: Opened | None = None
        self._call = Underway("execute", device.name, device.version, model)
        # Without the fields of the single call.
        kept = ("preference", "priority", "accuracy", "num_threads", "options", "attributes")
        self._config = hal.PrepareConfig(**{name: getattr(config, name) for name in kept})
        self._lock = threading.Lock()
        self._deaths = 0
        # Each death counts once, however many runs notice it.
        self._ended: WeakSet[Session] = WeakSet()
        self._barred_until = 0.0
        self._closed = False

    @property
    def cache_report(self) -> hal.CacheReport:
        return self._remote.cache_report

    def retain(self, model: Model) -> None:
        """Keeps *model*, the source of this prepared model."""
        self._model = model
        self._call = self._call._replace(model=model)

    def retain_entry(self, opened: Opened) -> None:
        """Keeps what opens the model's cache entry."""
        self._opened = opened

    @property
    def model(self) -> Model | None:
        """The source model, if known."""
        return self._model

    def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        return self.run(lambda remote: remote.execute(request, config), request, config)

    def execute_fenced(
        self,
        request: hal.Request,
        wait_for: Sequence[hal.Fence],
        config: hal.ExecutionConfig,
        timeout_after_fence_ns: int | None = None,
    ) -> hal.Fence:
        fence, incidents, copies = self._retrying(
            "execute_fenced",
            lambda r: r.execute_fenced(request, wait_for, config, timeout_after_fence_ns),
            request,
            config,
        )
        if not incidents and not copies:
            return fence
        remote = fence if isinstance(fence, RemoteFence) else RemoteFence(fence, request)
        remote.incidents, remote.before = incidents, copies
        return remote

    def configure_burst(self) -> hal.Burst:
        return _Executable(self, RemotePreparedModel.configure_burst)

    def create_reusable_execution(self, request: hal.Request) -> hal.ReusableExecution:
        def make(remote: RemotePreparedModel, deadline_ns: int | None) -> hal.ReusableExecution:
            return remote.create_reusable_execution(request, deadline_ns)

        return _Executable(self, make, request)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._remote.close()

    def run(
        self,
        call: Callable[[RemotePreparedModel], hal.ExecutionResult],
        request: hal.Request,
        config: hal.ExecutionConfig,
    ) -> hal.ExecutionResult:
        """The result of *call*, which executes *request*. Retried if the process dies of it."""
        try:
            result, incidents, copies = self._retrying("execute", call, request, config)
        except (errors.MissedDeadlineTransient, errors.Cancelled) as error:
            why = str(error)
            if self.ends_with_its_call and why in {NOT_ANSWERED, NOT_STOPPED, UNANSWERED}:
                # The process still executes the run.
                self.device.abandon(why)
            raise
        self.device.supervisor.succeeded()
        if not incidents and not copies:
            return result
        copies = (*copies, *result.copies)
        return hal.RemoteResult(result.output_shapes, result.timing, copies, incidents)

    def _retrying(
        self,
        name: str,
        call: Callable[[RemotePreparedModel], T],
        request: hal.Request,
        config: hal.ExecutionConfig,
    ) -> tuple[T, tuple[str, ...], tuple[hal.ArgumentCopy, ...]]:
        """The result of *call*, incidents, and copies made for failed attempts. One death during
        the call, or while the model is prepared for it, is retried.
        """
        copies: list[hal.ArgumentCopy] = []

        def counting(remote: RemotePreparedModel) -> T:
            try:
                return call(remote)
            except errors.DriverError as error:
                copies.extend(error.copies)
                raise

        try:
            result, incident = self._retried(name, counting, request, config)
        except errors.DriverError as error:
            error.copies = tuple(copies)
            raise
        return result, (incident,) if incident else (), tuple(copies)

    def _retried(
        self,
        name: str,
        call: Callable[[RemotePreparedModel], T],
        request: hal.Request,
        config: hal.ExecutionConfig,
    ) -> tuple[T, str]:
        remote, session = self._home
        supervisor = self.device.supervisor
        underway, ends = supervisor.underway, supervisor.ends
        if not session.end_reason or self._closed:
            # A thread makes one call at a time, and no other object has its number.
            thread = get_ident()
            underway[thread] = self._call if name == "execute" else self._call._replace(call=name)
            try:
                result = call(remote)
            except errors.DeadObject as error:
                if not session.end_reason:
                    raise
                self._count_death(session)
                self.device.await_end(halfway_to(config.deadline_ns))
                if names_buffers(request):
                    raise errors.DeadObject(session.end_reason) from error
            else:
                self._deaths = 0
                return result, ""
            finally:
                underway.pop(thread, None)
        elif names_buffers(request):
            raise errors.DeadObject(f"{session.end_reason}, and the buffers of this run with it")
        else:
            try:
                return self._once(name, call, config, halfway_to(config.deadline_ns))
            except errors.DeadObject:
                if supervisor.ends == ends:
                    raise
        return self._once(name, call, config, config.deadline_ns)

    def _once(
        self,
        name: str,
        call: Callable[[RemotePreparedModel], T],
        config: hal.ExecutionConfig,
        record_ns: int | None,
    ) -> tuple[T, str]:
        """*call* in the running process, and the incidents of the process before it."""
        device, supervisor = self.device, self.device.supervisor
        if self._deaths >= MOST_DEATHS_OF_A_MODEL and time.monotonic() < self._barred_until:
            raise errors.DeadObject(
                f"the process of device {device.name} died {self._deaths} times in a row while it "
                "ran this model, which is not run there any more"
            )
        remote = self.current(halfway_to(config.deadline_ns), config)
        ended = supervisor.last_end
        try:
            with device.recording(name, self._model, record_ns):
                result = call(remote)
        except errors.DeadObject as error:
            if not session_of(remote).end_reason:
                raise
            device.await_end(record_ns)
            self._count_death(session_of(remote))
            how = f"{supervisor.last_end}, the one that was started in its place too"
            raise errors.DeadObject(f"the process of device {device.name} {how}") from error
        self._deaths = 0
        return result, f"its driver's process {ended}; it was started again, and the run repeated"

    def _count_death(self, session: Session) -> None:
        with self._lock:
            if session not in self._ended:
                self._ended.add(session)
                self._deaths += 1
                self._barred_until = time.monotonic() + QUARANTINE_SECONDS

    def current(
        self, deadline_ns: int | None = None, config: hal.ExecutionConfig | None = None
    ) -> RemotePreparedModel:
        """The model in the running process. `DeadObject` if it is not ready by the deadline."""
        left = remaining_seconds(deadline_ns)
        if not self._lock.acquire(timeout=-1 if left is None else left):
            message = f"device {self.device.name}: the model is still being prepared again"
            raise errors.DeadObject(message)
        try:
            if self._closed:
                raise errors.ClosedError("a prepared model was used after close()")
            if not session_of(self._remote).end_reason:
                return self._remote
            if self._model is None:
                raise errors.DeadObject("its process died, and no model was kept to prepare again")
            cancel = None if config is None else config.cancel
            own = replace(self._config, deadline_ns=deadline_ns, cancel=cancel)
            remote = self._loaded(own)
            if remote is None:
                with self.device.recording("prepare_model", self._model, deadline_ns):
                    remote = self.device.remote(deadline_ns).prepare_model(self._model, own)
            self._remote, self._home = remote, (remote, session_of(remote))
            return remote
        finally:
            self._lock.release()

    def _loaded(self, config: hal.PrepareConfig) -> RemotePreparedModel | None:
        """The model in the running process, from its cache entry; None if it has to be compiled."""
        if self._opened is None:
            return None
        name = "prepare_model_from_cache"
        device = self.device.remote(config.deadline_ns)
        try:
            with (
                self.device.recording(name, self._model, config.deadline_ns),
                self._opened(config) as filled,
            ):
                return device.prepare_model_from_cache(filled)
        except (errors.CacheError, errors.DriverError) as error:
            if session_of(device).end_reason:
                raise
            log.info("%s is compiled again: %s", self.device.name, error)
            return None


class _Executable:
    """A burst, or the reusable execution of *request*, of a model.

    *make* makes it, and makes it again once the model was prepared in another process.
    """

    def __init__(
        self,
        prepared: IsolatedPreparedModel,
        make: Callable[[RemotePreparedModel, int | None], hal.Burst | hal.ReusableExecution],
        request: hal.Request | None = None,
    ) -> None:
        self._prepared, self._make, self._request = prepared, make, request
        self._model = prepared.current()
        self._made: Any = make(self._model, None)
        self._closed = False

    def execute(self, *arguments: Any) -> hal.ExecutionResult:
        """As `Burst.execute` or `ReusableExecution.execute`: the last argument is the config."""
        if self._closed:
            name = "burst" if self._request is None else "reusable execution"
            raise errors.ClosedError(f"a {name} was used after close()")
        config: hal.ExecutionConfig = arguments[-1]

        def call(remote: RemotePreparedModel) -> hal.ExecutionResult:
            if remote is not self._model:
                self._model, self._made = remote, self._make(remote, config.deadline_ns)
            result: hal.ExecutionResult = self._made.execute(*arguments)
            return result

        request = arguments[0] if self._request is None else self._request
        return self._prepared.run(call, request, config)

    def close(self) -> None:
        self._closed = True
        self._made.close()


def names_buffers(request: hal.Request) -> bool:
    """Whether *request* names driver-managed buffers, which end with their process."""
    return any(isinstance(a, hal.TokenArgument) for a in (*request.inputs, *request.outputs))


def session_of(remote: RemoteDevice | RemotePreparedModel) -> Session:
    """The connection to the process of *remote*."""
    channel = remote.channel
    assert isinstance(channel, DeviceChannel)
    return channel.session
