"""Where the bytes of a `Memory` lie: in a pool, in an image that only devices read, in a device's
own memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from penstock.compilation.receipt import CopyReceipt
from penstock.errors import InputError
from penstock.execution.copying import copy_over
from penstock.ir import NDArray
from penstock.memory import HardwareBuffer, MemoryPool, dmabuf
from penstock.memory.mapping import HARDWARE_BUFFER_BLOB
from penstock.nnapi.codes import ResultCode
from penstock.nnapi.failures import NnapiError, bad_data, translated

if TYPE_CHECKING:
    from penstock.memory import DeviceBuffer


ASKED: Final = "the caller copies one memory to another"


class PoolStore:
    """Bytes in a pool that the host maps when they are first needed."""

    def __init__(self, pool: MemoryPool) -> None:
        self.pool = pool

    @property
    def kind(self) -> str:
        """The name of the `hal.Memory` that it is; empty where there is none."""
        return self.pool.memory.name

    def content(self) -> NDArray:
        """All bytes as flat uint8; UNMAPPABLE where the host has no view of them."""
        try:
            return self.pool.view(np.uint8, self.pool.nbytes)
        except InputError as error:
            raise NnapiError(ResultCode.UNMAPPABLE, str(error)) from error

    def writable(self) -> NDArray:
        """The same to be written; UNMAPPABLE where they cannot be."""
        found = self.content()
        if not found.flags.writeable:
            raise NnapiError(ResultCode.UNMAPPABLE, "the memory was made without PROT_WRITE")
        return found

    @contextmanager
    def used(self, *, write: bool) -> Iterator[None]:
        """The CPU reads the bytes in this block, and perhaps writes them: a dma-buf is told so."""
        fd = self.pool.memory.handle.fd if self.kind == HARDWARE_BUFFER_BLOB else -1
        if fd < 0 or not dmabuf.begin(fd, write=write):
            yield
            return
        try:
            yield
        finally:
            dmabuf.end(fd, write=write)

    def place(self, kind: str) -> Any:
        """What a run takes in the place of an array; None where it takes an array over `content`."""
        return None

    def close(self) -> None:
        """Lets go of them; twice is harmless."""
        self.pool.close()


class ImageStore:
    """A hardware buffer that is no BLOB: the caller's, who closes it."""

    def __init__(self, buffer: HardwareBuffer) -> None:
        self.buffer = buffer

    @property
    def kind(self) -> str:
        """As of a pool."""
        return self.buffer.memory.name

    def content(self) -> NDArray:
        """Never: UNMAPPABLE."""
        what = f"a hardware buffer of format {self.buffer.description.format:#x}"
        raise NnapiError(ResultCode.UNMAPPABLE, f"{what} is never mapped")

    def place(self, kind: str) -> Any:
        """The buffer."""
        return self.buffer

    def close(self) -> None:
        """Nothing to let go of."""


class DeviceStore:
    """A buffer in a device's own memory."""

    def __init__(self, buffer: DeviceBuffer) -> None:
        self.buffer = buffer

    @property
    def kind(self) -> str:
        """None."""
        return ""

    def content(self) -> NDArray:
        """Never: UNMAPPABLE."""
        raise NnapiError(ResultCode.UNMAPPABLE, "memory of a device is never mapped")

    def place(self, kind: str) -> Any:
        """The buffer; OP_FAILED for an input where the device has no value in it, DEAD_OBJECT where
        it is lost with it.
        """
        if (gone := self.buffer.gone()) is not None:
            with translated():
                raise gone
        if kind == "input" and not self.buffer.is_initialized:
            raise NnapiError(ResultCode.OP_FAILED, "an input is memory that holds no value")
        return self.buffer

    def close(self) -> None:
        """Frees it; twice is harmless."""
        self.buffer.close()


Store: TypeAlias = PoolStore | ImageStore | DeviceStore


def copy_bytes(
    source: Store, destination: Store, shape: tuple[int, ...] | None
) -> tuple[CopyReceipt, ...]:
    """Copies what *source* holds over *destination*, which is of *shape* then (NNAPI section 6.6);
    gives what was copied.

    Raises BAD_DATA where they differ in size, UNMAPPABLE where the host has no view that it takes,
    OP_FAILED for images, or what the device answers.
    """
    if isinstance(source, ImageStore) or isinstance(destination, ImageStore):
        raise NnapiError(ResultCode.OP_FAILED, "a hardware buffer that is no BLOB cannot be copied")
    with translated():
        if isinstance(source, DeviceStore):
            if isinstance(destination, DeviceStore):
                destination.buffer.copy_from(source.buffer)
                return destination.buffer.copies
            destination.writable()
            source.buffer.copy_to(destination.pool)
            return source.buffer.copies
        if isinstance(destination, DeviceStore):
            source.content()
            destination.buffer.copy_from(source.pool, shape)
            return destination.buffer.copies
        given, room = source.content(), destination.writable()
        if given.nbytes != room.nbytes:
            raise bad_data(f"{given.nbytes} bytes for a memory of {room.nbytes}")
        copies: list[CopyReceipt] = []
        with source.used(write=False), destination.used(write=True):
            copy_over(room, given, copies, ("host", "host"), ASKED)
        return tuple(copies)
