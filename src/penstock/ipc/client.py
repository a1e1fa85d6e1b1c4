"""The runtime's side of the wire: a `Device` whose every call is a message over a channel."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import numpy as np
from msgspec.structs import replace

from penstock.errors import (
    ClosedError,
    DriverError,
    GeneralFailure,
    InvalidArgument,
    PenstockError,
    ResourceExhaustedTransient,
    WireError,
)
from penstock.hal import (
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
    HostMemory,
    Memory,
    MemoryPreference,
    PrepareConfig,
    Request,
    RequestArgument,
    ReusableExecution,
    Support,
    preferred_memory,
)
from penstock.ipc import wire
from penstock.ipc.carrying import Carried, Twin, carried_fence, of_arguments, twin_of
from penstock.ipc.codec import Descriptor, Frame, Packer, Unpacker, decode_reply, error_of
from penstock.ipc.ring_client import Pace
from penstock.ipc.steady import may_shrink
from penstock.ir import Model

if TYPE_CHECKING:
    from penstock.ipc.ring import Layout
    from penstock.ipc.rings import Rings

MOST_CHARACTERS: Final = 1024
"""Characters that the name, or the version, of a device may have."""

R = TypeVar("R", bound=wire.Reply)


class Channel(Protocol):
    """Carries one call to the device's side and brings the reply back; safe from any thread.

    One that reaches another process may have a `life()` method: it gives a descriptor, the caller's to close, that
    becomes readable when that process is gone (a pidfd). Executions then go through shared memory. It may have an
    `end(reason)` method, which is told that the other process breaks the rules of that, or is gone, and a `gone` that says
    why nobody is there.

    One that *copies_arrays* gives the device's side copies of host arrays, made as a call is sent; that side maps no memory
    that may shrink. It may have a `prefer(preference)` method, which is told how the device would have them lie.
    """

    copies_arrays: bool

    def call(self, frame: Frame) -> Frame:
        """The reply; raises `DeadObject` when the other side is gone, `WireError` for a handle that cannot go there."""
        ...

    def drop(self, number: wire.ObjectId) -> None:
        """Closes that object of the device's side, which nobody has any more; called by finalizers, and never raises."""
        ...


class RemoteDevice:
    """A `Device` behind *channel*.

    A value that cannot be sent, or that the other side cannot decode, is `InvalidArgument`; a reply that is no
    message is `GeneralFailure`.
    """

    def __init__(self, channel: Channel, deadline_ns: int | None = None) -> None:
        """Asks for the device's properties, by the deadline."""
        self._channel = channel
        self._closed = False
        self._rings: Rings | None = None
        self._description = _ask(
            channel, lambda _: wire.Describe(wire.WIRE_VERSION), wire.Description, deadline_ns
        )[0]
        can = self.capabilities
        extensions = (extension.name for extension in can.extensions)
        names = (*can.families, *can.memory_kinds, *can.performance, *extensions)
        told_as = (
            ("name", self.name),
            ("version", self.version),
            *(("capability", n) for n in names),
        )
        for what, told in told_as:
            if not told.isprintable() or len(told) > MOST_CHARACTERS:
                raise GeneralFailure(
                    f"a device's {what} is up to {MOST_CHARACTERS} characters that can be printed, not "
                    f"{told[:MOST_CHARACTERS]!r}"
                )
        prefer: Callable[[MemoryPreference], None] | None = getattr(channel, "prefer", None)
        if prefer is not None:
            prefer(preferred_memory(self))
        if getattr(channel, "life", None) is not None:
            from penstock.ipc.rings import Rings

            self._rings = Rings(channel)

    @property
    def channel(self) -> Channel:
        """What its calls go over."""
        return self._channel

    @property
    def name(self) -> str:
        return self._description.name

    @property
    def version(self) -> str:
        return self._description.version

    @property
    def type(self) -> DeviceType:
        return self._description.device_type

    @property
    def feature_level(self) -> int:
        return self._description.feature_level

    @property
    def capabilities(self) -> Capabilities:
        return self._description.capabilities

    @property
    def hal_version(self) -> int:
        return self._description.hal_version

    def check(self) -> str | None:
        return _ask(self._channel, lambda _: wire.Check(), wire.Reason)[0].reason

    def supported_operations(self, model: Model) -> Sequence[Support]:
        def call(pack: Packer) -> wire.Call:
            return wire.SupportedOperations(_model(pack, model))

        return list(_ask(self._channel, call, wire.Supports)[0].answers)

    def cache_files_needed(self) -> tuple[int, int]:
        reply = _ask(self._channel, lambda _: wire.CacheFilesNeeded(), wire.CacheFiles)[0]
        return reply.model, reply.data

    def prepare_model(self, model: Model, config: PrepareConfig) -> RemotePreparedModel:
        def call(pack: Packer) -> wire.Call:
            return wire.Prepare(_model(pack, model), pack.prepare_config(config))

        made = _ask(self._channel, call, wire.Made, may_end_early=True)[0]
        return RemotePreparedModel(self._channel, made, self._rings)

    def prepare_model_from_cache(self, config: PrepareConfig) -> RemotePreparedModel:
        def call(pack: Packer) -> wire.Call:
            return wire.PrepareFromCache(pack.prepare_config(config))

        made = _ask(self._channel, call, wire.Made, may_end_early=True)[0]
        return RemotePreparedModel(self._channel, made, self._rings)

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> tuple[int, Buffer]:
        forms = tuple(self._role(role) for role in roles)
        reply = _ask(self._channel, lambda _: wire.Allocate(desc, forms), wire.Allocated)[0]
        return reply.token, RemoteBuffer(self._channel, wire.Made(reply.buffer))

    def trim(self) -> None:
        """Lets go of what is kept for the next runs; the device, and what was made on it, can be used as before."""
        if self._rings is not None:
            self._rings.trim()

    def close(self) -> None:
        """Closes everything that this connection has on the device, whoever made it."""
        if not self._closed:
            self._closed = True
            if self._rings is not None:
                self._rings.close()
            _ask(self._channel, lambda _: wire.Close(wire.DEVICE), wire.Done)

    def _role(self, role: BufferRole) -> wire.RoleForm:
        prepared = role.prepared
        if not isinstance(prepared, RemotePreparedModel) or prepared.channel is not self._channel:
            raise InvalidArgument("a role names a prepared model of another device")
        return wire.RoleForm(prepared.number, role.kind, role.index, role.frequency)


