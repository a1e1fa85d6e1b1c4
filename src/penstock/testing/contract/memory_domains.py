"""Memory domains: NNAPI's VTS scenarios for allocating and copying (NNAPI section 6.7), by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import cache, partial
from itertools import product
from typing import Any, Final, TypeAlias

import numpy as np
from msgspec import Struct

from penstock import hal
from penstock.errors import GeneralFailure, InvalidArgument
from penstock.ir import DataLocation, DType, Model, ModelBuilder, NDArray, Quantization, Shape
from penstock.memory import MemoryPool
from penstock.testing.contract.promise import NotCovered, Suite, named, refused
from penstock.testing.contract.sharing import PREPARE, SharedModels, shared_models

Kind: TypeAlias = "tuple[DType, Quantization | None]"
Role: TypeAlias = "tuple[Any, ...] | hal.BufferRole"
"""The fields of a `BufferRole` for the bench's model, or one for another model."""

SUITE: Final = Suite("memory_domains", "memory", "Device.allocate", shares=True)

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


U: Final = ("input", 0)
V: Final = ("input", 1)
SUM: Final = ("output", 0)
"""Roles of the bench's model."""


class Bench(Struct, frozen=True):
    """A device with a model of two inputs *u* and *v*, and their sum, prepared."""

    device: hal.Device
    prepared: hal.PreparedModel
    dtype: DType
    shape: tuple[int, ...]
    made: ExitStack

    def allocate(
        self, *roles: Role, dimensions: tuple[int | None, ...] = ()
    ) -> tuple[int, hal.Buffer]:
        """A buffer, closed with the bench."""
        wanted = [hal.BufferRole(self.prepared, *r) if isinstance(r, tuple) else r for r in roles]
        token, buffer = self.device.allocate(hal.BufferDesc(dimensions), wanted)
        self.made.callback(buffer.close)
        return token, buffer

    def allocate_written(self, role: Role) -> int:
        """The token of a buffer for *role* that holds `values`."""
        token, buffer = self.allocate(role)
        self.write(buffer, self.values())
        return token

    def refuses(self, what: str, *roles: Role, dimensions: tuple[int, ...] = ()) -> None:
        """The device must reject a buffer for *roles* with `InvalidArgument`."""
        with refused(f"a buffer with {what}", InvalidArgument):
            self.allocate(*roles, dimensions=dimensions)

    def values(self, shape: tuple[int, ...] | None = None) -> NDArray:
        """Small whole numbers."""
        shape = shape or self.shape
        numbers = np.arange(int(np.prod(shape))) % 5
        return numbers.astype(self.dtype.numpy).reshape(shape)

    @contextmanager
    def request(self, *arguments: hal.TokenArgument | int | None) -> Iterator[hal.Request]:
        """Runs with *arguments* for u, v and the sum: a token, or None for a place in a pool."""
        size = self.values().nbytes
        given = dict(enumerate(arguments))
        with MemoryPool.anonymous(3 * size) as pool:
            pool.view(self.dtype.numpy, self.shape)[...] = self.values()
            pool.view(self.dtype.numpy, self.shape, size)[...] = self.values()
            three: list[hal.RequestArgument] = []
            for at in range(3):
                argument = given.get(at)
                if isinstance(argument, int):
                    argument = hal.TokenArgument(argument)
                three.append(argument or hal.PoolArgument(DataLocation(0, at * size, size)))
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
        shared = shared_models(device)
        prepared = prepare(device, _bench_model(kind, shape), shared)
        if shared is None:
            made.callback(prepared.close)
        known = tuple(d or 4 for d in shape or SHAPE)
        found = Bench(device, prepared, kind[0], known, made)
        try:
            _, buffer = device.allocate(hal.BufferDesc(), [hal.BufferRole(prepared, *U)])
        except GeneralFailure as error:
            raise NotCovered(f"it has no such buffers: {error}") from error
        buffer.close()
        yield found


