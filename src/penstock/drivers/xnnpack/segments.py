"""Segments: the runs of operations that one set of LiteRT's kernels computes, each as a model to be
written.

Operations on constants alone are computed in each segment that reads them: XNNPACK folds them into
what follows, and cannot give them out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from penstock.drivers.xnnpack.engine import Kernels
from penstock.drivers.xnnpack.groups import grouped
from penstock.drivers.xnnpack.pictures import (
    can_split,
    is_quantised_alike,
    split,
    summed_operands,
)
from penstock.drivers.xnnpack.site import EIGHT_BITS, Classes
from penstock.drivers.xnnpack.whole_numbers import expand, positive_operands
from penstock.errors import GeneralFailure
from penstock.export.tflite.state import state_positions
from penstock.hal import AccuracyClass
from penstock.interrupts import polled
from penstock.ir import DType, Lifetime, Model, Operand, Operation, Subgraph
from penstock.ir.operand import Origin
from penstock.ir.subgraph import StatePort, Variable
from penstock.ir.transforms import carried, refer_anew, referenced_by
from penstock.ir.types import Quantization, element_count, static_shape

CHANNELS: Final = {"CONV_2D": 0, "DEPTHWISE_CONV_2D": 3}
"""Operators whose kernels need a bias, and the dimension of their filters that counts its
elements.
"""

LEAST_VERSION: Final = {"BROADCAST_TO": 2}
"""Operators of which LiteRT has no first version, with the number of their code in the file
format.
"""
BROADCAST_TO: Final = 130


class State(msgspec.Struct, frozen=True):
    """A variable tensor *name* of a segment, set from operand *given* before a run and read as
    *made* after.
    """

    given: int
    made: int
    name: str


class Segment(msgspec.Struct, frozen=True):
    """Operations computed by one kernel set as *model*, whose ordinary inputs and outputs are the
    operands *inputs* and *outputs* of the partition, in order. *operations* are their indexes in
    the partition.
    """

    kernels: Kernels
    model: Model
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    states: tuple[State, ...]
    operations: tuple[int, ...]

    @property
    def given(self) -> tuple[int, ...]:
        """The operands that it reads: its inputs, then the states before the run."""
        return (*self.inputs, *(s.given for s in self.states))

    @property
    def made(self) -> tuple[int, ...]:
        """The operands that it writes: its outputs, then the states after the run."""
        return (*self.outputs, *(s.made for s in self.states))


def make_segments(
    model: Model, classes: Sequence[Classes | str], accuracy: AccuracyClass
) -> list[Segment]:
    """The segments of *model*, in order. Raises `GeneralFailure` for an operation that is not
    supported, or by no kernel set in the class *accuracy*.
    """
    entry = model.entry
    allowed = [_allowed(model, at, known, accuracy) for at, known in polled(enumerate(classes))]
    expanded = frozenset(
        at
        for at, known in enumerate(classes)
        if isinstance(known, Classes) and known.needs_expansion(accuracy)
    )
    fixed = _fixed(entry)
    wanted = frozenset(entry.outputs)
    groups: list[tuple[Kernels, list[int]]] = []
    given_out = [at for at in fixed if any(i in wanted for i in entry.operations[at].outputs)]
    if given_out:
        groups.append(("builtin", given_out))
    pending = [at for at in range(len(allowed)) if at not in fixed]
    groups += grouped(entry.operations, pending, allowed)
    cutter = _Cutter(model, fixed, expanded, accuracy)
    return [cutter.segment(kernels, members) for kernels, members in polled(groups)]


def _allowed(model: Model, at: int, known: Classes | str, accuracy: AccuracyClass) -> list[Kernels]:
    kind = model.operations[at].key
    if isinstance(known, str):
        raise GeneralFailure(f"operation {at} ({kind}): {known}")
    # A class that is asked for and that no kernel set meets is the caller's affair: he was told the
    # best.
    return known.meets(accuracy) or known.meets(known.best)


def _fixed(entry: Subgraph) -> dict[int, None]:
    """The operations that compute from constants alone, in order."""
    known: set[int] = set()
    fixed: dict[int, None] = {}
    for at, operation in enumerate(entry.operations):
        read = [i for i in operation.inputs if entry.operands[i].has_value]
        if all(entry.operands[i].is_constant or i in known for i in read):
            fixed[at] = None
            known.update(operation.outputs)
    return fixed


class _Cutter:
    """Cuts one *model* into segments, in the class *accuracy*. The operations *fixed* are of
    constants alone; those in *expanded* XNNPACK is given as several, where they need be.
    """

    def __init__(
        self,
        model: Model,
        fixed: Mapping[int, None],
        expanded: frozenset[int],
        accuracy: AccuracyClass,
    ) -> None:
        entry = model.entry
        self._model, self._fixed, self._expanded = model, fixed, expanded
        self._accuracy: AccuracyClass = accuracy
        # What the segments need besides joins the model's own, so that none copies all of them.
        self._operands = [_as_asked(o, accuracy) for o in entry.operands]
        self._positive = positive_operands(entry.operations) if expanded else frozenset()
        self._summed = (
            summed_operands(entry.operations, entry.operands) if expanded else frozenset()
        )
        self._makers = {i: at for at in fixed for i in entry.operations[at].outputs}
        self._readers: dict[int, list[int]] = {}
        for at, operation in enumerate(entry.operations):
            for i in () if at in fixed else operation.inputs:
                self._readers.setdefault(i, []).append(at)
        self._given, self._made = _places(entry.inputs), _places(entry.outputs)

    def segment(self, kernels: Kernels, members: Sequence[int]) -> Segment:
        """The segment of *members*."""
        entry, operands = self._model.entry, self._operands
        chosen = sorted({*members, *self._needed(members)})
        operations = [o for at in polled(chosen) for o in self._operations(at, kernels)]
        written = {i for o in operations for i in o.outputs}
        read = {i for o in operations for i in o.inputs}
        states = [
            State(operation.inputs[position], output, f"state {number}")
            for number, (operation, position, output) in enumerate(
                (o, p, x)
                for o in operations
                for p, x in zip(state_positions(o.type, o.attributes), o.outputs[1:], strict=False)
            )
        ]
        apart = {i for s in states for i in (s.given, s.made)}
        inputs = [
            i
            for i in _in_order(read - written - apart, self._given)
            if operands[i].has_value and not operands[i].is_constant
        ]
        inside = frozenset(members)
        made = {i for at in members for i in entry.operations[at].outputs}
        outputs = [
            i
            for i in _in_order(made - apart, self._made)
            if i in self._made or not inside.issuperset(self._readers.get(i, ()))
        ]
        built = _build(self._model, operands, operations, inputs, outputs, states, self._accuracy)
        return Segment(kernels, built, tuple(inputs), tuple(outputs), tuple(states), tuple(chosen))

    def _operations(self, at: int, kernels: Kernels) -> list[Operation]:
        """Operation *at* as *kernels* are given it; what it needs joins the operands."""
        operation, operands = self._model.operations[at], self._operands
        if kernels != "xnnpack":
            return [_written(operands, operation)]
        if at in self._expanded and not is_quantised_alike(operation, operands, self._summed):
            weights = self._model.constant(operands[operation.inputs[1]])
            is_positive = operation.inputs[0] in self._positive
            return expand(operands, operation, weights, positive=is_positive)
        if not can_split(operation, operands):
            return [_written(operands, operation)]
        halving, operation = split(operands, operation)
        return [halving, _written(operands, operation)]

    def _needed(self, members: Sequence[int]) -> set[int]:
        """The fixed operations whose results *members* read."""
        found: set[int] = set()
        pending = list(members)
        while pending:
            for index in self._model.operations[pending.pop()].inputs:
                maker = self._makers.get(index)
                if maker is not None and maker not in found:
                    found.add(maker)
                    pending.append(maker)
        return found


def _places(operands: Sequence[int]) -> dict[int, int]:
    """Where each of *operands* first stands among them."""
    return {i: at for at, i in reversed(list(enumerate(operands)))}


def _in_order(operands: set[int], first: Mapping[int, int]) -> list[int]:
    """*operands*, those of *first* by their places there, before the others."""
    return sorted(operands, key=lambda i: (0, first[i]) if i in first else (1, i))


def _as_asked(operand: Operand, accuracy: AccuracyClass) -> Operand:
    """*operand* with its shape declared, if XNNPACK is to compute whatever it can of it.

    Where the file does not declare them, LiteRT by default leaves some operations to its own
    kernels. Of 8 bits these round otherwise, and how far LiteRT by default is from the reference is
    what `faithful` is bound to: there LiteRT decides.
    """
    if operand.shape_declared or (accuracy != "relaxed" and operand.dtype in EIGHT_BITS):
        return operand
    return msgspec.structs.replace(operand, shape_declared=True)


def _written(operands: list[Operand], operation: Operation) -> Operation:
    """*operation* in the form that LiteRT's kernels take; a constant that it needs joins
    *operands*.
    """
    inputs, origin = operation.inputs, operation.origin
    has_bias = len(inputs) > 2 and operands[inputs[2]].has_value
    if operation.type in CHANNELS and not has_bias:
        operands.append(
            _zero_bias(operands[inputs[0]], operands[inputs[1]], CHANNELS[operation.type])
        )
        inputs = (*inputs[:2], len(operands) - 1)
    elif operation.type == "TRANSPOSE_CONV" and not operands[inputs[-1]].has_value:
        inputs = inputs[:-1]
    least = LEAST_VERSION.get(operation.type)
    if least is not None and (origin is None or (origin.version or 1) < least):
        origin = Origin(0, 0, BROADCAST_TO, least)
    return msgspec.structs.replace(operation, inputs=inputs, origin=origin)


def _zero_bias(data: Operand, filters: Operand, dimension: int) -> Operand:
    """A bias of zeros, in steps of the data's scale times that of the filters."""
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


