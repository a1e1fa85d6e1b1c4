"""Memory domains: NNAPI's VTS scenarios for allocating and copying (NNAPI section 6.7), by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from msgspec import Struct

from penstock import hal
from penstock.errors import GeneralFailure, InvalidArgument
from penstock.ir import DataLocation, DType, Model, ModelBuilder, NDArray, Quantization, Shape
from penstock.memory import MemoryPool
from penstock.testing.contract.promise import Check, NotCovered, Suite, named, refused
from penstock.testing.contract.trial import PREPARE

Role: TypeAlias = "tuple[hal.PreparedModel, Literal['input', 'output'], int]"
Kind: TypeAlias = "tuple[DType, Quantization | None]"

SUITE: Final = Suite("memory_domains", "memory", "Device.allocate")

SHAPE: Final = (1, 32, 32, 8)
OPEN_SHAPE: Final = (None, 32, 32, 8)
ONE: Final = Quantization((1.0,), (0,))
KINDS: Final[tuple[Kind, ...]] = (
    (DType.FLOAT32, None),
    (DType.FLOAT16, None),
    (DType.UINT8, Quantization((1.0,), (128,))),
    (DType.INT8, ONE),
)
"""VTS's operand types: float32, float16, quantised asymmetric, and quantised asymmetric signed."""
LIMIT: Final = 20.0
"""Seconds within which concurrent calls on one buffer must return."""


class Bench(Struct, frozen=True):
    """A device with a model of two inputs *u* and *v*, and their sum, prepared."""

    device: hal.Device
    prepared: hal.PreparedModel
    dtype: DType
    shape: tuple[int, ...]
    made: ExitStack

    def allocate(
        self, roles: Sequence[Role], dimensions: tuple[int | None, ...] = ()
    ) -> tuple[int, hal.Buffer]:
        """A buffer, closed with the bench."""
        wanted = [hal.BufferRole(*role) for role in roles]
        token, buffer = self.device.allocate(hal.BufferDesc(dimensions), wanted)
        self.made.callback(buffer.close)
        return token, buffer

    def allocate_written(self, role: Role) -> int:
        """The token of a buffer for *role* that holds `values`."""
        token, buffer = self.allocate([role])
        self.write(buffer, self.values())
        return token

    def refuses(self, what: str, roles: Sequence[Role], dimensions: tuple[int, ...] = ()) -> None:
        """The device must reject a buffer for *roles* with `InvalidArgument`."""
        with refused(f"a buffer with {what}", InvalidArgument):
            self.allocate(roles, dimensions)

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
    def request(self, *arguments: hal.RequestArgument | None) -> Iterator[hal.Request]:
        """Runs with *arguments* for u, v and the sum; None is a place in a pool."""
        size = self.values().nbytes
        with MemoryPool.anonymous(3 * size) as pool:
            pool.view(self.dtype.numpy, self.shape)[...] = self.values()
            pool.view(self.dtype.numpy, self.shape, size)[...] = self.values()
            three = [
                hal.PoolArgument(DataLocation(0, at * size, size)) if a is None else a
                for at, a in enumerate(arguments)
            ]
            yield hal.Request((three[0], three[1]), (three[2],), (pool.memory,))

    def write(self, buffer: hal.Buffer, value: NDArray) -> None:
        with MemoryPool.anonymous(value.nbytes) as pool:
            pool.view(value.dtype, value.shape)[...] = value
            buffer.copy_from(pool.memory, tuple(value.shape))

    def read(self, buffer: hal.Buffer, shape: tuple[int, ...]) -> NDArray:
        nbytes = int(np.prod(shape)) * self.dtype.numpy.itemsize
        with MemoryPool.anonymous(nbytes) as pool:
            buffer.copy_to(pool.memory)
            return pool.view(self.dtype.numpy, shape).copy()


def adding(
    dtype: DType, quantization: Quantization | None, shape: Shape, operation: str = "ADD"
) -> Model:
    """The sum of two inputs, or the result of another binary *operation*."""
    b = ModelBuilder()
    u, v = (b.input(dtype, shape, name, quantization) for name in "uv")
    return b.build(b.operation(operation, [u, v], [(dtype, shape, quantization)]))


def passing(dtype: DType, quantization: Quantization | None, shape: Shape) -> Model:
    """RELU of input 0, and input 1, of any type, unchanged."""
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, SHAPE, "x")
    other = b.input(dtype, shape, "other", quantization)
    return b.build([*b.operation("RELU", [x], [(DType.FLOAT32, SHAPE)]), other])


