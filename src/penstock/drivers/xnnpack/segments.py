"""Segments of a model: groups of operations that one kernel set of LiteRT computes, each as a
separate model.

An operation whose inputs are all constant is repeated in each segment that reads its result.
XNNPACK folds it into the operations that read it, and cannot output it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from penstock.driverkit.site import QUANTIZED
from penstock.drivers.xnnpack import hybrid_layers
from penstock.drivers.xnnpack.engine import Kernels
from penstock.drivers.xnnpack.part import Part, State
from penstock.drivers.xnnpack.rules.classes import Classes
from penstock.errors import GeneralFailure
from penstock.export.tflite.fields import state_positions
from penstock.hal import AccuracyClass
from penstock.interrupts import polled
from penstock.ir import DType, Lifetime, Model, Operand, Operation, Subgraph
from penstock.ir.operand import Origin
from penstock.ir.subgraph import StatePort, Variable
from penstock.ir.transforms import referenced_by, renumbered, renumbered_subgraphs
from penstock.ir.types import Quantization, element_count, static_shape

CHANNELS: Final = {"CONV_2D": 0, "DEPTHWISE_CONV_2D": 3}
"""Operations whose kernels need a bias, and the filters' dimension that has the bias's size."""

LEAST_VERSION: Final = {"BROADCAST_TO": 2}
"""The least version of operators whose first version LiteRT does not support."""

BROADCAST_TO: Final = 130
"""The operator code."""


HEAVY: Final = frozenset(
    {"CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED", "BATCH_MATMUL"}
)
"""Operations worth a change of kernel set. Others use that of the operation before them."""


class Segment(msgspec.Struct, frozen=True):
    """A *part* of a partition as *model*."""

    part: Part
    model: Model


def make_segments(
    model: Model, classes: Sequence[Classes | str], accuracy: AccuracyClass
) -> list[Segment]:
    """The segments of *model*, in execution order. Raises `GeneralFailure` for a refusal."""
    entry = model.entry
    allowed = [_allowed(model, at, known, accuracy) for at, known in polled(enumerate(classes))]
    expanded = frozenset(
        at
        for at, known in enumerate(classes)
        if isinstance(known, Classes) and known.needs_expansion(accuracy)
    )
    constant = _constant_operations(entry)
    wanted = frozenset(entry.outputs)
    groups: list[tuple[Kernels, list[int]]] = []
    outputs = [at for at in constant if any(i in wanted for i in entry.operations[at].outputs)]
    if outputs:
        groups.append(("builtin", outputs))
    pending = [at for at in range(len(allowed)) if at not in constant]
    groups += grouped(entry.operations, pending, allowed)
    builder = _SegmentBuilder(model, constant, expanded, accuracy)
    return [builder.segment(kernels, members) for kernels, members in polled(groups)]


def _allowed(model: Model, at: int, known: Classes | str, accuracy: AccuracyClass) -> list[Kernels]:
    kind = model.operations[at].key
    if isinstance(known, str):
        raise GeneralFailure(f"operation {at} ({kind}): {known}")
    # If no kernel set meets the class, the best kernel set computes the operation.
    # `supported_operations` reported its class.
    return known.meets(accuracy) or known.meets(known.best)


def _constant_operations(entry: Subgraph) -> dict[int, None]:
    """The operations whose inputs are all constant or computed from constants, in order."""
    known: set[int] = set()
    found: dict[int, None] = {}
    for at, operation in enumerate(entry.operations):
        read = [i for i in operation.inputs if entry.operands[i].has_value]
        if all(entry.operands[i].is_constant or i in known for i in read):
            found[at] = None
            known.update(operation.outputs)
    return found


def grouped(
    operations: Sequence[Operation], pending: Sequence[int], allowed: Sequence[Sequence[Kernels]]
) -> Iterator[tuple[Kernels, list[int]]]:
    """Groups of the operations *pending* by kernel set, in execution order.

    Each group takes every operation that is ready by then, which keeps the number of groups low.
    *pending* is in execution order. *allowed* are the kernel sets of each operation, the faster one
    first.

    The time is linear in the number of operations, whatever the number of groups is.
    """
    makers = {i: at for at in pending for i in operations[at].outputs}
    readers: dict[int, list[int]] = {at: [] for at in pending}
    missing: dict[int, int] = {}
    ready: dict[Kernels, list[int]] = {"xnnpack": [], "builtin": []}

    def now_ready(at: int) -> None:
        # A light operation may use any kernel set, a heavy operation only its fastest.
        is_heavy = operations[at].type in HEAVY
        for kernels in allowed[at][:1] if is_heavy else allowed[at]:
            ready[kernels].append(at)

    for at in polled(pending):
        before = {makers[i] for i in operations[at].inputs if i in makers}
        missing[at] = len(before)
        for maker in before:
            readers[maker].append(at)
        if not before:
            now_ready(at)
    done: set[int] = set()
    for first in pending:
        if first in done:
            continue
        kernels = allowed[first][0]
        members: list[int] = []
        queue = ready[kernels]
        while queue:
            at = queue.pop()
            if at in done:
                continue
            done.add(at)
            members.append(at)
            for reader in readers[at]:
                missing[reader] -= 1
                if not missing[reader]:
                    now_ready(reader)
        yield kernels, sorted(members)


class _SegmentBuilder:
    """Builds the segments of one *model* in the class *accuracy*.

    The operations *constant* compute from constants only. XNNPACK gets each operation in *expanded*
    as several operations.
    """

    def __init__(
        self,
        model: Model,
        constant: Mapping[int, None],
        expanded: frozenset[int],
        accuracy: AccuracyClass,
    ) -> None:
        entry = model.entry
        self._model, self._expanded = model, expanded
        self._accuracy: AccuracyClass = accuracy
        # Operands of the segments are appended to the model's list, so that no segment copies it.
        self._operands = [_with_declared_shape(o, accuracy) for o in entry.operands]
        examined = entry.operations if expanded else ()
        self._non_negative = hybrid_layers.non_negative_operands(examined)
        self._summed = hybrid_layers.summed_operands(examined, entry.operands)
        self._makers = {i: at for at in constant for i in entry.operations[at].outputs}
        self._readers: dict[int, list[int]] = {}
        for at, operation in enumerate(entry.operations):
            for i in () if at in constant else operation.inputs:
                self._readers.setdefault(i, []).append(at)
        self._inputs, self._outputs = _positions(entry.inputs), _positions(entry.outputs)

    def segment(self, kernels: Kernels, members: Sequence[int]) -> Segment:
        """The segment of *members*."""
        entry, operands = self._model.entry, self._operands
        chosen = sorted({*members, *self._needed(members)})
        operations = [o for at in polled(chosen) for o in self._operations(at, kernels)]
        written = {i for o in operations for i in o.outputs}
        read = {i for o in operations for i in o.inputs}
        kept = [
            (o.inputs[position], output)
            for o in operations
            for position, output in zip(
                state_positions(o.type, o.attributes), o.outputs[1:], strict=False
            )
        ]
        states = [State(*ports, f"state {number}") for number, ports in enumerate(kept)]
        apart = {i for s in states for i in (s.input, s.output)}
        inputs = [
            i
            for i in _in_order(read - written - apart, self._inputs)
            if operands[i].has_value and not operands[i].is_constant
        ]
        inside = frozenset(members)
        made = {i for at in members for i in entry.operations[at].outputs}
        outputs = [
            i
            for i in _in_order(made - apart, self._outputs)
            if i in self._outputs or not inside.issuperset(self._readers.get(i, ()))
        ]
        built = self._build(operations, inputs, outputs, states)
        part = Part(kernels, tuple(inputs), tuple(outputs), tuple(states), tuple(chosen))
        return Segment(part, built)

    def _build(
        self,
        operations: Sequence[Operation],
        inputs: Sequence[int],
        outputs: Sequence[int],
        states: Sequence[State],
    ) -> Model:
        """A model of *operations*. States become variables, exported as variable tensors."""
        operands = self._operands
        kept = sorted({i for o in operations for i in (*o.inputs, *o.outputs)})
        # Other subgraphs of the model may use variables that the segment does not have.
        referenced = referenced_by(self._model, operations)
        number = {old: new for new, old in enumerate(kept)}
        names = {s.input: s.name for s in states}
        given = [*inputs, *(s.input for s in states)]
        made = [*outputs, *(s.output for s in states)]
        lifetimes = dict.fromkeys(given, Lifetime.SUBGRAPH_INPUT)
        lifetimes |= dict.fromkeys(made, Lifetime.SUBGRAPH_OUTPUT)
        vectors = _conditions(operations).intersection(inputs).difference(outputs)
        shaped = [replace(operands[i], shape=(1,)) if i in vectors else operands[i] for i in kept]
        subgraph = Subgraph(
            tuple(
                _renamed(operand, names.get(i, ""), lifetimes.get(i))
                for i, operand in polled(zip(kept, shaped, strict=True))
            ),
            tuple(renumbered(o, number, referenced) for o in polled(operations)),
            tuple(number[i] for i in given),
            tuple(number[i] for i in made),
            tuple(StatePort(k, number[s.input], number[s.output]) for k, s in enumerate(states)),
        )
        variables = tuple(_variable(operands[s.input], s.name) for s in states)
        others = [
            _adapted_subgraph(g, self._accuracy)
            for g in renumbered_subgraphs(self._model, referenced)
        ]
        return Model((subgraph, *others), self._model.pools, variables)

    def _operations(self, at: int, kernels: Kernels) -> list[Operation]:
        """The operations that *kernels* get for operation *at*. Their new operands are appended."""
        operation, operands = self._model.operations[at], self._operands
        if kernels != "xnnpack":
            return [_adapted(operands, operation)]
        alike = hybrid_layers.is_quantized_alike(operation, operands, self._summed)
        if at in self._expanded and not alike:
            weights = self._model.constant(operands[operation.inputs[1]])
            non_negative = operation.inputs[0] in self._non_negative
            return hybrid_layers.expand(operands, operation, weights, non_negative=non_negative)
        if not hybrid_layers.can_split_pixels(operation, operands):
            return [_adapted(operands, operation)]
        reshape, operation = hybrid_layers.split_pixels(operands, operation)
        return [reshape, _adapted(operands, operation)]

    def _needed(self, members: Sequence[int]) -> set[int]:
        """The constant operations whose results *members* read."""
        found: set[int] = set()
        pending = list(members)
        while pending:
            for index in self._model.operations[pending.pop()].inputs:
                maker = self._makers.get(index)
                if maker is not None and maker not in found:
                    found.add(maker)
                    pending.append(maker)
        return found


def _positions(operands: Sequence[int]) -> dict[int, int]:
    """The first position of each of *operands*."""
    return {i: at for at, i in reversed(list(enumerate(operands)))}


def _in_order(operands: set[int], first: Mapping[int, int]) -> list[int]:
    """*operands* sorted: those in *first* by their position there, then the others."""
    return sorted(operands, key=lambda i: (0, first[i]) if i in first else (1, i))


def _with_declared_shape(operand: Operand, accuracy: AccuracyClass) -> Operand:
    """*operand* with its shape declared, so that XNNPACK computes every operation that it supports.

    Without declared shapes LiteRT computes some operations with its own kernels, which round 8-bit
    values differently. The class `faithful` means the results of LiteRT by default, so LiteRT
    chooses the kernels there.
    """
    if operand.shape_declared or (accuracy != "relaxed" and operand.dtype in QUANTIZED):
        return operand
    return replace(operand, shape_declared=True)


def _adapted(operands: list[Operand], operation: Operation) -> Operation:
    """*operation* as LiteRT's kernels need it. A new constant is appended to *operands*."""
    inputs, origin = operation.inputs, operation.origin
    has_bias = len(inputs) > 2 and operands[inputs[2]].has_value
    if operation.type in CHANNELS and not has_bias:
        dimension = CHANNELS[operation.type]
        operands.append(_zero_bias(operands[inputs[0]], operands[inputs[1]], dimension))
        inputs = (*inputs[:2], len(operands) - 1)
    elif operation.type == "TRANSPOSE_CONV" and not operands[inputs[-1]].has_value:
        inputs = inputs[:-1]
    least = LEAST_VERSION.get(operation.type)
    if least is not None and (origin is None or (origin.version or 1) < least):
        origin = Origin(0, 0, BROADCAST_TO, least)
    return replace(operation, inputs=inputs, origin=origin)


