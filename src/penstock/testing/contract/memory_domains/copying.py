"""The scenarios that NNAPI's VTS has for copies from and to a buffer (MemoryDomainCopyTest), under
its names.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import GeneralFailure, InvalidArgument
from penstock.hal import Buffer, Device
from penstock.memory import MemoryPool
from penstock.testing.contract.memory_domains.bench import SHAPE, Bench, bench
from penstock.testing.contract.promise import Check, refused


def check_copy_from_invalid_memory_size(device: Device) -> None:
    """MemoryDomainCopyTest.CopyFrom_InvalidMemorySize."""
    with bench(device) as on:
        _copies_refuse_sizes(on, on.allocate([on.input()])[1], "copy_from")


def check_copy_from_invalid_memory_size_dynamic_shape(device: Device) -> None:
    """MemoryDomainCopyTest.CopyFrom_InvalidMemorySize_DynamicShape."""
    with bench(device, shape=(None, 32, 32, 8)) as on:
        _copies_refuse_sizes(on, on.allocate([on.input()])[1], "copy_from")


def check_copy_from_invalid_dimensions(device: Device) -> None:
    """MemoryDomainCopyTest.CopyFrom_InvalidDimensions."""
    with bench(device) as on:
        _, buffer = on.allocate([on.input()])
        with MemoryPool.anonymous(on.values().nbytes) as pool:
            for dimensions in ((1, 32, 32), (32, 1, 32, 8), (1, 32, 32, 8, 1), (1, 32, 32, -8)):
                with refused(f"copy_from of {dimensions}", InvalidArgument):
                    buffer.copy_from(pool.memory, dimensions)
                with refused("copy_to after it", GeneralFailure):
                    buffer.copy_to(pool.memory)
            buffer.copy_from(pool.memory, ())
            buffer.copy_from(pool.memory, SHAPE)


def check_copy_from_invalid_dimensions_dynamic_shape(device: Device) -> None:
    """MemoryDomainCopyTest.CopyFrom_InvalidDimensions_DynamicShape."""
    with bench(device, shape=(None, 32, 32, 8)) as on:
        _, buffer = on.allocate([on.input()])
        with MemoryPool.anonymous(on.values().nbytes) as pool:
            for dimensions in ((), (32, 32, 8), (4, 32, 8, 32), (None, 32, 32, 8)):
                with refused(f"copy_from of {dimensions}", InvalidArgument):
                    buffer.copy_from(pool.memory, dimensions)  # type: ignore[arg-type]


def check_copy_to_uninitialized_memory(device: Device) -> None:
    """MemoryDomainCopyTest.CopyTo_UninitializedMemory."""
    with bench(device) as on:
        _, buffer = on.allocate([on.input()])
        with (
            MemoryPool.anonymous(on.values().nbytes) as pool,
            refused("copy_to of nothing", GeneralFailure),
        ):
            buffer.copy_to(pool.memory)


def check_copy_to_invalid_memory_size(device: Device) -> None:
    """MemoryDomainCopyTest.CopyTo_InvalidMemorySize."""
    with bench(device) as on:
        _, buffer = on.allocate([on.input()])
        on.write(buffer, on.values())
        _copies_refuse_sizes(on, buffer, "copy_to")


def check_copy_to_invalid_memory_size_dynamic_shape(device: Device) -> None:
    """MemoryDomainCopyTest.CopyTo_InvalidMemorySize_DynamicShape."""
    with bench(device, shape=(None, 32, 32, 8)) as on:
        _, buffer = on.allocate([on.input()])
        on.write(buffer, on.values())
        _copies_refuse_sizes(on, buffer, "copy_to")


def _copies_refuse_sizes(on: Bench, buffer: Buffer, method: str) -> None:
    right = on.values().nbytes
    for size in (right // 2, right - 1, right + 1, 2 * right):
        with (
            MemoryPool.anonymous(size) as pool,
            refused(f"{method} with {size} bytes for {right}", InvalidArgument),
        ):
            if method == "copy_to":
                buffer.copy_to(pool.memory)
            else:
                buffer.copy_from(pool.memory, on.shape)


CHECKS: Final[tuple[Check, ...]] = (
    check_copy_from_invalid_memory_size,
    check_copy_from_invalid_memory_size_dynamic_shape,
    check_copy_from_invalid_dimensions,
    check_copy_from_invalid_dimensions_dynamic_shape,
    check_copy_to_uninitialized_memory,
    check_copy_to_invalid_memory_size,
    check_copy_to_invalid_memory_size_dynamic_shape,
)
