from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from penstock import errors, hal, ir
from penstock.ipc import forms, wire
from penstock.ipc.codec import (
    Descriptor,
    Opaque,
    Packer,
    Unpacker,
    decode_call,
    decode_reply,
    encode,
    error_of,
    failure_of,
)
from penstock.memory import HardwareBufferDescription, HardwareBufferHandle, MappedFd
from penstock.testing.contract.cases import Case, every_case

CASES = every_case()


def by_wire(model: ir.Model) -> ir.Model:
    pack = Packer()
    frame = pack.frame(wire.SupportedOperations(pack.model(model)))
    call = decode_call(frame.data)
    assert isinstance(call, wire.SupportedOperations)
    return Unpacker(frame.handles).model(call.model)


def with_attributes(attributes: ir.Attributes) -> wire.SupportedOperations:
    model = CASES[0].model
    operation = replace(model.operations[0], attributes=attributes)
    entry = replace(model.entry, operations=(operation,))
    return wire.SupportedOperations(forms.ModelForm((entry,), (), (), {}, 0))


def received_attributes(data: bytes) -> ir.Attributes:
    call = decode_call(data)
    assert isinstance(call, wire.SupportedOperations)
    return call.model.subgraphs[0].operations[0].attributes


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_model_comes_back_whole(case: Case) -> None:
    received = by_wire(case.model)
    assert received == case.model
    assert received.subgraphs == case.model.subgraphs
    assert [o.name for o in received.operands] == [o.name for o in case.model.operands]
    assert received.variables == case.model.variables
    assert received.show() == case.model.show()


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_equal_models_have_equal_bytes(case: Case) -> None:
    def sent(model: ir.Model) -> bytes:
        return encode(wire.SupportedOperations(Packer().model(model)))

    assert sent(case.model) == sent(by_wire(case.model))


def test_codec_keeps_undeclared_shapes() -> None:
    model = CASES[0].model
    operands = tuple(
        o if o.is_constant else replace(o, shape_declared=False) for o in model.operands
    )
    model = replace(model, subgraphs=(replace(model.entry, operands=operands),))
    received = by_wire(model)
    assert [o.shape_declared for o in received.operands] == [o.is_constant for o in operands]


def test_constants_travel_by_handle_and_never_as_bytes() -> None:
    b = ir.ModelBuilder()
    x = b.input(ir.DType.FLOAT32, (50_000,), "x")
    k = b.constant(np.arange(50_000, dtype=np.float32), "k")
    model = b.build(b.operation("ADD", [x, k], [(ir.DType.FLOAT32, (50_000,))]))
    pack = Packer()
    frame = pack.frame(wire.SupportedOperations(pack.model(model)))
    assert len(frame.data) < 1000
    assert [type(h) for h in frame.handles] == [ir.ConstantPool]


def holding(nbytes: int) -> ir.Model:
    """A model of a constant and a variable of *nbytes* each, which it holds itself."""
    kind, shape, value = ir.DType.UINT8, (nbytes,), bytes(range(nbytes))
    b = ir.ModelBuilder()
    x = b.input(kind, shape, "x")
    k = b.operand(ir.Operand(kind, shape, ir.Lifetime.CONSTANT_COPY, value=value))
    model = b.build(b.operation("ADD", [x, k], [(kind, shape)]))
    return replace(model, variables=(ir.Variable("v", kind, shape, value=value),))


def test_only_small_values_travel_in_a_message() -> None:
    small, large = holding(128), holding(129)
    assert by_wire(small).operands[1].lifetime is ir.Lifetime.CONSTANT_COPY
    pack = Packer()
    frame = pack.frame(wire.SupportedOperations(pack.model(large)))
    assert [type(h) for h in frame.handles] == [ir.ConstantPool]
    assert bytes(range(64)) not in frame.data
    received = by_wire(large)
    assert received == large
    constant, (variable,) = received.operands[1], received.variables
    assert constant.lifetime is ir.Lifetime.CONSTANT_POOL
    assert bytes(received.constant(constant)) == large.operands[1].value
    assert variable.value is None
    assert variable.location is not None


@pytest.mark.parametrize("what", ["subgraphs", "variables"])
def test_a_message_that_holds_a_large_value_is_refused(what: str) -> None:
    large = holding(129)
    form = forms.ModelForm(large.subgraphs, (), large.variables, {}, 0)
    if what == "subgraphs":
        form = replace(form, variables=())
    else:
        form = replace(form, subgraphs=holding(128).subgraphs)
    with pytest.raises(errors.WireError, match="more than 128 bytes"):
        Unpacker(()).model(form)


