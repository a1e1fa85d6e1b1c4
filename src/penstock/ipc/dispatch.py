"""The device's side of the wire: decodes a call, makes it on the device, encodes the reply."""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar
from weakref import WeakSet

from msgspec.structs import replace

from penstock.errors import (
    FOREIGN,
    GeneralFailure,
    InvalidArgument,
    ResourceExhaustedPersistent,
    ResourceExhaustedTransient,
    WireError,
)
from penstock.hal import (
    BYTE_SIZE_OF_CACHE_TOKEN,
    NO_CACHE_REPORT,
    BufferDesc,
    BufferRole,
    CacheHandle,
    CancelToken,
    Device,
    ExecutionConfig,
    Fence,
    Memory,
    PrepareConfig,
    PreparedModel,
    TokenArgument,
)
from penstock.hal.buffer import validate_allocate
from penstock.ipc import wire
from penstock.ipc.codec import (
    Descriptor,
    Frame,
    Packer,
    Unpacker,
    decode_call,
    failure_of,
)
from penstock.ipc.quotas import MOST_THREADS, Lease, Preparations, closing_unless_kept, form_bytes
from penstock.ipc.system import begin_or_do
from penstock.memory.mapping import ASHMEM

if TYPE_CHECKING:
    from penstock.ipc.ring_server import Executor, LentPool
    from penstock.ir import Model

Kind: TypeAlias = Literal[
    "prepared model", "burst", "reusable execution", "buffer", "ring", "lent pool"
]

logger: Final = logging.getLogger(__name__)

MAX_OBJECTS: Final = 1 << 16
"""Objects that one client may have at a time, those that are still being closed among them."""

MAX_FENCES: Final = 256
"""Fenced executions of one client that may be under way at a time."""

MAX_RINGS: Final = 256
"""Rings of one client whose threads may live at a time."""

MAX_LENT_POOLS: Final = 4096
"""Pools that one client may lend its rings at a time, those among them that only a bound request
still keeps.
"""

C = TypeVar("C", PrepareConfig, ExecutionConfig)

LOOPS: Final = frozenset({"WHILE", "STABLEHLO_WHILE"})
"""Operations that end only when their data, a deadline, a loop timeout or a cancellation
ends them.
"""

OWNED: Final = b"penstock cache owner\0"


class _Object(NamedTuple):
    kind: Kind
    value: Any
    lease: Lease | None = None
    token: int = 0
    tokens: tuple[int, ...] = ()
    loops: bool = False

    def close(self) -> None:
        try:
            self.value.close()
        finally:
            if self.lease is not None:
                self.lease.close()


