"""Which devices support which operations, including vendor extensions (NNAPI section 8.6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from penstock import hal
from penstock.arguments import check_kind
from penstock.distribution import FALLBACK_DEVICE
from penstock.errors import FOREIGN, DriverError, InputError, Refusal, RefusalCode, counted
from penstock.hal.capabilities import MAX_ALIGNMENT, checked, class_fault
from penstock.hal.device import mappable_kinds
from penstock.interrupts import checkpoint, polled
from penstock.ir import DType, ExtensionType, Model, Operation, Subgraph
from penstock.ir.operand import EXTENSION
from penstock.ir.operation import extension_of
from penstock.ir.operations import OPERATIONS, spec_of
from penstock.ir.types import is_static
from penstock.ir.validate import callees_first, subgraph_references
from penstock.partitioning.policy import ANY_OPERATION, Policy
from penstock.partitioning.split import Cutter

Needs: TypeAlias = "Mapping[str, frozenset[ExtensionType]]"
"""Extensions by name, each with its operand types that occur, without their data."""


def extension_needs(model: Model) -> dict[int, Needs]:
    """The extensions that operations of the entry subgraph need.

    An operation may need one for itself, for the types of its operands, or for operations in
    subgraphs that it refers to. Operations that need none are left out.
    """
    if not uses_extensions(model):
        return {}
    graphs = model.subgraphs
    entered = [sorted({t for o in g.operations for t in subgraph_references(o)}) for g in graphs]
    known: dict[int, Needs] = {}
    found: dict[int, Needs] = {}
    for index in callees_first(entered):
        every = [_needs(graphs[index], operation, known) for operation in graphs[index].operations]
        known[index] = _joined(every)
        if index == model.main:
            found = dict(enumerate(every))
    return {index: needs for index, needs in found.items() if needs}


def uses_extensions(model: Model) -> bool:
    """Whether *model* uses any extension."""
    return any(
        any(o.extension is not None for o in subgraph.operands)
        or any(o.type == EXTENSION for o in subgraph.operations)
        for subgraph in model.subgraphs
    )


def extension_refusal(needs: Needs, capabilities: hal.Capabilities) -> str:
    """Which needed extension the device lacks, as a reason; empty if it has all."""
    offered = {extension.name: extension for extension in capabilities.extensions}
    for name, kinds in needs.items():
        if name not in offered:
            return f"the device does not offer the extension {name}"
        for kind in kinds:
            mine = offered[name].type_of(kind.code)
            if mine is None:
                return f"the device's extension {name} has no operand type {kind.code}"
            if (mine.byte_size, mine.is_tensor) != (kind.byte_size, kind.is_tensor):
                return f"the device's operand type {kind.name} is another one"
    return ""


def _needs(graph: Subgraph, operation: Operation, known: Mapping[int, Needs]) -> Needs:
    """The extensions that *operation* needs; *known* has those of the subgraphs that it enters."""
    own: dict[str, frozenset[ExtensionType]] = {}
    if (name := extension_of(operation)) is not None:
        own[name] = frozenset()
    for index in (*operation.inputs, *operation.outputs):
        if (kind := graph.operands[index].extension) is not None:
            plain = replace(kind, data=b"")
            own[kind.extension] = own.get(kind.extension, frozenset()) | {plain}
    return _joined([own, *(known[index] for index in subgraph_references(operation))])


def _joined(several: Sequence[Needs]) -> Needs:
    found: dict[str, frozenset[ExtensionType]] = {}
    for needs in several:
        for name, kinds in needs.items():
            found[name] = found.get(name, frozenset()) | kinds
    return found


SHAPE_UNKNOWN: Final = "known only when it runs"
"""Text in the reasons of drivers that need a shape which the model does not have.

A driver's refusal has only words and no code, so the runtime searches for this text.
"""

HANDLES: Final = frozenset({DType.RESOURCE, DType.VARIANT})
"""Types whose values are meaningful only inside the engine that made them."""


class Answer(hal.Support, frozen=True):
    """The device's answer for an operation; *refusal* is set if the operation is rejected."""

    refusal: Refusal | None = None


def refused(refusal: Refusal, accuracy: hal.AccuracyClass = "faithful") -> Answer:
    """An answer that rejects the operation with *refusal*."""
    return Answer(False, str(refusal), accuracy, refusal=refusal)


class Candidate(Struct, frozen=True):
    """A device with its answer for each operation; all are refusals if it failed to answer."""

    device: hal.Device
    name: str
    capabilities: hal.Capabilities
    answers: tuple[Answer, ...]

    @property
    def is_reference(self) -> bool:
        return self.name == FALLBACK_DEVICE


