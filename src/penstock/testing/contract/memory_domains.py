"""The scenarios that NNAPI's VTS has for memory domains (NNAPI section 6.7), under its names, and what they leave out."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from typing import Final, Literal, TypeAlias

import numpy as np
from msgspec import Struct

from penstock.errors import DriverError, GeneralFailure, InvalidArgument, PenstockError
from penstock.hal import (
    Buffer,
    BufferDesc,
    BufferRole,
    Device,
    PoolArgument,
    PreparedModel,
    Request,
    RequestArgument,
    TokenArgument,
)
from penstock.ir import DataLocation, DType, Model, ModelBuilder, NDArray, Quantization, Shape
from penstock.memory import HardwareBuffer, MemoryPool
from penstock.testing.contract.promise import (
    Check,
    NotCovered,
    needs_values,
    refused,
    require,
)
from penstock.testing.contract.trial import PLAIN, PREPARE

Role: TypeAlias = "tuple[PreparedModel, Literal['input', 'output'], int]"
Mode: TypeAlias = Literal["sync", "async", "fenced", "burst", "reusable"]

SHAPE: Final = (1, 32, 32, 8)
MODES: Final[tuple[Mode, ...]] = ("sync", "async", "fenced", "burst", "reusable")
ONE: Final = Quantization((1.0,), (0,))
KINDS: Final[tuple[tuple[DType, Quantization | None], ...]] = (
    (DType.FLOAT32, None),
    (DType.FLOAT16, None),
    (DType.UINT8, Quantization((1.0,), (128,))),
    (DType.INT8, ONE),
)
"""VTS's operand types: float32, float16, quantised asymmetric, and that signed."""
BLOBS_FROM_LEVEL: Final = 4
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
    device: Device,
    kind: tuple[DType, Quantization | None] = KINDS[0],
    shape: Shape = SHAPE,
) -> Iterator[Bench]:
    """`NotCovered` where the device does not support the model, or has no memory domains."""
    with ExitStack() as made:
        prepared = made.enter_context(closing(_prepared(device, adding(*kind, shape))))
        known = tuple(d or 4 for d in shape or SHAPE)
        found = Bench(device, prepared, kind[0], known, made)
        _require_domains(found)
        yield found


def _prepared(device: Device, model: Model) -> PreparedModel:
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


def _refuses(what: str, on: Bench, roles: Sequence[Role], dimensions: tuple[int, ...] = ()) -> None:
    with refused(f"a buffer with {what}", InvalidArgument):
        on.allocate(roles, dimensions)


def _conflict(device: Device, what: str, model: Model, index: int = 1) -> None:
    """A role of *model* and one of the plain sum are refused together."""
    with bench(device) as on, closing(_prepared(device, model)) as other:
        _refuses(what, on, [on.input(), (other, "input", index)])
        _refuses(what, on, [(other, "input", index), on.output])


def check_allocate_empty_role(device: Device) -> None:
    """MemoryDomainAllocateTest.EmptyRole."""
    with bench(device) as on:
        _refuses("no roles", on, [])


def check_allocate_nullptr_prepared_model(device: Device) -> None:
    """MemoryDomainAllocateTest.NullptrPreparedModel."""
    with bench(device) as on:
        with refused("a buffer for no model", InvalidArgument):
            device.allocate(BufferDesc(), [BufferRole(None, "input", 0)])  # type: ignore[arg-type]
        _refuses("a null model among others", on, [on.input(), (None, "input", 0)])  # type: ignore[list-item]


def check_allocate_invalid_prepared_model(device: Device) -> None:
    """MemoryDomainAllocateTest.InvalidPreparedModel: one of another device."""

    class Foreign:
        """Of no device of ours."""

        model = adding(*KINDS[0], SHAPE)

    with bench(device) as on:
        _refuses("another device's model", on, [(Foreign(), "input", 0)])  # type: ignore[list-item]


def check_allocate_invalid_model_index(device: Device) -> None:
    """MemoryDomainAllocateTest.InvalidModelIndex: a number instead of a model."""
    with bench(device) as on:
        _refuses("a number for a model", on, [on.input(), (1, "input", 0)])  # type: ignore[list-item]


