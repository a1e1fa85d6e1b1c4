"""Converts HAL values to messages and back, with bounds, for any bytes.

Decoding returns a value or raises `WireError`, whatever the bytes are. Lengths are checked against
the available bytes before anything is allocated, models are validated, and the kinds of handles are
checked.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from penstock import errors, hal
from penstock.ipc import forms, wire
from penstock.ipc.deadlines import current_deadline
from penstock.ir import Attributes, ConstantPool, Model, NDArray
from penstock.ir.encoding import attributes_of, encode_hook
from penstock.ir.operand import MAX_COPIED_VALUE
from penstock.ir.transforms import holds_large_values, pooled
from penstock.logs import printable
from penstock.memory import HardwareBufferDescription, HardwareBufferHandle, MappedFd
from penstock.memory.mapping import OUT_OF_ROOM

T = TypeVar("T")

ERRORS: Final = errors.driver_error_classes()

LARGE: Final = 1 << 20
"""Bytes of messages to a host beyond which it reads one at a time."""

_large: Final = threading.Lock()

_handles: Final = threading.local()
"""The `unpacker` of this thread has the handles of the call that it decodes."""

MOST_TEXT: Final = 1 << 14
"""Most characters of an error's message that are sent: it may repeat the other side's text."""


class Descriptor(NamedTuple):
    """A file descriptor in a table of handles: the only handle that is sent unchanged."""

    fd: int


class Opaque(NamedTuple):
    """A handle that only this process can use."""

    value: object


class Frame(NamedTuple):
    """One message: its bytes, its handles, and for a call its deadline (monotonic time).

    An answer has the copies of the call's arrays, by the number of the handle, and whether the call
    *failed*. A call that *may_end_early* writes no memory of the caller: see `StoppedProcess`.
    """

    data: bytes
    handles: tuple[object, ...] = ()
    deadline_ns: int | None = None
    copies: tuple[hal.ArgumentCopy, ...] = ()
    failed: bool = False
    may_end_early: bool = False


class Packer:
    """Converts HAL values to forms, and collects their handles in `handles`."""

    def __init__(self) -> None:
        self.handles: list[object] = []

    def frame(self, message: wire.Call | wire.Reply | wire.Notice) -> Frame:
        """*message* as a frame with its handles and deadline. Raises `WireError` if too large."""
        config = getattr(message, "config", None)
        deadline_ns = current_deadline() if config is None else config.deadline_ns
        data = encode(message, msgspec.msgpack.Encoder(enc_hook=self._encode_hook))
        return Frame(data, tuple(self.handles), deadline_ns)

    def handle(self, value: object) -> forms.Handle:
        if len(self.handles) >= forms.MAX_HANDLES:
            raise errors.WireError(f"more than {forms.MAX_HANDLES} handles beside one message")
        self.handles.append(value)
        return len(self.handles) - 1

    def model(self, model: Model) -> forms.ModelForm:
        """The form of *model*, large values as handles. Equal contents give equal bytes."""
        model = pooled(model)
        pools, signatures = map(self.handle, model.pools), sorted(model.signatures.items())
        return forms.ModelForm(
            model.subgraphs, tuple(pools), model.variables, dict(signatures), model.main
        )

    def memory(self, memory: hal.Memory) -> forms.MemoryForm:
        handle: Descriptor | Opaque = Opaque(memory.handle)
        window, buffer = None, None
        match memory.name, memory.handle:
            case "mmap_fd", (int(fd), int(offset), int(protection)):
                handle, window = Descriptor(fd), (offset, protection)
            case "ashmem", int(fd):
                handle = Descriptor(fd)
            case _, (int(fd), HardwareBufferDescription() as description):
                handle, buffer = Descriptor(fd), description
        return forms.MemoryForm(memory.name, self.handle(handle), memory.size, window, buffer)

    def prepare_config(self, config: hal.PrepareConfig) -> hal.PrepareConfig:
        """*config* whose callback becomes a handle: msgspec would encode a data class itself."""
        if config.progress is None:
            return config
        return replace(config, progress=partial(config.progress))

    def request(self, request: hal.Request) -> forms.RequestForm:
        return forms.RequestForm(
            tuple(map(_read_only, request.inputs)),
            request.outputs,
            tuple(map(self.memory, request.pools)),
        )

    def _encode_hook(self, value: object) -> object:
        match value:
            case hal.CacheHandle(fd=fd):
                return self.handle(Descriptor(fd))
            case np.ndarray() | hal.CancelToken():
                return self.handle(value)
        return self.handle(value) if callable(value) else encode_hook(value)


def _read_only(argument: hal.RequestArgument) -> hal.RequestArgument:
    if isinstance(argument, hal.HostMemory) and argument.array.flags.writeable:
        array = argument.array.view()
        array.setflags(write=False)
        return hal.HostMemory(array, argument.dimensions)
    return argument


class Unpacker:
    """Converts forms to HAL values, with the message's handles. Every method raises `WireError`."""

    def __init__(
        self, handles: Sequence[object], admit: Callable[[hal.Memory], None] = lambda _: None
    ) -> None:
        """*admit* checks each memory, and raises `WireError` for one that must not be mapped."""
        if len(handles) > forms.MAX_HANDLES:
            raise errors.WireError(f"{len(handles)} handles beside one message")
        self._handles, self._admit = handles, admit

    def handle(self, index: forms.Handle, kind: type[T], what: str) -> T:
        if not 0 <= index < len(self._handles):
            raise errors.WireError(f"handle {index} of {len(self._handles)} for {what}")
        value = self._handles[index]
        if not isinstance(value, kind):
            raise errors.WireError(f"handle {index} is a {type(value).__name__}, not {what}")
        return value

    def fence(self, index: forms.Handle) -> Any:
        value = self.handle(index, object, "a fence")
        if not (callable(getattr(value, "wait", None)) and callable(getattr(value, "error", None))):
            raise errors.WireError(f"handle {index} is a {type(value).__name__}, not a fence")
        return value

    def model(self, form: forms.ModelForm) -> Model:
        """The model, validated as every model is on construction."""
        pools = tuple(self.handle(i, ConstantPool, "a pool of constants") for i in form.pools)
        try:
            model = Model(form.subgraphs, pools, form.variables, form.signatures, main=form.main)
        except errors.ModelError as error:
            raise errors.WireError(f"the model in the message is not valid: {error}") from error
        if holds_large_values(model):
            raise errors.WireError(f"a value of the model has more than {MAX_COPIED_VALUE} bytes")
        return model

    def memory(self, form: forms.MemoryForm) -> hal.Memory:
        memory = self._memory(form)
        self._admit(memory)
        return memory

    def _memory(self, form: forms.MemoryForm) -> hal.Memory:
        value = self.handle(form.handle, object, "a memory")
        match value, form.window, form.buffer:
            case Descriptor(fd), None, None:
                return hal.Memory(form.name, fd, form.size)
            case Descriptor(fd), (offset, protection), None:
                return hal.Memory(form.name, MappedFd(fd, offset, protection), form.size)
            case Descriptor(fd), None, HardwareBufferDescription() as buffer:
                return hal.Memory(form.name, HardwareBufferHandle(fd, buffer), form.size)
            case Opaque(handle), None, None:
                return hal.Memory(form.name, handle, form.size)
        raise errors.WireError(f"handle {form.handle} is a {type(value).__name__}, not a memory's")

    def request(self, form: forms.RequestForm) -> hal.Request:
        return hal.Request(form.inputs, form.outputs, tuple(map(self.memory, form.pools)))

    def decode_hook(self, kind: Any, value: object) -> object:
        """The handle with the index *value*, as a *kind*."""
        if kind is Attributes:
            return attributes_of(value)
        if type(value) is not int:
            raise TypeError(f"a {type(value).__name__} for the index of a handle")
        if kind is hal.CacheHandle:
            return hal.CacheHandle(self.handle(value, Descriptor, "a descriptor").fd)
        if kind is hal.CancelToken:
            return self.handle(value, hal.CancelToken, "a cancel token")
        if kind == NDArray:
            return self.handle(value, np.ndarray, "an array")
        found = self.handle(value, object, "a callback")
        if not callable(found):
            raise errors.WireError(f"handle {value} is a {type(found).__name__}, not a callback")
        return found


