"""`Memory`: bytes that several objects share: of a file, a hardware buffer, or a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from penstock.closing import Closing
from penstock.ir.types import static_shape
from penstock.memory import PROT_READ, PROT_WRITE, HardwareBuffer, MemoryPool
from penstock.nnapi import memory_kinds, parameters
from penstock.nnapi.codes import bad_data, bad_state, translated
from penstock.nnapi.description import ir_shape

if TYPE_CHECKING:
    from penstock.memory.copies import CopyReceipt
    from penstock.nnapi.memory_desc import MemoryDesc

BOTH: Final = PROT_READ | PROT_WRITE


class Memory(Closing):
    """Memory for constants, inputs and outputs: `ANeuralNetworksMemory` (NNAPI section 6.3).

    Created by `create_from_fd`, `create_from_hardware_buffer` or `create_from_desc`. It must
    outlive its users; views of executions in flight stay valid after `close`.
    """

    def __init__(self, store: memory_kinds.Store, rules: memory_kinds.Rules) -> None:
        self._store, self.rules, self._closed = store, rules, False
        self.copies: tuple[CopyReceipt, ...] = ()
        """Receipts of the last `copy` of this memory."""

    @classmethod
    def create_from_fd(cls, size: int, protect: int, fd: int, offset: int = 0) -> Self:
        """Maps *size* bytes of *fd* from byte *offset*, shared with other mappings.

        *protect* consists of `mmap`'s `PROT_READ` and `PROT_WRITE`, or is 0. *fd* is duplicated.
        The file is mapped when a value is first read or written; UNMAPPABLE if that fails. Raises
        BAD_DATA for a size of 0, a descriptor that is negative or not open, other protections, a
        negative offset, and bytes outside the file.
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
                memory_kinds.PoolStore(MemoryPool.from_file(number, start, nbytes, bits)),
                memory_kinds.SizedRules(nbytes),
            )

    @classmethod
    def create_from_hardware_buffer(cls, buffer: HardwareBuffer) -> Self:
        """The bytes of a BLOB *buffer*, which the caller may then close.

        Any other buffer is an image and must outlive the memory. It can only be a whole input or
        output of an execution, never a constant, and cannot be copied.
        """
        parameters.instance(buffer, HardwareBuffer, "the hardware buffer")
        with translated():
            if not buffer.description.is_blob:
                return cls(memory_kinds.ImageStore(buffer), memory_kinds.Rules())
            pool = MemoryPool.from_hardware_buffer(buffer)
            return cls(memory_kinds.PoolStore(pool), memory_kinds.SizedRules(pool.nbytes))

    @classmethod
    def create_from_desc(cls, desc: MemoryDesc) -> Self:
        """Memory for the roles of *desc*, which must be finished.

        It is memory of the device that serves all roles, if that device has memory domains.
        Otherwise it is a pool of the same size, provided that no compilation names its devices and
        the size is known; else OP_FAILED. Only the declared roles may use it, as a whole. It holds
        no value at first.
        """
        from penstock.nnapi.memory_desc import allocate

        return cls(*allocate(desc))

    @property
    def size(self) -> int:
        """Bytes; 0 if the size is unknown."""
        return self.rules.metadata.size

    @property
    def is_initialized(self) -> bool:
        """Whether it holds a value. Memory made from a descriptor holds none at first."""
        return self.rules.initialized

    @property
    def is_in_device(self) -> bool:
        """Whether a device manages it."""
        return isinstance(self._store, memory_kinds.DeviceStore)

    def copy(self, destination: Memory) -> None:
        """Copies the value to *destination*: `ANeuralNetworksMemory_copy` (NNAPI section 6.6).

        Raises BAD_DATA if this memory holds no value, or the two differ in type, shape or size;
        UNMAPPABLE if one lacks the necessary protection; OP_FAILED for hardware buffers that are
        not BLOBs. A failed copy leaves a *destination* that was made from a descriptor without a
        value. A memory copied to itself counts as holding one.
        """
        source = usable_memory(self)
        target = usable_memory(destination)
        done = source is target
        try:
            if not done:
                if not source.rules.initialized:
                    raise bad_data("the memory to copy from holds no value")
                target.rules.take(source.rules.metadata)
                metadata = target.rules.metadata
                shape = metadata.shape
                if metadata.operand is not None:
                    shape = ir_shape(metadata.operand.type, shape)
                source.copies = memory_kinds.copy_bytes(
                    source.store, target.store, static_shape(shape)
                )
                done = True
        finally:
            if target.is_managed:
                target.rules.initialized = done

    @property
    def is_managed(self) -> bool:
        """Whether it was made from a descriptor."""
        return self.rules.metadata.operand is not None

    @property
    def is_whole(self) -> bool:
        """Whether executions use it as a whole, without offset and length."""
        return self.is_managed or isinstance(self._store, memory_kinds.ImageStore)

    @property
    def store(self) -> memory_kinds.Store:
        """The storage of its bytes; BAD_STATE after `close`."""
        if self._closed:
            raise bad_state("the memory is closed")
        return self._store

    def close(self) -> None:
        """Frees it. A second call has no effect."""
        if not self._closed:
            self._closed = True
            self._store.close()


def usable_memory(memory: object) -> Memory:
    """*memory*. Raises UNEXPECTED_NULL for None, BAD_DATA, and BAD_STATE if it is closed."""
    found = parameters.instance(memory, Memory, "the memory")
    _ = found.store
    return found
