"""The device's side of a channel: decodes a call, makes it on the device, encodes the reply."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from weakref import WeakSet

from msgspec.structs import replace

from penstock import errors, hal
from penstock.hal.buffer import validate_allocate
from penstock.hal.prepared import report_of
from penstock.hal.stages import dump, explanations, stages_of
from penstock.ipc import forms, wire
from penstock.ipc.client_objects import ClientObject, ClientObjects, Kind
from penstock.ipc.codec import (
    Descriptor,
    Frame,
    Packer,
    Unpacker,
    decode_call,
    driver_copies,
    failure_of,
)
from penstock.ipc.device_sharing import QueuedPreparedModel
from penstock.ipc.quotas import BYTES_OF_FORM, LEAST_COUNTED, MOST_THREADS, Lease, Preparations
from penstock.ipc.system import start_thread_or_run
from penstock.memory.mapping import ASHMEM

if TYPE_CHECKING:
    from penstock.ipc.ring_server import Executor, LentPool
    from penstock.ir import Model

C = TypeVar("C", hal.PrepareConfig, hal.ExecutionConfig)

logger: Final = logging.getLogger(__name__)

MAX_FENCES: Final = 256
"""Most fenced executions of one client in progress at a time."""

MAX_RINGS: Final = 256
"""Most rings of one client whose threads run at a time."""

MAX_LENT_POOLS: Final = 4096
"""Most pools that one client's rings use, including those that only a bound request keeps."""

LOOPS: Final = frozenset({"WHILE", "STABLEHLO_WHILE"})
"""Operations that end only by their data, a deadline, a loop timeout or a cancellation."""

OWNED: Final = b"penstock cache owner\0"


class _Context(NamedTuple):
    """One call: its handles, those of its reply, its lease, and a token set at disconnection."""

    take: Unpacker
    pack: Packer
    lease: Lease
    stop: hal.CancelToken | None


