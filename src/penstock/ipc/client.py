"""The client of a host process: a `Device` whose every call is a message over a channel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Final

import numpy as np
from msgspec.structs import replace

from penstock import errors, hal
from penstock.hal.device import preferred_memory
from penstock.ipc import forms, remote, wire
from penstock.ipc.codec import Packer, Unpacker, made_by_driver
from penstock.ipc.pools import PoolCopy, as_argument_copies, pool_copy_of, remote_fence
from penstock.ipc.ring_client import Pace
from penstock.ipc.ring_pool import RingBurst, Rings
from penstock.ipc.system import may_shrink
from penstock.ir import Model

MOST_CHARACTERS: Final = 1024
"""Most characters of a device's name, or its version."""


class Described:
    """The properties of a device whose *description* has been received."""

    def __init__(self, description: wire.Description) -> None:
        d = description
        self.name, self.version, self.type = d.name, d.version, d.device_type
        self.feature_level, self.hal_version = d.feature_level, d.hal_version
        self.capabilities, self.description = d.capabilities, d
        self.stages = d.stages


class RemoteDevice(Described):
    """A `Device` behind *channel*. A malformed reply is a `GeneralFailure`."""

    def __init__(self, channel: remote.Channel, deadline_ns: int | None = None) -> None:
        """Requests the device's properties, by the deadline."""
        self.channel = channel
        self._closed = False
        self._rings = Rings(channel)
        call = wire.Describe(wire.WIRE_VERSION)
        super().__init__(remote.ask(channel, lambda _: call, wire.Description, deadline_ns))
        can = self.capabilities
        extensions = (extension.name for extension in can.extensions)
        names = (*self.stages, *can.families, *can.memory_kinds, *can.performance, *extensions)
        given = [("name", self.name), ("version", self.version)]
        for what, text in (*given, *(("capability", name) for name in names)):
            if not text.isprintable() or len(text) > MOST_CHARACTERS:
                raise errors.GeneralFailure(
                    f"a device's {what} is up to {MOST_CHARACTERS} characters that can be printed, "
                    f"not {text[:MOST_CHARACTERS]!r}"
                )
        channel.prefer(preferred_memory(self))

    def check(self) -> str | None:
        return remote.ask(self.channel, lambda _: wire.Check(), wire.Reason).reason

    def supported_operations(self, model: Model) -> Sequence[hal.Support]:
        def call(pack: Packer) -> wire.Call:
            return wire.SupportedOperations(_model(pack, model))

        return list(remote.ask(self.channel, call, wire.Supports).answers)

    def cache_files_needed(self) -> tuple[int, int]:
        reply = remote.ask(self.channel, lambda _: wire.CacheFilesNeeded(), wire.CacheFiles)
        return reply.model, reply.data

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> RemotePreparedModel:
        def call(pack: Packer) -> wire.Call:
            return wire.Prepare(_model(pack, model), pack.prepare_config(config))

        made = remote.ask(self.channel, call, wire.Made, may_end_early=True)
        return RemotePreparedModel(self.channel, made, self._rings)

    def prepare_model_from_cache(self, config: hal.PrepareConfig) -> RemotePreparedModel:
        def call(pack: Packer) -> wire.Call:
            return wire.PrepareFromCache(pack.prepare_config(config))

        made = remote.ask(self.channel, call, wire.Made, may_end_early=True)
        return RemotePreparedModel(self.channel, made, self._rings)

    def dump(self, model: Model, config: hal.PrepareConfig, stage: str) -> str:
        def call(pack: Packer) -> wire.Call:
            return wire.Dump(_model(pack, model), pack.prepare_config(config), stage)

        return remote.ask(self.channel, call, wire.Dumped, may_end_early=True).text

    def explain(self, model: Model, config: hal.PrepareConfig) -> Sequence[str]:
        def call(pack: Packer) -> wire.Call:
            return wire.Explain(_model(pack, model), pack.prepare_config(config))

        return remote.ask(self.channel, call, wire.Explained, may_end_early=True).words

    def allocate(
        self, desc: hal.BufferDesc, roles: Sequence[hal.BufferRole]
    ) -> tuple[int, hal.Buffer]:
        role_forms = tuple(self._role(role) for role in roles)
        reply = remote.ask(self.channel, lambda _: wire.Allocate(desc, role_forms), wire.Allocated)
        return reply.token, RemoteBuffer(self.channel, wire.Made(reply.buffer))

    def trim(self) -> None:
        """Releases resources kept for later runs; every object on the device stays usable."""
        self._rings.trim()

    def close(self) -> None:
        """Closes every object that this connection has on the device."""
        if not self._closed:
            self._closed = True
            self._rings.close()
            remote.ask(self.channel, lambda _: wire.Close(forms.DEVICE), wire.Done)

    def _role(self, role: hal.BufferRole) -> forms.RoleForm:
        prepared = role.prepared
        if not isinstance(prepared, RemotePreparedModel) or prepared.channel is not self.channel:
            raise errors.InvalidArgument("a role names a prepared model of another device")
        return forms.RoleForm(prepared.number, role.kind, role.index, role.frequency)