def check_allocate_invalid_io_index(device: Device) -> None:
    """MemoryDomainAllocateTest.InvalidIOIndex."""
    with bench(device) as on:
        _refuses("input 2 of 2", on, [on.input(2)])
        _refuses("output 1 of 1", on, [(on.prepared, "output", 1)])
        _refuses("input -1", on, [on.input(-1)])


def check_allocate_invalid_probability(device: Device) -> None:
    """MemoryDomainAllocateTest.InvalidProbability."""
    with bench(device) as on:
        for frequency in (10.0, 0.0, -0.5, float("nan")):
            for kind in ("input", "output"):
                role = BufferRole(on.prepared, kind, 0, frequency)
                with refused(f"a frequency of {frequency}", InvalidArgument):
                    device.allocate(BufferDesc(), [role])


def check_allocate_same_role_specified_twice(device: Device) -> None:
    """MemoryDomainAllocateTest.SameRoleSpecifiedTwice."""
    with bench(device) as on:
        _refuses("an input twice", on, [on.input(), on.input()])
        _refuses("an output twice", on, [on.output, on.input(), on.output])


def check_allocate_conflict_operand_type(device: Device) -> None:
    """MemoryDomainAllocateTest.ConflictOperandType."""
    _conflict(device, "two element types", carrying(DType.INT32, None, SHAPE))


def check_allocate_conflict_scale(device: Device) -> None:
    """MemoryDomainAllocateTest.ConflictScale."""
    _conflicting_quantization(device, Quantization((0.5,), (0,)))


def check_allocate_conflict_zero_point(device: Device) -> None:
    """MemoryDomainAllocateTest.ConflictZeroPoint."""
    _conflicting_quantization(device, Quantization((1.0,), (7,)))


def _conflicting_quantization(device: Device, other: Quantization) -> None:
    with (
        bench(device) as on,
        closing(_prepared(device, carrying(DType.INT8, ONE, SHAPE))) as first,
        closing(_prepared(device, carrying(DType.INT8, other, SHAPE))) as second,
    ):
        _refuses("two quantisations", on, [(first, "input", 1), (second, "input", 1)])
        _refuses("two quantisations", on, [(first, "output", 1), (second, "input", 1)])


def check_allocate_conflict_rank_between_roles(device: Device) -> None:
    """MemoryDomainAllocateTest.ConflictRankBetweenRoles."""
    _conflict(device, "two ranks", adding(*KINDS[0], SHAPE[1:]), 0)


def check_allocate_conflict_dimensions_between_roles(device: Device) -> None:
    """MemoryDomainAllocateTest.ConflictDimensionsBetweenRoles."""
    _conflict(device, "other dimensions", adding(*KINDS[0], (1, 32, 32, 4)), 0)


def check_allocate_conflict_rank_between_role_and_desc(device: Device) -> None:
    """MemoryDomainAllocateTest.ConflictRankBetweenRoleAndDesc."""
    with bench(device) as on:
        _refuses("a rank of its own", on, [on.input()], SHAPE[1:])
        _refuses("a rank of its own", on, [on.output], (1, *SHAPE))


def check_allocate_conflict_dimensions_between_role_and_desc(device: Device) -> None:
    """MemoryDomainAllocateTest.ConflictDimensionsBetweenRoleAndDesc."""
    with bench(device) as on:
        _refuses("dimensions of its own", on, [on.input()], (1, 32, 32, 4))
        _refuses("dimensions of its own", on, [on.output], (2, 32, 32, 8))


def check_allocate_conflict_rank_with_scalar_role(device: Device) -> None:
    """MemoryDomainAllocateTest.ConflictRankWithScalarRole."""
    with bench(device) as on, closing(_prepared(device, adding(*KINDS[0], ()))) as scalars:
        _refuses("a rank for a scalar", on, [(scalars, "input", 0)], (1,))
        _refuses("a scalar and a tensor", on, [(scalars, "input", 0), on.input()])


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


Scenario: TypeAlias = Callable[[Bench, Callable[[Request], None]], None]


