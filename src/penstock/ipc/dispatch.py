"""The device's side of the wire: decodes a call, makes it on the device, encodes the reply."""

from __future__ import annotations

import itertools
import threading
from typing import Any, Final, Literal, TypeAlias

from penstock.errors import GeneralFailure, InvalidArgument, ResourceExhaustedPersistent, WireError
from penstock.hal import NO_CACHE_REPORT, BufferRole, Device
from penstock.ipc import wire
from penstock.ipc.codec import Descriptor, Frame, Packer, Unpacker, decode_call, failure_of

Kind: TypeAlias = Literal[
    "prepared model", "burst", "reusable execution", "buffer", "ring", "lent pool"
]

MAX_OBJECTS: Final = 1 << 16
"""Objects that one client may have at a time."""


class Dispatcher:
    """Answers the calls of one client to *device*. Calls may come from several threads at once."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._objects: dict[wire.ObjectId, tuple[Kind, Any]] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def answer(self, frame: Frame) -> Frame:
        """The reply to the call in *frame*; never raises.

        A call that makes no sense gets `InvalidArgument`, one that the device fails gets its error.
        """
        pack = Packer()
        try:
            reply = self._make(decode_call(frame.data), Unpacker(frame.handles), pack)
        except WireError as error:
            return Packer().frame(failure_of(InvalidArgument(str(error))))
        except Exception as error:  # noqa: BLE001  # whatever a driver raises becomes a reply
            return Packer().frame(failure_of(error))
        try:
            return pack.frame(reply)
        except WireError as error:
            complaint = GeneralFailure(f"the device's answer is no message: {error}")
            return Packer().frame(failure_of(complaint))

    def close(self) -> None:
        """Closes every object of the client, newest first; the device stays open."""
        with self._lock:
            objects, self._objects = list(self._objects.values()), {}
        for _, value in reversed(objects):
            value.close()

    @property
    def live_objects(self) -> int:
        """How many objects the client has not closed."""
        return len(self._objects)

    def _make(self, call: wire.Call, take: Unpacker, pack: Packer) -> wire.Reply:
        device = self._device
        match call:
            case wire.Describe(wire_version=version):
                return self._describe(version)
            case wire.Check():
                return wire.Reason(device.check())
            case wire.CacheFilesNeeded():
                return wire.CacheFiles(*device.cache_files_needed())
            case wire.SupportedOperations(model=model):
                return wire.Supports(tuple(device.supported_operations(take.model(model))))
            case wire.Prepare(model=model, config=config):
                prepared = device.prepare_model(take.model(model), take.prepare_config(config))
                return self._keep("prepared model", prepared)
            case wire.PrepareFromCache(config=config):
                prepared = device.prepare_model_from_cache(take.prepare_config(config))
                return self._keep("prepared model", prepared)
            case wire.Allocate(desc=desc, roles=roles):
                token, buffer = device.allocate(desc, [self._role(r) for r in roles])
                return wire.Allocated(token, self._keep("buffer", buffer).target)
            case wire.CopyTo(buffer=target, destination=memory):
                self._find(target, "buffer").copy_to(take.memory(memory))
                return wire.Done()
            case wire.CopyFrom(buffer=target, source=memory, dimensions=dimensions):
                self._find(target, "buffer").copy_from(take.memory(memory), dimensions)
                return wire.Done()
            case wire.Close(target=target):
                return self._close(target)
        return self._run(call, take, pack)

    def _run(
        self,
        call: wire.Execute
        | wire.ExecuteFenced
        | wire.ConfigureBurst
        | wire.CreateReusableExecution
        | wire.OpenRing
        | wire.LendPool,
        take: Unpacker,
        pack: Packer,
    ) -> wire.Reply:
        match call:
            case wire.Execute(target=target, request=None, config=config):
                execution = self._find(target, "reusable execution")
                return wire.Executed(execution.execute(take.execution_config(config)))
            case wire.Execute(target=target, request=wire.RequestForm() as request, config=config):
                runner = self._find(target, "prepared model", "burst")
                result = runner.execute(take.request(request), take.execution_config(config))
                return wire.Executed(result)
            case wire.ExecuteFenced():
                fence = self._find(call.prepared, "prepared model").execute_fenced(
                    take.request(call.request),
                    [take.fence(f) for f in call.wait_for],
                    take.execution_config(call.config),
                    call.timeout_after_fence_ns,
                )
                return wire.Fenced(pack.handle(fence))
            case wire.ConfigureBurst(prepared=target):
                return self._keep("burst", self._find(target, "prepared model").configure_burst())
            case wire.CreateReusableExecution(prepared=target, request=request):
                prepared = self._find(target, "prepared model")
                execution = prepared.create_reusable_execution(take.request(request))
                return self._keep("reusable execution", execution)
            case wire.OpenRing():
                return self._keep("ring", self._ring(call, take))
            case wire.LendPool(memory=memory):
                from penstock.ipc.ring_server import LentPool

                return self._keep("lent pool", LentPool(take.memory(memory)))
        raise WireError(f"{type(call).__name__} is no call")

    def _describe(self, version: int) -> wire.Description:
        if version != wire.WIRE_VERSION:
            raise GeneralFailure(
                f"the client speaks wire version {version}, this device {wire.WIRE_VERSION}"
            )
        device = self._device
        return wire.Description(
            device.name,
            device.version,
            device.type,
            device.feature_level,
            device.capabilities,
            device.hal_version,
        )

    def _ring(self, call: wire.OpenRing, take: Unpacker) -> Any:
        from penstock.ipc.ring import Layout
        from penstock.ipc.ring_server import RingServer

        layout = Layout(call.slots, call.slot_bytes)
        memory, to_device, to_client = (
            take.handle(index, Descriptor, "a descriptor").fd
            for index in (call.memory, call.to_device, call.to_client)
        )
        burst = self._find(call.prepared, "prepared model").configure_burst()
        try:
            return RingServer(burst, self._pool, memory, to_device, to_client, layout)
        except BaseException:
            burst.close()
            raise

    def _pool(self, number: wire.ObjectId) -> Any:
        return self._find(number, "lent pool")

    def _keep(self, kind: Kind, value: Any) -> wire.Made:
        with self._lock:
            if len(self._objects) < MAX_OBJECTS:
                number = next(self._numbers)
                self._objects[number] = kind, value
                report = getattr(value, "cache_report", NO_CACHE_REPORT)
                return wire.Made(number, report)
        value.close()
        raise ResourceExhaustedPersistent(f"a client may have {MAX_OBJECTS} objects at a time")

    def _find(self, number: wire.ObjectId, *kinds: Kind) -> Any:
        kind, value = self._objects.get(number, (None, None))
        if kind not in kinds:
            raise InvalidArgument(f"object {number} is no {' or '.join(kinds)} of this client")
        return value

    def _role(self, form: wire.RoleForm) -> BufferRole:
        prepared = self._find(form.prepared, "prepared model")
        return BufferRole(prepared, form.kind, form.index, form.frequency)

    def _close(self, number: wire.ObjectId) -> wire.Done:
        if number == wire.DEVICE:
            self.close()
            self._device.close()
            return wire.Done()
        with self._lock:
            _, value = self._objects.pop(number, (None, None))
        if value is not None:
            value.close()
        return wire.Done()
