"""Devices in a host process that survive the death of that process (NNAPI section 5.3)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final, TypeVar

from msgspec.structs import replace

from penstock import errors, hal, knobs
from penstock.hal.fence import remaining_seconds
from penstock.ipc.client import Described, RemoteDevice, RemotePreparedModel
from penstock.ipc.crash_records import Underway
from penstock.ipc.deadlines import current_deadline, deadline_context, halfway_to, record_restart
from penstock.ipc.host_connection import HostConnection
from penstock.ipc.resilient_model import IsolatedPreparedModel, session_of
from penstock.ipc.supervision import Supervisor
from penstock.ir import Model

T = TypeVar("T")


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
