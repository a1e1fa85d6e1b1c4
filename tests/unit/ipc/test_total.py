"""Whatever the bytes, decoding gives a value or `WireError`, in bounded memory; a dispatcher always
answers.
"""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from functools import cache
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, strategies as st

from penstock.drivers.null import create
from penstock.errors import PenstockError, WireError
from penstock.hal import BufferDesc, EventFence, ExecutionConfig, PrepareConfig
from penstock.ipc import codec, forms, wire
from penstock.ipc.client import RemoteDevice
from penstock.ipc.dispatch import Dispatcher
from penstock.ir import Signature
from penstock.testing.contract.cases import every_case
from penstock.testing.contract.trial import PLAIN, Trial
from tests.support_local import LocalChannel

DECODERS: dict[str, Callable[[bytes], object]] = {
    "call": codec.decode_call,
    "reply": codec.decode_reply,
    "notice": codec.decode_notice,
}


class Transcript(LocalChannel):
    """A channel that keeps every frame."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        super().__init__(dispatcher)
        self.calls: list[codec.Frame] = []
        self.replies: list[codec.Frame] = []

    def answer(self, frame: codec.Frame) -> codec.Frame:
        reply = super().answer(frame)
        self.calls.append(frame)
        self.replies.append(reply)
        return reply


@cache
def transcript() -> Transcript:
    """Everything a client can say to a device, and what it answers."""
    channel = Transcript(Dispatcher(create()))
    device = RemoteDevice(channel)
    device.check()
    device.cache_files_needed()
    for case in every_case():
        device.supported_operations(case.model)
        device.explain(case.model, PrepareConfig())
        with pytest.raises(PenstockError):
            device.dump(case.model, PrepareConfig(), "fuse")
        prepared = device.prepare_model(case.model, PrepareConfig())
        with Trial(case, "mixed") as trial:
            prepared.execute(trial.request, PLAIN)
            prepared.configure_burst().execute(trial.request, PLAIN)
            prepared.create_reusable_execution(trial.request).execute(PLAIN)
            if not case.is_dynamic:
                fence = EventFence()
                fence.signal()
                prepared.execute_fenced(trial.request, [fence], PLAIN)
            memory = trial.request.pools[0]
            pack = codec.Packer()
            channel.call(pack.frame(wire.LendPool(pack.memory(memory))))
            pack = codec.Packer()
            handle = pack.handle(codec.Descriptor(0))
            channel.call(pack.frame(wire.OpenRing(handle, handle, handle, 4, 16384)))
            pack = codec.Packer()
            channel.call(pack.frame(wire.CopyTo(1, pack.memory(memory))))
            pack = codec.Packer()
            channel.call(pack.frame(wire.CopyFrom(1, pack.memory(memory), (2,))))
        channel.call(codec.Packer().frame(wire.Report(prepared.number)))
        prepared.close()
    for refused in (
        lambda: device.allocate(BufferDesc(), []),
        lambda: device.prepare_model_from_cache(PrepareConfig()),
    ):
        with pytest.raises(PenstockError):
            refused()
    device.close()
    return channel


def test_the_transcript_has_every_call() -> None:
    said = {
        type(codec.decode_call(frame.data, codec.Unpacker(frame.handles)))
        for frame in transcript().calls
    }
    assert said == set(get_args(wire.Call))


@pytest.mark.parametrize("name", DECODERS)
@given(data=st.binary(max_size=300))
def test_random_bytes(name: str, data: bytes) -> None:
    decode_or_refuse(DECODERS[name], data)


@given(data=st.data())
def test_damaged_messages(data: st.DataObject) -> None:
    frame = data.draw(st.sampled_from(transcript().calls + transcript().replies))
    damaged = bytearray(frame.data)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, max(0, len(damaged) - 1)))
        match data.draw(st.sampled_from(["flip", "insert", "cut", "drop"])):
            case "flip" if damaged:
                damaged[place] ^= data.draw(st.integers(1, 255))
            case "insert":
                damaged[place:place] = data.draw(st.binary(max_size=8))
            case "cut":
                del damaged[place:]
            case _:
                del damaged[place : place + 3]
    for decode in DECODERS.values():
        decode_or_refuse(decode, bytes(damaged))
    reply = Dispatcher(create()).answer(codec.Frame(bytes(damaged), frame.handles))
    assert codec.decode_reply(reply.data) is not None


def decode_or_refuse(decode: Callable[[bytes], object], data: bytes) -> None:
    try:
        assert decode(data) is not None
    except WireError:
        return


def test_every_truncation_of_every_call_is_refused() -> None:
    for frame in transcript().calls[:40]:
        for length in range(len(frame.data)):
            with pytest.raises(WireError):
                codec.decode_call(frame.data[:length])


def test_every_appended_byte_is_refused() -> None:
    for frame in transcript().calls:
        with pytest.raises(WireError):
            codec.decode_call(frame.data + b"\0")


@pytest.mark.parametrize("count", [2**16, 2**24, 2**31, 2**32 - 1])
@pytest.mark.parametrize(
    "head", [b"\xdd", b"\xdf", b"\xc6", b"\xdb"], ids=["array", "map", "bin", "str"]
)
def test_an_announced_size_allocates_nothing(head: bytes, count: int) -> None:
    announced = head + struct.pack(">I", count)
    prefixes = (
        b"",
        b"\x92\xb4supported_operations\x95",
        b"\x92\xb4supported_operations\x95\x91\x86\xa8operands",
        b"\x92\xa8supports",
        b"\x97\xa7execute\x01",
    )
    tracemalloc.start()
    try:
        for prefix in prefixes:
            for decode in DECODERS.values():
                with pytest.raises(WireError):
                    decode(prefix + announced)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("byte", [b"\x91", b"\x81", b"\x92\xa8supports\x91"])
def test_depth_is_bounded(byte: bytes) -> None:
    for decode in DECODERS.values():
        with pytest.raises(WireError):
            decode(byte * 200_000)


@pytest.mark.parametrize(
    "value",
    [["no_such_call"], ["check", 1], ["describe"], ["describe", "1"], [], {}, None, 1, ["done"]],
    ids=str,
)
def test_unknown_messages_and_fields_are_refused(value: object) -> None:
    with pytest.raises(WireError):
        codec.decode_call(msgspec.msgpack.encode(value))


class TestDispatcher:
    def test_nonsense_is_an_invalid_argument(self) -> None:
        dispatcher = Dispatcher(create())
        for data in (b"", b"\xc1", b"\x93", codec.encode(wire.Done())):
            assert refusal(dispatcher, codec.Frame(data)).startswith("INVALID_ARGUMENT")

    @pytest.mark.parametrize(
        "call",
        [
            wire.Execute(
                1, forms.RequestForm((), (), ()), ExecutionConfig(loop_timeout_ns=1, priority="low")
            ),
            wire.Execute(1, None, ExecutionConfig(loop_timeout_ns=1, priority="low")),
            wire.ConfigureBurst(1),
            wire.ConfigureBurst(0),
            wire.CreateReusableExecution(-1, forms.RequestForm((), (), ())),
            wire.CopyTo(1, forms.MemoryForm("ashmem", 0, 1)),
            wire.Allocate(BufferDesc(), (forms.RoleForm(1, "input", 0, 1.0),)),
        ],
        ids=lambda c: type(c).__name__,
    )
    def test_objects_that_are_not_there_are_named(self, call: wire.Call) -> None:
        assert "is no" in refusal(Dispatcher(create()), codec.Frame(codec.encode(call)))

    def test_a_prepared_model_is_refused_as_a_reusable_execution(self) -> None:
        dispatcher = Dispatcher(create())
        pack = codec.Packer()
        model, config = pack.model(every_case()[0].model), PrepareConfig()
        made = codec.decode_reply(dispatcher.answer(pack.frame(wire.Prepare(model, config))).data)
        assert isinstance(made, wire.Made)
        run = wire.Execute(made.target, None, ExecutionConfig(loop_timeout_ns=1, priority="low"))
        assert "is no reusable execution" in refusal(dispatcher, codec.Frame(codec.encode(run)))
        assert len(dispatcher.objects) == 1
        dispatcher.objects.close()
        assert len(dispatcher.objects) == 0

    def test_another_wire_version_is_refused(self) -> None:
        frame = codec.Frame(codec.encode(wire.Describe(wire.WIRE_VERSION + 1)))
        assert f"this device {wire.WIRE_VERSION}" in refusal(Dispatcher(create()), frame)

    def test_closing_twice_is_done(self) -> None:
        dispatcher = Dispatcher(create())
        for _ in range(2):
            reply = dispatcher.answer(codec.Frame(codec.encode(wire.Close(5))))
            assert codec.decode_reply(reply.data) == wire.Done()

    def test_a_model_of_an_unknown_operation_is_an_invalid_argument(self) -> None:
        from msgspec.structs import replace

        entry = every_case()[0].model.entry
        bad = replace(entry.operations[0], type="NO_SUCH")
        form = forms.ModelForm((replace(entry, operations=(bad,)),), (), (), {}, 0)
        text = refusal(
            Dispatcher(create()), codec.Frame(codec.encode(wire.SupportedOperations(form)))
        )
        assert text.startswith("INVALID_ARGUMENT")
        assert "NO_SUCH" in text

    def test_a_bad_signature_is_an_invalid_argument(self) -> None:
        case = every_case()[0]
        signatures = {"s": Signature(0, (("x", 99),), ())}
        form = forms.ModelForm(case.model.subgraphs, (), (), signatures, 0)
        text = refusal(
            Dispatcher(create()), codec.Frame(codec.encode(wire.SupportedOperations(form)))
        )
        assert "signature 's'" in text


def refusal(dispatcher: Dispatcher, frame: codec.Frame) -> str:
    reply: Any = codec.decode_reply(dispatcher.answer(frame).data)
    assert isinstance(reply, wire.Failure)
    return f"{reply.status.name}: {reply.message}"


def raw_call(attributes: object) -> bytes:
    """A call whose one operation has *attributes*, whatever they are."""
    form = wire.SupportedOperations(codec.Packer().model(every_case()[0].model))
    raw = msgspec.msgpack.decode(codec.encode(form))
    raw[1][0][0]["operations"][0]["attributes"] = attributes
    return msgspec.msgpack.encode(raw)


@pytest.mark.parametrize(
    "attributes",
    [
        1,
        [],
        "a",
        {1: 2},
        {b"a": 2},
        {"a": {}},
        {"a": [[1]]},
        {"a": ["x"]},
        {"a": [True]},
        {"a": [None]},
    ],
    ids=str,
)
def test_attributes_of_other_forms_are_refused(attributes: object) -> None:
    with pytest.raises(WireError):
        codec.decode_call(raw_call(attributes))


def test_attributes_of_the_right_form_are_taken() -> None:
    call = codec.decode_call(raw_call({"b": [1, 2.5], "a": None}))
    assert isinstance(call, wire.SupportedOperations)
    received = call.model.subgraphs[0].operations[0].attributes
    assert dict(received) == {"a": None, "b": (1, 2.5)}


def test_value_without_an_encoding_cannot_be_sent() -> None:
    model = every_case()[0].model
    from msgspec.structs import replace

    odd = replace(model.entry, name=object())
    with pytest.raises(WireError, match="a object cannot be encoded"):
        codec.encode(wire.SupportedOperations(forms.ModelForm((odd,), (), (), {}, 0)))