class Dispatcher:
    """Answers the calls of one client to *device*. Calls may come from several threads at once.

    A client has the objects and the tokens that it was given, and no others: those of other clients
    of the same device are `InvalidArgument`, and so is a memory for which *admit* raises
    `WireError`. Only one that *owns_device* closes it when it is asked to. Cache entries are bound
    to *owner*: what a client has sealed is nothing to those of another.
    """

    def __init__(
        self,
        device: Device,
        *,
        owns_device: bool = True,
        admit: Callable[[Memory], None] = lambda _: None,
        owner: bytes = b"",
    ) -> None:
        self._device, self._owns_device = device, owns_device
        self._admit, self._owner = admit, owner
        self._tokens: set[int] = set()
        self._used: Counter[int] = Counter()
        self._late: dict[int, _Object] = {}
        self._objects: dict[wire.ObjectId, _Object] = {}
        self._numbers = itertools.count(1)
        self._parting = 0
        self._fences = threading.BoundedSemaphore(MAX_FENCES)
        self._rings = threading.BoundedSemaphore(MAX_RINGS)
        self._prepared = Preparations()
        self._lent: WeakSet[LentPool] = WeakSet()
        self._lock = threading.Lock()

    def answer(
        self, frame: Frame, lease: Lease | None = None, stop: CancelToken | None = None
    ) -> Frame:
        """The reply to the call in *frame*, beside which came what *lease* closes; never raises.
        *stop* is set when its client leaves, until *lease* is closed: it ends preparations, and
        executions that could go on for long, also where the call has no cancel token.

        A call that makes no sense gets `InvalidArgument`, one that the device fails gets its error.
        """
        pack = Packer()
        lease = Lease() if lease is None else lease
        lease.message_bytes = len(frame.data)

        def admit(memory: Memory) -> None:
            self._admit(memory)
            lease.count(memory)

        try:
            take = Unpacker(frame.handles, admit)
            call = decode_call(frame.data, take)
            reply = self._make(call, take, pack, lease, stop)
        except WireError as error:
            return refusal(InvalidArgument(str(error)))
        except FOREIGN as error:  # whatever a driver raises becomes a reply
            return refusal(error)
        try:
            return pack.frame(reply)
        except WireError as error:
            return refusal(GeneralFailure(f"the device's answer is no message: {error}"))

    def close(self) -> None:
        """Closes every object of the client, rings first and then the newest, but buffers that a
        run still uses: those are closed when it has ended. The device stays open.
        """
        with self._lock:
            objects, self._objects = list(self._objects.values()), {}
            self._tokens.clear()
            self._late.update({o.token: o for o in objects if self._used[o.token]})
            unused = [o for o in objects if not self._used[o.token]]
        # Rings first: their runs use the others.
        unused.sort(key=lambda o: o.kind == "ring")
        for each in reversed(unused):
            try:
                each.close()
            except (Exception, SystemExit):
                # One that cannot be closed must not keep the others open.
                logger.exception("an object of a client that left could not be closed")

    def detach(self, number: wire.ObjectId) -> Callable[[], None] | None:
        """Takes an object from the client at once; what is given closes it, which may take its
        time. None where there is nothing to close now.
        """
        found = self._taken(number)
        if found is None:
            return None
        with self._lock:
            self._parting += 1

        def close() -> None:
            try:
                found.close()
            except (Exception, SystemExit):
                logger.exception("an object that a client dropped could not be closed")
            finally:
                with self._lock:
                    self._parting -= 1

        return close

    @property
    def live_objects(self) -> int:
        """How many objects the client has not closed."""
        return len(self._objects)

    def _make(
        self,
        call: wire.Call,
        take: Unpacker,
        pack: Packer,
        lease: Lease,
        stop: CancelToken | None,
    ) -> wire.Reply:
        device = self._device
        match call:
            case wire.Describe(wire_version=version):
                return self._describe(version)
            case wire.Check():
                return wire.Reason(device.check())
            case wire.CacheFilesNeeded():
                return wire.CacheFiles(*device.cache_files_needed())
            case wire.SupportedOperations(model=form):
                return wire.Supports(tuple(device.supported_operations(take.model(form))))
            case wire.Prepare(model=form, config=config):
                model = take.model(form)
                given = self._prepare_config(config, stop)
                nbytes = form_bytes(lease.message_bytes)
                prepare = partial(device.prepare_model, model, given)
                return self._placed(prepare, lease, given.num_threads, nbytes, model)
            case wire.PrepareFromCache(config=config):
                given = self._prepare_config(config, stop)
                nbytes = sum(map(_file_bytes, (*given.model_cache, *given.data_cache)))
                prepare = partial(device.prepare_model_from_cache, given)
                return self._placed(prepare, lease, given.num_threads, nbytes)
            case wire.Allocate(desc=desc, roles=roles):
                uses = [self._role(r) for r in roles]
                with closing_unless_kept(lease.of_own(_buffer_bytes(desc, uses))) as place:
                    token, buffer = device.allocate(desc, uses)
                    made = self._keep("buffer", buffer, place, token=token)
                    place.kept = True
                return wire.Allocated(token, made.target)
            case wire.CopyTo(buffer=target, destination=memory):
                self._find(target, "buffer").copy_to(take.memory(memory))
                return wire.Done()
            case wire.CopyFrom(buffer=target, source=memory, dimensions=dimensions):
                self._find(target, "buffer").copy_from(take.memory(memory), dimensions)
                return wire.Done()
            case wire.Report(prepared=target):
                prepared = self._find(target, "prepared model")
                return wire.Reported(getattr(prepared, "cache_report", NO_CACHE_REPORT))
            case wire.Close(target=target):
                return self._close(target)
        return self._run(call, take, pack, lease, stop)

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
        lease: Lease,
        stop: CancelToken | None,
    ) -> wire.Reply:
        match call:
            case wire.Execute(target=target, request=None, config=config):
                found = self._object(target, "reusable execution")
                held = nullcontext() if found.lease is None else found.lease.used()
                with held, self.using(found.tokens):
                    run = _stoppable(config, stop if found.loops else None)
                    return wire.Executed(found.value.execute(run))
            case wire.Execute(target=target, request=wire.RequestForm() as request, config=config):
                found = self._object(target, "prepared model", "burst")
                run = _stoppable(config, stop if found.loops else None)
                with self.using(tokens_of(request)):
                    return wire.Executed(found.value.execute(take.request(request), run))
            case wire.ExecuteFenced():
                found = self._object(call.prepared, "prepared model")
                with ExitStack() as used:
                    _take_place(self._fences, f"{MAX_FENCES} fenced executions under way")
                    used.callback(self._fences.release)
                    used.enter_context(self.using(tokens_of(call.request)))
                    fence = found.value.execute_fenced(
                        take.request(call.request),
                        [take.fence(f) for f in call.wait_for],
                        _stoppable(call.config, stop if found.loops else None),
                        call.timeout_after_fence_ns,
                    )
                    # Whatever becomes of the answer: the run goes on.
                    lease.kept = True
                    used.callback(lease.close)
                    if not fence.wait(0):
                        # Without room for a thread this one waits: the run still uses it all.
                        begin_or_do(_release_after, fence, used.pop_all())
                return wire.Fenced(pack.handle(fence))
            case wire.ConfigureBurst(prepared=target):
                found = self._object(target, "prepared model")
                return self._keep("burst", found.value.configure_burst(), loops=found.loops)
            case wire.CreateReusableExecution(prepared=target, request=request):
                found = self._object(target, "prepared model")
                tokens = tokens_of(request)
                with self.using(tokens):
                    execution = found.value.create_reusable_execution(take.request(request))
                made = self._keep(
                    "reusable execution", execution, lease, tokens=tokens, loops=found.loops
                )
                lease.kept = True
                return made
            case wire.OpenRing():
                return self._keep("ring", self._ring(call, take, lease))
            case wire.LendPool(memory=memory):
                return self._keep("lent pool", self._lent_pool(take.memory(memory), lease))
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

    def _ring(self, call: wire.OpenRing, take: Unpacker, lease: Lease) -> Any:
        from penstock.ipc.ring import Layout
        from penstock.ipc.ring_server import RingServer

        layout = Layout(call.slots, call.slot_bytes)
        memory, to_device, to_client = (
            take.handle(index, Descriptor, "a descriptor").fd
            for index in (call.memory, call.to_device, call.to_client)
        )
        _take_place(self._rings, f"{MAX_RINGS} rings")
        with ExitStack() as undone:
            undone.callback(self._rings.release)
            charge = lease.charge(Memory(ASHMEM, memory, layout.nbytes))
            undone.callback(charge.release)

            def ended() -> None:
                charge.release()
                self._rings.release()

            made = RingServer(
                self.executor,
                self._pool,
                memory,
                to_device,
                to_client,
                layout,
                using=self.using,
                ended=ended,
                charge=lease.charge,
            )
            undone.pop_all()
        return made

    def _lent_pool(self, memory: Memory, lease: Lease) -> LentPool:
        from penstock.ipc.ring_server import LentPool

        if len(self._lent) >= MAX_LENT_POOLS:
            raise ResourceExhaustedTransient(
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

    def _prepare_config(self, config: PrepareConfig, stop: CancelToken | None) -> PrepareConfig:
        config = _stoppable(config, stop)
        # Threads are the machine's, and no engine bounds how many it is asked for.
        if config.num_threads is not None and config.num_threads > MOST_THREADS:
            config = replace(config, num_threads=MOST_THREADS)
        if not self._owner or len(config.binding) != BYTE_SIZE_OF_CACHE_TOKEN:
            return config
        binding = hashlib.sha256(OWNED + self._owner + b"\0" + config.binding).digest()
        return replace(config, binding=binding)

    def _placed(
        self,
        prepare: Callable[[], PreparedModel],
        lease: Lease,
        num_threads: int | None,
        nbytes: int,
        model: Model | None = None,
    ) -> wire.Made:
        """What *prepare* makes, of *model* or of cache files, kept with its place among the
        client's: *nbytes* count for it.
        """
        place = Lease(self._prepared.place(lease.account, num_threads, nbytes, model))
        with closing_unless_kept(place):
            prepared = prepare()
            made = self._keep("prepared model", prepared, place, loops=_loops(prepared, model))
            place.kept = True
        return made

    def executor(self, number: wire.ObjectId) -> Executor:
        """What executes requests to a prepared model, or a burst, and whether its runs may take
        long whatever their size. Raises `InvalidArgument` for what is neither.
        """
        found = self._object(number, "prepared model", "burst")
        return found.value.execute, found.loops

    def _pool(self, number: wire.ObjectId) -> Any:
        return self._find(number, "lent pool")

    def _keep(
        self,
        kind: Kind,
        value: Any,
        lease: Lease | None = None,
        token: int = 0,
        tokens: tuple[int, ...] = (),
        *,
        loops: bool = False,
    ) -> wire.Made:
        if value is None:
            raise GeneralFailure(f"the driver succeeded, and there is no {kind}")
        made = _Object(kind, value, lease, token, tokens, loops)
        with self._lock:
            if len(self._objects) + len(self._late) + self._parting < MAX_OBJECTS:
                number = next(self._numbers)
                self._objects[number] = made
                if token:
                    self._tokens.add(token)
                report = getattr(value, "cache_report", NO_CACHE_REPORT)
                return wire.Made(number, report)
        made.close()
        raise ResourceExhaustedPersistent(f"a client may have {MAX_OBJECTS} objects at a time")

    def _find(self, number: wire.ObjectId, *kinds: Kind) -> Any:
        return self._object(number, *kinds).value

    def _object(self, number: wire.ObjectId, *kinds: Kind) -> _Object:
        found = self._objects.get(number)
        if found is None or found.kind not in kinds:
            raise InvalidArgument(f"object {number} is no {' or '.join(kinds)} of this client")
        return found

    @contextmanager
    def using(self, tokens: Sequence[int]) -> Iterator[None]:
        """While the block runs the buffers of *tokens*, which must be this client's, are not
        closed: a driver may give the token of a closed one to another client.
        """
        if not tokens:
            yield
            return
        with self._lock:
            for token in tokens:
                if token not in self._tokens:
                    raise InvalidArgument(f"{token} is no token of a buffer of this client")
            for token in tokens:
                self._used[token] += 1
        try:
            yield
        finally:
            with self._lock:
                for token in tokens:
                    self._used[token] -= 1
                free = [t for t in set(tokens) if t in self._late and not self._used[t]]
                unused = [self._late.pop(t) for t in free]
            for each in unused:
                each.close()

    def _role(self, form: wire.RoleForm) -> BufferRole:
        prepared = self._find(form.prepared, "prepared model")
        return BufferRole(prepared, form.kind, form.index, form.frequency)

    def _close(self, number: wire.ObjectId) -> wire.Done:
        if number == wire.DEVICE:
            self.close()
            if self._owns_device:
                self._device.close()
            return wire.Done()
        found = self._taken(number)
        if found is not None:
            found.close()
        return wire.Done()

    def _taken(self, number: wire.ObjectId) -> _Object | None:
        """That object, which the client has no more; None where it is closed later, or is not
        there.
        """
        with self._lock:
            found = self._objects.pop(number, None)
            if found is not None and found.token:
                self._tokens.discard(found.token)
                if self._used[found.token]:
                    self._late[found.token] = found
                    return None
        return found


def _loops(prepared: PreparedModel, model: Model | None) -> bool:
    """Whether *prepared*, of *model* or of cache files, may take long whatever its size."""
    if getattr(prepared, "takes_turns", False):
        return True
    if model is None:
        # Only its driver has seen its operations.
        return getattr(prepared, "loops", True) is not False
    subgraphs = model.subgraphs
    return len(subgraphs) > 1 and any(o.type in LOOPS for s in subgraphs for o in s.operations)


def _stoppable(config: C, stop: CancelToken | None) -> C:
    """*config* with the cancel token *stop* if it has none of its own."""
    return config if stop is None or config.cancel is not None else replace(config, cancel=stop)


def _file_bytes(handle: CacheHandle) -> int:
    try:
        return os.fstat(handle.fd).st_size
    except (OSError, OverflowError):
        return 0


def _buffer_bytes(desc: BufferDesc, roles: Sequence[BufferRole]) -> int:
    """Bytes of a buffer whose shape is known; 0 for one that its driver refuses, which says why."""
    try:
        made = validate_allocate(desc, roles, lambda prepared: getattr(prepared, "model", None))
    except FOREIGN:  # a driver's prepared model may have anything for a model
        return 0
    return made.nbytes or 0


def _take_place(places: threading.BoundedSemaphore, what: str) -> None:
    if not places.acquire(blocking=False):
        raise ResourceExhaustedTransient(f"a client may have {what} at a time")


def _release_after(fence: Fence, held: ExitStack) -> None:
    fence.wait()
    held.close()


def tokens_of(form: wire.RequestForm) -> tuple[int, ...]:
    """The buffers that a request names."""
    every = (*form.inputs, *form.outputs)
    return tuple(a.token for a in every if isinstance(a, TokenArgument))


def refusal(error: BaseException) -> Frame:
    """The reply that stands for *error*."""
    return Packer().frame(failure_of(error))._replace(failed=True)
