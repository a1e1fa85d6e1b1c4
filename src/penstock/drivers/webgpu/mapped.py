"""Memory that the device computes with and the host maps, where both share one memory."""

from __future__ import annotations

from typing import Any, Final, Literal

import numpy as np

from penstock.drivers.webgpu.engine import Gpu
from penstock.drivers.webgpu.values import DeviceValue, padded, whole
from penstock.ir import NDArray

LEAST_MAPPED: Final = 1 << 20
"""Bytes from which on a copy takes longer than a map, measured on Mesa's software adapter."""


class Mapped:
    """*value*, which the host writes before a run or reads after it, without a copy on the device.

    Used by one run at a time. `map` is called once the work that uses it is submitted.
    """

    def __init__(self, gpu: Gpu, nbytes: int, mode: Literal["READ", "WRITE"]) -> None:
        import wgpu

        usage = wgpu.BufferUsage
        maps = usage.MAP_READ if mode == "READ" else usage.MAP_WRITE
        buffer = gpu.buffer(whole(nbytes), usage.STORAGE | maps)
        self.value = DeviceValue(gpu, buffer, (nbytes,), nbytes)
        self._mode = mode
        self._promise: Any = None

    def map(self) -> None:
        """Maps it once the work that was submitted before has ended."""
        self._promise = self.value.buffer.map_async(self._mode)

    def write(self, array: NDArray) -> None:
        """Copies *array*, of its size, to it, for the work that is submitted next."""
        if self._promise is None:
            self.map()
        self._wait()
        self.value.buffer.write_mapped(padded(array))
        self.value.buffer.unmap()

    def read(self, array: NDArray) -> None:
        """Copies it to *array*, of its size."""
        self._wait()
        try:
            found = np.frombuffer(self.value.buffer.read_mapped(copy=False), np.uint8, array.nbytes)
            array[...] = found.view(array.dtype).reshape(array.shape)
        finally:
            self.value.buffer.unmap()

    def _wait(self) -> None:
        self._promise.sync_wait()
