"""Fences: in a process, and as descriptors that another process can be sent."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, strategies as st

from penstock.errors import (
    DeadObject,
    DriverError,
    GeneralFailure,
    InputError,
    InvalidArgument,
    OutputInsufficientSize as TooSmall,
    ResourceExhaustedTransient,
    driver_error_classes,
)
from penstock.hal import DescriptorFence, EventFence, as_descriptor
from penstock.hal.fence import FenceStatus, MergedFence, fence_pair, status_of

PATIENCE_NS = 30 * 10**9

CHILD = """
import sys
from penstock.hal import DescriptorFence

fence = DescriptorFence(int(sys.argv[1]))
print(fence.status().value, flush=True)
fence.wait()
print(f"{type(fence.error()).__name__}: {fence.error()}")
"""


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    for fd in (read, write):
        try:
            os.close(fd)
        except OSError:
            continue


class TestDescriptors:
    def test_signals_once(self) -> None:
        signal, fence = fence_pair()
        assert fence.status() is FenceStatus.ACTIVE
        assert not fence.wait(0)
        assert not fence.wait(2_000_000)
        assert fence.error() is None
        signal.signal()
        signal.signal(GeneralFailure("too late"))
        for _ in range(2):
            assert fence.wait()
            assert fence.status() is FenceStatus.SIGNALLED
            assert fence.error() is None
        fence.close()

    @pytest.mark.parametrize("kind", driver_error_classes().values(), ids=lambda k: k.__name__)
    def test_a_fence_keeps_the_class_and_reason_of_an_error(self, kind: type[DriverError]) -> None:
        signal, fence = fence_pair()
        signal.signal(kind("the reason"))
        assert fence.status() is FenceStatus.ERROR
        error = fence.error()
        assert type(error) is kind
        assert str(error) == "the reason"

    def test_a_long_reason_is_cut(self) -> None:
        signal, fence = fence_pair()
        signal.signal(TooSmall("x" * 100_000))
        assert isinstance(fence.error(), TooSmall)
        assert len(str(fence.error())) < 2000

    def test_fence_closed_without_a_signal_fails(self) -> None:
        signal, fence = fence_pair()
        signal.close()
        signal.close()
        signal.signal()
        assert fence.status() is FenceStatus.ERROR
        assert isinstance(fence.error(), DeadObject)
        dropped, other = fence_pair()
        del dropped
        assert isinstance(other.error(), DeadObject)

    def test_every_duplicate_sees_it(self) -> None:
        signal, fence = fence_pair()
        others = [DescriptorFence(fence.fileno()) for _ in range(3)]
        fence.close()
        signal.signal(GeneralFailure("no"))
        for other in others:
            assert other.status() is FenceStatus.ERROR
            assert str(other.error()) == "no"

    def test_crosses_to_another_process(self) -> None:
        signal, fence = fence_pair()
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(fence.fileno())],
            pass_fds=[fence.fileno()],
            stdout=subprocess.PIPE,
            text=True,
        )
        with child:
            assert child.stdout is not None
            assert child.stdout.readline() == "active\n"
            signal.signal(GeneralFailure("over there"))
            assert child.stdout.read() == "GeneralFailure: over there\n"

    @pytest.mark.parametrize("timeout_ns", [10**16, 2**64, 10**40])
    def test_may_be_waited_for_as_long_as_one_likes(self, timeout_ns: int) -> None:
        signal, fence = fence_pair()
        event = EventFence()
        later = [threading.Timer(0.02, each.signal) for each in (signal, event)]
        for each in later:
            each.start()
        assert fence.wait(timeout_ns)
        assert event.wait(timeout_ns)
        for each in later:
            each.join()

    def test_any_readable_descriptor_is_a_fence(self, pipe: tuple[int, int]) -> None:
        read, write = pipe
        fence = DescriptorFence(read)
        assert status_of(fence) is FenceStatus.ACTIVE
        os.write(write, b"?")
        assert status_of(fence) is FenceStatus.SIGNALLED
        os.close(write)
        assert status_of(fence) is FenceStatus.SIGNALLED
        os.read(read, 1)
        assert status_of(fence) is FenceStatus.ERROR
        assert isinstance(fence.error(), GeneralFailure)

    def test_a_foreign_socket_is_no_more_than_readable(self) -> None:
        here, there = socket.socketpair()
        with here, there:
            fence = DescriptorFence(there.fileno())
            here.send(b"hello")
            assert fence.status() is FenceStatus.SIGNALLED

    @given(data=st.binary(min_size=1, max_size=64), marked=st.booleans())
    def test_fence_of_any_bytes_has_a_status(self, data: bytes, marked: bool) -> None:
        here, there = socket.socketpair()
        with here, there:
            fence = DescriptorFence(there.fileno())
            here.send(b"penstock.fence\0" + data if marked else data)
            error = fence.error()
            assert (fence.status() is FenceStatus.SIGNALLED) == (error is None)
            assert error is None or isinstance(error, DriverError)

    def test_fence_of_a_bad_descriptor_is_refused(self) -> None:
        for fd in (-1, 2**30, True, "0"):
            with pytest.raises(InvalidArgument):
                DescriptorFence(fd)  # type: ignore[arg-type]

    def test_descriptor_0_is_one_as_any(self) -> None:
        """NNAPI's runtime takes it for none."""
        kept = os.dup(0)
        read, write = os.pipe()
        try:
            os.dup2(read, 0)
            fence = DescriptorFence(0)
            os.write(write, b"!")
            assert fence.status() is FenceStatus.SIGNALLED
        finally:
            os.dup2(kept, 0)
            for fd in (kept, read, write):
                os.close(fd)

    def test_closed(self) -> None:
        _, fence = fence_pair()
        fence.close()
        fence.close()
        assert fence.fileno() == -1
        assert fence.status() is FenceStatus.UNKNOWN
        assert fence.wait()
        assert isinstance(fence.error(), GeneralFailure)

    def test_a_wait_ends_when_another_thread_signals(self) -> None:
        signal, fence = fence_pair()
        timer = threading.Timer(0.01, signal.signal)
        timer.start()
        assert fence.wait(PATIENCE_NS)
        timer.join()


