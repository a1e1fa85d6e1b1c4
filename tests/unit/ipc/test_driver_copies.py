"""Copies that a driver in another process made: in results, fences and errors of its executions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pytest

from penstock import errors, hal
from penstock.drivers.reference import ReferenceDevice
from penstock.hal.fence import as_descriptor, fence_pair, identity_of
from penstock.ipc import codec, wire
from penstock.ipc.host.waiting import ClientFence, Disconnection
from penstock.ipc.pools import CopyingFence, RemoteFence
from penstock.testing.doubles.intercepting import InterceptingDevice
from tests.unit.execution.test_copies_told import served
from tests.unit.execution.test_device_buffers import VALUE, relu

T = TypeVar("T")
OWN = hal.ArgumentCopy(0, False, 24, 5, 7, by_driver=True)


class Copying(InterceptingDevice):
    """Reports a copy for each execution, or fails after it."""

    failing = False

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        if not method.endswith(("execute", "execute_fenced")):
            return proceed()
        proceed()
        failure = errors.GeneralFailure("a test")
        failure.copies = (OWN,)
        if method.endswith("fenced"):
            fence: Any = hal.EventFence()
            fence.copies = (OWN,)
            fence.signal(failure if self.failing else None)
            return fence  # type: ignore[no-any-return]
        if self.failing:
            raise failure
        return hal.ExecutionResult(copies=(OWN,))  # type: ignore[return-value]


def by_driver(copies: tuple[hal.ArgumentCopy, ...]) -> list[hal.ArgumentCopy]:
    return [copy for copy in copies if copy.by_driver]


def test_client_gets_the_copies_of_every_kind_of_execution() -> None:
    device = Copying(ReferenceDevice())
    with served(device) as (remote, _):
        prepared = remote.prepare_model(relu(), hal.PrepareConfig())
        result = np.empty_like(VALUE)
        request = hal.Request((hal.HostMemory(VALUE),), (hal.HostMemory(result),))
        plain = hal.ExecutionConfig()
        assert by_driver(prepared.execute(request, plain).copies) == [OWN]
        fence: Any = prepared.execute_fenced(request, [], plain)
        assert fence.wait(10**10)
        assert by_driver(fence.result.copies) == [OWN]
        assert len(fence.result.copies) == 3
        device.failing = True
        with pytest.raises(errors.GeneralFailure, match="a test") as error:
            prepared.execute(request, plain)
        assert by_driver(error.value.copies) == [OWN]
        fence = prepared.execute_fenced(request, [], plain)
        assert fence.wait(10**10)
        assert "a test" in str(fence.error())
        assert by_driver(fence.result.copies) == [OWN]


def test_message_of_a_failure_lists_so_many_copies_and_no_other_values() -> None:
    failure = errors.GeneralFailure("a test")
    failure.copies = (OWN,) * (codec.MOST_COPIES + 1)
    message = codec.failure_of(failure)
    assert isinstance(message, wire.Failure)
    assert len(message.copies) == codec.MOST_COPIES
    failure.copies = (OWN, 3)
    assert codec.failure_of(failure) == wire.Failure(failure.status, "a test")


def test_copies_in_a_failure_are_those_of_a_driver_whatever_the_message_says() -> None:
    strange = hal.ArgumentCopy(-7, True, 1, 0, 0)
    error = codec.error_of(wire.Failure(errors.ErrorStatus.GENERAL_FAILURE, "x", (), (strange,)))
    assert isinstance(error, errors.DriverError)
    assert [copy.by_driver for copy in error.copies] == [True]


def test_duplicates_of_a_fence_have_one_identity() -> None:
    _first, fence = fence_pair()
    _second, other = fence_pair()
    disconnection = Disconnection()
    sent = ClientFence(fence.fileno(), disconnection)
    assert identity_of(sent) == identity_of(fence) is not None
    assert identity_of(other) != identity_of(fence)
    assert identity_of(hal.EventFence()) is None
    fence.close()
    assert identity_of(fence) is None
    disconnection.record()


def test_fence_that_copies_nothing_back_is_sent_as_the_descriptor_that_it_stands_for() -> None:
    request = hal.Request((), ())
    _signal, fence = fence_pair()
    ended = list[str]()

    def release() -> None:
        ended.append("released")

    plain = CopyingFence(fence, (), None, release)
    assert as_descriptor(plain) is fence
    assert as_descriptor(RemoteFence(plain, request)) is fence
    back = CopyingFence(fence, (), lambda: ended.append("copied"), release)
    assert back.descriptor is None
    assert RemoteFence(back, request).descriptor is None
    _signal.signal()
    for each in (plain, back):
        assert each.wait(10**10)
        assert each.error() is None
    assert ended == ["released", "copied", "released"]