class SupportTable(Struct, frozen=True):
    """The candidates, the reference last (NNAPI section 4.1); *numbers* are the planned model's."""

    model: Model
    candidates: tuple[Candidate, ...]
    numbers: tuple[int, ...] = ()

    def takers(self, operation: int) -> list[int]:
        """The positions of the candidates that may run *operation*."""
        return [k for k, c in enumerate(self.candidates) if c.answers[operation].supported]

    def cheapest(self, operation: int, costs: Sequence[float]) -> int | None:
        """The candidate of least cost, the reference in a tie; None if no candidate may run it."""
        return min(
            self.takers(operation),
            key=lambda k: (costs[k], not self.candidates[k].is_reference),
            default=None,
        )

    def refusals(self, operation: int) -> dict[str, Refusal]:
        """Device name to reason, for the candidates that may not run *operation*."""
        found = ((c.name, c.answers[operation].refusal) for c in self.candidates)
        return {name: refusal for name, refusal in found if refusal is not None}

    def of(self, operations: Sequence[int]) -> SupportTable:
        """The table for *operations* only, in a model that has the same operands."""
        model = self.model
        kept = replace(model.entry, operations=tuple(model.operations[i] for i in operations))
        subgraphs = list(model.subgraphs)
        subgraphs[model.main] = kept
        candidates = tuple(
            replace(c, answers=tuple(c.answers[i] for i in operations)) for c in self.candidates
        )
        numbers = tuple(self.numbers[i] if self.numbers else i for i in operations)
        return SupportTable(replace(model, subgraphs=tuple(subgraphs)), candidates, numbers)

    def refuse(self, operations: Sequence[int], position: int, refusal: Refusal) -> SupportTable:
        """The table with *operations* rejected on one more candidate."""
        candidates = list(self.candidates)
        answers = list(candidates[position].answers)
        for index in operations:
            if answers[index].supported:
                answers[index] = refused(refusal, answers[index].accuracy)
        candidates[position] = replace(candidates[position], answers=tuple(answers))
        return replace(self, candidates=tuple(candidates))


class Partition(Struct, frozen=True):
    """Operations, in a valid execution order, for the candidate at position *device*."""

    device: int
    operations: tuple[int, ...]


class Arrangement(Struct, frozen=True):
    """The support table with added refusals, each operation's candidate, and the partitions."""

    table: SupportTable
    assignment: tuple[int, ...]
    partitions: tuple[Partition, ...]


def collect_support(
    model: Model, devices: Sequence[hal.Device], policy: Policy, *, check_keys: bool = True
) -> SupportTable:
    """Queries every device's support for every operation of the entry subgraph.

    A device sees only operations of its feature level, and only the extensions that it offers.
    Other operations are removed before the query and rejected for that reason (NNAPI sections 4.2
    and 8.6). An answer of the wrong length or kind, or any exception, makes the device reject
    everything. An accepted operation whose accuracy is no class is rejected alone.

    An accepted operation is then checked against these rules, in this order: constants in memory
    that the device does not map (`refuse_unmapped`), the policy's accuracy class, unknown shapes
    (`Capabilities.dynamic_outputs`), *forbid* and *require*.

    Raises `InputError` for an object that is no device and for two devices of one name. With
    *check_keys*, also for a key of *require* or *forbid* that is neither in the model nor an
    operation type.
    """
    check_kind(model, Model, "a plan is made of a Model")
    check_kind(devices, (list, tuple), "a plan is made of a list of Devices")
    check_kind(policy, Policy, "a plan is made by a Policy")
    for position, device in enumerate(devices):
        if not hasattr(device, "supported_operations"):
            raise InputError(
                f"devices[{position}] is {device!r}, no device: a plan is made of device objects; "
                "penstock.compile takes names too"
            )
    names = [device.name for device in devices]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"two devices are named {twice!r}; names must be unique")
    if check_keys:
        _check_keys(model, policy)
    ordered = sorted(devices, key=lambda device: device.name == FALLBACK_DEVICE)
    return SupportTable(model, tuple(_candidate(model, device, policy) for device in ordered))


def live_operations(model: Model) -> tuple[int, ...]:
    """The operations that an entry output depends on, or that use handles, with what they read."""
    operands = model.operands
    needed = set(model.entry.outputs)
    found = []
    for index, operation in polled(reversed(list(enumerate(model.operations)))):
        ports = (*operation.inputs, *operation.outputs)
        if not needed.isdisjoint(operation.outputs) or any(
            operands[i].dtype in HANDLES for i in ports
        ):
            needed.update(operation.inputs)
            found.append(index)
    return tuple(found[::-1])


def policy_refusal(model: Model, operation: int, device: str, policy: Policy) -> str:
    """Why *forbid* or *require* rejects the device of that name; empty if neither does."""
    kinds = (model.operations[operation].key, model.operations[operation].type)
    name = model.entry.operation_name(operation)
    if device in policy.forbidden(kinds, name):
        return "the policy forbids it"
    required = policy.required(kinds, name)
    if required is not None and device not in required:
        return f"the policy requires {' or '.join(required)}"
    return ""