@contextmanager
def bench(device: hal.Device, kind: Kind = KINDS[0], shape: Shape = SHAPE) -> Iterator[Bench]:
    """`NotCovered` if the device does not support the model, or has no memory domains."""
    with ExitStack() as made:
        prepared = made.enter_context(closing(prepare(device, adding(*kind, shape))))
        known = tuple(d or 4 for d in shape or SHAPE)
        found = Bench(device, prepared, kind[0], known, made)
        try:
            _, buffer = device.allocate(hal.BufferDesc(), [hal.BufferRole(*found.input())])
        except GeneralFailure as error:
            raise NotCovered(f"it has no such buffers: {error}") from error
        buffer.close()
        yield found


def prepare(device: hal.Device, model: Model) -> hal.PreparedModel:
    """*model*, prepared; `NotCovered` if the device does not support it."""
    if not all(answer.supported for answer in device.supported_operations(model)):
        raise NotCovered("it does not support the model of this scenario")
    try:
        return device.prepare_model(model, PREPARE)
    except GeneralFailure as error:
        raise NotCovered(f"it does not prepare the model of this scenario: {error}") from error


class _Foreign:
    """A prepared model that belongs to no device."""

    model = adding(*KINDS[0], SHAPE)


def _odd_roles(*cases: tuple[str, Callable[[Bench], list[Any]], tuple[int, ...]]) -> Check:
    """The device rejects each of *cases*, (what, roles, dimensions)."""

    def check(device: hal.Device) -> None:
        with bench(device) as on:
            for what, roles, dimensions in cases:
                on.refuses(what, roles(on), dimensions)

    return check


def _conflict(what: str, model: Model, index: int = 1) -> Check:
    """The device rejects a role of *model* together with one of the plain sum."""

    def check(device: hal.Device) -> None:
        with bench(device) as on, closing(prepare(device, model)) as other:
            on.refuses(what, [on.input(), (other, "input", index)])
            on.refuses(what, [(other, "input", index), on.output])

    return check


def _conflicting_quantization(other: Quantization) -> Check:
    def check(device: hal.Device) -> None:
        with (
            bench(device) as on,
            closing(prepare(device, passing(DType.INT8, ONE, SHAPE))) as first,
            closing(prepare(device, passing(DType.INT8, other, SHAPE))) as second,
        ):
            on.refuses("two quantisations", [(first, "input", 1), (second, "input", 1)])
            on.refuses("two quantisations", [(first, "output", 1), (second, "input", 1)])

    return check


def _null_model(device: hal.Device) -> None:
    with bench(device) as on:
        with refused("a buffer for no model", InvalidArgument):
            device.allocate(hal.BufferDesc(), [hal.BufferRole(None, "input", 0)])  # type: ignore[arg-type]
        on.refuses("a null model among others", [on.input(), (None, "input", 0)])  # type: ignore[list-item]


def _frequencies(device: hal.Device) -> None:
    with bench(device) as on:
        for frequency in (10.0, 0.0, -0.5, float("nan")):
            for kind in ("input", "output"):
                role = hal.BufferRole(on.prepared, kind, 0, frequency)
                with refused(f"a frequency of {frequency}", InvalidArgument):
                    device.allocate(hal.BufferDesc(), [role])


def _scalars(device: hal.Device) -> None:
    with bench(device) as on, closing(prepare(device, adding(*KINDS[0], ()))) as scalars:
        on.refuses("a rank for a scalar", [(scalars, "input", 0)], (1,))
        on.refuses("a scalar and a tensor", [(scalars, "input", 0), on.input()])