def _build(
    model: Model,
    operands: Sequence[Operand],
    operations: Sequence[Operation],
    inputs: Sequence[int],
    outputs: Sequence[int],
    states: Sequence[State],
    accuracy: AccuracyClass,
) -> Model:
    """A model of *operations*. State goes through variables, which the writer makes variable
    tensors of.
    """
    kept = sorted({i for o in operations for i in (*o.inputs, *o.outputs)})
    # The model's other subgraphs may use variables that the segment has not.
    referenced = referenced_by(model, operations)
    number = {old: new for new, old in enumerate(kept)}
    names = {s.given: s.name for s in states}
    given = [*inputs, *(s.given for s in states)]
    made = [*outputs, *(s.made for s in states)]
    lifetimes = dict.fromkeys(given, Lifetime.SUBGRAPH_INPUT)
    lifetimes |= dict.fromkeys(made, Lifetime.SUBGRAPH_OUTPUT)
    vectors = _conditions(operations).intersection(inputs).difference(outputs)
    shaped = [
        msgspec.structs.replace(operands[i], shape=(1,)) if i in vectors else operands[i]
        for i in kept
    ]
    subgraph = Subgraph(
        tuple(
            _renamed(operand, names.get(i, ""), lifetimes.get(i))
            for i, operand in polled(zip(kept, shaped, strict=True))
        ),
        tuple(
            msgspec.structs.replace(
                refer_anew(o, referenced),
                inputs=tuple(number[i] for i in o.inputs),
                outputs=tuple(number[i] for i in o.outputs),
            )
            for o in polled(operations)
        ),
        tuple(number[i] for i in given),
        tuple(number[i] for i in made),
        tuple(StatePort(k, number[s.given], number[s.made]) for k, s in enumerate(states)),
    )
    variables = tuple(_variable(operands[s.given], s.name) for s in states)
    others = [_as_written(graph, accuracy) for graph in carried(model, referenced)]
    return Model((subgraph, *others), model.pools, variables)