class RemotePreparedModel(remote.RemoteObject):
    """A `PreparedModel`; its executions go through *rings* if possible, else by messages."""

    def __init__(self, channel: remote.Channel, made: wire.Made, rings: Rings) -> None:
        super().__init__(channel, made)
        self._report = made.cache
        self._rings = rings
        self.pace = Pace()

    @property
    def cache_report(self) -> hal.CacheReport:
        """State of its cache files so far. The last report is kept here."""
        if self._report.later and self._close.alive:
            with suppress(errors.PenstockError):
                call = wire.Report(self.number)
                self._report = remote.ask(self.channel, lambda _: call, wire.Reported).cache
        return self._report

    def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        # Attributes may be longer than a slot of a ring.
        if not config.attributes:
            result = self._rings.execute(self.number, request, config, self.pace)
            if result is not None:
                return result
        return remote.execute(self, request, config)

    def close(self) -> None:
        if self._close.alive:
            self._rings.forget(self._number)
        super().close()

    def execute_fenced(
        self,
        request: hal.Request,
        wait_for: Sequence[hal.Fence],
        config: hal.ExecutionConfig,
        timeout_after_fence_ns: int | None = None,
    ) -> hal.Fence:
        copied = remote.copied_for(self.channel, request)

        def call(pack: Packer) -> wire.Call:
            form, fences = pack.request(copied.request), tuple(map(pack.handle, wait_for))
            return wire.ExecuteFenced(self.number, form, fences, config, timeout_after_fence_ns)

        with ExitStack() as undone:
            undone.enter_context(copied)
            undone.enter_context(remote.recording_copies(copied, request))
            answer = remote.answer_to(self.channel, call)
            reply = remote.reply_in(answer, wire.Fenced)
            try:
                fence: hal.Fence = Unpacker(answer.handles).fence(reply.fence)
            except errors.WireError as error:
                raise remote.malformed(error) from error
            undone.pop_all()
        return remote_fence(fence, copied, request, made_by_driver(reply.copies))

    def configure_burst(self, deadline_ns: int | None = None) -> hal.Burst:
        """A burst with its own ring if the channel shows the process's end and there is room."""
        call = wire.ConfigureBurst(self.number)
        made = remote.ask(self.channel, lambda _: call, wire.Made, deadline_ns)
        burst = remote.RemoteBurst(self.channel, made, self.pace)
        with suppress(errors.ResourceExhaustedTransient):
            ring = self._rings.open(deadline_ns)
            if ring is not None:
                return RingBurst(burst, ring)
        return burst

    def create_reusable_execution(
        self, request: hal.Request, deadline_ns: int | None = None
    ) -> hal.ReusableExecution:
        copies_arrays = self.channel.copies_arrays and any(
            isinstance(a, hal.HostMemory) for a in (*request.inputs, *request.outputs)
        )
        sent = request
        if copies_arrays:
            # Nothing was written yet, so nothing may be copied back.
            sent = replace(request, outputs=tuple(map(_stand_in, request.outputs)))

        def call(pack: Packer) -> wire.Call:
            return wire.CreateReusableExecution(self.number, pack.request(copied.request))

        with remote.copied_for(self.channel, sent) as copied, remote.recording_copies(copied, sent):
            answer = remote.answer_to(self.channel, call, deadline_ns)
            made = remote.reply_in(answer, wire.Made)
        copies = (*copied.copies, *as_argument_copies(answer.copies, sent))
        again = request if copies_arrays or not copied.is_plain else None
        return RemoteExecution(self.channel, made, self, again, copies)


