"""What a client makes of a device side that misbehaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock import hal
from penstock.drivers.sample import create
from penstock.errors import DeadObject, GeneralFailure, InvalidArgument
from penstock.ipc import client_objects, forms, wire
from penstock.ipc.client import RemoteDevice
from penstock.ipc.client_objects import MAX_OBJECTS, ClientObject
from penstock.ipc.codec import Frame, Packer, encode
from penstock.ipc.dispatch import Dispatcher
from penstock.ir import Model
from penstock.testing.contract.cases import every_case
from penstock.testing.doubles import InterceptingDevice
from penstock.testing.loopback import LoopbackDevice
from tests.support_local import LocalChannel

CASE = every_case()[0]


class Scripted(LocalChannel):
    """A channel to a real dispatcher, whose replies a function may replace."""

    def __init__(self) -> None:
        super().__init__(Dispatcher(create()))
        self.replace: Callable[[Frame], Frame] = lambda reply: reply

    def answer(self, frame: Frame) -> Frame:
        return self.replace(super().answer(frame))


@pytest.fixture
def channel() -> Scripted:
    return Scripted()


@pytest.mark.parametrize("data", [b"", b"\xc1", b"garbage", encode(wire.Check())])
def test_a_reply_that_is_no_message_is_a_general_failure(channel: Scripted, data: bytes) -> None:
    device = RemoteDevice(channel)
    channel.replace = lambda _: Frame(data)
    with pytest.raises(GeneralFailure, match="reply is malformed"):
        device.check()


def test_the_reply_to_another_question_is_a_general_failure(channel: Scripted) -> None:
    device = RemoteDevice(channel)
    channel.replace = lambda _: Packer().frame(wire.Done())
    with pytest.raises(GeneralFailure, match="answers for a Reason by Done"):
        device.check()


def test_a_failure_that_is_none_is_a_general_failure(channel: Scripted) -> None:
    from penstock.errors import ErrorStatus

    device = RemoteDevice(channel)
    channel.replace = lambda _: Packer().frame(wire.Failure(ErrorStatus.NONE, ""))
    with pytest.raises(GeneralFailure, match="reply is malformed"):
        device.check()


def test_a_fence_that_did_not_come_is_named(channel: Scripted) -> None:
    prepared = RemoteDevice(channel).prepare_model(CASE.model, hal.PrepareConfig())
    channel.replace = lambda _: Packer().frame(wire.Fenced(0))
    with pytest.raises(GeneralFailure, match="handle 0 of 0"):
        prepared.execute_fenced(hal.Request((), ()), [], hal.ExecutionConfig())


def test_a_device_that_is_gone_is_closed_without_an_error(channel: Scripted) -> None:
    device = RemoteDevice(channel)
    prepared = device.prepare_model(CASE.model, hal.PrepareConfig())

    def dead(_: Frame) -> Frame:
        raise DeadObject("the process died")

    channel.replace = dead
    prepared.close()
    with pytest.raises(DeadObject):
        device.check()


def test_a_value_without_bytes_is_an_invalid_argument(channel: Scripted) -> None:
    prepared = RemoteDevice(channel).prepare_model(CASE.model, hal.PrepareConfig())
    many = hal.Request((hal.HostMemory(CASE.inputs[0]),) * (forms.MAX_HANDLES + 1), ())
    with pytest.raises(InvalidArgument, match="more than 4096 handles"):
        prepared.execute(many, hal.ExecutionConfig())
    with pytest.raises(InvalidArgument, match="cannot be encoded"):
        prepared.execute(hal.Request(("text", 2**70), ()), hal.ExecutionConfig())  # type: ignore[arg-type]


def test_objects_of_a_client_are_bounded(
    channel: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.errors import ResourceExhaustedPersistent

    assert MAX_OBJECTS == 65536
    monkeypatch.setattr(client_objects, "MAX_OBJECTS", 2)
    device = RemoteDevice(channel)
    kept = [device.prepare_model(CASE.model, hal.PrepareConfig()) for _ in range(2)]
    with pytest.raises(ResourceExhaustedPersistent, match="2 objects at a time"):
        device.prepare_model(CASE.model, hal.PrepareConfig())
    kept.pop().close()
    device.prepare_model(CASE.model, hal.PrepareConfig()).close()


def test_an_answer_of_the_device_without_bytes_is_a_general_failure() -> None:
    import numpy as np

    from penstock.hal import Support
    from penstock.testing.doubles import InterceptingDevice
    from penstock.testing.loopback import LoopbackDevice

    class Odd(InterceptingDevice):
        def supported_operations(self, model: Model) -> list[Support]:
            return [Support(np.bool_(True))]  # type: ignore[arg-type]  # the point

    with pytest.raises(GeneralFailure, match=r"answer is no message: .*bool"):
        LoopbackDevice(Odd(create())).supported_operations(CASE.model)


@pytest.mark.parametrize("what", ["prepare_model", "allocate"])
def test_nothing_where_something_was_to_be_made_is_a_general_failure(what: str) -> None:
    class Empty(InterceptingDevice):
        def prepare_model(self, model: Model, config: hal.PrepareConfig) -> hal.PreparedModel:
            nothing: Any = None
            return nothing if what == "prepare_model" else super().prepare_model(model, config)

        def allocate(
            self, desc: hal.BufferDesc, roles: Sequence[hal.BufferRole]
        ) -> tuple[int, hal.Buffer]:
            nothing: Any = None
            return 1, nothing

    device = LoopbackDevice(Empty(create()))
    model = next(iter(every_case())).model
    with pytest.raises(GeneralFailure, match="there is no"):
        device.allocate(
            hal.BufferDesc(),
            [hal.BufferRole(device.prepare_model(model, hal.PrepareConfig()), "input", 0)],
        )


def test_an_object_that_cannot_be_closed_keeps_no_other_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Closing:
        def __init__(self, *, fails: bool) -> None:
            self.fails, self.closed = fails, False

        def close(self) -> None:
            self.closed = True
            if self.fails:
                raise RuntimeError("not now")

    dispatcher = Dispatcher(create())
    objects = [Closing(fails=False), Closing(fails=True)]
    for each in objects:
        dispatcher.objects.keep(ClientObject("buffer", each))
    dispatcher.objects.close()
    assert all(each.closed for each in objects)
    assert "could not be closed" in caplog.text


@dataclass
class Listening:
    """A callback that msgspec could encode itself."""

    events: list[hal.ProgressEvent] = field(default_factory=list)

    def __call__(self, event: hal.ProgressEvent) -> None:
        self.events.append(event)


class Telling(InterceptingDevice):
    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> hal.PreparedModel:
        assert config.progress is not None
        config.progress(hal.ProgressEvent("compile", "it", 1, 1))
        return super().prepare_model(model, config)


def test_a_progress_callback_may_be_a_data_class() -> None:
    device, told = LoopbackDevice(Telling(create())), Listening()
    device.prepare_model(CASE.model, hal.PrepareConfig(progress=told)).close()
    assert [event.subject for event in told.events] == ["it"]