def failure_of(error: BaseException) -> wire.Failure | wire.Stopped:
    """The message for *error*. An error outside the contract becomes a `GeneralFailure`."""
    text = _cut(str(error))
    match error:
        case errors.OutputInsufficientSize(output_shapes=shapes):
            given = tuple(hal.OutputShape(tuple(d), s) for d, s in shapes)
            return wire.Failure(error.status, _cut(error.message), given, driver_copies(error))
        case errors.DriverError():
            return wire.Failure(error.status, text, (), driver_copies(error))
        case errors.Cancelled():
            return wire.Stopped("cancelled", text)
        case errors.ClosedError():
            return wire.Stopped("closed", text)
        case MemoryError():
            text = "the driver's process has no memory left"
            return wire.Failure(errors.ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT, text)
        case OSError(errno=number) if number in OUT_OF_ROOM:
            return wire.Failure(errors.ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT, text)
    text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return wire.Failure(errors.ErrorStatus.GENERAL_FAILURE, text)


MOST_COPIES: Final = 4096
"""Copies of one execution that a message lists."""


def driver_copies(source: object) -> tuple[hal.ArgumentCopy, ...]:
    """The copies that a driver made, as its fence or its error lists them."""
    found: object = getattr(source, "copies", ())
    if not isinstance(found, tuple) or not all(isinstance(c, hal.ArgumentCopy) for c in found):
        return ()
    return found[:MOST_COPIES]


def _cut(text: str) -> str:
    text = text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} [...]"
    return text.encode("utf-8", "replace").decode()