ALLOCATIONS: Final[tuple[tuple[str, Check], ...]] = (
    ("EmptyRole", _odd_roles(("no roles", lambda _: [], ()))),
    ("NullptrPreparedModel", _null_model),
    (
        "InvalidPreparedModel",
        _odd_roles(("another device's model", lambda _: [(_Foreign(), "input", 0)], ())),
    ),
    (
        "InvalidModelIndex",
        _odd_roles(("a number for a model", lambda on: [on.input(), (1, "input", 0)], ())),
    ),
    (
        "InvalidIOIndex",
        _odd_roles(
            ("input 2 of 2", lambda on: [on.input(2)], ()),
            ("output 1 of 1", lambda on: [(on.prepared, "output", 1)], ()),
            ("input -1", lambda on: [on.input(-1)], ()),
        ),
    ),
    ("InvalidProbability", _frequencies),
    (
        "SameRoleSpecifiedTwice",
        _odd_roles(
            ("an input twice", lambda on: [on.input(), on.input()], ()),
            ("an output twice", lambda on: [on.output, on.input(), on.output], ()),
        ),
    ),
    ("ConflictOperandType", _conflict("two element types", passing(DType.INT32, None, SHAPE))),
    ("ConflictScale", _conflicting_quantization(Quantization((0.5,), (0,)))),
    ("ConflictZeroPoint", _conflicting_quantization(Quantization((1.0,), (7,)))),
    ("ConflictRankBetweenRoles", _conflict("two ranks", adding(*KINDS[0], SHAPE[1:]), 0)),
    (
        "ConflictDimensionsBetweenRoles",
        _conflict("other dimensions", adding(*KINDS[0], (1, 32, 32, 4)), 0),
    ),
    (
        "ConflictRankBetweenRoleAndDesc",
        _odd_roles(
            ("a rank of its own", lambda on: [on.input()], SHAPE[1:]),
            ("a rank of its own", lambda on: [on.output], (1, *SHAPE)),
        ),
    ),
    (
        "ConflictDimensionsBetweenRoleAndDesc",
        _odd_roles(
            ("dimensions of its own", lambda on: [on.input()], (1, 32, 32, 4)),
            ("dimensions of its own", lambda on: [on.output], (2, 32, 32, 8)),
        ),
    ),
    ("ConflictRankWithScalarRole", _scalars),
)
"""The scenarios of MemoryDomainAllocateTest with their checks."""


def _snake(upstream: str) -> str:
    """`InvalidIOIndex` as `invalid_io_index`."""
    words = upstream.replace("IO", "Io")
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in words).lstrip("_")


for _upstream, _check in ALLOCATIONS:
    SUITE.check(
        named(_check, f"allocate_{_snake(_upstream)}", f"MemoryDomainAllocateTest.{_upstream}.")
    )


@SUITE.check
def check_copy_from_invalid_memory_size(device: hal.Device) -> None:
    """MemoryDomainCopyTest.CopyFrom_InvalidMemorySize."""
    _copies_refuse_sizes(device, "copy_from", SHAPE)


@SUITE.check
def check_copy_from_invalid_memory_size_dynamic_shape(device: hal.Device) -> None:
    """MemoryDomainCopyTest.CopyFrom_InvalidMemorySize_DynamicShape."""
    _copies_refuse_sizes(device, "copy_from", OPEN_SHAPE)


@SUITE.check
def check_copy_from_invalid_dimensions(device: hal.Device) -> None:
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


@SUITE.check
def check_copy_from_invalid_dimensions_dynamic_shape(device: hal.Device) -> None:
    """MemoryDomainCopyTest.CopyFrom_InvalidDimensions_DynamicShape."""
    with bench(device, shape=OPEN_SHAPE) as on:
        _, buffer = on.allocate([on.input()])
        with MemoryPool.anonymous(on.values().nbytes) as pool:
            for dimensions in ((), (32, 32, 8), (4, 32, 8, 32), (None, 32, 32, 8)):
                with refused(f"copy_from of {dimensions}", InvalidArgument):
                    buffer.copy_from(pool.memory, dimensions)  # type: ignore[arg-type]


@SUITE.check
def check_copy_to_uninitialized_memory(device: hal.Device) -> None:
    """MemoryDomainCopyTest.CopyTo_UninitializedMemory."""
    with bench(device) as on:
        _, buffer = on.allocate([on.input()])
        with (
            MemoryPool.anonymous(on.values().nbytes) as pool,
            refused("copy_to of nothing", GeneralFailure),
        ):
            buffer.copy_to(pool.memory)


@SUITE.check
def check_copy_to_invalid_memory_size(device: hal.Device) -> None:
    """MemoryDomainCopyTest.CopyTo_InvalidMemorySize."""
    _copies_refuse_sizes(device, "copy_to", SHAPE)


@SUITE.check
def check_copy_to_invalid_memory_size_dynamic_shape(device: hal.Device) -> None:
    """MemoryDomainCopyTest.CopyTo_InvalidMemorySize_DynamicShape."""
    _copies_refuse_sizes(device, "copy_to", OPEN_SHAPE)


def _copies_refuse_sizes(device: hal.Device, method: str, shape: Shape) -> None:
    with bench(device, shape=shape) as on:
        _, buffer = on.allocate([on.input()])
        if method == "copy_to":
            on.write(buffer, on.values())
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
