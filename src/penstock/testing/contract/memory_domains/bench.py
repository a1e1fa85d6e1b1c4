"""What the scenarios of memory domains run on: a device with a small model prepared, and its
buffers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Final, Literal, TypeAlias

import numpy as np
from msgspec import Struct

from penstock.errors import GeneralFailure, InvalidArgument
from penstock.hal import (
    Buffer,
    BufferDesc,
    BufferRole,
    Device,
    PoolArgument,
    PreparedModel,
    Request,
    RequestArgument,
)
from penstock.ir import DataLocation, DType, Model, ModelBuilder, NDArray, Quantization, Shape
from penstock.memory import MemoryPool
from penstock.testing.contract.promise import NotCovered, refused
from penstock.testing.contract.trial import PREPARE

Role: TypeAlias = "tuple[PreparedModel, Literal['input', 'output'], int]"

SHAPE: Final = (1, 32, 32, 8)
ONE: Final = Quantization((1.0,), (0,))
KINDS: Final[tuple[tuple[DType, Quantization | None], ...]] = (
    (DType.FLOAT32, None),
    (DType.FLOAT16, None),
    (DType.UINT8, Quantization((1.0,), (128,))),
    (DType.INT8, ONE),
)
"""VTS's operand types: float32, float16, quantised asymmetric, and that signed."""
LIMIT: Final = 20.0
"""Seconds in which calls that compete for a buffer must all have returned."""


class Bench(Struct, frozen=True):
    """A device with a model of two inputs *u* and *v*, and their sum, prepared."""

    device: Device
    prepared: PreparedModel
    dtype: DType
    shape: tuple[int, ...]
    made: ExitStack

    def allocate(
        self, roles: Sequence[Role | None], dimensions: tuple[int | None, ...] = ()
    ) -> tuple[int, Buffer]:
        """A buffer, closed with the bench."""
        wanted = [BufferRole(*role) for role in roles if role is not None]
        token, buffer = self.device.allocate(BufferDesc(dimensions), wanted)
        self.made.callback(buffer.close)
        return token, buffer

    def input(self, index: int = 0) -> Role:
        return self.prepared, "input", index

    @property
    def output(self) -> Role:
        return self.prepared, "output", 0

    def values(self, shape: tuple[int, ...] | None = None) -> NDArray:
        """Small whole numbers."""
        shape = shape or self.shape
        numbers = np.arange(int(np.prod(shape))) % 5
        return numbers.astype(self.dtype.numpy).reshape(shape)

    @contextmanager
    def request(self, *arguments: RequestArgument | None) -> Iterator[Request]:
        """*arguments* for u, v and the sum, places in a pool for None."""
        size = self.values().nbytes
        with MemoryPool.anonymous(3 * size) as pool:
            pool.view(self.dtype.numpy, self.shape)[...] = self.values()
            pool.view(self.dtype.numpy, self.shape, size)[...] = self.values()
            three = [
                PoolArgument(DataLocation(0, at * size, size)) if a is None else a
                for at, a in enumerate(arguments)
            ]
            yield Request((three[0], three[1]), (three[2],), (pool.memory,))

    def write(self, buffer: Buffer, value: NDArray) -> None:
        with MemoryPool.anonymous(value.nbytes) as pool:
            pool.view(value.dtype, value.shape)[...] = value
            buffer.copy_from(pool.memory, tuple(value.shape))

    def read(self, buffer: Buffer, shape: tuple[int, ...]) -> NDArray:
        nbytes = int(np.prod(shape)) * self.dtype.numpy.itemsize
        with MemoryPool.anonymous(nbytes) as pool:
            buffer.copy_to(pool.memory)
            return pool.view(self.dtype.numpy, shape).copy()


def adding(
    dtype: DType, quantization: Quantization | None, shape: Shape, operation: str = "ADD"
) -> Model:
    """The sum of two inputs, or what else *operation* makes of them."""
    b = ModelBuilder()
    u, v = (b.input(dtype, shape, name, quantization) for name in "uv")
    return b.build(b.operation(operation, [u, v], [(dtype, shape, quantization)]))


def carrying(dtype: DType, quantization: Quantization | None, shape: Shape) -> Model:
    """RELU of input 0, and input 1, of any type, handed through."""
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, SHAPE, "x")
    other = b.input(dtype, shape, "other", quantization)
    return b.build([*b.operation("RELU", [x], [(DType.FLOAT32, SHAPE)]), other])


@contextmanager
def bench(
    device: Device, kind: tuple[DType, Quantization | None] = KINDS[0], shape: Shape = SHAPE
) -> Iterator[Bench]:
    """`NotCovered` where the device does not support the model, or has no memory domains."""
    with ExitStack() as made:
        prepared = made.enter_context(closing(prepare(device, adding(*kind, shape))))
        known = tuple(d or 4 for d in shape or SHAPE)
        found = Bench(device, prepared, kind[0], known, made)
        _require_domains(found)
        yield found


def prepare(device: Device, model: Model) -> PreparedModel:
    if not all(answer.supported for answer in device.supported_operations(model)):
        raise NotCovered("it does not support the model of this scenario")
    try:
        return device.prepare_model(model, PREPARE)
    except GeneralFailure as error:
        raise NotCovered(f"it does not prepare the model of this scenario: {error}") from error


def _require_domains(on: Bench) -> None:
    try:
        _, buffer = on.device.allocate(BufferDesc(), [BufferRole(*on.input())])
    except GeneralFailure as error:
        raise NotCovered(f"it has no such buffers: {error}") from error
    buffer.close()


def refuses(what: str, on: Bench, roles: Sequence[Role], dimensions: tuple[int, ...] = ()) -> None:
    with refused(f"a buffer with {what}", InvalidArgument):
        on.allocate(roles, dimensions)