@cache
def _bench_model(kind: Kind, shape: Shape) -> Model:
    return adding(*kind, shape)


def prepare(
    device: hal.Device, model: Model, shared: SharedModels | None = None
) -> hal.PreparedModel:
    """*model*, prepared, by *shared* if given; `NotCovered` if the device does not support it."""
    answers = device.supported_operations(model) if shared is None else shared.support(model)
    if not all(answer.supported for answer in answers):
        raise NotCovered("it does not support the model of this scenario")
    try:
        return device.prepare_model(model, PREPARE) if shared is None else shared.prepared(model)
    except GeneralFailure as error:
        raise NotCovered(f"it does not prepare the model of this scenario: {error}") from error


class _Foreign:
    """A prepared model that belongs to no device."""

    model = adding(*KINDS[0], SHAPE)


def _foreign(prepared: object) -> hal.BufferRole:
    return hal.BufferRole(prepared, "input", 0)  # type: ignore[arg-type]  # a number, for example


ROLES: Final[tuple[tuple[str, str, tuple[Role, ...], tuple[int, ...]], ...]] = (
    ("EmptyRole", "no roles", (), ()),
    ("NullptrPreparedModel", "no model", (_foreign(None),), ()),
    ("NullptrPreparedModel", "a null model among others", (U, _foreign(None)), ()),
    ("InvalidPreparedModel", "another device's model", (_foreign(_Foreign()),), ()),
    ("InvalidModelIndex", "a number for a model", (U, _foreign(1)), ()),
    ("InvalidIOIndex", "input 2 of 2", (("input", 2),), ()),
    ("InvalidIOIndex", "output 1 of 1", (("output", 1),), ()),
    ("InvalidIOIndex", "input -1", (("input", -1),), ()),
    *(
        ("InvalidProbability", f"a frequency of {frequency}", ((side, 0, frequency),), ())
        for frequency, side in product((10.0, 0.0, -0.5, float("nan")), ("input", "output"))
    ),
    ("SameRoleSpecifiedTwice", "an input twice", (U, U), ()),
    ("SameRoleSpecifiedTwice", "an output twice", (SUM, U, SUM), ()),
    ("ConflictRankBetweenRoleAndDesc", "a rank of its own", (U,), SHAPE[1:]),
    ("ConflictRankBetweenRoleAndDesc", "a rank of its own", (SUM,), (1, *SHAPE)),
    ("ConflictDimensionsBetweenRoleAndDesc", "dimensions of its own", (U,), (1, 32, 32, 4)),
    ("ConflictDimensionsBetweenRoleAndDesc", "dimensions of its own", (SUM,), (2, 32, 32, 8)),
)
"""Roles of the bench's model that a device must reject: the scenario, what is wrong, the roles and
dimensions.
"""

CONFLICTS: Final[dict[str, tuple[str, Model, int]]] = {
    "ConflictOperandType": ("two element types", passing(DType.INT32, None, SHAPE), 1),
    "ConflictRankBetweenRoles": ("two ranks", adding(*KINDS[0], SHAPE[1:]), 0),
    "ConflictDimensionsBetweenRoles": ("other dimensions", adding(*KINDS[0], (1, 32, 32, 4)), 0),
}
"""Models whose input of that index cannot share a buffer with the bench's model, by scenario."""

QUANTIZATIONS: Final = {
    "ConflictScale": Quantization((0.5,), (0,)),
    "ConflictZeroPoint": Quantization((1.0,), (7,)),
}
"""Quantisations that differ from `ONE`, by scenario."""


def _odd_roles(scenario: str, device: hal.Device) -> None:
    with bench(device) as on:
        for upstream, what, roles, dimensions in ROLES:
            if upstream == scenario:
                on.refuses(what, *roles, dimensions=dimensions)


def _conflict(scenario: str, device: hal.Device) -> None:
    what, model, index = CONFLICTS[scenario]
    with bench(device) as on, closing(prepare(device, model)) as other:
        role = hal.BufferRole(other, "input", index)
        on.refuses(what, U, role)
        on.refuses(what, role, SUM)