class TestOthers:
    def test_an_event_fence_becomes_a_descriptor(self) -> None:
        for error in (None, GeneralFailure("no")):
            event = EventFence()
            descriptor = as_descriptor(event)
            assert descriptor.status() is FenceStatus.ACTIVE
            event.signal(error)
            assert descriptor.wait(PATIENCE_NS)
            assert str(descriptor.error()) == str(error)
            assert as_descriptor(descriptor) is descriptor
            assert str(as_descriptor(event).error()) == str(error)

    def test_a_fence_of_another_kind_is_waited_for(self) -> None:
        first, second = EventFence(), EventFence()
        descriptor = as_descriptor(MergedFence(first, second))
        first.signal()
        assert descriptor.status() is FenceStatus.ACTIVE
        second.signal(GeneralFailure("second"))
        assert descriptor.wait(PATIENCE_NS)
        assert str(descriptor.error()) == "second"

    def test_merged(self) -> None:
        fences = [EventFence() for _ in range(3)]
        merged = MergedFence(*fences)
        began = time.monotonic_ns()
        assert not merged.wait(3_000_000)
        assert time.monotonic_ns() - began >= 3_000_000
        fences[2].signal(GeneralFailure("third"))
        assert merged.error() is None
        fences[0].signal()
        assert status_of(merged) is FenceStatus.ACTIVE
        fences[1].signal(GeneralFailure("second"))
        assert status_of(merged) is FenceStatus.ERROR
        assert str(merged.error()) == "second"
        assert status_of(MergedFence()) is FenceStatus.SIGNALLED

    def test_callbacks_are_called_once(self) -> None:
        fence = EventFence()
        called: list[str] = []
        fence.when_signalled(lambda: called.append("before"))
        fence.signal()
        fence.signal(GeneralFailure("late"))
        fence.when_signalled(lambda: called.append("after"))
        assert called == ["before", "after"]
        assert fence.error() is None


def test_a_process_without_descriptors_left_is_not_the_callers_mistake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(fd: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "dup", full)
    with pytest.raises(ResourceExhaustedTransient, match="descriptor 0 cannot be a fence"):
        DescriptorFence(0)


def test_object_that_is_no_fence_is_refused_before_a_descriptor_is_made(
    no_descriptor_leaks: None,
) -> None:
    with pytest.raises(
        InputError, match=r"a fence is needed, with wait\(\) and error\(\), not int"
    ):
        as_descriptor(3)  # type: ignore[arg-type]  # what users give