def test_every_kind_of_attribute_comes_back_as_itself() -> None:
    values: dict[str, ir.AttributeValue] = {
        "a": True,
        "b": False,
        "c": 0,
        "d": -(2**63),
        "e": 2**64 - 1,
        "f": 0.0,
        "g": -0.0,
        "h": 1.0,
        "i": "text",
        "j": b"\0\xff",
        "k": (),
        "l": (1, -2),
        "m": (0.5, float("inf")),
        "n": None,
    }
    received = received_attributes(encode(with_attributes(ir.Attributes(values))))
    assert repr(received) == repr(ir.Attributes(values))
    assert [type(v) for v in received.values()] == [type(v) for v in values.values()]


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, "\ud800"])
def test_an_attribute_without_bytes_cannot_be_sent(value: ir.AttributeValue) -> None:
    with pytest.raises(errors.WireError, match="cannot be encoded"):
        encode(with_attributes(ir.Attributes(a=value)))


def test_a_request_comes_back_whole() -> None:
    array = np.arange(6, dtype=np.float32)
    blob = HardwareBufferDescription(0x21, 64, stride=64, usage=3)
    request = hal.Request(
        (
            hal.HostMemory(array),
            hal.HostMemory(array, (2, 3)),
            hal.PoolArgument(ir.DataLocation(1, 2, 3), (4, 5), 6),
            hal.TokenArgument(7, (8,)),
            hal.NO_VALUE_ARGUMENT,
        ),
        (
            hal.PoolArgument(ir.DataLocation(0, 2**63, 2**63)),
            hal.PoolArgument(ir.DataLocation(-1, -2, -3)),
        ),
        (
            hal.Memory("ashmem", 5, 100),
            hal.Memory("mmap_fd", MappedFd(6, 7, 1), 200),
            hal.Memory("hardware_buffer", "a buffer", 300),
            hal.Memory("ashmem", None, 1),
            hal.Memory("hardware_buffer_blob", HardwareBufferHandle(8, blob), 64),
        ),
    )
    pack = Packer()
    form = pack.request(request)
    frame = pack.frame(wire.Execute(3, form, hal.ExecutionConfig(cancel=hal.CancelToken())))
    kinds: list[Any] = [Descriptor, Descriptor, Opaque, Opaque, Descriptor]
    kinds += [np.ndarray, np.ndarray, hal.CancelToken]
    assert [type(h) for h in frame.handles] == kinds
    take = Unpacker(frame.handles)
    call = decode_call(frame.data, take)
    assert isinstance(call, wire.Execute)
    assert call.request is not None
    received = take.request(call.request)
    assert received.inputs[2:] == request.inputs[2:]
    assert received.outputs == request.outputs
    assert received.pools == request.pools
    assert isinstance(received.inputs[1], hal.HostMemory)
    assert received.inputs[1].array.base is array
    assert not received.inputs[1].array.flags.writeable
    assert received.inputs[1].dimensions == (2, 3)


def test_configurations_come_back_whole() -> None:
    events: list[hal.ProgressEvent] = []
    config = hal.PrepareConfig(
        preference="low_power",
        priority="high",
        deadline_ns=2**62,
        token=bytes(range(32)),
        binding=bytes(32),
        model_cache=(hal.CacheHandle(3), hal.CacheHandle(4)),
        data_cache=(hal.CacheHandle(5),),
        accuracy="exact",
        num_threads=3,
        options=(("a", "1"), ("b", "2")),
        attributes=(
            hal.ExtensionAttribute("com.example.a", 0, b"\x00"),
            hal.ExtensionAttribute("com.example.b", 9, bytes(300)),
        ),
        progress=events.append,
        cancel=hal.CancelToken(),
    )
    pack = Packer()
    frame = pack.frame(wire.PrepareFromCache(config))
    assert frame.deadline_ns == config.deadline_ns
    call = decode_call(frame.data, Unpacker(frame.handles))
    assert isinstance(call, wire.PrepareFromCache)
    assert call.config == config

    for loop_timeout_ns in (2, 2**62, None):
        run = hal.ExecutionConfig(
            deadline_ns=1,
            loop_timeout_ns=loop_timeout_ns,
            measure=True,
            priority="low",
            attributes=(hal.ExtensionAttribute("com.example.a", 65535, b"a"),),
            cancel=hal.CancelToken(),
        )
        pack = Packer()
        frame = pack.frame(wire.Execute(1, None, run))
        call = decode_call(frame.data, Unpacker(frame.handles))
        assert isinstance(call, wire.Execute)
        assert call.config == run