class RemoteObject:
    """An object on the device's side. It is closed there when it is closed, or forgotten, here."""

    def __init__(self, channel: Channel, made: wire.Made) -> None:
        self.channel, self._number = channel, made.target
        self._close = weakref.finalize(self, channel.drop, made.target)
        self._close.atexit = False

    @property
    def number(self) -> wire.ObjectId:
        """Its number on the wire; raises `ClosedError` after `close`."""
        self._check_open()
        return self._number

    def _check_open(self) -> None:
        if not self._close.alive:
            raise ClosedError(f"{type(self).__name__} used after close()")

    def close(self) -> None:
        """Twice is harmless."""
        if self._close.detach() is not None:
            _close(self.channel, self._number)

    def forget(self) -> None:
        """Closes it without waiting: the device's side is told with the next message."""
        self._close()


class RemotePreparedModel(RemoteObject):
    """A `PreparedModel`, whose executions go through *rings* where they can, and else by messages."""

    def __init__(self, channel: Channel, made: wire.Made, rings: Rings | None = None) -> None:
        super().__init__(channel, made)
        self._report = made.cache
        self._rings = rings
        self.pace = Pace()

    @property
    def cache_report(self) -> CacheReport:
        """What became of its cache files by now; once nothing is to be written any more that is known here."""
        if self._report.later and self._close.alive:
            try:
                told = _ask(self.channel, lambda _: wire.Report(self.number), wire.Reported)[0]
            except PenstockError:
                return self._report
            self._report = told.cache
        return self._report

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        rings = self._rings
        # Attributes may be longer than a slot of a ring.
        if rings is not None and not config.attributes:
            result = rings.execute(self.number, request, config, self.pace)
            if result is not None:
                return result
        return _execute(self, request, config)

    def close(self) -> None:
        if self._rings is not None and self._close.alive:
            self._rings.forget(self._number)
        super().close()

    def execute_fenced(
        self,
        request: Request,
        wait_for: Sequence[Fence],
        config: ExecutionConfig,
        timeout_after_fence_ns: int | None = None,
    ) -> Fence:
        carried = _carried(self.channel, request)

        def call(pack: Packer) -> wire.Call:
            return wire.ExecuteFenced(
                self.number,
                pack.request(carried.request),
                tuple(map(pack.handle, wait_for)),
                pack.execution_config(config),
                timeout_after_fence_ns,
            )

        with ExitStack() as undone:
            undone.enter_context(carried)
            undone.enter_context(_telling(carried, request))
            reply, take = _ask(self.channel, call, wire.Fenced)
            try:
                fence: Fence = take.fence(reply.fence)
            except WireError as error:
                raise _senseless(error) from error
            undone.pop_all()
        return carried_fence(fence, carried, request)

    def configure_burst(self, deadline_ns: int | None = None) -> Burst:
        """One that goes through a ring of its own where the channel tells of the other process's life, and neither side is
        short of what that takes; made by the deadline.
        """

        def call(_: Packer) -> wire.Call:
            return wire.ConfigureBurst(self.number)

        made = _ask(self.channel, call, wire.Made, deadline_ns)[0]
        burst = RemoteBurst(self.channel, made, self.pace)
        if self._rings is not None:
            with suppress(ResourceExhaustedTransient):
                ring = self._rings.open(deadline_ns)
                if ring is not None:
                    from penstock.ipc.burst import RingBurst

                    return RingBurst(burst, ring)
        return burst

    def create_reusable_execution(
        self, request: Request, deadline_ns: int | None = None
    ) -> ReusableExecution:
        copied = self.channel.copies_arrays and any(
            isinstance(a, HostMemory) for a in (*request.inputs, *request.outputs)
        )
        # Nothing is written yet, so that nothing may be copied home.
        sent = (
            replace(request, outputs=tuple(map(_stand_in, request.outputs))) if copied else request
        )
        with _carried(self.channel, sent) as carried:
            copied = copied or not carried.is_plain

            def call(pack: Packer) -> wire.Call:
                return wire.CreateReusableExecution(self.number, pack.request(carried.request))

            with _telling(carried, sent):
                answer = _answer(self.channel, call, deadline_ns)
                made = _reply(answer, wire.Made)
            copies = (*carried.copies, *of_arguments(answer.copies, sent))
        return RemoteExecution(self.channel, made, self, request if copied else None, copies)