def error_of(message: wire.Failure | wire.Stopped) -> errors.PenstockError:
    """The error in *message*, of the original class. Its text is safe to show in a terminal."""
    text = printable(message.message)
    if isinstance(message, wire.Stopped):
        kind = errors.Cancelled if message.kind == "cancelled" else errors.ClosedError
        return kind(text)
    if message.status is errors.ErrorStatus.NONE:
        raise errors.WireError("a failure whose status says that there was none")
    if message.status is errors.ErrorStatus.OUTPUT_INSUFFICIENT_SIZE:
        shapes = [(s.dimensions, s.is_sufficient) for s in message.output_shapes]
        error: errors.DriverError = errors.OutputInsufficientSize(text, shapes)
    else:
        error = ERRORS[message.status](text)
    if message.copies:
        error.copies = made_by_driver(message.copies)
    return error


def made_by_driver(copies: Sequence[hal.ArgumentCopy]) -> tuple[hal.ArgumentCopy, ...]:
    """*copies* that another process says that its driver made."""
    return tuple(replace(copy, by_driver=True) for copy in copies)


def encode(
    message: wire.Call | wire.Reply | wire.Notice | wire.ToHost | wire.ToClient | wire.RingRequest,
    encoder: msgspec.msgpack.Encoder | None = None,
) -> bytes:
    """The bytes of *message*; raises `WireError` if it has none, or more than `MAX_FRAME`."""
    try:
        data = (encoder or _ENCODER).encode(message)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise errors.WireError(f"{type(message).__name__} cannot be encoded: {error}") from error
    wire.check_length(len(data))
    return data


def decode_call(data: bytes, take: Unpacker | None = None) -> wire.Call:
    """The call in *data*, with handles of *take*. Raises `WireError`."""
    _handles.unpacker = Unpacker(()) if take is None else take
    try:
        return _decode(_CALLS, data) if len(data) <= LARGE else _decode_alone(_CALLS, data)
    finally:
        del _handles.unpacker


def decode_reply(data: bytes) -> wire.Reply:
    """The reply in *data*. No text in it contains terminal commands. Raises `WireError`."""
    reply = _decode(_REPLIES, data)
    match reply:
        case wire.Made() | wire.Reported() | wire.Reason() | wire.Supports():
            return _shown(reply)
        case wire.Executed(result=hal.ExecutionResult(timing=timing)) if timing.operations:
            return _shown(reply)
    return reply


def decode_to_host(data: bytes) -> wire.ToHost:
    """A client's message. Raises `WireError`."""
    return _decode(_TO_HOST, data) if len(data) <= LARGE else _decode_alone(_TO_HOST, data)


def decode_to_client(data: bytes) -> wire.ToClient:
    """A host's message. Raises `WireError`. Control characters are removed from progress text."""
    message = _decode(_TO_CLIENT, data)
    return _shown(message) if isinstance(message, wire.Progress) else message


def decode_notice(data: bytes) -> wire.Notice:
    """The notice in *data*. Raises `WireError`."""
    return _decode(_NOTICES, data)


def _shown(value: T) -> T:
    """*value* without control characters in any text of it, and long texts cut."""
    shown: Any = value
    match value:
        case str() if type(value) is str:
            shown = printable(_cut(value)) if value else value
        case tuple() if type(value) is tuple:
            shown = tuple(map(_shown, value))
        case msgspec.Struct():
            fields = {name: getattr(value, name) for name in value.__struct_fields__}
            changed = {n: new for n, old in fields.items() if (new := _shown(old)) is not old}
            shown = replace(value, **changed) if changed else value
    return shown  # type: ignore[no-any-return]


def _decode(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T:
    wire.check_length(len(data))
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise errors.WireError(f"no message: {error}") from error


def _decode_alone(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T:
    """As `_decode`, one at a time and without garbage collection. The heartbeat pauses."""
    with _large:
        collects = gc.isenabled()
        gc.disable()
        try:
            return _decode(decoder, data)
        finally:
            if collects:
                gc.enable()


def _decode_hook(kind: Any, value: object) -> object:
    unpacker: Unpacker = _handles.unpacker
    return unpacker.decode_hook(kind, value)


_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=encode_hook)
_CALLS: Final[msgspec.msgpack.Decoder[wire.Call]] = msgspec.msgpack.Decoder(
    wire.Call, dec_hook=_decode_hook
)
_REPLIES: Final[msgspec.msgpack.Decoder[wire.Reply]] = msgspec.msgpack.Decoder(wire.Reply)
_NOTICES: Final[msgspec.msgpack.Decoder[wire.Notice]] = msgspec.msgpack.Decoder(wire.Notice)
_TO_HOST: Final[msgspec.msgpack.Decoder[wire.ToHost]] = msgspec.msgpack.Decoder(wire.ToHost)
_TO_CLIENT: Final[msgspec.msgpack.Decoder[wire.ToClient]] = msgspec.msgpack.Decoder(wire.ToClient)
