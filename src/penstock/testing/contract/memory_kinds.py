"""Every kind of memory for constants, inputs, outputs: a device maps or rejects each as claimed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from penstock.errors import GeneralFailure, InvalidArgument
from penstock.hal import Device, Memory, PoolArgument, PrepareConfig, Request, Support
from penstock.hal.device import mappable_kinds, preferred_memory
from penstock.ir import ConstantPool, DataLocation, DType, Lifetime, Model, ModelBuilder, NDArray
from penstock.ir.builder import SubgraphBuilder
from penstock.memory import (
    MEMORY_KINDS,
    HardwareBuffer,
    HardwareBufferDescription,
    HardwareBufferFormat as Format,
    HardwareBufferHandle,
    MemoryPool,
)
from penstock.memory.hardware import map_image
from penstock.memory.layout import lay_out
from penstock.testing.contract.cases import Case, choosing, first_case, static_cases
from penstock.testing.contract.promise import NotCovered, Suite, refused, require
from penstock.testing.contract.trial import (
    PLAIN,
    each_prepared,
    memory_kinds,
    pool_of,
    prepare,
    ready,
)

SUITE: Final = Suite("memory_kinds", "memory", "Memory", shares=True)
IMAGE: Final = "hardware_buffer"
UNKNOWN: Final = "no_such_memory"


@SUITE.values
def check_every_kind_serves_inputs_and_outputs(device: Device) -> None:
    """Pools of each claimed kind work for inputs and outputs."""
    for on in each_prepared(device, static_cases(device)[:6]):
        for kind in memory_kinds(device):
            on.check(f"of {kind} memory", memory=kind)


@SUITE.check
def check_other_kinds_fail_the_execution(device: Device) -> None:
    """Memory that the device cannot map is `GeneralFailure`. No output is written."""
    with prepare(device) as on:
        for kind in (*_others(device), UNKNOWN):
            with on.trial() as trial:
                given = trial.request
                pools = _strange(kind, given.pools[0]), *given.pools
                inputs, outputs = (
                    tuple(map(_next_pool, given.inputs)),
                    tuple(map(_next_pool, given.outputs)),
                )
                with refused(f"an input in {kind} memory", GeneralFailure):
                    trial.execute(Request(_at(given.inputs, kind), outputs, pools))
                trial.check_unwritten(f"by a run whose input lies in {kind} memory")
                with refused(f"an output in {kind} memory", GeneralFailure):
                    trial.execute(Request(inputs, _at(given.outputs, kind), pools))


@SUITE.values
def check_every_kind_serves_constants(device: Device) -> None:
    """Pools of each claimed kind work for constants."""
    case = first_case(device, _has_constants, "with a constant in a pool")
    for kind in memory_kinds(device):
        with (
            _constants_in(case.model, kind) as model,
            prepare(device, replace(case, model=model)) as on,
        ):
            on.check(f"with constants in {kind} memory")


@SUITE.check
def check_operations_on_constants_of_other_kinds_are_refused(device: Device) -> None:
    """The device rejects an operation that reads a constant in an image or in memory that it cannot
    map.

    `supported_operations` gives a reason that names the kind, and `prepare_model` raises
    `GeneralFailure`. Other operations of the model stay supported.
    """
    case = first_case(device, _has_constants, "with a constant in a pool")
    own = len(case.model.operations)
    for kind in dict.fromkeys((*_others(device), IMAGE, UNKNOWN)):
        model = _beside_itself(case.model, kind)
        answers = device.supported_operations(model)
        for index, operation in enumerate(model.operations):
            read = [model.operands[i].location for i in operation.inputs]
            if any(place is not None and place.pool == 0 for place in read):
                _require_refusal(answers[index], kind, f"operation {index} ({operation.key})")
            elif index >= own:
                other = f"operation {index} ({operation.key}) reads nothing in {kind} memory"
                refusal = f"{other}, and is refused: {answers[index].reason}"
                require(answers[index].supported, refusal)
        with refused(f"a constant in {kind} memory", GeneralFailure):
            device.prepare_model(model, PrepareConfig())


@SUITE.check
def check_branches_on_constants_of_other_kinds_are_refused(device: Device) -> None:
    """The device rejects an IF with a branch that reads a constant in memory that it cannot map.

    The reason in `supported_operations` names the kind.
    """
    model = _branch_with_a_constant()
    if not all(answer.supported for answer in device.supported_operations(model)):
        raise NotCovered("it does not support IF with ADD in a branch")
    for kind in dict.fromkeys((*_others(device), IMAGE, UNKNOWN)):
        moved = _all_in(model, kind)
        (answer,) = device.supported_operations(moved)
        _require_refusal(answer, kind, "an IF")
        with refused(f"a constant of a branch in {kind} memory", GeneralFailure):
            device.prepare_model(moved, PrepareConfig())


@SUITE.check
def check_memory_at_odds_with_its_name(device: Device) -> None:
    """A handle or description that does not match the kind of memory is `GeneralFailure`."""
    with ready(device) as trial:
        size = trial.request.pools[0].size
        with HardwareBuffer.allocate(size) as buffer:
            fd = buffer.memory.handle.fd
            blob, pixels = Format.BLOB, Format.R8_UNORM
            for what, memory in (
                ("a blob without a description", Memory("hardware_buffer_blob", fd, size)),
                ("a blob that is an image", _described("hardware_buffer_blob", fd, pixels, size)),
                ("a blob that is too small", _described("hardware_buffer_blob", fd, blob, size, 1)),
                ("a file that is a blob", Memory("mmap_fd", buffer.memory.handle, size)),
                ("a descriptor that is none", Memory("ashmem", -1, size)),
            ):
                with refused(what, GeneralFailure):
                    trial.execute(replace(trial.request, pools=(memory,)))


@SUITE.values
def check_padding_is_accepted(device: Device) -> None:
    """Arguments may have the alignment and padding that the device prefers.

    It may overwrite the padding (NNAPI section 6.8).
    """
    preference = preferred_memory(device)
    with prepare(device) as on:
        count, arrays = len(on.case.inputs), [*on.case.inputs, *on.case.outputs]
        places, size = lay_out([a.nbytes for a in arrays], preference)
        arguments = [
            PoolArgument(DataLocation(0, offset, array.nbytes), array.shape, padding)
            for array, (offset, padding) in zip(arrays, places, strict=True)
        ]
        with MemoryPool.anonymous(max(size, 1)) as pool:
            views = [
                pool.view(a.dtype, a.shape, at) for a, (at, _) in zip(arrays, places, strict=True)
            ]
            for view, value in zip(views, on.case.inputs, strict=False):
                view[...] = value
            request = Request(tuple(arguments[:count]), tuple(arguments[count:]), (pool.memory,))
            on.prepared.execute(request, PLAIN)
        on.compare([np.array(view) for view in views[count:]], "of padded arguments")


@SUITE.values
def check_images_serve_inputs_and_outputs(device: Device) -> None:
    """A device that claims `hardware_buffer` reads and writes images, whose rows may be padded."""
    if IMAGE not in mappable_kinds(device):
        raise NotCovered("it takes no images")
    case = first_case(device, _is_on_pictures, "on pictures")
    with ExitStack() as stack:
        on = stack.enter_context(prepare(device, case))
        buffers = [stack.enter_context(_image_of(a)) for a in (*case.inputs, *case.outputs)]
        for buffer, value in zip(buffers, case.inputs, strict=False):
            with map_image(buffer.memory) as mapping:
                mapping.array[...] = value.reshape(mapping.array.shape)
        arguments = [PoolArgument(DataLocation(i, 0, 0)) for i in range(len(buffers))]
        count = len(case.inputs)
        request = Request(
            tuple(arguments[:count]), tuple(arguments[count:]), tuple(b.memory for b in buffers)
        )
        on.prepared.execute(request, PLAIN)
        found = []
        for buffer, value in zip(buffers[count:], case.outputs, strict=True):
            with map_image(buffer.memory) as mapping:
                found.append(np.array(mapping.array).reshape(value.shape))
        on.compare(found, "of images")
        for place in (DataLocation(0, 4, 0), DataLocation(0, 0, 4)):
            wrong = replace(request, inputs=(PoolArgument(place), *request.inputs[1:]))
            with refused("a part of an image", InvalidArgument):
                on.prepared.execute(wrong, PLAIN)


def _others(device: Device) -> tuple[str, ...]:
    return tuple(kind for kind in MEMORY_KINDS if kind not in mappable_kinds(device))


def _strange(kind: str, like: Memory) -> Memory:
    """Memory of that kind with the size of *like*."""
    if kind == IMAGE:
        return HardwareBuffer.allocate(like.size, format=Format.R8_UNORM).memory
    if kind in MEMORY_KINDS:
        return pool_of(kind, like.size).memory
    return Memory(kind, None, like.size)


def _at(arguments: Sequence[Any], kind: str) -> tuple[Any, ...]:
    """A request with the first argument in memory of that kind (pool 0), others in pool 1."""
    whole = DataLocation(0, 0, 0)
    first = replace(arguments[0], location=whole, padding=0) if kind == IMAGE else arguments[0]
    return (first, *(_next_pool(a) for a in arguments[1:]))


def _next_pool(argument: Any) -> Any:
    return replace(argument, location=replace(argument.location, pool=1))


def _described(name: str, fd: int, kind: int, size: int, width: int | None = None) -> Memory:
    description = HardwareBufferDescription(kind, width or size, stride=width or size)
    return Memory(name, HardwareBufferHandle(fd, description), size)


def _has_constants(case: Case) -> bool:
    """Whether it is plain, and has a constant in a pool."""
    model = case.model
    plain = len(model.subgraphs) == 1 and not model.entry.states
    return plain and any(o.lifetime is Lifetime.CONSTANT_POOL for o in model.operands)


@contextmanager
def _constants_in(model: Model, kind: str) -> Iterator[Model]:
    """*model* with its one pool of constants in memory of that kind."""
    (own,) = model.pools
    with pool_of(kind, len(own)) as pool:
        pool.view(np.uint8, len(own))[:] = np.frombuffer(own.view, np.uint8)
        yield replace(model, pools=(pool.constants(),))


def _require_refusal(answer: Support, kind: str, what: str) -> None:
    require(not answer.supported, f"{what} reads a constant in {kind} memory, and has a yes")
    require(kind in answer.reason, f"{what}: the no does not name {kind} memory: {answer.reason!r}")


def _all_in(model: Model, kind: str) -> Model:
    """*model* with every pool of constants declared as memory of that kind."""
    return replace(model, pools=tuple(ConstantPool(p.view, p.owner, kind) for p in model.pools))


def _beside_itself(model: Model, kind: str) -> Model:
    """*model* twice: constants declared as memory of that kind, and in process memory."""
    entry, count = model.entry, len(model.operands)
    (own,) = model.pools

    def shifted(indexes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(i + count for i in indexes)

    operands = tuple(
        o if o.location is None else replace(o, location=replace(o.location, pool=1))
        for o in entry.operands
    )
    operations = tuple(
        replace(o, inputs=shifted(o.inputs), outputs=shifted(o.outputs)) for o in entry.operations
    )
    both = replace(
        entry,
        operands=(*entry.operands, *operands),
        operations=(*entry.operations, *operations),
        inputs=(*entry.inputs, *shifted(entry.inputs)),
        outputs=(*entry.outputs, *shifted(entry.outputs)),
    )
    pools = ConstantPool(own.view, own.owner, kind), own
    return replace(model, subgraphs=(both,), pools=pools)


def _branch_with_a_constant() -> Model:
    """IF: adds x and a constant of 512 bytes, or x and x."""
    shape = (8, 16)

    def plus(inner: SubgraphBuilder, i: int, *, constant: bool) -> list[int]:
        k = inner.constant(np.ones(shape, np.float32), "k") if constant else i
        return inner.operation("ADD", [i, k], [(DType.FLOAT32, shape)])

    branches = partial(plus, constant=True), partial(plus, constant=False)
    return choosing(ModelBuilder(), shape, *branches)


def _is_on_pictures(case: Case) -> bool:
    """Whether its inputs and outputs are float32 of rank 2: images with one number per pixel."""
    operands = (*case.model.inputs, *case.model.outputs)
    return all(o.dtype is DType.FLOAT32 and len(o.shape or ()) == 2 for o in operands)


def _image_of(array: NDArray) -> HardwareBuffer:
    height, width = array.shape
    return HardwareBuffer.allocate(width, height, format=Format.D32_FLOAT)