class Dispatcher:
    """Answers the calls of one client to *device*, from several threads at once.

    A client can use only its own objects and tokens. Others are `InvalidArgument`, and so is a
    memory that *admit* rejects. It closes the device only if it *owns_device*. A cache entry of one
    *owner* is invalid for others.
    """

    def __init__(
        self,
        device: hal.Device,
        *,
        owns_device: bool = True,
        admit: Callable[[hal.Memory], None] = lambda _: None,
        owner: bytes = b"",
    ) -> None:
        self._device, self._owns_device = device, owns_device
        self._admit, self._owner = admit, owner
        self.objects = ClientObjects()
        self._fences = threading.BoundedSemaphore(MAX_FENCES)
        self._rings = threading.BoundedSemaphore(MAX_RINGS)
        self._prepared = Preparations()
        self._lent: WeakSet[LentPool] = WeakSet()

    def answer(
        self, frame: Frame, lease: Lease | None = None, stop: hal.CancelToken | None = None
    ) -> Frame:
        """The reply to the call in *frame*. Never raises.

        *lease* closes the descriptors that came with the call. Until then the client's
        disconnection sets *stop*, which ends preparations and long executions even without a cancel
        token. A malformed call gets `InvalidArgument`.
        """
        lease = Lease() if lease is None else lease
        lease.message_bytes = len(frame.data)

        def admit(memory: hal.Memory) -> None:
            self._admit(memory)
            lease.count(memory)

        try:
            context = _Context(Unpacker(frame.handles, admit), Packer(), lease, stop)
            reply = self._make(decode_call(frame.data, context.take), context)
        except errors.WireError as error:
            return refusal(errors.InvalidArgument(str(error)))
        except errors.FOREIGN as error:  # an error of any class from a driver becomes a reply
            return refusal(error)
        try:
            return context.pack.frame(reply)
        except errors.WireError as error:
            return refusal(errors.GeneralFailure(f"the device's answer is no message: {error}"))

    def _make(self, call: wire.Call, context: _Context) -> wire.Reply:
        device, take, lease = self._device, context.take, context.lease
        find = self.objects.find
        match call:
            case wire.Describe(wire_version=version):
                if version != wire.WIRE_VERSION:
                    raise errors.GeneralFailure(
                        f"the client speaks wire version {version}, this device {wire.WIRE_VERSION}"
                    )
                d = device
                return wire.Description(
                    d.name, d.version, d.type, d.feature_level, d.capabilities, d.hal_version,
                    stages_of(d),
                )  # fmt: skip
            case wire.Check():
                return wire.Reason(device.check())
            case wire.CacheFilesNeeded():
                return wire.CacheFiles(*device.cache_files_needed())
            case wire.SupportedOperations(model=form):
                return wire.Supports(tuple(device.supported_operations(take.model(form))))
            case wire.Prepare(model=form, config=given):
                model, config = take.model(form), self._prepare_config(given, context.stop)
                counted = lease.message_bytes if lease.message_bytes > LEAST_COUNTED else 0
                prepare = partial(device.prepare_model, model, config)
                return self._placed(prepare, lease, config, BYTES_OF_FORM * counted, model)
            case wire.Dump(model=form, config=given, stage=stage):
                config = self._prepare_config(given, context.stop)
                return wire.Dumped(dump(device, take.model(form), config, stage))
            case wire.Explain(model=form, config=given):
                config = self._prepare_config(given, context.stop)
                return wire.Explained(explanations(device, take.model(form), config))
            case wire.PrepareFromCache(config=given):
                config = self._prepare_config(given, context.stop)
                nbytes = sum(map(_file_bytes, (*config.model_cache, *config.data_cache)))
                prepare = partial(device.prepare_model_from_cache, config)
                return self._placed(prepare, lease, config, nbytes)
            case wire.Allocate(desc=desc, roles=roles):
                uses = [
                    hal.BufferRole(find(r.prepared, "prepared model"), r.kind, r.index, r.frequency)
                    for r in roles
                ]
                with lease.of_own(_buffer_bytes(desc, uses)) as place:
                    token, buffer = device.allocate(desc, uses)
                    made = self.objects.keep(ClientObject("buffer", buffer, place, token=token))
                    place.kept = True
                return wire.Allocated(token, made.target)
            case wire.CopyTo(buffer=target, destination=memory):
                find(target, "buffer").copy_to(take.memory(memory))
                return wire.Done()
            case wire.CopyFrom(buffer=target, source=memory, dimensions=dimensions):
                find(target, "buffer").copy_from(take.memory(memory), dimensions)
                return wire.Done()
            case wire.Report(prepared=target):
                return wire.Reported(report_of(find(target, "prepared model")))
            case wire.Close(target=forms.DEVICE):
                self.objects.close()
                if self._owns_device:
                    device.close()
                return wire.Done()
            case wire.Close(target=target):
                if (closed := self.objects.take(target)) is not None:
                    closed.close()
                return wire.Done()
            case wire.OpenRing():
                return self.objects.keep(ClientObject("ring", self._ring(call, take, lease)))
            case wire.LendPool(memory=memory):
                pool = self._lent_pool(take.memory(memory), lease)
                return self.objects.keep(ClientObject("lent pool", pool))
            case wire.Execute(target=target, request=None, config=run):
                found = self.objects.get(target, "reusable execution")
                held = nullcontext() if found.lease is None else found.lease.used()
                with held, self.objects.using(found.tokens):
                    return wire.Executed(found.value.execute(_run_config(found, run, context)))
            case wire.Execute(target=target, request=forms.RequestForm() as request, config=run):
                found = self.objects.get(target, "prepared model", "burst")
                with self.objects.using(tokens_of(request)):
                    own = _run_config(found, run, context)
                    return wire.Executed(found.value.execute(take.request(request), own))
            case wire.ExecuteFenced():
                return self._execute_fenced(call, context)
            case wire.ConfigureBurst(prepared=target):
                found = self.objects.get(target, "prepared model")
                burst = found.value.configure_burst()
                return self.objects.keep(ClientObject("burst", burst, loops=found.loops))
            case wire.CreateReusableExecution(prepared=target, request=request):
                found = self.objects.get(target, "prepared model")
                tokens = tokens_of(request)
                with self.objects.using(tokens):
                    execution = found.value.create_reusable_execution(take.request(request))
                kind: Kind = "reusable execution"
                kept = ClientObject(kind, execution, lease, tokens=tokens, loops=found.loops)
                made = self.objects.keep(kept)
                lease.kept = True
                return made
        raise errors.WireError(f"{type(call).__name__} is no call")

    def _execute_fenced(self, call: wire.ExecuteFenced, context: _Context) -> wire.Fenced:
        found, take = self.objects.get(call.prepared, "prepared model"), context.take
        with ExitStack() as used:
            _take_place(self._fences, f"{MAX_FENCES} fenced executions under way")
            used.callback(self._fences.release)
            used.enter_context(self.objects.using(tokens_of(call.request)))
            fence = found.value.execute_fenced(
                take.request(call.request),
                [take.fence(f) for f in call.wait_for],
                _run_config(found, call.config, context),
                call.timeout_after_fence_ns,
            )
            # Even if the answer cannot be sent, the run continues and uses it.
            context.lease.kept = True
            used.callback(context.lease.close)
            if not fence.wait(0):
                # If no thread can be started, this one waits: the run still uses its arguments.
                start_thread_or_run(_release_after, fence, used.pop_all())
        return wire.Fenced(context.pack.handle(fence), driver_copies(fence))

    def _ring(self, call: wire.OpenRing, take: Unpacker, lease: Lease) -> Any:
        from penstock.ipc.ring import Layout
        from penstock.ipc.ring_server import RingServer

        handles = call.memory, call.to_device, call.to_client
        memory, heard, rung = (take.handle(at, Descriptor, "a descriptor").fd for at in handles)
        layout = Layout(call.slots, call.slot_bytes)
        _take_place(self._rings, f"{MAX_RINGS} rings")
        held = ExitStack()
        held.callback(self._rings.release)
        try:
            held.callback(lease.charge(hal.Memory(ASHMEM, memory, layout.nbytes)).release)
            return RingServer(
                self.executor,
                lambda number: self.objects.find(number, "lent pool"),
                memory,
                heard,
                rung,
                layout,
                using=self.objects.using,
                ended=held.close,
                charge=lease.charge,
            )
        except BaseException:
            held.close()
            raise

    def _lent_pool(self, memory: hal.Memory, lease: Lease) -> LentPool:
        from penstock.ipc.ring_server import LentPool

        if len(self._lent) >= MAX_LENT_POOLS:
            raise errors.ResourceExhaustedTransient(
                f"a client may have {MAX_LENT_POOLS} pools lent at a time"
            )
        charge = lease.charge(memory)
        try:
            made = LentPool(memory)
        except BaseException:
            charge.release()
            raise
        weakref.finalize(made, charge.release).atexit = False
        self._lent.add(made)
        return made

    def _prepare_config(
        self, config: hal.PrepareConfig, stop: hal.CancelToken | None
    ) -> hal.PrepareConfig:
        config = _stoppable(config, stop)
        # Threads are shared by the machine, and engines do not limit how many they start.
        if config.num_threads is not None and config.num_threads > MOST_THREADS:
            config = replace(config, num_threads=MOST_THREADS)
        if not self._owner or len(config.binding) != hal.BYTE_SIZE_OF_CACHE_TOKEN:
            return config
        binding = hashlib.sha256(OWNED + self._owner + b"\0" + config.binding).digest()
        return replace(config, binding=binding)

    def _placed(
        self,
        prepare: Callable[[], hal.PreparedModel],
        lease: Lease,
        config: hal.PrepareConfig,
        nbytes: int,
        model: Model | None = None,
    ) -> wire.Made:
        """The result of *prepare*, if the client's quota has room for the model and *nbytes*."""
        place = self._prepared.place(lease.account, config.num_threads, nbytes, model)
        with Lease(place) as room:
            prepared = prepare()
            loops = _loops(prepared, model)
            made = self.objects.keep(ClientObject("prepared model", prepared, room, loops=loops))
            room.kept = True
        return made

    def executor(self, number: forms.ObjectId) -> Executor:
        """The executor of a prepared model or burst, and whether its runs may be slow at any size.

        Raises `InvalidArgument` for any other object.
        """
        found = self.objects.get(number, "prepared model", "burst")
        return found.value.execute, found.loops