class RemoteExecution(remote.RemoteObject):
    """A `ReusableExecution` of *prepared*. If arrays are copied, each run sends *request* again."""

    def __init__(
        self,
        channel: remote.Channel,
        made: wire.Made,
        prepared: RemotePreparedModel,
        request: hal.Request | None,
        copies: tuple[hal.ArgumentCopy, ...] = (),
    ) -> None:
        """*copies* were made for the execution; its first run reports them."""
        super().__init__(channel, made)
        self._prepared, self._request, self._copies = prepared, request, copies

    def execute(self, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        if self._request is not None:
            self._check_open()
            before, self._copies = self._copies, ()
            result = remote.execute(self._prepared, self._request, config)
            if not before:
                return result
            copies = (*before, *result.copies)
            return hal.RemoteResult(result.output_shapes, result.timing, copies)

        call = wire.Execute(self.number, None, config)
        return remote.ask(self.channel, lambda _: call, wire.Executed).result


class RemoteBuffer(remote.RemoteObject):
    """A `Buffer`."""

    @property
    def lost(self) -> str:
        """How the process that held it ended; empty while it runs."""
        return self.channel.end_reason

    def carries(self, memory: hal.Memory) -> bool:
        """Whether a copy to or from *memory* needs a second copy: the host would not map it."""
        return self.channel.copies_arrays and may_shrink(memory)

    def copy_to(self, destination: hal.Memory) -> None:
        with self._mappable(destination) as (given, copy):
            remote.ask(self.channel, lambda p: wire.CopyTo(self.number, p.memory(given)), wire.Done)
            if copy is not None and copy.writable:
                copy.empty()

    def copy_from(self, source: hal.Memory, dimensions: tuple[int, ...]) -> None:
        def call(pack: Packer) -> wire.Call:
            return wire.CopyFrom(self.number, pack.memory(given), dimensions)

        with self._mappable(source) as (given, copy):
            if copy is not None:
                copy.fill()
            remote.ask(self.channel, call, wire.Done)

    @contextmanager
    def _mappable(self, memory: hal.Memory) -> Iterator[tuple[hal.Memory, PoolCopy | None]]:
        """*memory*, or an empty copy of it if another process would not map it."""
        copy = pool_copy_of(memory) if self.channel.copies_arrays else None
        if copy is None:
            yield memory, None
            return
        with closing(copy):
            yield copy.given, copy


def _stand_in(argument: hal.RequestArgument) -> hal.RequestArgument:
    """The same argument over new memory; its content is not copied."""
    if not isinstance(argument, hal.HostMemory):
        return argument
    array = argument.array
    if not (array.flags.c_contiguous and array.flags.writeable) or array.dtype.hasobject:
        return argument
    return hal.HostMemory(np.empty_like(array), argument.dimensions)


def _model(pack: Packer, model: Model) -> forms.ModelForm:
    if not isinstance(model, Model):
        raise errors.InvalidArgument(f"a Model is needed, not {type(model).__name__}")
    return pack.model(model)