def _zero_bias(data: Operand, filters: Operand, dimension: int) -> Operand:
    """A bias of zeros. Its scale is the data's scale times the filters' scales."""
    count = (filters.shape or ())[dimension] or 0
    if data.dtype.is_float:
        dtype, quantization = data.dtype, None
    else:
        dtype = DType.INT32
        if data.quantization is None or filters.quantization is None:
            raise GeneralFailure("a quantised layer without scales")
        scales = tuple(data.quantization.scale * s for s in filters.quantization.scales)
        quantization = Quantization(scales, (0,) * len(scales), 0 if len(scales) > 1 else None)
    value = bytes(count * dtype.numpy.itemsize)
    return Operand(dtype, (count,), Lifetime.CONSTANT_COPY, quantization=quantization, value=value)


def _adapted_subgraph(graph: Subgraph, accuracy: AccuracyClass) -> Subgraph:
    """A referenced subgraph with its operations in the form that LiteRT's kernels need."""
    operands = [_with_declared_shape(o, accuracy) for o in graph.operands]
    operations = tuple(_adapted(operands, operation) for operation in graph.operations)
    return replace(graph, operands=tuple(operands), operations=operations)


def _conditions(operations: Sequence[Operation]) -> set[int]:
    """Operands that are used only as conditions of IF. LiteRT also accepts a vector of one truth
    value there, and it provides views of vectors but not of scalars.
    """
    read = [(o.type == "IF" and at == 0, i) for o in operations for at, i in enumerate(o.inputs)]
    return {i for decides, i in read if decides} - {i for decides, i in read if not decides}


def _renamed(operand: Operand, name: str, lifetime: Lifetime | None) -> Operand:
    if lifetime is None:
        lifetime = operand.lifetime
        if lifetime in {Lifetime.SUBGRAPH_INPUT, Lifetime.SUBGRAPH_OUTPUT}:
            lifetime = Lifetime.TEMPORARY_VARIABLE
    return replace(operand, name=name, lifetime=lifetime, origin=None)


def _variable(operand: Operand, name: str) -> Variable:
    """A variable with the initial value of a variable tensor: zero, for int8 the zero point."""
    zero = 0
    if operand.dtype is DType.INT8 and operand.quantization is not None:
        zero = operand.quantization.zero_point % 256
    shape = static_shape(operand.shape) or ()
    value = bytes([zero]) * (element_count(shape) * operand.dtype.numpy.itemsize) if zero else None
    return Variable(name, operand.dtype, operand.shape, operand.quantization, value)
