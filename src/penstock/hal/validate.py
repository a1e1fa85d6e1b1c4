"""Checks of arguments that every driver shares (NNAPI sections 5.2, 6.2 and 6.3).

They raise `InvalidArgument` unless documented otherwise. A driver calls them first in
`prepare_model` and `execute`, since its caller may be another process.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Container, Sequence
from typing import Final

from msgspec.structs import replace

from penstock.errors import GeneralFailure, InvalidArgument, MissedDeadlinePersistent, counted
from penstock.hal.capabilities import ACCURACY_RANK, Support, check_attributes, class_fault
from penstock.hal.config import (
    BYTE_SIZE_OF_CACHE_TOKEN,
    PREFERENCES,
    PRIORITIES,
    ExecutionConfig,
    PrepareConfig,
)
from penstock.hal.request import (
    HostMemory,
    NoValue,
    PoolArgument,
    ProvenRequest,
    Request,
    RequestArgument,
    TokenArgument,
)
from penstock.ir import DType, Lifetime, Model, Operand, Subgraph
from penstock.ir.types import is_static
from penstock.ir.validate import subgraph_references

IMAGE: Final = "hardware_buffer"
"""The kind of memory whose layout only its driver knows; it has no bytes to point into."""


def refuse_unmapped(
    model: Model, answers: Sequence[Support], memory_kinds: Container[str]
) -> Sequence[Support]:
    """*answers*, with a rejection for each operation that reads a constant out of reach.

    The operation reads the constant directly, or in a subgraph that it refers to. A device reaches
    constants in the caller's own memory, and in shareable memory whose kind is among *memory_kinds*
    and is no image.

    *answers* are a driver's own for *model*'s entry subgraph, one for each operation. A driver
    returns the result from `Device.supported_operations`, so that `prepare_model` never rejects an
    accepted operation. The runtime applies it to every driver's answers. Rejections stay unchanged.
    If every constant is within reach, the result is *answers* itself.
    """
    reasons = _reasons(model, memory_kinds)
    if not reasons:
        return answers
    return [
        replace(answer, supported=False, reason=reasons[index], distance="")
        if answer.supported and index in reasons
        else answer
        for index, answer in enumerate(answers)
    ]


def check_constants(model: Model, memory_kinds: Container[str]) -> None:
    """Raises `GeneralFailure` if a device that maps *memory_kinds* cannot reach a constant.

    The constant is one that an operation of *model*'s entry subgraph reads, as in
    `refuse_unmapped`, or an output. The error names the first such operation.
    """
    for index, reason in _reasons(model, memory_kinds).items():
        raise GeneralFailure(f"operation {index} ({model.operations[index].key}): {reason}")
    foreign = _foreign_pools(model, memory_kinds)
    for index in model.entry.outputs if foreign else ():
        if (kind := _kind(model.operands[index], foreign)) is not None:
            raise GeneralFailure(_reason(model.operands[index], index, kind))


def _reasons(model: Model, memory_kinds: Container[str]) -> dict[int, str]:
    """Why operations of the entry subgraph are out of reach, by their indexes, in order."""
    foreign = _foreign_pools(model, memory_kinds)
    if not foreign:
        return {}
    below = _out_of_reach(model, foreign)
    found: dict[int, str] = {}
    for index, operation in enumerate(model.operations):
        reason = _read_by(model.entry, operation.inputs, foreign)
        for target in subgraph_references(operation):
            reason = reason or below.get(target)
        if reason is not None:
            found[index] = reason
    return found


def _foreign_pools(model: Model, memory_kinds: Container[str]) -> dict[int, str]:
    return {
        number: pool.kind
        for number, pool in enumerate(model.pools)
        if pool.kind and (pool.kind not in memory_kinds or pool.kind == IMAGE)
    }


def _out_of_reach(model: Model, foreign: dict[int, str]) -> dict[int, str]:
    """The subgraphs that use a constant in a *foreign* pool, with the reason.

    A subgraph uses it itself, or in a subgraph that it refers to. Each is visited once.
    """
    callers: dict[int, list[int]] = {}
    found: dict[int, str] = {}
    for number, subgraph in enumerate(model.subgraphs):
        read = [i for operation in subgraph.operations for i in operation.inputs]
        if (reason := _read_by(subgraph, (*read, *subgraph.outputs), foreign)) is not None:
            found[number] = reason
        for operation in subgraph.operations:
            for target in subgraph_references(operation):
                callers.setdefault(target, []).append(number)
    pending = deque(found)
    while pending:
        target = pending.popleft()
        for caller in callers.get(target, ()):
            if caller not in found:
                found[caller] = found[target]
                pending.append(caller)
    return found


def _read_by(subgraph: Subgraph, operands: Sequence[int], foreign: dict[int, str]) -> str | None:
    for index in operands:
        operand = subgraph.operands[index]
        if (kind := _kind(operand, foreign)) is not None:
            return _reason(operand, index, kind)
    return None


def _kind(operand: Operand, foreign: dict[int, str]) -> str | None:
    return None if operand.location is None else foreign.get(operand.location.pool)


def _reason(operand: Operand, index: int, kind: str) -> str:
    name = repr(operand.name) if operand.name else f"operand {index}"
    return f"constant {name} lies in {kind} memory, which this device does not map"


def validate_prepare(
    model: Model, config: PrepareConfig, memory_kinds: Container[str] | None = None
) -> None:
    """Checks the arguments of `Device.prepare_model`. A model is valid by construction.

    Raises `GeneralFailure` for operations that read constants in shareable memory of a kind that is
    not among the device's *memory_kinds*, if given: those that `refuse_unmapped` rejects (NNAPI
    section 6.3).
    """
    if not isinstance(model, Model):
        raise InvalidArgument(f"a Model is needed, not {type(model).__name__}")
    validate_prepare_config(config)
    if memory_kinds is not None:
        check_constants(model, memory_kinds)


def validate_support(model: Model, answers: Sequence[Support]) -> None:
    """Raises `GeneralFailure` for the first operation of *model* that *answers* reject, or answer
    with an accuracy that is no class.
    """
    for index, answer in enumerate(answers):
        reason = class_fault(answer) if answer.supported else answer.reason
        if reason or not answer.supported:
            kind = model.operations[index].key
            raise GeneralFailure(f"operation {index} ({kind}): {reason}")


def validate_prepare_config(config: PrepareConfig) -> None:
    """Checks a configuration alone, as for loading from cache."""
    if not isinstance(config, PrepareConfig):
        raise InvalidArgument(f"a PrepareConfig is needed, not {type(config).__name__}")
    if config.preference not in PREFERENCES:
        raise InvalidArgument(
            f"preference {config.preference!r} is not one of {', '.join(PREFERENCES)}"
        )
    if config.priority not in PRIORITIES:
        raise InvalidArgument(f"priority {config.priority!r} is not one of {', '.join(PRIORITIES)}")
    if config.accuracy not in ACCURACY_RANK:
        raise InvalidArgument(
            f"accuracy {config.accuracy!r} is not one of {', '.join(ACCURACY_RANK)}"
        )
    for label, value in (("token", config.token), ("binding", config.binding)):
        if len(value) != BYTE_SIZE_OF_CACHE_TOKEN:
            raise InvalidArgument(f"{label} has {len(value)} bytes, not {BYTE_SIZE_OF_CACHE_TOKEN}")
    if config.num_threads is not None and config.num_threads < 1:
        raise InvalidArgument(f"num_threads is {config.num_threads}; at least 1 is needed")
    if config.attributes:
        check_attributes(config.attributes)
    check_deadline(config.deadline_ns)


def check_deadline(deadline_ns: int | None) -> None:
    """Raises `MissedDeadlinePersistent` when the deadline has passed before work began."""
    if deadline_ns is not None and time.monotonic_ns() >= deadline_ns:
        raise MissedDeadlinePersistent("the deadline had passed before the work began")


def validate_request(model: Model, request: Request, config: ExecutionConfig) -> None:
    """Checks a request against the prepared model; a `ProvenRequest` only for the deadline."""
    if type(request) is ProvenRequest:
        if config.deadline_ns is not None:
            check_deadline(config.deadline_ns)
        return
    if not isinstance(request, Request):
        raise InvalidArgument(f"a Request is needed, not {type(request).__name__}")
    entry = model.entry
    if len(request.inputs) != len(entry.inputs) or len(request.outputs) != len(entry.outputs):
        raise InvalidArgument(
            f"{counted(len(request.inputs), 'input')} and "
            f"{counted(len(request.outputs), 'output')} given; "
            f"the model has {len(entry.inputs)} and {len(entry.outputs)}"
        )
    operands = entry.operands
    for position, argument in enumerate(request.inputs):
        _check(operands[entry.inputs[position]], argument, request, "input", position)
    for position, argument in enumerate(request.outputs):
        _check(operands[entry.outputs[position]], argument, request, "output", position)
    if config.attributes:
        check_attributes(config.attributes)
    if config.deadline_ns is not None:
        check_deadline(config.deadline_ns)


def validate_fenced(model: Model) -> None:
    """Checks that the shapes of *model*'s outputs are known (NNAPI section 5.2)."""
    entry = model.entry
    for position, index in enumerate(entry.outputs):
        operand = entry.operands[index]
        if not is_static(operand.shape):
            raise InvalidArgument(
                f"output {position} ({operand.name}) has an unknown shape; fenced execution needs "
                "it known"
            )