class RemoteRing(RemoteObject):
    """A ring, on the device's side."""


class RemotePool(RemoteObject):
    """A memory that the device's side knows."""


def open_ring(
    channel: Channel,
    memory_fd: int,
    to_device_fd: int,
    to_client_fd: int,
    layout: Layout,
    deadline_ns: int | None = None,
) -> RemoteRing:
    """Has a ring served on the side of the device behind *channel*, by the deadline; the descriptors stay the caller's."""

    def call(pack: Packer) -> wire.Call:
        return wire.OpenRing(
            pack.handle(Descriptor(memory_fd)),
            pack.handle(Descriptor(to_device_fd)),
            pack.handle(Descriptor(to_client_fd)),
            layout.slots,
            layout.slot_bytes,
        )

    return RemoteRing(channel, _ask(channel, call, wire.Made, deadline_ns)[0])


def lend_pool(channel: Channel, memory: Memory, deadline_ns: int | None = None) -> RemotePool:
    """Makes *memory* known on the device's side, by the deadline. Raises `InvalidArgument` for one that it does not map."""
    if channel.copies_arrays and may_shrink(memory):
        raise InvalidArgument(f"a {memory.name} memory that may shrink is not lent")

    def call(pack: Packer) -> wire.Call:
        return wire.LendPool(pack.memory(memory))

    return RemotePool(channel, _ask(channel, call, wire.Made, deadline_ns)[0])


class RemoteBurst(RemoteObject):
    """A `Burst`, of a prepared model of that *pace*."""

    def __init__(self, channel: Channel, made: wire.Made, pace: Pace) -> None:
        super().__init__(channel, made)
        self.pace = pace

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        return _execute(self, request, config)


class RemoteExecution(RemoteObject):
    """A `ReusableExecution` of *prepared*; one of a *request* whose arrays are copied sends it with each run."""

    def __init__(
        self,
        channel: Channel,
        made: wire.Made,
        prepared: RemotePreparedModel,
        request: Request | None,
        copies: tuple[ArgumentCopy, ...] = (),
    ) -> None:
        """*copies* were made for it, and are told with its first run."""
        super().__init__(channel, made)
        self._prepared, self._request, self._copies = prepared, request, copies

    def execute(self, config: ExecutionConfig) -> ExecutionResult:
        if self._request is not None:
            self._check_open()
            before, self._copies = self._copies, ()
            result = _execute(self._prepared, self._request, config)
            if not before:
                return result
            copies = result.copies if isinstance(result, CarriedResult) else ()
            return CarriedResult(result.output_shapes, result.timing, (*before, *copies))

        def call(pack: Packer) -> wire.Call:
            return wire.Execute(self.number, None, pack.execution_config(config))

        return _ask(self.channel, call, wire.Executed)[0].result


