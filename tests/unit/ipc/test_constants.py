"""Pools of constants between processes: sealed, and one mapping of equal ones."""

from __future__ import annotations

import fcntl
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import pytest

import penstock
from penstock import nnapi
from penstock.errors import GeneralFailure, WireError
from penstock.export import tflite
from penstock.hal import Memory
from penstock.ipc.pools import SealedPlace, mapped, sealed_copies, sealed_place
from penstock.ipc.system import SEALS, is_sealed
from penstock.ir import ConstantPool, DType, Model, ModelBuilder
from penstock.memory import PROT_READ, HardwareBuffer, MappedFd, MemoryPool
from penstock.nnapi.values import constant_pool
from penstock.testing import assert_no_copies
from penstock.testing.resources import Resources
from tests.checked import does_not_raise

COUNT: Final = 8192
NBYTES: Final = 4 * COUNT
WEIGHTS: Final = np.arange(COUNT, dtype=np.float32)
F32: Final = DType.FLOAT32
AT: Final = 4100
"""Where constants begin in memory that holds other things, too: no multiple of a page."""


def pool(content: bytes) -> ConstantPool:
    return ConstantPool(memoryview(content))


def sealed_memfd(content: bytes, seals: int = SEALS | fcntl.F_SEAL_SEAL) -> int:
    fd = os.memfd_create("weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, content)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def descriptor_of(made: ConstantPool) -> int:
    place = sealed_place(made)
    assert place.offset == 0
    return place.fd


def test_a_copy_is_made_once_and_closed_with_its_pool() -> None:
    made = pool(b"constants")
    fd = descriptor_of(made)
    assert descriptor_of(made) == fd
    assert is_sealed(fd, SEALS)
    assert os.pread(fd, 100, 0) == b"constants"
    del made
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_equal_contents_are_mapped_once() -> None:
    first, second, other = pool(b"equal" * 99), pool(b"equal" * 99), pool(b"other" * 99)
    one = mapped(descriptor_of(first), 495)
    assert mapped(descriptor_of(first), 495) is one
    assert mapped(descriptor_of(second), 495) is one
    assert mapped(descriptor_of(other), 495) is not one
    assert bytes(mapped(descriptor_of(first), 5).view) == b"equal"
    assert bytes(one.view) == b"equal" * 99
    assert one.view.readonly


def test_changeable_constants_are_copied() -> None:
    fd = os.memfd_create("open", os.MFD_CLOEXEC)
    os.write(fd, b"before")
    made = mapped(fd, 6)
    os.pwrite(fd, b"after!", 0)
    assert bytes(made.view) == b"before"
    with pytest.raises(WireError, match="7 bytes of constants"):
        mapped(fd, 7)
    os.close(fd)
    with pytest.raises(WireError, match="cannot be read"):
        mapped(fd, 1)


def test_a_part_of_memory_is_mapped_from_any_byte_on() -> None:
    fd = sealed_memfd(bytes(AT) + b"weights" * 9)
    made = mapped(fd, 63, offset=AT)
    assert bytes(made.view) == b"weights" * 9
    assert made.view.readonly
    assert mapped(fd, 63, offset=AT) is made
    assert bytes(mapped(fd, 7, offset=AT + 7).view) == b"weights"
    os.close(fd)
    fd = sealed_memfd(bytes(AT) + b"before", fcntl.F_SEAL_SHRINK)
    copied = mapped(fd, 6, offset=AT)
    os.pwrite(fd, b"after!", AT)
    assert bytes(copied.view) == b"before"
    os.close(fd)


@pytest.mark.parametrize(("offset", "size"), [(-1, 4), (9, 0), (8, 1), (1, 8), (2**62, 2**62)])
def test_a_place_that_is_not_in_the_memory_is_refused(offset: int, size: int) -> None:
    fd = sealed_memfd(b"constant")
    with pytest.raises(WireError, match="in a file of 8"):
        mapped(fd, size, offset=offset)
    os.close(fd)


def in_memory(pool: ConstantPool, offset: int = 0) -> Model:
    """x + the weights at *offset* of *pool*."""
    b = ModelBuilder()
    x = b.input(F32, (COUNT,), "x")
    w = b.located(pool, offset, F32, (COUNT,), "w")
    return b.build(b.operation("ADD", [x, w], [(F32, (COUNT,))]))


def of_memfd(place: Path) -> Model:
    fd = sealed_memfd(WEIGHTS.tobytes())
    model = in_memory(MemoryPool.from_file(fd, prot=PROT_READ).constants())
    os.close(fd)
    return model


def of_a_part_of_a_memfd(place: Path) -> Model:
    fd = sealed_memfd(bytes(AT) + WEIGHTS.tobytes() + bytes(8))
    model = in_memory(MemoryPool.from_file(fd, AT, NBYTES, PROT_READ).constants())
    os.close(fd)
    return model


def of_a_sealed_pool(place: Path) -> Model:
    with MemoryPool.sealed(WEIGHTS) as pool:
        return in_memory(pool.constants())


def of_nnapis_memory(place: Path) -> Model:
    fd = sealed_memfd(bytes(AT) + WEIGHTS.tobytes())
    with nnapi.Memory.create_from_fd(NBYTES, PROT_READ, fd, AT) as memory:
        os.close(fd)
        return in_memory(constant_pool(memory))


def of_a_handle(place: Path) -> Model:
    fd = sealed_memfd(bytes(AT) + WEIGHTS.tobytes())
    model = in_memory(constant_pool(Memory("mmap_fd", MappedFd(fd, AT, PROT_READ), NBYTES)))
    os.close(fd)
    return model


def of_a_handle_of_all(place: Path) -> Model:
    fd = sealed_memfd(WEIGHTS.tobytes())
    model = in_memory(constant_pool(Memory("ashmem", fd, NBYTES)))
    os.close(fd)
    return model


def loaded(place: Path) -> Model:
    (place / "m.tflite").write_bytes(tflite.write(in_memory(pool(WEIGHTS.tobytes()))))
    return penstock.load(place / "m.tflite")


def mapped_from_a_sealed_memfd(place: Path) -> Model:
    fd = sealed_memfd(tflite.write(in_memory(pool(WEIGHTS.tobytes()))))
    model = penstock.load(f"/proc/self/fd/{fd}", map=True)
    os.close(fd)
    return model


NEVER_COPIED = (
    of_memfd,
    of_a_part_of_a_memfd,
    of_a_sealed_pool,
    of_nnapis_memory,
    of_a_handle,
    of_a_handle_of_all,
    loaded,
    mapped_from_a_sealed_memfd,
)


def in_an_anonymous_pool(place: Path) -> Model:
    with MemoryPool.anonymous(NBYTES) as made:
        made.view(np.float32, COUNT)[:] = WEIGHTS
        return in_memory(made.constants())


def in_a_file(place: Path) -> Model:
    (place / "weights").write_bytes(WEIGHTS.tobytes())
    with MemoryPool.from_file(place / "weights", prot=PROT_READ) as made:
        return in_memory(made.constants())


def in_a_hardware_buffer(place: Path) -> Model:
    with MemoryPool.from_hardware_buffer(HardwareBuffer.allocate(NBYTES)) as made:
        made.view(np.float32, COUNT)[:] = WEIGHTS
        return in_memory(made.constants())


def in_a_memfd_that_may_be_written(place: Path) -> Model:
    fd = sealed_memfd(WEIGHTS.tobytes(), fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    with MemoryPool.from_file(fd, prot=PROT_READ) as made:
        os.close(fd)
        return in_memory(made.constants())


def mapped_from_a_file(place: Path) -> Model:
    loaded(place)
    return penstock.load(place / "m.tflite", map=True)


def of_this_process(place: Path) -> Model:
    return in_memory(pool(WEIGHTS.tobytes()))


COPIED: Final[dict[Callable[[Path], Model], str]] = {
    in_an_anonymous_pool: "ashmem memory that may still be changed",
    in_a_file: "mmap_fd memory that may still be changed",
    in_a_hardware_buffer: "hardware_buffer_blob memory that may still be changed",
    in_a_memfd_that_may_be_written: "mmap_fd memory that may still be changed",
    mapped_from_a_file: "mmap_fd memory that may still be changed",
    of_this_process: "memory of this process alone",
}


def compiled_apart(model: Model) -> penstock.CompiledModel:
    return penstock.compile(model, devices=["reference"], isolate=True, cache=False)


def check_runs(compiled: penstock.CompiledModel) -> None:
    assert np.array_equal(compiled(np.ones(COUNT, np.float32))[0], WEIGHTS + 1)


@pytest.mark.parametrize("make", NEVER_COPIED)
def test_constants_in_sealed_memory_are_not_copied_for_another_process(
    make: Callable[[Path], Model], tmp_path: Path
) -> None:
    model = make(tmp_path)
    with assert_no_copies(), compiled_apart(model) as compiled:
        assert compiled.receipt.copies == ()
    assert not sealed_copies(model.pools)
    with compiled_apart(model) as compiled:
        check_runs(compiled)


@pytest.mark.parametrize("make", [*NEVER_COPIED, *COPIED])
def test_models_leave_no_descriptor_of_their_constants(
    make: Callable[[Path], Model], tmp_path: Path
) -> None:
    with does_not_raise(), Resources.unchanged("a model whose constants were sent"):
        model = make(tmp_path)
        for constants in model.pools:
            sealed_place(constants)
        del model, constants
        gc.collect()


@pytest.mark.parametrize("make", COPIED)
def test_constants_that_may_be_changed_are_copied_once_and_the_receipt_says_why(
    make: Callable[[Path], Model], tmp_path: Path
) -> None:
    model = make(tmp_path)
    with assert_no_copies(2 * NBYTES) as copies, compiled_apart(model) as compiled:
        (copy,) = compiled.receipt.copies
        assert copies == [copy]
        assert copy.nbytes >= NBYTES
        assert (copy.source, copy.destination) == ("host", "sealed memory")
        assert COPIED[make] in copy.reason
        assert "MemoryPool.sealed" in copy.reason
    with assert_no_copies(), compiled_apart(model) as compiled:
        assert compiled.receipt.copies == ()
    with compiled_apart(model) as compiled:
        check_runs(compiled)


def test_later_writes_change_no_model_of_another_process() -> None:
    with MemoryPool.anonymous(NBYTES) as made:
        made.view(np.float32, COUNT)[:] = WEIGHTS
        with compiled_apart(in_memory(made.constants())) as compiled:
            made.view(np.float32, COUNT)[:] = -1
            check_runs(compiled)


def test_truncated_constant_file_is_an_error_without_a_crash(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(WEIGHTS.tobytes())
    with MemoryPool.from_file(file, prot=PROT_READ) as made:
        constants = made.constants()
        os.truncate(file, 0)
        with pytest.raises(GeneralFailure, match="has become shorter"):
            sealed_place(constants)


def test_the_descriptor_is_that_of_the_callers_memory() -> None:
    with MemoryPool.sealed(WEIGHTS) as made:
        assert sealed_place(made.constants()) == SealedPlace(made.memory.handle, 0)
    fd = sealed_memfd(bytes(AT) + WEIGHTS.tobytes())
    with MemoryPool.from_file(fd, AT, NBYTES, PROT_READ) as made:
        assert sealed_place(made.constants()) == SealedPlace(made.memory.handle.fd, AT)
    os.close(fd)


@pytest.mark.parametrize("memory", ["ashmem", "mmap_fd"])
def test_inputs_in_sealed_memory_are_not_copied(memory: str) -> None:
    fd = sealed_memfd(bytes(AT) + WEIGHTS.tobytes())
    sealed: dict[str, Callable[[], MemoryPool]] = {
        "ashmem": lambda: MemoryPool.sealed(WEIGHTS),
        "mmap_fd": lambda: MemoryPool.from_file(fd, AT, NBYTES, PROT_READ),
    }
    with (
        sealed[memory]() as given,
        MemoryPool.anonymous(NBYTES) as out,
        compiled_apart(of_a_sealed_pool(Path())) as compiled,
        compiled.burst() as burst,
    ):
        assert given.memory.name == memory
        place = out.view(np.float32, COUNT)
        for argument in (given.view(np.float32, COUNT), given):
            for run in (compiled.run, burst.run):
                place[:] = 0
                with assert_no_copies():
                    run([argument], out=[place])
                assert np.array_equal(place, WEIGHTS * 2)
    os.close(fd)