@pytest.mark.parametrize("field", ["preference", "priority", "accuracy"])
def test_a_word_outside_its_list_does_not_arrive(field: str) -> None:
    import msgspec

    config = msgspec.structs.replace(hal.PrepareConfig(), **{field: "bogus"})
    with pytest.raises(errors.WireError, match="bogus"):
        decode_call(encode(wire.PrepareFromCache(config)))


@pytest.mark.parametrize("status", sorted(set(errors.ErrorStatus) - {errors.ErrorStatus.NONE}))
def test_every_driver_error_comes_back_as_its_class(status: errors.ErrorStatus) -> None:
    kind = errors.driver_error_classes()[status]
    error = kind("what happened \N{SNOWMAN}")
    received = error_of_reply(failure_of(error))
    assert type(received) is kind
    assert str(received) == str(error)


def error_of_reply(failure: wire.Failure | wire.Stopped) -> errors.PenstockError:
    reply = decode_reply(encode(failure))
    assert isinstance(reply, wire.Failure | wire.Stopped)
    return error_of(reply)


def test_the_shapes_of_insufficient_outputs_come_back() -> None:
    error = errors.OutputInsufficientSize("small", [((2, 3), False), ((), True)])
    received = error_of_reply(failure_of(error))
    assert isinstance(received, errors.OutputInsufficientSize)
    assert received.output_shapes == error.output_shapes


@pytest.mark.parametrize("kind", [errors.Cancelled, errors.ClosedError])
def test_cancelled_and_closed_come_back(kind: type[errors.PenstockError]) -> None:
    received = error_of_reply(failure_of(kind("why")))
    assert type(received) is kind
    assert str(received) == "why"


@pytest.mark.parametrize(
    "error", [ValueError("bad \ud800 text"), KeyError("k"), errors.PenstockError("p")]
)
def test_any_other_error_is_a_general_failure_that_names_it(error: Exception) -> None:
    received = error_of_reply(failure_of(error))
    assert type(received) is errors.GeneralFailure
    assert type(error).__name__ in str(received)


def test_a_failure_without_one_is_no_message() -> None:
    with pytest.raises(errors.WireError, match="there was none"):
        error_of(wire.Failure(errors.ErrorStatus.NONE, ""))


def test_driver_errors_of_the_contract_have_statuses_on_the_wire() -> None:
    assert all(
        issubclass(kind, errors.DriverError) for kind in errors.driver_error_classes().values()
    )
    assert errors.InvalidArgument in errors.driver_error_classes().values()


@pytest.mark.parametrize(
    ("handles", "complaint"),
    [((), "handle 0 of 0"), ((7,), "is a int, not"), ((None,), "is a NoneType, not")],
)
def test_a_handle_that_is_missing_or_of_another_kind_is_refused(
    handles: tuple[object, ...], complaint: str
) -> None:
    take = Unpacker(handles)
    uses: list[Callable[[], object]] = [
        lambda: take.memory(forms.MemoryForm("ashmem", 0, 1)),
        lambda: take.model(forms.ModelForm((), (0,), (), {}, 0)),
        lambda: take.fence(0),
    ]
    # An index stands for what only a table of handles can have.
    index: Any = 0
    calls: list[wire.Call] = [
        wire.Execute(
            1,
            forms.RequestForm((hal.HostMemory(index),), (), ()),
            hal.ExecutionConfig(priority="low"),
        ),
        wire.Execute(1, None, hal.ExecutionConfig(cancel=index)),
        wire.PrepareFromCache(hal.PrepareConfig(model_cache=(index,))),
        wire.PrepareFromCache(hal.PrepareConfig(progress=index)),
        wire.PrepareFromCache(hal.PrepareConfig(cancel=index)),
    ]
    uses += [partial(decode_call, encode(call), take) for call in calls]
    for use in uses:
        with pytest.raises(errors.WireError, match=complaint):
            use()
    with pytest.raises(errors.WireError, match="handle -1"):
        take.fence(-1)


@pytest.mark.parametrize("index", ["0", 0.0, None, -1, 1 << 40])
def test_decoder_rejects_a_handle_index_that_is_no_index(index: Any) -> None:
    call = wire.PrepareFromCache(hal.PrepareConfig(model_cache=(index,)))
    with pytest.raises(errors.WireError):
        decode_call(encode(call), Unpacker((Descriptor(1),)))


