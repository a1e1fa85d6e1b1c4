"""Memory domains on the device: values of device buffers lie in buffers of wgpu."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from penstock.drivers.webgpu.engine import Gpu, opened
from penstock.errors import DeadObject
from penstock.hal import BufferDesc, BufferRole, ExecutionConfig
from penstock.hal.buffer import InterfaceOf
from penstock.ir import NDArray
from penstock.knobs import submit_timeout_ms
from penstock.memory.domain import ManagedBuffer, MemoryDomain

NO_LIMITS: Final = ExecutionConfig()


class DeviceValue(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """A value in the device's memory: *buffer* has it from its first byte, and is a multiple of
    words long.
    """

    gpu: Gpu
    buffer: Any
    shape: tuple[int, ...]
    nbytes: int

    @contextmanager
    def used(self) -> Iterator[None]:
        """A block that uses it. Raises `DeadObject` if the device is lost, or in a forked child."""
        if (reason := self.gpu.unusable()) is not None:
            raise DeadObject(reason)
        with self.gpu.used():
            yield

    def write(self, array: NDArray) -> None:
        """Copies *array*, of its size, to the device."""
        with self.used():
            if self.nbytes:
                self.gpu.device.queue.write_buffer(self.buffer, 0, padded(array))

    def read(self, target: NDArray) -> None:
        """Copies the value to *target*, flat bytes, once all work before has ended."""
        import wgpu

        if not self.nbytes:
            return
        gpu, usage = self.gpu, wgpu.BufferUsage
        with self.used():
            staged = gpu.buffer(whole(self.nbytes), usage.MAP_READ | usage.COPY_DST)
            self._copy(staged)
            seconds = submit_timeout_ms() / 1e3 + gpu.launches.seconds
            with gpu.watchdog.watching(seconds) as work:
                gpu.await_map(staged, NO_LIMITS, work)
            try:
                target[:] = np.frombuffer(staged.read_mapped(copy=False), np.uint8, self.nbytes)
            finally:
                staged.unmap()

    def copy_to(self, other: DeviceValue) -> None:
        """Copies the value to *other*, of its size and device, on the device."""
        with self.used():
            if self.nbytes:
                self._copy(other.buffer)

    def _copy(self, target: Any) -> None:
        encoder = self.gpu.device.create_command_encoder()
        encoder.copy_buffer_to_buffer(self.buffer, 0, target, 0, words(self.nbytes))
        self.gpu.device.queue.submit([encoder.finish()])


Argument: TypeAlias = "NDArray | DeviceValue"
"""An input or output of a run: the caller's memory, or the value of a device buffer."""


class DeviceMemory(MemoryDomain):
    """The memory of the device called *name*. Its buffers have a known size."""

    def __init__(self, interface_of: InterfaceOf, name: str) -> None:
        super().__init__(interface_of, dynamic=False)
        self._name = name

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> tuple[int, ManagedBuffer]:
        """As `Device.allocate`: the memory of the first value is allocated here."""
        token, buffer = super().allocate(desc, roles)
        try:
            buffer.take_room(tuple(d or 0 for d in buffer.shape or ()))
        except BaseException:
            buffer.close()
            raise
        return token, buffer

    def make(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceValue:
        import wgpu

        usage, nbytes = wgpu.BufferUsage, math.prod(shape) * dtype.itemsize
        gpu = opened(self._name)
        with gpu.used():
            memory = usage.STORAGE | usage.COPY_DST | usage.COPY_SRC
            return DeviceValue(gpu, gpu.buffer(whole(nbytes), memory), shape, nbytes)

    def encode(self, array: NDArray, room: Callable[[], Any]) -> DeviceValue:
        value: DeviceValue = room()
        value.write(array)
        return value

    def decode(self, content: DeviceValue, target: NDArray) -> None:
        content.read(target)


def padded(array: NDArray) -> NDArray:
    """The bytes of *array*, with up to three more, so that they are whole words."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if data.nbytes % 4:
        data = np.concatenate([data, np.zeros(-data.nbytes % 4, np.uint8)])
    return data


def words(size: int) -> int:
    """Bytes of the words that hold so many bytes."""
    return -(-size // 4) * 4


def whole(size: int) -> int:
    """Bytes of a buffer for so many."""
    return max(256, words(size))
