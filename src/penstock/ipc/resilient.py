"""Devices of a driver in a process of its own, which live on when that process dies (NNAPI section
5.3).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from threading import get_ident
from types import TracebackType
from typing import Final, Generic, NoReturn, Self, TypeVar
from weakref import WeakSet

from msgspec.structs import replace

from penstock import knobs
from penstock.errors import (
    Cancelled,
    ClosedError,
    DeadObject,
    DriverError,
    GeneralFailure,
    InvalidArgument,
    MissedDeadlineTransient,
)
from penstock.hal import (
    NO_TOKEN,
    ArgumentCopy,
    Buffer,
    BufferDesc,
    BufferRole,
    Burst,
    CacheReport,
    Capabilities,
    CarriedResult,
    DeviceType,
    ExecutionConfig,
    ExecutionResult,
    Fence,
    PrepareConfig,
    PreparedModel,
    Request,
    ReusableExecution,
    Support,
    TokenArgument,
)
from penstock.hal.fence import remaining_seconds
from penstock.ipc.channel import UNANSWERED, DeviceChannel, Session
from penstock.ipc.client import RemoteDevice, RemotePreparedModel
from penstock.ipc.crash_records import Underway
from penstock.ipc.deadlines import (
    current_deadline,
    deadline_context,
    halfway_to,
    record_restart,
)
from penstock.ipc.host_connection import Link
from penstock.ipc.pools import CarriedFence
from penstock.ipc.ring_client import NOT_ANSWERED, NOT_STOPPED
from penstock.ipc.supervision import QUARANTINE_SECONDS, Supervisor
from penstock.ir import Model

T = TypeVar("T")

MOST_DEATHS_OF_A_MODEL: Final = 3
"""Deaths in a row during runs of one prepared model, after which it is not run there for
`QUARANTINE_SECONDS`.
"""


class IsolatedDevice:
    """One device of a driver whose process *supervisor* owns.

    A call that finds the process dead is made once more, on the process that takes its place. Where
    that has another name, version or capabilities the device is of no use any more: every call is a
    `GeneralFailure`.
    """

    isolated: Final = True

    """Its driver lives in another process: what it is given is copied there unless it lies in a
    pool.
    """

    def __init__(self, supervisor: Supervisor, index: int) -> None:
        self.supervisor, self._index = supervisor, index
        self._lock = threading.Lock()
        self._changed = ""
        self._link = supervisor.link()
        self._remote = RemoteDevice(self._link.session.channel(index))

    @property
    def name(self) -> str:
        return self._remote.name

    @property
    def version(self) -> str:
        return self._remote.version

    @property
    def type(self) -> DeviceType:
        return self._remote.type

    @property
    def feature_level(self) -> int:
        return self._remote.feature_level

    @property
    def capabilities(self) -> Capabilities:
        return self._remote.capabilities

    @property
    def hal_version(self) -> int:
        return self._remote.hal_version

    @property
    def pid(self) -> int | None:
        """The process that the driver lives in now, if it does."""
        link = self.supervisor.running
        return None if link is None else link.pid

    def check(self) -> str | None:
        quarantined = self.supervisor.quarantined
        return quarantined or self._brief("check", None, lambda remote: remote.check())

    def supported_operations(self, model: Model) -> Sequence[Support]:
        return self._brief(
            "supported_operations", model, lambda remote: remote.supported_operations(model)
        )

    def cache_files_needed(self) -> tuple[int, int]:
        return self._brief("cache_files_needed", None, lambda r: r.cache_files_needed())

    def prepare_model(self, model: Model, config: PrepareConfig) -> PreparedModel:
        return IsolatedPreparedModel(self, self.prepared(model, config), model, config)

    def prepare_model_from_cache(self, config: PrepareConfig) -> PreparedModel:
        def load(remote: RemoteDevice) -> RemotePreparedModel:
            return remote.prepare_model_from_cache(config)

        made = self.twice("prepare_model_from_cache", None, load, config.deadline_ns)
        return IsolatedPreparedModel(self, made, None, config)

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> tuple[int, Buffer]:
        def call(remote: RemoteDevice) -> tuple[int, Buffer]:
            return remote.allocate(desc, [self._role(role) for role in roles])

        return self.twice("allocate", None, call)

    def close(self) -> None:
        """Lets go of what is kept for the next runs. The connection is that of every
        `IsolatedDevice` of this driver in this process: what was made on the device lives until it
        is closed itself.
        """
        if not self._link.session.end_reason:
            self._remote.trim()

    def abandon(self, why: str) -> None:
        """Kills the process, which goes on with a call that nobody waits for any more. It is
        started again for the next call, and what other clients have under way there is repeated.
        """
        self._link.condemn(why)

    def prepared(self, model: Model, config: PrepareConfig) -> RemotePreparedModel:
        """*model* prepared in the process that lives now."""

        def prepare(remote: RemoteDevice) -> RemotePreparedModel:
            return remote.prepare_model(model, config)

        return self.twice("prepare_model", model, prepare, config.deadline_ns)

    def _brief(self, name: str, model: Model | None, call: Callable[[RemoteDevice], T]) -> T:
        """`twice` for a call that no driver needs long for. Raises `DeadObject` where it has not
        answered within the knob `driver_timeout_ms`, for which its process is killed, however it
        beats, and `MissedDeadlineTransient` where it has not within half of what the compile has
        left.
        """
        limit_ms = knobs.driver_timeout_ms()
        limit_ns = time.monotonic_ns() + limit_ms * 1_000_000
        left_ns = halfway_to(current_deadline())
        is_hung = left_ns is None or limit_ns <= left_ns
        end_ns = limit_ns if is_hung or left_ns is None else left_ns
        try:
            with deadline_context(end_ns):
                return self.twice(name, model, call, end_ns)
        except MissedDeadlineTransient:
            told = f"device {self.name}: {name} has not returned"
            if not is_hung:
                raise MissedDeadlineTransient(f"{told} before half of the time was over") from None
            told += f" within {limit_ms / 1000:g} s, the knob driver_timeout_ms"
            self._link.condemn(told)
            raise DeadObject(f"{told}; its process was killed") from None

    def twice(
        self,
        name: str,
        model: Model | None,
        call: Callable[[RemoteDevice], T],
        deadline_ns: int | None = None,
    ) -> T:
        """*call*, once more where the process died of it, or before, which `collecting_restarts` is told."""
        if deadline_ns is None:
            deadline_ns = current_deadline()
        link = self._link
        session = link.session
        result = self._twice(name, model, call, deadline_ns, session)
        if self._link is not link and (ended := self.supervisor.last_end):
            record_restart(self.name, ended)
        return result

    def _twice(
        self,
        name: str,
        model: Model | None,
        call: Callable[[RemoteDevice], T],
        deadline_ns: int | None,
        session: Session,
    ) -> T:
        try:
            with self.noted(name, model, halfway_to(deadline_ns)):
                remote = self.remote(deadline_ns)
                session = session_of(remote)
                return call(remote)
        except DeadObject:
            # Another call may have found it gone, and have had it started again, since.
            if not session.end_reason:
                raise
            self.buried(halfway_to(deadline_ns))
        with self.noted(name, model, deadline_ns):
            return call(self.remote(halfway_to(deadline_ns)))

    def remote(self, deadline_ns: int | None = None) -> RemoteDevice:
        """The device in the process that lives now. Raises `DeadObject` where there is none,
        `GeneralFailure` where it is another device than it was.
        """
        if not self._link.session.end_reason:
            return self._remote
        link = self.supervisor.link(deadline_ns)
        left = remaining_seconds(deadline_ns)
        if not self._lock.acquire(timeout=-1 if left is None else left):
            raise DeadObject(f"device {self.name} is still being described by its new process")
        try:
            if self._changed:
                raise GeneralFailure(self._changed)
            if link is not self._link:
                # In this order: whoever finds the link alive takes the device for the one in it.
                self._remote = self._same(link, deadline_ns)
                self._link = link
            return self._remote
        finally:
            self._lock.release()

    def buried(self, deadline_ns: int | None = None) -> None:
        """Waits until it is known how the process ended, which a call found gone, or until the
        deadline.
        """
        self.supervisor.died(self._link, deadline_ns)

    def noted(
        self, call: str, model: Model | None, deadline_ns: int | None = None
    ) -> AbstractContextManager[None]:
        """While the block runs, the death of the process has *call* in its record; see
        `Supervisor.noted`.
        """
        return self.supervisor.noted(Underway(call, self.name, self.version, model), deadline_ns)

    def _same(self, link: Link, deadline_ns: int | None) -> RemoteDevice:
        if self._index >= link.devices:
            self._change(f"its driver has {link.devices} devices now")
        again = RemoteDevice(link.session.channel(self._index), deadline_ns)
        for what in ("name", "version", "capabilities", "feature_level"):
            was, now = getattr(self._remote, what), getattr(again, what)
            if was != now:
                self._change(
                    f"after its process died its {what} is {now!r}, and was {was!r}; "
                    "a program that is started now takes it as it is"
                )
        return again

    def _change(self, how: str) -> NoReturn:
        self._changed = f"device {self._remote.name} is not what it was: {how}"
        raise GeneralFailure(self._changed)

    def _role(self, role: BufferRole) -> BufferRole:
        prepared = role.prepared
        if not isinstance(prepared, IsolatedPreparedModel) or prepared.device is not self:
            raise InvalidArgument("a role names a prepared model of another device")
        return replace(role, prepared=prepared.living())


class IsolatedPreparedModel:
    """A prepared model that is made again, from the model that was retained, where its process
    died.

    One that was loaded from a cache has no model until it is given one to `retain`; without one its
    death is final.
    """

    def __init__(
        self,
        device: IsolatedDevice,
        remote: RemotePreparedModel,
        model: Model | None,
        config: PrepareConfig,
    ) -> None:
        self.device, self._model = device, model
        self.ends_with_its_call = False
        """Whether the process is killed where a run has not ended at its deadline: it may go on for
        hours.
        """
        self._remote, self._home = remote, (remote, session_of(remote))
        self._call = self._underway()
        # What belonged to the one call is not there any more.
        self._config = replace(
            config,
            deadline_ns=None,
            token=NO_TOKEN,
            binding=NO_TOKEN,
            model_cache=(),
            data_cache=(),
            lock=None,
            progress=None,
            cancel=None,
        )
        self._lock = threading.Lock()
        self._deaths = 0
        # A death is one death, however many runs found it.
        self._mourned: WeakSet[Session] = WeakSet()
        self._barred_until = 0.0
        self._closed = False

    @property
    def cache_report(self) -> CacheReport:
        """What became of the cache files of its preparation."""
        return self._remote.cache_report

    def retain(self, model: Model) -> None:
        """Keeps *model*, which it was prepared from, for when it has to be prepared again."""
        self._model = model
        self._call = self._underway()

    def _underway(self) -> Underway:
        return Underway("execute", self.device.name, self.device.version, self._model)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def model(self) -> Model | None:
        """What it was prepared from, where that is known."""
        return self._model

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        remote, session = self._home
        found = self.attempt(remote.execute, session, request, config)
        if isinstance(found, ExecutionResult):
            return found
        return self.run(lambda again: again.execute(request, config), request, config, tried=found)

    def attempt(
        self,
        execute: Callable[[Request, ExecutionConfig], ExecutionResult],
        session: Session,
        request: Request,
        config: ExecutionConfig,
    ) -> ExecutionResult | DeadObject | None:
        """What *execute* gives in the process of *session*: `run` where nothing happens, without
        what that costs.

        The error where the process died of it and the run may be made on another; None, with
        nothing run, where it had died before.
        """
        if session.end_reason or self._closed:
            return None
        supervisor = self.device.supervisor
        underway = supervisor.underway
        # No object has the number of a thread, which makes one call at a time.
        thread = get_ident()
        underway[thread] = self._call
        try:
            result = execute(request, config)
        except DeadObject as error:
            if self.may_repeat(session, request, config.deadline_ns):
                return error
            if not session.end_reason:
                raise
            told = DeadObject(session.end_reason)
            told.copies = error.copies
            raise told from error
        except (MissedDeadlineTransient, Cancelled) as error:
            self._give_up(error)
            raise
        finally:
            underway.pop(thread, None)
        if self._deaths:
            self._deaths = 0
        supervisor.succeeded()
        return result

    def _give_up(self, error: Exception) -> None:
        """Ends the process where it goes on with a run that has ended with *error* here."""
        if self.ends_with_its_call and str(error) in {NOT_ANSWERED, NOT_STOPPED, UNANSWERED}:
            self.device.abandon(str(error))

    def execute_fenced(
        self,
        request: Request,
        wait_for: Sequence[Fence],
        config: ExecutionConfig,
        timeout_after_fence_ns: int | None = None,
    ) -> Fence:
        def call(remote: RemotePreparedModel) -> Fence:
            return remote.execute_fenced(request, wait_for, config, timeout_after_fence_ns)

        with _Lost(call) as lost:
            fence, incident = self.twice("execute_fenced", lost, request, config)
        if not incident and not lost.copies:
            return fence
        told = fence if isinstance(fence, CarriedFence) else CarriedFence(fence, request)
        told.incidents, told.before = (incident,) if incident else (), tuple(lost.copies)
        return told

    def configure_burst(self) -> Burst:
        return _Series(self, lambda remote, deadline_ns: remote.configure_burst(deadline_ns))

    def create_reusable_execution(self, request: Request) -> ReusableExecution:
        return _Repeated(self, request)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._remote.close()

    def run(
        self,
        call: Callable[[RemotePreparedModel], ExecutionResult],
        request: Request,
        config: ExecutionConfig,
        *,
        tried: DeadObject | None = None,
    ) -> ExecutionResult:
        """*call*, which executes, once more where the process died of it, unless it was *tried*
        before with that error; the result says so.
        """
        try:
            with _Lost(call, tried) as lost:
                result, incident = self.twice(
                    "execute", lost, request, config, tried=tried is not None
                )
        except (MissedDeadlineTransient, Cancelled) as error:
            self._give_up(error)
            raise
        self.device.supervisor.succeeded()
        if not incident and not lost.copies:
            return result
        copies = result.copies if isinstance(result, CarriedResult) else ()
        told = (incident,) if incident else ()
        return CarriedResult(result.output_shapes, result.timing, (*lost.copies, *copies), told)

    def twice(
        self,
        name: str,
        call: Callable[[RemotePreparedModel], T],
        request: Request,
        config: ExecutionConfig,
        *,
        tried: bool = False,
    ) -> tuple[T, str]:
        """*call*, and what happened where it had to be made again, or on another process than
        before. One death during it, or while the model is prepared for it, is forgiven, unless it
        was *tried* before.
        """
        remote, session = self._home
        # Of a run that was tried before it is told that it was repeated, although another may have
        # had the process started.
        if not tried and (not session.end_reason or self._closed):
            try:
                with self.device.noted(name, self._model, halfway_to(config.deadline_ns)):
                    result = call(remote)
                self._deaths = 0
            except DeadObject:
                if not self.may_repeat(session, request, config.deadline_ns):
                    raise
            else:
                return result, ""
            tried = True
        elif not tried and names_buffers(request):
            raise DeadObject(f"{session.end_reason}, and the buffers of this run with it")
        supervisor, ends = self.device.supervisor, self.device.supervisor.ends
        if not tried:
            try:
                return self._once(name, call, config, halfway_to(config.deadline_ns))
            except DeadObject:
                if supervisor.ends == ends:
                    raise
        return self._once(name, call, config, config.deadline_ns)

    def _once(
        self,
        name: str,
        call: Callable[[RemotePreparedModel], T],
        config: ExecutionConfig,
        record_ns: int | None,
    ) -> tuple[T, str]:
        """*call* in the process that lives now, or is started for it; and what happened to the one
        before. The record of a death is waited for until *record_ns*.
        """
        if self._deaths >= MOST_DEATHS_OF_A_MODEL and time.monotonic() < self._barred_until:
            raise DeadObject(
                f"the process of device {self.device.name} died {self._deaths} times in a row while it ran "
                "this model, which is not run there any more"
            )
        remote = self.living(halfway_to(config.deadline_ns), config)
        ended = self.device.supervisor.last_end
        try:
            with self.device.noted(name, self._model, record_ns):
                result = call(remote)
        except DeadObject as error:
            if not session_of(remote).end_reason:
                raise
            self.device.buried(record_ns)
            self._mourn(session_of(remote))
            raise DeadObject(
                f"the process of device {self.device.name} {self.device.supervisor.last_end}, "
                "the one that was started in its place too"
            ) from error
        self._deaths = 0
        return result, f"its driver's process {ended}; it was started again, and the run repeated"

    def may_repeat(
        self, session: Session, request: Request, deadline_ns: int | None = None
    ) -> bool:
        """Whether a run of *request* that the process of *session* did not answer may be made on
        another; notes the death, if it is one.
        """
        if not session.end_reason:
            return False
        self._mourn(session)
        self.device.buried(halfway_to(deadline_ns))
        return not names_buffers(request)

    def _mourn(self, session: Session) -> None:
        with self._lock:
            if session in self._mourned:
                return
            self._mourned.add(session)
            self._deaths += 1
            self._barred_until = time.monotonic() + QUARANTINE_SECONDS

    def living(
        self, deadline_ns: int | None = None, config: ExecutionConfig | None = None
    ) -> RemotePreparedModel:
        """The prepared model in the process that lives now, prepared again if need be; `DeadObject`
        where somebody else still prepares it at the deadline.
        """
        left = remaining_seconds(deadline_ns)
        if not self._lock.acquire(timeout=-1 if left is None else left):
            raise DeadObject(
                f"the process of device {self.device.name} died, and the model is still being prepared in its place"
            )
        try:
            if self._closed:
                raise ClosedError("a prepared model was used after close()")
            if not session_of(self._remote).end_reason:
                return self._remote
            if self._model is None:
                raise DeadObject("its process died, and nobody kept the model to prepare it again")
            own = replace(
                self._config,
                deadline_ns=deadline_ns,
                cancel=None if config is None else config.cancel,
            )
            with self.device.noted("prepare_model", self._model, deadline_ns):
                remote = self.device.remote(deadline_ns).prepare_model(self._model, own)
            self._remote, self._home = remote, (remote, session_of(remote))
            return remote
        finally:
            self._lock.release()


class _Lost(Generic[T]):
    """*call*, and what was copied for those of its calls that failed: in `copies`, and in the error
    that ends the block.
    """

    def __init__(
        self, call: Callable[[RemotePreparedModel], T], error: DriverError | None = None
    ) -> None:
        self._call = call
        self.copies: list[ArgumentCopy] = [] if error is None else list(error.copies)

    def __call__(self, remote: RemotePreparedModel) -> T:
        try:
            return self._call(remote)
        except DriverError as error:
            self.copies += error.copies
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, DriverError):
            error.copies = tuple(self.copies)


class _Series:
    """A `Burst` that is configured again with its prepared model."""

    def __init__(
        self,
        prepared: IsolatedPreparedModel,
        make: Callable[[RemotePreparedModel, int | None], Burst],
    ) -> None:
        self._prepared, self._make = prepared, make
        self._of, self._burst = self._made(prepared.living())
        self._session = session_of(self._of)
        self._closed = False

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        if self._closed:
            raise ClosedError("a burst was used after close()")
        prepared = self._prepared
        found = prepared.attempt(self._burst.execute, self._session, request, config)
        if isinstance(found, ExecutionResult):
            return found

        def call(remote: RemotePreparedModel) -> ExecutionResult:
            if remote is not self._of:
                self._of, self._burst = self._made(remote, config.deadline_ns)
                self._session = session_of(remote)
            return self._burst.execute(request, config)

        return prepared.run(call, request, config, tried=found)

    def close(self) -> None:
        self._closed = True
        self._burst.close()

    def _made(
        self, remote: RemotePreparedModel, deadline_ns: int | None = None
    ) -> tuple[RemotePreparedModel, Burst]:
        return remote, self._make(remote, deadline_ns)


class _Repeated:
    """A `ReusableExecution` that is made again with its prepared model."""

    def __init__(self, prepared: IsolatedPreparedModel, request: Request) -> None:
        self._prepared, self._request = prepared, request
        self._of, self._execution = self._made(prepared.living())
        self._closed = False

    def execute(self, config: ExecutionConfig) -> ExecutionResult:
        if self._closed:
            raise ClosedError("a reusable execution was used after close()")

        def call(remote: RemotePreparedModel) -> ExecutionResult:
            if remote is not self._of:
                self._of, self._execution = self._made(remote, config.deadline_ns)
            return self._execution.execute(config)

        return self._prepared.run(call, self._request, config)

    def close(self) -> None:
        self._closed = True
        self._execution.close()

    def _made(
        self, remote: RemotePreparedModel, deadline_ns: int | None = None
    ) -> tuple[RemotePreparedModel, ReusableExecution]:
        return remote, remote.create_reusable_execution(self._request, deadline_ns)


def names_buffers(request: Request) -> bool:
    """Whether *request* names memory of the process that it is made to."""
    return any(isinstance(a, TokenArgument) for a in (*request.inputs, *request.outputs))


def session_of(remote: RemoteDevice | RemotePreparedModel) -> Session:
    """The connection to the process that *remote* lives in."""
    channel = remote.channel
    assert isinstance(channel, DeviceChannel)
    return channel.session