def _as_written(graph: Subgraph, accuracy: AccuracyClass) -> Subgraph:
    """A referenced subgraph with its operations in the form that LiteRT's kernels take."""
    operands = [_as_asked(o, accuracy) for o in graph.operands]
    operations = tuple(_written(operands, operation) for operation in graph.operations)
    return msgspec.structs.replace(graph, operands=tuple(operands), operations=operations)


def _conditions(operations: Sequence[Operation]) -> set[int]:
    """Operands that only decide branches. LiteRT takes a vector of one truth value too, and gives
    views of vectors alone.
    """
    read = [(o.type == "IF" and at == 0, i) for o in operations for at, i in enumerate(o.inputs)]
    return {i for decides, i in read if decides} - {i for decides, i in read if not decides}


def _renamed(operand: Operand, name: str, lifetime: Lifetime | None) -> Operand:
    if lifetime is None:
        lifetime = operand.lifetime
        if lifetime in {Lifetime.SUBGRAPH_INPUT, Lifetime.SUBGRAPH_OUTPUT}:
            lifetime = Lifetime.TEMPORARY_VARIABLE
    return msgspec.structs.replace(operand, name=name, lifetime=lifetime, origin=None)


def _variable(operand: Operand, name: str) -> Variable:
    """A variable whose first value is that of a variable tensor: zero, for int8 the zero point."""
    zero = 0
    if operand.dtype is DType.INT8 and operand.quantization is not None:
        zero = operand.quantization.zero_point % 256
    shape = static_shape(operand.shape) or ()
    value = bytes([zero]) * (element_count(shape) * operand.dtype.numpy.itemsize) if zero else None
    return Variable(name, operand.dtype, operand.shape, operand.quantization, value)
