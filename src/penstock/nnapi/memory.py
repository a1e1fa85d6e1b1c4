"""`Memory`: bytes that several objects share: a file's, a hardware buffer's, or a device's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from penstock.closing import Closing
from penstock.ir.types import static_shape
from penstock.memory import PROT_READ, PROT_WRITE, HardwareBuffer, MemoryPool
from penstock.nnapi import parameters
from penstock.nnapi.codes import bad_data, bad_state, translated, unexpected_null
from penstock.nnapi.description import ir_shape
from penstock.nnapi.memory_kinds import (
    DeviceStore,
    ImageRules,
    ImageStore,
    PoolStore,
    Rules,
    SizedRules,
    Store,
    copy_bytes,
)

if TYPE_CHECKING:
    from penstock.memory.copies import CopyReceipt
    from penstock.nnapi.memory_desc import MemoryDesc

BOTH: Final = PROT_READ | PROT_WRITE


class Memory(Closing):
    """Memory made by `create_from_fd`, `create_from_hardware_buffer` or `create_from_desc`:
    `ANeuralNetworksMemory` (NNAPI section 6.3).

    Constants, inputs and outputs lie in it. It outlives what uses it: `close` lets go of it, and
    views that executions under way have of it stay good.
    """

    def __init__(self, store: Store, rules: Rules) -> None:
        self._store, self._rules = store, rules
        self._closed = False
        self.copies: tuple[CopyReceipt, ...] = ()
        """What the last `copy` of this memory copied, and why."""

    @classmethod
    def create_from_fd(cls, size: int, protect: int, fd: int, offset: int = 0) -> Self:
        """The *size* bytes of *fd* from byte *offset* on, shared with whoever else maps them.

        *protect* is made of `PROT_READ` and `PROT_WRITE` of `mmap`, or 0. *fd* is duplicated.
        Nothing is mapped before a value is read or written; what cannot be is UNMAPPABLE then.
        BAD_DATA for a size of 0, a negative descriptor or one that is not open, other protections,
        a negative offset, and bytes that are not there.
        """
        nbytes = parameters.whole(size, "the size", 0, 2**63 - 1)
        bits = parameters.whole(protect, "the protection")
        number = parameters.whole(fd, "the file descriptor", -(2**31), 2**31 - 1)
        start = parameters.whole(offset, "the offset", 0, 2**63 - 1)
        if nbytes == 0:
            raise bad_data("a memory has at least 1 byte")
        if number < 0:
            raise bad_data(f"{number} is no file descriptor")
        if bits & ~BOTH:
            raise bad_data(f"protection {bits}: PROT_READ, PROT_WRITE, both or 0 are possible")
        with translated():
            return cls(
                PoolStore(MemoryPool.from_file(number, start, nbytes, bits)), SizedRules(nbytes)
            )

    @classmethod
    def create_from_hardware_buffer(cls, buffer: HardwareBuffer) -> Self:
        """The bytes of *buffer* where it is a BLOB, else the image that it is: an input or an
        output of an execution as a whole, never a constant, and never copied. *buffer* may be
        closed where it is a BLOB, else it outlives the memory.
        """
        if buffer is None:
            raise unexpected_null("the hardware buffer")
        if not isinstance(buffer, HardwareBuffer):
            raise bad_data(
                f"a penstock.memory.HardwareBuffer is needed, not {type(buffer).__name__}"
            )
        with translated():
            if not buffer.description.is_blob:
                return cls(ImageStore(buffer), ImageRules())
            pool = MemoryPool.from_hardware_buffer(buffer)
            return cls(PoolStore(pool), SizedRules(pool.nbytes))

    @classmethod
    def create_from_desc(cls, desc: MemoryDesc) -> Self:
        """Memory for the roles of *desc*, which is finished: the device's own, where one device
        serves them all and has memory domains. Else, or where the device refuses, a pool of the
        same size: only if no compilation names its devices and the size is known; OP_FAILED
        otherwise.

        It is used in the declared roles alone, as a whole, and holds no value at first.
        """
        from penstock.nnapi.memory_desc import allocate

        return cls(*allocate(desc))

    @property
    def size(self) -> int:
        """Bytes; 0 where that is not known."""
        return self._rules.metadata.size

    @property
    def is_initialized(self) -> bool:
        """Whether it holds a value: what was made from a descriptor holds none until one is put
        there.
        """
        return self._rules.initialized

    @property
    def is_in_device(self) -> bool:
        """Whether a device manages it, where it was made from a descriptor."""
        return isinstance(self._store, DeviceStore)

    def copy(self, destination: Memory) -> None:
        """Copies the value over that of *destination*: `ANeuralNetworksMemory_copy` (NNAPI section
        6.6).

        BAD_DATA where this memory holds no value, or the two have different types, shapes or sizes;
        UNMAPPABLE where one was made without the protection it takes; OP_FAILED for hardware
        buffers that are no BLOBs. A copy that fails leaves *destination* without a value, where it
        was made from a descriptor. A memory copied over itself counts as holding one.
        """
        source = usable_memory(self)
        target = usable_memory(destination)
        done = source is target
        try:
            if not done:
                if not source.rules.initialized:
                    raise bad_data("the memory to copy from holds no value")
                target.rules.take(source.rules.metadata)
                source.copies = copy_bytes(source.store, target.store, _array_shape(target))
                done = True
        finally:
            if target.is_managed:
                target.rules.initialized = done

    @property
    def is_managed(self) -> bool:
        """Whether it was made from a descriptor."""
        return self._rules.metadata.operand is not None

    @property
    def is_whole(self) -> bool:
        """Whether executions use all of it, and say neither offset nor length."""
        return self.is_managed or isinstance(self._store, ImageStore)

    @property
    def rules(self) -> Rules:
        """What it may be used for, and what it holds."""
        return self._rules

    @property
    def store(self) -> Store:
        """Where its bytes lie; BAD_STATE once it is closed."""
        if self._closed:
            raise bad_state("the memory is closed")
        return self._store

    def close(self) -> None:
        """Frees it; twice is harmless."""
        if not self._closed:
            self._closed = True
            self._store.close()


def _array_shape(memory: Memory) -> tuple[int, ...] | None:
    """The shape of the array that a device has for the value of *memory*; None where it is not
    known.
    """
    metadata = memory.rules.metadata
    shape = metadata.shape
    if metadata.operand is not None:
        shape = ir_shape(metadata.operand.type, shape)
    return static_shape(shape)


def usable_memory(memory: object) -> Memory:
    """*memory*; UNEXPECTED_NULL for None, BAD_DATA for what is none, BAD_STATE for one that is
    closed.
    """
    if memory is None:
        raise unexpected_null("the memory")
    if not isinstance(memory, Memory):
        raise bad_data(f"a penstock.nnapi.Memory is needed, not {type(memory).__name__}")
    _ = memory.store
    return memory
