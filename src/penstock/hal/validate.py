"""Checks of arguments that every driver shares (NNAPI sections 5.2, 6.2 and 6.3).

They raise `InvalidArgument` unless documented otherwise. A driver calls them first in
`prepare_model` and `execute`, since its caller may be another process.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Container, Sequence
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

CHOICES: Final[dict[str, Collection[str]]] = {
    "preference": PREFERENCES, "priority": PRIORITIES, "accuracy": ACCURACY_RANK
}  # fmt: skip
"""The values of fields of a `PrepareConfig`."""

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
    if (fault := _read_by(model.entry, model.entry.outputs, foreign)) is not None:
        raise GeneralFailure(fault)


def _reasons(model: Model, memory_kinds: Container[str]) -> dict[int, str]:
    """Why operations of the entry subgraph are out of reach, by their indexes, in order."""
    foreign = _foreign_pools(model, memory_kinds)
    if not foreign:
        return {}
    from penstock.ir.transforms import entered_from

    below: dict[int, str] = {}
    for number in entered_from(model, model.main):
        subgraph = model.subgraphs[number]
        fault = _read_by(subgraph, subgraph.outputs, foreign)
        fault = next(iter(_reasons_in(subgraph, foreign, below).values()), fault)
        if fault is not None:
            below[number] = fault
    return _reasons_in(model.entry, foreign, below)


def _reasons_in(
    subgraph: Subgraph, foreign: dict[int, str], below: dict[int, str]
) -> dict[int, str]:
    """As `_reasons`, of one *subgraph*. *below* has the reasons of the subgraphs that it enters."""
    from penstock.ir.validate import subgraph_references

    found: dict[int, str] = {}
    for index, operation in enumerate(subgraph.operations):
        reason = _read_by(subgraph, operation.inputs, foreign)
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


def _read_by(subgraph: Subgraph, operands: Sequence[int], foreign: dict[int, str]) -> str | None:
    """Why the first of *operands* in a *foreign* pool is out of reach; None if there is none."""
    for index in operands:
        operand = subgraph.operands[index]
        if operand.location is not None and operand.location.pool in foreign:
            name = repr(operand.name) if operand.name else f"operand {index}"
            kind = foreign[operand.location.pool]
            return f"constant {name} lies in {kind} memory, which this device does not map"
    return None


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
    for name, choices in CHOICES.items():
        if (choice := getattr(config, name)) not in choices:
            raise InvalidArgument(f"{name} {choice!r} is not one of {', '.join(choices)}")
    for label, value in (("token", config.token), ("binding", config.binding)):
        if len(value) != BYTE_SIZE_OF_CACHE_TOKEN:
            raise InvalidArgument(f"{label} has {len(value)} bytes, not {BYTE_SIZE_OF_CACHE_TOKEN}")
    if config.num_threads is not None and config.num_threads < 1:
        raise InvalidArgument(f"num_threads is {config.num_threads}; at least 1 is needed")
    if config.attributes:
        check_attributes(config.attributes)
    check_deadline(config.deadline_ns)


def check_deadline(deadline_ns: int | None, underway: str = "") -> None:
    """Raises `MissedDeadlinePersistent` when the deadline has passed.

    *underway* completes "the deadline passed while"; "" if no work has begun.
    """
    if deadline_ns is not None and time.monotonic_ns() >= deadline_ns:
        raise MissedDeadlinePersistent(
            f"the deadline passed while {underway}"
            if underway
            else "the deadline had passed before the work began"
        )


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
        given = [counted(len(request.inputs), "input"), counted(len(request.outputs), "output")]
        has = f"the model has {len(entry.inputs)} and {len(entry.outputs)}"
        raise InvalidArgument(f"{' and '.join(given)} given; {has}")
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
            reason = "has an unknown shape; fenced execution needs it known"
            raise InvalidArgument(f"output {position} ({operand.name}) {reason}")


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
        fault = _fault_of_host(operand, argument, kind)
    elif type(argument) is PoolArgument:
        fault = _fault_of_pool(operand, argument, request, kind)
    elif type(argument) is TokenArgument:
        fault = "" if argument.token > 0 else f"token {argument.token} is not positive"
    elif type(argument) is NoValue:
        is_missing = kind == "input" and operand.lifetime is not Lifetime.NO_VALUE
        fault = "it is omitted, but not optional" if is_missing else ""
    else:
        fault = f"{type(argument).__name__} is not a request argument"
    if fault:
        raise InvalidArgument(f"{kind} {position} ({operand.name}): {fault}")


def _fault_of_host(operand: Operand, argument: HostMemory, kind: str) -> str:
    """What is wrong with memory of the caller for *operand*; empty if it is valid."""
    array = argument.array
    if not array.flags.c_contiguous:
        return "host memory must be C-contiguous"
    if kind == "output" and not array.flags.writeable:
        return "host memory of an output must be writeable"
    flat = array.ndim == 1 and array.dtype == "uint8"
    if operand.dtype is DType.STRING:
        if not flat:
            return "strings travel as flat uint8 in the string-tensor layout"
        if kind == "output":
            return ""
        if argument.dimensions is None:
            return "strings need their dimensions"
        return _fault_of_dimensions(operand, argument.dimensions)
    if kind == "output" and flat and not is_static(operand.shape):
        return ""
    if array.dtype != operand.dtype.numpy:
        return f"dtype {array.dtype} given, {operand.dtype.value} needed"
    return _fault_of_dimensions(operand, array.shape)


def _fault_of_pool(operand: Operand, argument: PoolArgument, request: Request, kind: str) -> str:
    """What is wrong with an argument in a pool for *operand*; empty if it is valid."""
    at = argument.location
    if not 0 <= at.pool < len(request.pools):
        return f"pool {at.pool} of {len(request.pools)}"
    size = request.pools[at.pool].size
    if request.pools[at.pool].name == IMAGE:
        is_whole = not (at.offset or at.length or argument.padding)
        return "" if is_whole else "an image is given whole, with offset, length and padding 0"
    end = at.offset + at.length
    if min(at.offset, at.length, argument.padding) < 0 or end + argument.padding > size:
        return f"[{at.offset}, {end}) of a pool of {size} bytes"
    dimensions = argument.dimensions or operand.shape
    if argument.dimensions and (fault := _fault_of_dimensions(operand, argument.dimensions)):
        return fault
    if dimensions is None or not is_static(dimensions):
        return "the shape of an input must be complete" if kind == "input" else ""
    if operand.dtype is DType.STRING:
        return ""
    needed = math.prod(d or 0 for d in dimensions) * operand.dtype.numpy.itemsize
    fits = at.length == needed
    if kind == "output":
        fits = at.length >= needed or not is_static(operand.shape)
    return "" if fits else f"{at.length} bytes given, {needed} needed"


def _fault_of_dimensions(operand: Operand, given: tuple[int, ...]) -> str:
    shape = operand.shape
    if min(given, default=0) < 0:
        return f"shape {given} has a negative dimension"
    if shape is None or given == shape:
        return ""
    fits = len(shape) == len(given) and all(
        d is None or d == g for d, g in zip(shape, given, strict=True)
    )
    return "" if fits else f"shape {given} given, {shape} needed"