@pytest.mark.parametrize("dimensions", [(1,) * 33, (0,) * 1000])
def test_decoder_rejects_an_argument_of_more_than_32_dimensions(
    dimensions: tuple[int, ...],
) -> None:
    arguments: tuple[hal.RequestArgument, ...] = (
        hal.TokenArgument(1, dimensions),
        hal.PoolArgument(ir.DataLocation(0, 0, 0), dimensions),
    )
    for argument in arguments:
        form = forms.RequestForm((argument,), (), ())
        with pytest.raises(errors.WireError, match="length <= 32"):
            decode_call(encode(wire.Execute(1, form, hal.ExecutionConfig())))


def test_a_window_needs_a_descriptor() -> None:
    with pytest.raises(errors.WireError, match="not a memory's"):
        Unpacker((Opaque(1),)).memory(forms.MemoryForm("mmap_fd", 0, 1, (0, 3)))


def test_a_hardware_buffer_needs_a_descriptor_and_has_no_window() -> None:
    blob = HardwareBufferDescription(0x21, 1)
    with pytest.raises(errors.WireError, match="not a memory's"):
        Unpacker((Opaque(1),)).memory(forms.MemoryForm("hardware_buffer", 0, 1, None, blob))
    with pytest.raises(errors.WireError, match="not a memory's"):
        Unpacker((Descriptor(1),)).memory(forms.MemoryForm("mmap_fd", 0, 1, (0, 3), blob))


def test_a_fence_is_known_by_its_methods() -> None:
    fence = hal.EventFence()
    assert Unpacker((fence,)).fence(0) is fence


def test_an_invalid_model_is_named() -> None:
    entry = replace(CASES[0].model.entry, outputs=(99,))
    with pytest.raises(errors.WireError, match="operand 99") as caught:
        Unpacker(()).model(forms.ModelForm((entry,), (), (), {}, 0))
    assert isinstance(caught.value.__cause__, ValueError)


def test_handles_are_bounded() -> None:
    pack = Packer()
    for _ in range(forms.MAX_HANDLES):
        pack.handle(None)
    with pytest.raises(errors.WireError, match="more than 4096"):
        pack.handle(None)
    with pytest.raises(errors.WireError, match="4097 handles"):
        Unpacker([None] * (forms.MAX_HANDLES + 1))


def test_length_of_a_message_is_bounded() -> None:
    wire.check_length(wire.MAX_FRAME)
    with pytest.raises(errors.WireError, match="the limit is"):
        wire.check_length(wire.MAX_FRAME + 1)


def test_a_message_beyond_the_limit_cannot_be_sent_or_read() -> None:
    reason = wire.Reason("x" * (wire.MAX_FRAME + 1))
    with pytest.raises(errors.WireError, match="the limit is"):
        encode(reason)
    with pytest.raises(errors.WireError, match="the limit is"):
        decode_reply(bytes(wire.MAX_FRAME + 1))


def extended() -> ir.Model:
    """A model of one extension operation on a scalar of the extension's own."""
    kind = ir.ExtensionType("com.example.a", 0, 8, is_tensor=False, data=bytes(range(256)))
    builder = ir.ModelBuilder()
    x = builder.input(ir.DType.UINT8, (8,), "x", extension=kind)
    attributes: dict[str, ir.AttributeValue] = {"extension": "com.example.a", "code": 1}
    return builder.build(
        builder.operation("EXTENSION", [x], [(ir.DType.FLOAT32, (1,))], attributes)
    )


def test_a_model_of_extensions_comes_back_whole() -> None:
    model = extended()
    pack = Packer()
    frame = pack.frame(wire.SupportedOperations(pack.model(model)))
    call = decode_call(frame.data)
    assert isinstance(call, wire.SupportedOperations)
    received = Unpacker(frame.handles).model(call.model)
    assert received == model
    assert received.inputs[0].extension == model.inputs[0].extension


@pytest.mark.parametrize("changed", [
    {"extension": "no name"}, {"code": 1 << 16}, {"code": -1}, {"byte_size": 0}, {"byte_size": 9},
    {"is_tensor": True},
])  # fmt: skip
def test_a_malformed_extension_type_does_not_arrive(changed: dict[str, object]) -> None:
    import msgspec

    pack = Packer()
    form = pack.model(extended())
    (graph,) = form.subgraphs
    x = graph.operands[0]
    assert x.extension is not None
    kind = msgspec.structs.replace(x.extension, **changed)
    if changed == {"is_tensor": True}:
        x = msgspec.structs.replace(x, shape=None)
        kind = msgspec.structs.replace(kind, is_tensor=False)
    operands = (msgspec.structs.replace(x, extension=kind), *graph.operands[1:])
    bad = msgspec.structs.replace(
        form, subgraphs=(msgspec.structs.replace(graph, operands=operands),)
    )
    with pytest.raises(errors.WireError, match="not valid"):
        Unpacker(pack.handles).model(bad)