def _invalid_token(on: Bench, run: Callable[[Request], None]) -> None:
    token, buffer = on.allocate([on.input()])
    on.write(buffer, on.values())
    for wrong in (0, -1, token + 1, 1 << 30):
        _refuse_run(on, run, f"token {wrong}", TokenArgument(wrong), None, None)
        _refuse_run(on, run, f"token {wrong}", None, None, TokenArgument(wrong))


def _invalid_prepared_model(on: Bench, run: Callable[[Request], None]) -> None:
    # Of a model that is the same a driver may have one prepared form for everybody.
    model = adding(on.dtype, dict(KINDS)[on.dtype], on.shape, "MUL")
    with closing(_prepared(on.device, model)) as other:
        token, buffer = on.allocate([(other, "input", 0)])
        on.write(buffer, on.values())
        _refuse_run(on, run, "another model's buffer", TokenArgument(token), None, None)
        token, _ = on.allocate([(other, "output", 0)])
        _refuse_run(on, run, "another model's buffer", None, None, TokenArgument(token))


def _invalid_io_index(on: Bench, run: Callable[[Request], None]) -> None:
    token, buffer = on.allocate([on.input(0)])
    on.write(buffer, on.values())
    _refuse_run(on, run, "the buffer of input 0 as input 1", None, TokenArgument(token), None)


def _invalid_io_type(on: Bench, run: Callable[[Request], None]) -> None:
    for_output, buffer = on.allocate([on.output])
    on.write(buffer, on.values())
    _refuse_run(on, run, "an output's buffer as an input", TokenArgument(for_output), None, None)
    for_input, _ = on.allocate([on.input()])
    _refuse_run(on, run, "an input's buffer as an output", None, None, TokenArgument(for_input))


def _uninitialized_memory(on: Bench, run: Callable[[Request], None]) -> None:
    token, buffer = on.allocate([on.input()])
    never = "a buffer never written"
    _refuse_run(on, run, never, TokenArgument(token), None, None, error=GeneralFailure)
    on.write(buffer, on.values())
    with on.request(TokenArgument(token), None, None) as request:
        run(request)


def _same_request_multiple_roles(on: Bench, run: Callable[[Request], None]) -> None:
    token, buffer = on.allocate([on.input(0), on.input(1), on.output])
    on.write(buffer, on.values())
    same = TokenArgument(token)
    _refuse_run(on, run, "a buffer as input 0 and output", same, None, same)
    _refuse_run(on, run, "a buffer as input 1 and output", None, same, same)
    with on.request(same, same, None) as request:
        run(request)