def _check(
    operand: Operand, argument: RequestArgument, request: Request, kind: str, position: int
) -> None:
    if type(argument) is HostMemory:
        array = argument.array
        if (
            array.shape == operand.shape
            and array.dtype == operand.dtype.numpy
            and array.flags.c_contiguous
            and (kind == "input" or array.flags.writeable)
            and operand.dtype is not DType.STRING
        ):
            return
        _check_host(operand, argument, kind, position)
    elif type(argument) is PoolArgument:
        _check_pool(operand, argument, request, kind, position)
    elif type(argument) is TokenArgument:
        if argument.token <= 0:
            raise InvalidArgument(f"{kind} {position}: token {argument.token} is not positive")
    elif type(argument) is NoValue:
        if kind == "input" and operand.lifetime is not Lifetime.NO_VALUE:
            raise InvalidArgument(f"input {position} ({operand.name}) is omitted, but not optional")
    else:
        raise InvalidArgument(
            f"{kind} {position}: {type(argument).__name__} is not a request argument"
        )


def _check_host(operand: Operand, argument: HostMemory, kind: str, position: int) -> None:
    array = argument.array
    if not array.flags.c_contiguous:
        raise InvalidArgument(
            f"{_place(operand, kind, position)}: host memory must be C-contiguous"
        )
    if kind == "output" and not array.flags.writeable:
        raise InvalidArgument(
            f"{_place(operand, kind, position)}: host memory of an output must be writeable"
        )
    flat = array.ndim == 1 and array.dtype == "uint8"
    if operand.dtype is DType.STRING:
        if not flat:
            raise InvalidArgument(
                f"{_place(operand, kind, position)}: strings travel as flat uint8 in the "
                "string-tensor layout"
            )
        if kind == "input":
            if argument.dimensions is None:
                raise InvalidArgument(
                    f"{_place(operand, kind, position)}: strings need their dimensions"
                )
            _check_dimensions(operand, argument.dimensions, kind, position)
        return
    if kind == "output" and flat and not is_static(operand.shape):
        return
    if array.dtype != operand.dtype.numpy:
        raise InvalidArgument(
            f"{_place(operand, kind, position)}: dtype {array.dtype} given, {operand.dtype.value} "
            "needed"
        )
    _check_dimensions(operand, array.shape, kind, position)


