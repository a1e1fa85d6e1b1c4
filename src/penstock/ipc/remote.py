"""Objects on the device's side of a channel, and the calls to them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from penstock import errors, hal
from penstock.ipc import forms, wire
from penstock.ipc.codec import Frame, Packer, decode_reply, error_of
from penstock.ipc.pools import CopiedRequest, as_argument_copies
from penstock.ipc.ring_client import Pace
from penstock.ipc.shared_arrays import ALIGNMENT
from penstock.ipc.system import may_shrink

R = TypeVar("R", bound=wire.Reply)


class Channel:
    """Carries one call to the device's side and returns the reply; safe from any thread.

    The defaults are for a channel within this process. A channel to another process
    *copies_arrays*: it copies host arrays as a call is sent, to multiples of *unit* bytes, and that
    process maps no memory that may shrink.
    """

    copies_arrays: bool = False
    unit: int = ALIGNMENT

    @property
    def end_reason(self) -> str:
        """Why the other process is no longer available; empty while it is."""
        return ""

    def call(self, frame: Frame) -> Frame:
        """The reply. Raises `DeadObject` if the process ended, `WireError` for a bad handle."""
        raise NotImplementedError

    def drop(self, number: forms.ObjectId) -> None:
        """Closes an object without references here. Never raises: finalizers call it."""
        raise NotImplementedError

    def exit_fd(self) -> int | None:
        """A descriptor that becomes readable when the other process ends (a pidfd).

        The caller closes it. With one, executions go through shared memory.
        """
        return None

    def end(self, reason: str) -> None:
        """Records that the other process has ended, or broke the protocol of a ring."""

    def prefer(self, preference: hal.MemoryPreference) -> None:
        """Sets the device's preferred alignment and padding of arrays."""


class RemoteObject:
    """An object on the device's side. It is closed there when it is closed or freed here."""

    def __init__(self, channel: Channel, made: wire.Made) -> None:
        self.channel, self._number = channel, made.target
        self._close = weakref.finalize(self, channel.drop, made.target)
        self._close.atexit = False

    @property
    def number(self) -> forms.ObjectId:
        """Its number in messages. Raises `ClosedError` after `close`."""
        self._check_open()
        return self._number

    def _check_open(self) -> None:
        if not self._close.alive:
            raise errors.ClosedError(f"{type(self).__name__} used after close()")

    def close(self) -> None:
        """Closes the object. A second call does nothing."""
        if self._close.detach() is not None:
            # A device whose process has ended has closed it.
            with suppress(errors.PenstockError):
                ask(self.channel, lambda _: wire.Close(self._number), wire.Done)

    def forget(self) -> None:
        """Closes it without waiting: the next message carries the request."""
        self._close()


def lend_pool(channel: Channel, memory: hal.Memory, deadline_ns: int | None = None) -> RemoteObject:
    """Shares *memory* with the device's side. Raises `InvalidArgument` if it cannot map it."""
    if channel.copies_arrays and may_shrink(memory):
        raise errors.InvalidArgument(f"a {memory.name} memory that may shrink is not shared")
    made = ask(channel, lambda pack: wire.LendPool(pack.memory(memory)), wire.Made, deadline_ns)
    return RemoteObject(channel, made)


class RemoteBurst(RemoteObject):
    """A `Burst`, of a prepared model of that *pace*."""

    def __init__(self, channel: Channel, made: wire.Made, pace: Pace) -> None:
        super().__init__(channel, made)
        self.pace = pace

    def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        return execute(self, request, config)


def execute(
    target: RemoteObject, request: hal.Request, config: hal.ExecutionConfig
) -> hal.ExecutionResult:
    def call(pack: Packer) -> wire.Call:
        return wire.Execute(target.number, pack.request(copied.request), config)

    with copied_for(target.channel, request) as copied, recording_copies(copied, request):
        answer = answer_to(target.channel, call)
        result = reply_in(answer, wire.Executed).result
        copied.finish()
    if not answer.copies and not copied.copies:
        return result
    between = (*copied.copies, *as_argument_copies(answer.copies, request))
    copies = (*between, *result.copies)
    return hal.RemoteResult(result.output_shapes, result.timing, copies)


@contextmanager
def recording_copies(copied: CopiedRequest, request: hal.Request) -> Iterator[None]:
    """Adds to a `DriverError` of the block the copies made for *request*'s arguments so far."""
    try:
        yield
    except errors.DriverError as error:
        error.copies = (*copied.copies, *as_argument_copies(error.copies, request))
        raise


def copied_for(channel: Channel, request: hal.Request) -> CopiedRequest:
    """*request* for the device's side: another process maps no memory that may shrink."""
    return CopiedRequest(request, copies=channel.copies_arrays)


def ask(
    channel: Channel,
    call: Callable[[Packer], wire.Call],
    kind: type[R],
    deadline_ns: int | None = None,
    *,
    may_end_early: bool = False,
) -> R:
    """The reply to the message of *call*, which must be a *kind*, or its error. *deadline_ns* is
    for a message without one; *may_end_early* as in `Frame`.
    """
    return reply_in(answer_to(channel, call, deadline_ns, may_end_early=may_end_early), kind)


def answer_to(
    channel: Channel,
    call: Callable[[Packer], wire.Call],
    deadline_ns: int | None = None,
    *,
    may_end_early: bool = False,
) -> Frame:
    pack = Packer()
    try:
        frame = pack.frame(call(pack))
        if may_end_early:
            frame = frame._replace(may_end_early=True)
        if deadline_ns is not None:
            frame = frame._replace(deadline_ns=deadline_ns)
        return channel.call(frame)
    except errors.WireError as error:
        raise errors.InvalidArgument(str(error)) from error


def reply_in(answer: Frame, kind: type[R]) -> R:
    try:
        reply: Any = decode_reply(answer.data)
        failure = error_of(reply) if isinstance(reply, wire.Failure | wire.Stopped) else None
    except errors.WireError as error:
        raise malformed(error) from error
    if failure is not None:
        if isinstance(failure, errors.DriverError):
            failure.copies = (*answer.copies, *failure.copies)
        raise failure
    if not isinstance(reply, kind):
        raise errors.GeneralFailure(
            f"the device answers for a {kind.__name__} by {type(reply).__name__}"
        )
    return reply


def malformed(error: errors.WireError) -> errors.GeneralFailure:
    return errors.GeneralFailure(f"the device's reply is malformed: {error}")