def _check_keys(model: Model, policy: Policy) -> None:
    if not policy.require and not policy.forbid:
        return
    known = {ANY_OPERATION}
    for subgraph in model.subgraphs:
        for index, operation in enumerate(subgraph.operations):
            known |= {operation.type, operation.key, subgraph.operation_name(index)}
    for label, constraint in (("require", policy.require), ("forbid", policy.forbid)):
        for key in constraint:
            if key not in known and key not in OPERATIONS:
                text = "is neither an operation of the model nor an operation type"
                raise InputError(f"policy {label}: {key!r} {text}")


def _candidate(model: Model, device: hal.Device, policy: Policy) -> Candidate:
    count = len(model.operations)
    try:
        capabilities, level = _checked(device.capabilities), device.feature_level
        given = _ask(model, device, level, capabilities)
        answers = hal.refuse_unmapped(model, given, mappable_kinds(device))
    except FOREIGN as error:  # a broken driver is a reason, never a crash
        checkpoint()
        status = error.status if isinstance(error, DriverError) else None
        refusal = Refusal(RefusalCode.NO_ANSWER, f"{type(error).__name__}: {error}", status)
        return Candidate(device, device.name, hal.Capabilities(), (refused(refusal),) * count)
    name = device.name
    judged = tuple(
        _judge(model, i, answers[i], name, capabilities, policy) for i in polled(range(count))
    )
    return Candidate(device, device.name, capabilities, judged)


def _checked(capabilities: hal.Capabilities) -> hal.Capabilities:
    """Checks the types in *capabilities*; raises `ValueError` for invalid ones."""
    typed = checked(capabilities)
    for label, value in (("alignment", typed.alignment), ("padding", typed.padding)):
        if not 0 < value <= MAX_ALIGNMENT or value & (value - 1):
            text = f"{label} {value}, not a power of two up to {MAX_ALIGNMENT}"
            raise ValueError(f"capabilities declare {text}")
    return typed


def _ask(
    model: Model, device: hal.Device, level: int, capabilities: hal.Capabilities
) -> list[hal.Support]:
    """The device's answers. Its exceptions propagate; raises `ValueError` for invalid answers."""
    hidden = {
        index: Refusal(
            RefusalCode.FEATURE_LEVEL, f"needs feature level {needed}; the device has {level}"
        )
        for index, operation in enumerate(polled(model.operations))
        if (needed := spec_of(operation).feature_level) is not None and needed > level
    }
    for index, needs in extension_needs(model).items():
        if reason := extension_refusal(needs, capabilities):
            hidden.setdefault(index, Refusal(RefusalCode.EXTENSION, reason))
    below = [index for index in range(len(model.operations)) if index not in hidden]
    part = Cutter(model).cut(below).model if hidden and below else model
    given: list[Any] = list(device.supported_operations(part)) if below else []
    if len(given) != len(below):
        amounts = f"{counted(len(given), 'answer')} for {counted(len(below), 'operation')}"
        raise ValueError(f"supported_operations gave {amounts}")
    if not all(
        isinstance(answer, hal.Support)
        and all(isinstance(text, str) for text in (answer.reason, answer.distance))
        for answer in given
    ):
        raise ValueError("supported_operations gave something other than hal.Support")
    answers = dict(zip(below, given, strict=True))
    return [
        answers[index] if index in answers else refused(hidden[index])
        for index in range(len(model.operations))
    ]


def _judge(
    model: Model,
    index: int,
    answer: hal.Support,
    device: str,
    capabilities: hal.Capabilities,
    policy: Policy,
) -> Answer:
    if not answer.supported:
        return answer if isinstance(answer, Answer) else _own_refusal(answer)
    if fault := class_fault(answer):
        reason = f"the answer of device {device} is malformed: {fault}"
        return refused(Refusal(RefusalCode.NO_ANSWER, reason))
    if hal.ACCURACY_RANK[answer.accuracy] < hal.ACCURACY_RANK[policy.accuracy]:
        off = f" ({answer.distance})" if answer.distance else ""
        reason = (
            f"its accuracy there is {answer.accuracy}{off}; the policy asks for {policy.accuracy}"
        )
        refusal = Refusal(RefusalCode.ACCURACY, reason, admits=answer.accuracy)
        return refused(refusal, answer.accuracy)
    outputs = (model.operands[i] for i in model.operations[index].outputs)
    is_unknown = any(not is_static(o.shape) or o.dtype is DType.STRING for o in outputs)
    if is_unknown and not capabilities.dynamic_outputs:
        reason = "the shape of an output is known at run time only, which the device does not take"
        return refused(Refusal(RefusalCode.SHAPE_UNKNOWN, reason), answer.accuracy)
    if reason := policy_refusal(model, index, device, policy):
        return refused(Refusal(RefusalCode.POLICY, reason), answer.accuracy)
    return Answer(True, answer.reason, answer.accuracy, answer.distance)


def _own_refusal(answer: hal.Support) -> Answer:
    """The device's own refusal. Its code is derived from its words."""
    reason = answer.reason or "the device gives no reason"
    unknown = SHAPE_UNKNOWN in reason
    code = RefusalCode.SHAPE_UNKNOWN if unknown else RefusalCode.UNSUPPORTED
    return refused(Refusal(code, reason), answer.accuracy)