def _loops(prepared: hal.PreparedModel, model: Model | None) -> bool:
    """Whether a run of *prepared*, of *model* or of cache files, may be slow whatever its size."""
    if isinstance(prepared, QueuedPreparedModel):
        # Its runs queue with those of other clients.
        return True
    if model is None:
        # Only its driver knows its operations.
        return getattr(prepared, "loops", True) is not False
    subgraphs = model.subgraphs
    return len(subgraphs) > 1 and any(o.type in LOOPS for s in subgraphs for o in s.operations)


def _run_config(
    found: ClientObject, config: hal.ExecutionConfig, context: _Context
) -> hal.ExecutionConfig:
    return _stoppable(config, context.stop if found.loops else None)


def _stoppable(config: C, stop: hal.CancelToken | None) -> C:
    """*config*, with the cancel token *stop* if it has none."""
    return config if stop is None or config.cancel is not None else replace(config, cancel=stop)


def _file_bytes(handle: hal.CacheHandle) -> int:
    try:
        return os.fstat(handle.fd).st_size
    except (OSError, OverflowError):
        return 0


def _buffer_bytes(desc: hal.BufferDesc, roles: Sequence[hal.BufferRole]) -> int:
    """Bytes of a buffer of known shape; 0 for one that its driver rejects, with its reason."""
    try:
        made = validate_allocate(desc, roles, lambda prepared: getattr(prepared, "model", None))
    except errors.FOREIGN:  # a driver's prepared model may have any value as model
        return 0
    return made.nbytes or 0


def _take_place(places: threading.BoundedSemaphore, what: str) -> None:
    if not places.acquire(blocking=False):
        raise errors.ResourceExhaustedTransient(f"a client may have {what} at a time")


def _release_after(fence: hal.Fence, held: ExitStack) -> None:
    fence.wait()
    held.close()


def tokens_of(form: forms.RequestForm) -> tuple[int, ...]:
    """The buffers that a request names."""
    every = (*form.inputs, *form.outputs)
    return tuple(a.token for a in every if isinstance(a, hal.TokenArgument))


def refusal(error: BaseException) -> Frame:
    """The reply that reports *error*."""
    return Packer().frame(failure_of(error))._replace(failed=True)