def _invalid_dimensions(on: Bench, run: Callable[[Request], None]) -> None:
    token, buffer = on.allocate([on.input()])
    on.write(buffer, on.values())
    other, _ = on.allocate([on.output])
    for dimensions in ((*on.shape[:-1], on.shape[-1] // 2), on.shape[1:]):
        _refuse_run(on, run, "other dimensions", TokenArgument(token, dimensions), None, None)
        _refuse_run(on, run, "other dimensions", None, None, TokenArgument(other, dimensions))
    with on.request(
        TokenArgument(token, on.shape), None, TokenArgument(other, on.shape)
    ) as request:
        run(request)


def _refuse_run(
    on: Bench,
    run: Callable[[Request], None],
    what: str,
    *arguments: RequestArgument | None,
    error: type[DriverError] = InvalidArgument,
) -> None:
    with on.request(*arguments) as request, refused(f"{on.dtype.value}, {what}", error):
        run(request)


SCENARIOS: Final[dict[str, Scenario]] = {
    "invalid_token": _invalid_token,
    "invalid_prepared_model": _invalid_prepared_model,
    "invalid_io_index": _invalid_io_index,
    "invalid_io_type": _invalid_io_type,
    "uninitialized_memory": _uninitialized_memory,
    "same_request_multiple_roles": _same_request_multiple_roles,
    "invalid_dimensions": _invalid_dimensions,
}
"""VTS's MemoryDomainExecutionTest, by name."""


def _execution_check(name: str, mode: Mode) -> Check:
    def check(device: Device) -> None:
        reason: NotCovered | None = None
        covered = False
        for kind in KINDS:
            try:
                with bench(device, kind) as on:
                    SCENARIOS[name](on, partial(_run, on.prepared, mode))
                    covered = True
            except NotCovered as why:
                reason = why
        if not covered and reason is not None:
            raise reason

    upstream = "".join(word.capitalize() for word in name.split("_")).replace("Io", "IO")
    check.__name__ = check.__qualname__ = f"check_execution_{name}_{mode}"
    check.__doc__ = (
        f"MemoryDomainExecutionTest.{upstream} ({mode}), in every element type that it supports."
    )
    return check


def _run(prepared: PreparedModel, mode: Mode, request: Request) -> None:
    """Executes *request* in that manner; raises its error."""
    if mode == "sync":
        prepared.execute(request, PLAIN)
    elif mode == "async":
        _run_in_a_thread(prepared, request)
    elif mode == "fenced":
        fence = prepared.execute_fenced(request, [], PLAIN)
        require(fence.wait(int(LIMIT * 1e9)), "the fence never signals")
        if (error := fence.error()) is not None:
            raise error
    elif mode == "burst":
        with closing(prepared.configure_burst()) as burst:
            burst.execute(request, PLAIN)
    else:
        with closing(prepared.create_reusable_execution(request)) as execution:
            execution.execute(PLAIN)


def _run_in_a_thread(prepared: PreparedModel, request: Request) -> None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            prepared.execute(request, PLAIN)
        except BaseException as error:  # noqa: BLE001  # raised in the thread that waits
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LIMIT)
    require(not thread.is_alive(), "an execution did not end")
    if raised:
        raise raised[0]


@needs_values
def check_buffers_copy_to_and_from_pools_of_every_kind(device: Device) -> None:
    """Of `ashmem`, `mmap_fd` and, from feature level 4 on, `hardware_buffer_blob`."""
    with bench(device) as on, tempfile.TemporaryFile() as file:
        _, buffer = on.allocate([on.input()])
        value = on.values()
        file.write(bytes(value.nbytes + 40))
        file.flush()
        pools = [
            MemoryPool.anonymous(value.nbytes),
            MemoryPool.from_file(file.fileno(), 40, value.nbytes),
        ]
        if device.feature_level >= BLOBS_FROM_LEVEL:
            with HardwareBuffer.allocate(value.nbytes) as blob:
                pools.append(MemoryPool.from_hardware_buffer(blob))
        for place, pool in enumerate(pools):
            with pool:
                there = pool.view(value.dtype, value.shape)
                there[...] = value + place
                buffer.copy_from(pool.memory, SHAPE)
                there[...] = 0
                buffer.copy_to(pool.memory)
                require(
                    np.array_equal(there, value + place), f"a copy by {pool.memory.name} is wrong"
                )


@needs_values
def check_buffers_of_unknown_size_take_that_of_what_is_written(device: Device) -> None:
    """Outputs of different shapes in successive runs, smaller and larger; as an input it has the last shape written."""
    with bench(device, shape=(None, 3)) as on:
        roles = [on.input(0), on.output]
        first, one = on.allocate(roles)
        second, other = on.allocate(roles)
        for rows in (4, 2, 7, 1):
            value = on.values((rows, 3))
            on.write(one, value)
            _add(on, first, value, second)
            require(
                np.array_equal(on.read(other, (rows, 3)), value + value),
                f"a sum of {rows} rows is wrong in a buffer of unknown size",
            )
            _add(on, second, value, first)
            require(
                np.array_equal(on.read(one, (rows, 3)), value + value + value),
                f"a buffer of {rows} rows is read wrongly",
            )
        with refused("an input of other dimensions than the last written", InvalidArgument):
            _add(on, first, on.values((1, 3)), second, (4, 3))


@needs_values
def check_buffers_that_many_use_at_once(device: Device) -> None:
    """Readers, and writers of different sizes, together: every call returns, and who reads what nobody writes is right."""
    try:
        with bench(device, shape=(None, 3)) as on:
            _compete(on, [(rows, 3) for rows in (1, 6, 3)])
    except NotCovered:
        with bench(device, shape=(6, 3)) as on:
            _compete(on, [(6, 3)])


def _compete(on: Bench, shapes: Sequence[tuple[int, ...]]) -> None:
    shared, contested = on.allocate([on.input(0), on.output])
    quiet, calm = on.allocate([on.input(0)])
    value = on.values((6, 3))
    on.write(calm, value)
    on.write(contested, on.values(shapes[0]))
    problems: list[str] = []

    def read_quiet() -> None:
        for _ in range(40):
            if not np.array_equal(_add(on, quiet, value, None), value + value):
                problems.append("who reads a buffer that nobody writes got another value")
            if not np.array_equal(on.read(calm, (6, 3)), value):
                problems.append("a buffer that nobody writes has another value")

    def write(at: int) -> None:
        on.write(contested, on.values(shapes[at % len(shapes)]))

    def run_into(at: int) -> None:
        _add(on, None, on.values(shapes[at % len(shapes)]), shared)

    def run_from(at: int) -> None:
        _add(on, shared, on.values(shapes[at % len(shapes)]), None)

    competing = [_tolerant(call, 40) for call in (write, run_into, run_from)]
    _all_at_once([read_quiet, read_quiet, *competing], problems)
    on.write(contested, value)
    require(
        np.array_equal(on.read(contested, (6, 3)), value), "the buffer is not usable afterwards"
    )


def _tolerant(call: Callable[[int], None], times: int) -> Callable[[], None]:
    """What is read while others write may be of another shape, or not there: that is said, and nothing else happens."""

    def repeated() -> None:
        for at in range(times):
            with suppress(PenstockError):
                call(at)

    return repeated


def _all_at_once(calls: Sequence[Callable[[], None]], problems: list[str]) -> None:
    def guarded(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001  # told by the thread that waits
            problems.append(f"{type(error).__name__} was raised: {error}")

    threads = [threading.Thread(target=guarded, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    require(not any(t.is_alive() for t in threads), "a call on a contested buffer does not return")
    require(not problems, "; ".join(sorted(set(problems))))


def _add(
    on: Bench, u: int | None, v: NDArray, total: int | None, dimensions: tuple[int, ...] = ()
) -> NDArray:
    """The sum of the buffer *u* (None: of *v*) and *v*, which goes into the buffer *total*, or is returned."""
    with MemoryPool.anonymous(2 * v.nbytes) as pool:
        pool.view(v.dtype, v.shape)[...] = v
        given = PoolArgument(DataLocation(0, 0, v.nbytes), v.shape)
        wanted = PoolArgument(DataLocation(0, v.nbytes, v.nbytes))
        request = Request(
            (given if u is None else TokenArgument(u, dimensions), given),
            (wanted if total is None else TokenArgument(total),),
            (pool.memory,),
        )
        on.prepared.execute(request, PLAIN)
        return pool.view(v.dtype, v.shape, v.nbytes).copy()


EXECUTION_CHECKS: Final[tuple[Check, ...]] = tuple(
    _execution_check(name, mode) for name in SCENARIOS for mode in MODES
)

CHECKS: Final[tuple[Check, ...]] = (
    check_allocate_empty_role,
    check_allocate_nullptr_prepared_model,
    check_allocate_invalid_prepared_model,
    check_allocate_invalid_model_index,
    check_allocate_invalid_io_index,
    check_allocate_invalid_probability,
    check_allocate_same_role_specified_twice,
    check_allocate_conflict_operand_type,
    check_allocate_conflict_scale,
    check_allocate_conflict_zero_point,
    check_allocate_conflict_rank_between_roles,
    check_allocate_conflict_dimensions_between_roles,
    check_allocate_conflict_rank_between_role_and_desc,
    check_allocate_conflict_dimensions_between_role_and_desc,
    check_allocate_conflict_rank_with_scalar_role,
    check_copy_from_invalid_memory_size,
    check_copy_from_invalid_memory_size_dynamic_shape,
    check_copy_from_invalid_dimensions,
    check_copy_from_invalid_dimensions_dynamic_shape,
    check_copy_to_uninitialized_memory,
    check_copy_to_invalid_memory_size,
    check_copy_to_invalid_memory_size_dynamic_shape,
    *EXECUTION_CHECKS,
    check_buffers_copy_to_and_from_pools_of_every_kind,
    check_buffers_of_unknown_size_take_that_of_what_is_written,
    check_buffers_that_many_use_at_once,
)
