"""Devices in a host process that survive the death of that process (NNAPI section 5.3)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from threading import get_ident
from typing import Any, Final, TypeVar
from weakref import WeakSet

from msgspec.structs import replace

from penstock import errors, hal, knobs
from penstock.hal.fence import remaining_seconds
from penstock.ipc.channel import UNANSWERED, DeviceChannel, Session
from penstock.ipc.client import Described, RemoteDevice, RemotePreparedModel
from penstock.ipc.crash_records import Underway
from penstock.ipc.deadlines import current_deadline, deadline_context, halfway_to, record_restart
from penstock.ipc.host_connection import HostConnection
from penstock.ipc.pools import RemoteFence
from penstock.ipc.ring_client import NOT_ANSWERED, NOT_STOPPED
from penstock.ipc.supervision import QUARANTINE_SECONDS, Supervisor
from penstock.ir import Model

T = TypeVar("T")

MOST_DEATHS_OF_A_MODEL: Final = 3
"""Consecutive deaths during runs of a model, before it is barred for `QUARANTINE_SECONDS`."""


class IsolatedDevice(Described):
    """One device of the driver in the host process of *supervisor*.

    A call that finds the process dead is retried once on the restarted process. If the restarted
    device has another name, version or capabilities, every call raises `GeneralFailure`.
    """

    isolated: Final = True

    def __init__(self, supervisor: Supervisor, index: int) -> None:
        self.supervisor, self._index = supervisor, index
        self._lock = threading.Lock()
        self._changed = ""
        self._host = supervisor.connection()
        self._remote = RemoteDevice(self._host.session.channel(index))
        super().__init__(self._remote.description)

    @property
    def pid(self) -> int | None:
        """The process that runs the driver now; None if there is none."""
        host = self.supervisor.running
        return None if host is None else host.pid

    def check(self) -> str | None:
        return self.supervisor.quarantined or self._brief("check", None, RemoteDevice.check)

    def supported_operations(self, model: Model) -> Sequence[hal.Support]:
        return self._brief("supported_operations", model, lambda r: r.supported_operations(model))

    def cache_files_needed(self) -> tuple[int, int]:
        return self._brief("cache_files_needed", None, RemoteDevice.cache_files_needed)

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> hal.PreparedModel:
        def call(remote: RemoteDevice) -> RemotePreparedModel:
            return remote.prepare_model(model, config)

        made = self._retrying("prepare_model", model, call, config.deadline_ns)
        return IsolatedPreparedModel(self, made, model, config)

    def prepare_model_from_cache(self, config: hal.PrepareConfig) -> hal.PreparedModel:
        def call(remote: RemoteDevice) -> RemotePreparedModel:
            return remote.prepare_model_from_cache(config)

        made = self._retrying("prepare_model_from_cache", None, call, config.deadline_ns)
        return IsolatedPreparedModel(self, made, None, config)

    def dump(self, model: Model, config: hal.PrepareConfig, stage: str) -> str:
        def call(remote: RemoteDevice) -> str:
            return remote.dump(model, config, stage)

        return self._retrying("dump", model, call, config.deadline_ns)

    def explain(self, model: Model, config: hal.PrepareConfig) -> Sequence[str]:
        def call(remote: RemoteDevice) -> Sequence[str]:
            return remote.explain(model, config)

        return self._retrying("explain", model, call, config.deadline_ns)

    def allocate(
        self, desc: hal.BufferDesc, roles: Sequence[hal.BufferRole]
    ) -> tuple[int, hal.Buffer]:
        def call(remote: RemoteDevice) -> tuple[int, hal.Buffer]:
            return remote.allocate(desc, [self._role(role) for role in roles])

        return self._retrying("allocate", None, call)

    def close(self) -> None:
        """Releases resources kept for later runs; objects on the device stay open."""
        if not self._host.session.end_reason:
            self._remote.trim()

    def abandon(self, why: str) -> None:
        """Kills the process, which still runs an abandoned call. The next call restarts it."""
        self._host.kill(why)

    def _brief(self, name: str, model: Model | None, call: Callable[[RemoteDevice], T]) -> T:
        """A call that every driver answers quickly.

        Without an answer within `driver_timeout_ms` the process is killed: `DeadObject`. Raises
        `MissedDeadlineTransient` at half of the compile's time.
        """
        limit_ms = knobs.driver_timeout_ms()
        limit_ns = time.monotonic_ns() + limit_ms * 1_000_000
        half_ns = halfway_to(current_deadline())
        is_hung = half_ns is None or limit_ns <= half_ns
        end_ns = limit_ns if is_hung or half_ns is None else half_ns
        try:
            with deadline_context(end_ns):
                return self._retrying(name, model, call, end_ns)
        except errors.MissedDeadlineTransient:
            what = f"device {self.name}: {name} has not returned"
            if not is_hung:
                message = f"{what} before half of the time was over"
                raise errors.MissedDeadlineTransient(message) from None
            what += f" within {limit_ms / 1000:g} s, the knob driver_timeout_ms"
            self._host.kill(what)
            raise errors.DeadObject(f"{what}; its process was killed") from None

    def _retrying(
        self,
        name: str,
        model: Model | None,
        call: Callable[[RemoteDevice], T],
        deadline_ns: int | None = None,
    ) -> T:
        """Makes *call*, and retries it if the process dies. Records a restart."""
        deadline_ns = current_deadline() if deadline_ns is None else deadline_ns
        host, session = self._host, self._host.session
        try:
            with self.recording(name, model, halfway_to(deadline_ns)):
                remote = self.remote(deadline_ns)
                session = session_of(remote)
                result = call(remote)
        except errors.DeadObject:
            # Another call may have found the process dead, and restarted it, meanwhile.
            if not session.end_reason:
                raise
            self.await_end(halfway_to(deadline_ns))
            with self.recording(name, model, deadline_ns):
                result = call(self.remote(halfway_to(deadline_ns)))
        if self._host is not host and (ended := self.supervisor.last_end):
            record_restart(self.name, ended)
        return result

    def remote(self, deadline_ns: int | None = None) -> RemoteDevice:
        """The device in the running, or newly started, process. Raises `DeadObject` if there is
        none, `GeneralFailure` if the device has changed.
        """
        if not self._host.session.end_reason:
            return self._remote
        host = self.supervisor.connection(deadline_ns)
        left = remaining_seconds(deadline_ns)
        if not self._lock.acquire(timeout=-1 if left is None else left):
            message = f"device {self.name} is still being described by its new process"
            raise errors.DeadObject(message)
        try:
            if self._changed:
                raise errors.GeneralFailure(self._changed)
            if host is not self._host:
                # In this order: a thread that finds the connection open uses that process's device.
                self._remote = self._same(host, deadline_ns)
                self._host = host
            return self._remote
        finally:
            self._lock.release()

    def await_end(self, deadline_ns: int | None = None) -> None:
        """Waits until the supervisor knows how a dead process ended, or until the deadline."""
        self.supervisor.await_end(self._host, deadline_ns)

    def recording(
        self, call: str, model: Model | None, deadline_ns: int | None = None
    ) -> AbstractContextManager[None]:
        """See `Supervisor.recording`."""
        underway = Underway(call, self.name, self.version, model)
        return self.supervisor.recording(underway, deadline_ns)

    def _same(self, host: HostConnection, deadline_ns: int | None) -> RemoteDevice:
        how = f"its driver has {host.devices} devices now"
        if self._index < host.devices:
            again = RemoteDevice(host.session.channel(self._index), deadline_ns)
            for what in ("name", "version", "capabilities", "feature_level"):
                was, now = getattr(self._remote, what), getattr(again, what)
                if was != now:
                    how = (
                        f"after its process died its {what} is {now!r}, and was {was!r}; "
                        "a program that is started now takes it as it is"
                    )
                    break
            else:
                return again
        self._changed = f"device {self._remote.name} is not what it was: {how}"
        raise errors.GeneralFailure(self._changed)

    def _role(self, role: hal.BufferRole) -> hal.BufferRole:
        prepared = role.prepared
        if not isinstance(prepared, IsolatedPreparedModel) or prepared.device is not self:
            raise errors.InvalidArgument("a role names a prepared model of another device")
        return replace(role, prepared=prepared.current())


class IsolatedPreparedModel:
    """A prepared model that is prepared again after its process has died, from the retained model.
    A model from a cache has to be given to `retain`; without it the first death is final.
    """

    def __init__(
        self,
        device: IsolatedDevice,
        remote: RemotePreparedModel,
        model: Model | None,
        config: hal.PrepareConfig,
    ) -> None:
        self.device = device
        # Whether to kill the process if a run has not ended at its deadline.
        self.ends_with_its_call = False
        self._remote, self._home = remote, (remote, session_of(remote))
        self._model = model
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
            with self.device.recording("prepare_model", self._model, deadline_ns):
                remote = self.device.remote(deadline_ns).prepare_model(self._model, own)
            self._remote, self._home = remote, (remote, session_of(remote))
            return remote
        finally:
            self._lock.release()


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