def _check_pool(
    operand: Operand, argument: PoolArgument, request: Request, kind: str, position: int
) -> None:
    at = argument.location
    if not 0 <= at.pool < len(request.pools):
        raise InvalidArgument(
            f"{_place(operand, kind, position)}: pool {at.pool} of {len(request.pools)}"
        )
    size = request.pools[at.pool].size
    if request.pools[at.pool].name == IMAGE:
        if at.offset or at.length or argument.padding:
            raise InvalidArgument(
                f"{_place(operand, kind, position)}: an image is given whole, with offset, length "
                "and padding 0"
            )
        return
    if (
        at.offset < 0
        or at.length < 0
        or argument.padding < 0
        or at.offset + at.length + argument.padding > size
    ):
        raise InvalidArgument(
            f"{_place(operand, kind, position)}: [{at.offset}, {at.offset + at.length}) of a pool "
            f"of {size} bytes"
        )
    dimensions = argument.dimensions or operand.shape
    if argument.dimensions:
        _check_dimensions(operand, argument.dimensions, kind, position)
    if dimensions is None or not is_static(dimensions):
        if kind == "input":
            raise InvalidArgument(
                f"{_place(operand, kind, position)}: the shape of an input must be complete"
            )
        return
    if operand.dtype is DType.STRING:
        return
    needed = math.prod(d or 0 for d in dimensions) * operand.dtype.numpy.itemsize
    wrong = (
        at.length != needed if kind == "input" else at.length < needed and is_static(operand.shape)
    )
    if wrong:
        raise InvalidArgument(
            f"{_place(operand, kind, position)}: {at.length} bytes given, {needed} needed"
        )


def _check_dimensions(operand: Operand, given: tuple[int, ...], kind: str, position: int) -> None:
    shape = operand.shape
    if given == shape:
        return
    if min(given, default=0) < 0:
        raise InvalidArgument(
            f"{_place(operand, kind, position)}: shape {given} has a negative dimension"
        )
    if shape is None:
        return
    if len(shape) != len(given) or any(
        d is not None and d != g for d, g in zip(shape, given, strict=True)
    ):
        raise InvalidArgument(
            f"{_place(operand, kind, position)}: shape {given} given, {shape} needed"
        )


def _place(operand: Operand, kind: str, position: int) -> str:
    return f"{kind} {position} ({operand.name})"