class RemoteBuffer(RemoteObject):
    """A `Buffer`."""

    @property
    def lost(self) -> str:
        """How the process that it was in ended; empty while it is there."""
        gone: str = getattr(self.channel, "gone", "")
        return gone

    def carries(self, memory: Memory) -> bool:
        """Whether copying to *memory*, or from it, takes one copy more: another process would not map it."""
        return self.channel.copies_arrays and may_shrink(memory)

    def copy_to(self, destination: Memory) -> None:
        with self._twin(destination) as twin:
            given = destination if twin is None else twin.given
            _ask(self.channel, lambda p: wire.CopyTo(self.number, p.memory(given)), wire.Done)
            if twin is not None and twin.writable:
                twin.empty()

    def copy_from(self, source: Memory, dimensions: tuple[int, ...]) -> None:
        with self._twin(source) as twin:
            given = source
            if twin is not None:
                twin.fill()
                given = twin.given

            def call(pack: Packer) -> wire.Call:
                return wire.CopyFrom(self.number, pack.memory(given), dimensions)

            _ask(self.channel, call, wire.Done)

    @contextmanager
    def _twin(self, memory: Memory) -> Iterator[Twin | None]:
        """A copy of *memory*, where another process would not map it."""
        twin = twin_of(memory) if self.channel.copies_arrays else None
        if twin is None:
            yield None
            return
        with closing(twin):
            yield twin


def _stand_in(argument: RequestArgument) -> RequestArgument:
    """The same in memory of nobody's."""
    if not isinstance(argument, HostMemory):
        return argument
    array = argument.array
    if not (array.flags.c_contiguous and array.flags.writeable) or array.dtype.hasobject:
        return argument
    return HostMemory(np.empty_like(array), argument.dimensions)


def _execute(
    target: RemotePreparedModel | RemoteBurst, request: Request, config: ExecutionConfig
) -> ExecutionResult:
    with _carried(target.channel, request) as carried:

        def call(pack: Packer) -> wire.Call:
            form = pack.request(carried.request)
            return wire.Execute(target.number, form, pack.execution_config(config))

        with _telling(carried, request):
            answer = _answer(target.channel, call)
            result = _reply(answer, wire.Executed).result
            carried.finish()
    if not answer.copies and not carried.copies:
        return result
    copies = (*carried.copies, *of_arguments(answer.copies, request))
    return CarriedResult(result.output_shapes, result.timing, copies)


@contextmanager
def _telling(carried: Carried, request: Request) -> Iterator[None]:
    """A `DriverError` in the block has what was copied for *request* by then, of its arguments."""
    try:
        yield
    except DriverError as error:
        error.copies = (*carried.copies, *of_arguments(error.copies, request))
        raise


def _carried(channel: Channel, request: Request) -> Carried:
    """*request* as the device's side gets it: another process maps no memory that may shrink."""
    return Carried(request, copies=channel.copies_arrays)


def _ask(
    channel: Channel,
    call: Callable[[Packer], wire.Call],
    kind: type[R],
    deadline_ns: int | None = None,
    *,
    may_end_early: bool = False,
) -> tuple[R, Unpacker]:
    """The reply to what *call* packs, which must be a *kind*; raises the error that came instead. *deadline_ns* is that of
    a message that has none itself; *may_end_early* as in `Frame`.
    """
    answer = _answer(channel, call, deadline_ns, may_end_early=may_end_early)
    reply = _reply(answer, kind)
    try:
        return reply, Unpacker(answer.handles)
    except WireError as error:
        raise _senseless(error) from error


def _answer(
    channel: Channel,
    call: Callable[[Packer], wire.Call],
    deadline_ns: int | None = None,
    *,
    may_end_early: bool = False,
) -> Frame:
    pack = Packer()
    try:
        frame = pack.frame(call(pack))
    except WireError as error:
        raise InvalidArgument(str(error)) from error
    if may_end_early:
        frame = frame._replace(may_end_early=True)
    if deadline_ns is not None:
        frame = frame._replace(deadline_ns=deadline_ns)
    try:
        return channel.call(frame)
    except WireError as error:
        raise InvalidArgument(str(error)) from error


def _reply(answer: Frame, kind: type[R]) -> R:
    try:
        reply: Any = decode_reply(answer.data)
        failure = error_of(reply) if isinstance(reply, wire.Failure | wire.Stopped) else None
    except WireError as error:
        raise _senseless(error) from error
    if failure is not None:
        if isinstance(failure, DriverError):
            failure.copies = answer.copies
        raise failure
    if not isinstance(reply, kind):
        raise GeneralFailure(f"the device answers for a {kind.__name__} by {type(reply).__name__}")
    return reply


def _senseless(error: WireError) -> GeneralFailure:
    return GeneralFailure(f"the device's reply makes no sense: {error}")


def _model(pack: Packer, model: Model) -> wire.ModelForm:
    if not isinstance(model, Model):
        raise InvalidArgument(f"a Model is needed, not {type(model).__name__}")
    return pack.model(model)


def _close(channel: Channel, number: wire.ObjectId) -> None:
    try:
        _ask(channel, lambda _: wire.Close(number), wire.Done)
    except PenstockError:
        # A device that is gone has closed it.
        return