def _conflicting_quantization(scenario: str, device: hal.Device) -> None:
    with (
        bench(device) as on,
        closing(prepare(device, passing(DType.INT8, ONE, SHAPE))) as first,
        closing(prepare(device, passing(DType.INT8, QUANTIZATIONS[scenario], SHAPE))) as second,
    ):
        other = hal.BufferRole(second, "input", 1)
        on.refuses("two quantisations", hal.BufferRole(first, "input", 1), other)
        on.refuses("two quantisations", hal.BufferRole(first, "output", 1), other)


def _scalars(_: str, device: hal.Device) -> None:
    with bench(device) as on, closing(prepare(device, adding(*KINDS[0], ()))) as scalars:
        role = hal.BufferRole(scalars, "input", 0)
        on.refuses("a rank for a scalar", role, dimensions=(1,))
        on.refuses("a scalar and a tensor", role, U)


def _snake(upstream: str) -> str:
    """`InvalidIOIndex` as `invalid_io_index`."""
    words = upstream.replace("IO", "Io")
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in words).lstrip("_")


for _check, _scenarios in (
    (_odd_roles, dict.fromkeys(row[0] for row in ROLES)),
    (_conflict, CONFLICTS),
    (_conflicting_quantization, QUANTIZATIONS),
    (_scalars, {"ConflictRankWithScalarRole": None}),
):
    for _upstream in _scenarios:
        _rule = f"MemoryDomainAllocateTest.{_upstream}."
        SUITE.check(named(partial(_check, _upstream), f"allocate_{_snake(_upstream)}", _rule))


def _invalid_size(method: str, shape: Shape, device: hal.Device) -> None:
    with bench(device, shape=shape) as on:
        _, buffer = on.allocate(U)
        if method == "CopyTo":
            on.write(buffer, on.values())
        right = on.values().nbytes
        for size in (right // 2, right - 1, right + 1, 2 * right):
            wrong = refused(f"{method} with {size} bytes for {right}", InvalidArgument)
            with MemoryPool.anonymous(size) as pool, wrong:
                if method == "CopyTo":
                    buffer.copy_to(pool.memory)
                else:
                    buffer.copy_from(pool.memory, on.shape)


for _method, (_suffix, _shape) in product(
    ("CopyFrom", "CopyTo"), (("", SHAPE), ("_DynamicShape", OPEN_SHAPE))
):
    _upstream = f"{_method}_InvalidMemorySize{_suffix}"
    _name = "_".join(map(_snake, _upstream.split("_")))
    _size_check = partial(_invalid_size, _method, _shape)
    SUITE.check(named(_size_check, _name, f"MemoryDomainCopyTest.{_upstream}."))


@SUITE.check
def check_copy_from_invalid_dimensions(device: hal.Device) -> None:
    """MemoryDomainCopyTest.CopyFrom_InvalidDimensions."""
    with bench(device) as on, MemoryPool.anonymous(on.values().nbytes) as pool:
        _, buffer = on.allocate(U)
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
    with bench(device, shape=OPEN_SHAPE) as on, MemoryPool.anonymous(on.values().nbytes) as pool:
        _, buffer = on.allocate(U)
        for dimensions in ((), (32, 32, 8), (4, 32, 8, 32), (None, 32, 32, 8)):
            with refused(f"copy_from of {dimensions}", InvalidArgument):
                buffer.copy_from(pool.memory, dimensions)  # type: ignore[arg-type]


@SUITE.check
def check_copy_to_uninitialized_memory(device: hal.Device) -> None:
    """MemoryDomainCopyTest.CopyTo_UninitializedMemory."""
    with bench(device) as on, MemoryPool.anonymous(on.values().nbytes) as pool:
        _, buffer = on.allocate(U)
        with refused("copy_to of nothing", GeneralFailure):
            buffer.copy_to(pool.memory)
