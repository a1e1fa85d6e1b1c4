"""Parts that recurrent cells share, and the basic cells: sequences, one kernel after the other.

A state is read where the model has it and written to the output that the model has for it, never
over its input: a run that is stopped leaves the state as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence as Items
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from penstock.compiler.expression import Expression, Value
from penstock.compiler.legalise import hybrid
from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.products import (
    F32,
    Form,
    Products,
    emit_product,
    hybrid_total,
    number_of,
    weight_tensor,
)
from penstock.compiler.legalise.quantised import Finish, bounds_of, channel_scales
from penstock.compiler.program import Access, Position, along
from penstock.driverkit.site import Site, require
from penstock.ir import DType, NDArray, Operand

BYTES: Final = frozenset({DType.INT8, DType.UINT8})
"""Types of the integer weights of hybrid products."""

MOST_STEPS: Final = 256
"""The most steps of a sequence: each has kernels of its own."""

Place: TypeAlias = Callable[[Position], tuple[Position, ...]]
"""The positions of one row of a tensor, given that along the row."""


class Sequence(Struct, frozen=True):
    """A tensor [steps, batch, size], or [batch, steps, size] unless it is *time_major*. Its
    elements begin at *first* along the last axis.
    """

    tensor: int
    steps: int
    batch: int
    time_major: bool
    first: int = 0

    def at(self, step: int, batch: Position, place: Position) -> tuple[Position, ...]:
        """The positions of one *step*."""
        time, moved = Position(step), replace(place, offset=place.offset + self.first)
        return (time, batch, moved) if self.time_major else (batch, time, moved)

    @property
    def rows(self) -> tuple[int, int]:
        """The sizes of the first two axes."""
        return (self.steps, self.batch) if self.time_major else (self.batch, self.steps)


class State(Struct, frozen=True):
    """Where rows [batch, size] of a state are now."""

    tensor: int
    place: Place

    def element(self, batch: int, place: int) -> Access:
        """The element at the loops *batch* and *place*, which must be loop 0."""
        require(batch == 0, "rows along another loop")
        return Access(self.tensor, self.place(along(place)[0]))


def sequence_of(operation: Operation, tensor: int, time_major: bool | None) -> Sequence:
    """*tensor* as a sequence; one step [batch, size] if *time_major* is None."""
    shape = operation.shape(tensor)
    if time_major is None:
        require(len(shape) == 2, "a step of another rank than 2")
        tensor = operation.build.alias((1, *shape), tensor)
        return Sequence(tensor, 1, shape[0], time_major=True)
    require(len(shape) == 3, "a sequence of another rank than 3")
    steps, batch = shape[:2] if time_major else (shape[1], shape[0])
    require(steps <= MOST_STEPS, f"a sequence of {steps} steps")
    return Sequence(tensor, steps, batch, time_major)


def state_of(operation: Operation, position: int, shape: tuple[int, ...]) -> State:
    """The state at input *position*, as rows of *shape*."""
    return rows_of(shaped(operation, operation.tensor(position), shape))


def rows_of(tensor: int) -> State:
    """All of *tensor* [batch, size]."""
    return State(tensor, lambda place: (*along(0), place))


def step_of(sequence: Sequence, step: int) -> State:
    """One step of a sequence."""
    return State(sequence.tensor, lambda place: sequence.at(step, along(0)[0], place))


def shaped(operation: Operation, tensor: int, shape: tuple[int, ...]) -> int:
    """*tensor* in another *shape*."""
    given = operation.shape(tensor)
    if given == shape:
        return tensor
    require(int(np.prod(given)) == int(np.prod(shape)), f"a state of shape {given} for {shape}")
    return operation.build.alias(shape, tensor)


def target_of(operation: Operation, position: int, shape: tuple[int, ...]) -> int:
    """The output at *position*, to be written in *shape*."""
    target = operation.target(position)
    if operation.shape(target) == shape:
        return target
    made = operation.build.tensor(operation.build.tensors[target].dtype, shape)
    require(
        int(np.prod(operation.shape(target))) == int(np.prod(shape)),
        f"an output of shape {operation.shape(target)} for {shape}",
    )
    operation.rename(made, target)
    return made


class Weights(Struct, frozen=True):
    """Weights [rows, depth]: one matrix, or several below each other. *scales* are those of integer
    weights, one a row.
    """

    tensor: int
    rows: int
    depth: int
    scales: NDArray | None


def weights_of(operation: Operation, positions: Items[int]) -> Weights:
    """The weights at the inputs *positions*, below each other."""
    site = operation.site
    operands, shapes = [site.input(p) for p in positions], [site.shape(p) for p in positions]
    require(all(len(shape) == 2 for shape in shapes), "weights that are no matrix")
    kinds = {operand.dtype for operand in operands}
    narrow = kinds <= BYTES
    require(narrow or kinds == {F32}, "weights of types that are not combined here")
    require(len({shape[1] for shape in shapes}) == 1, "weights of several depths")
    rows, depth = sum(shape[0] for shape in shapes), shapes[0][1]
    scales = None
    if narrow:
        each = [
            np.broadcast_to(channel_scales(site, p, 0, shape[0]).astype(np.float32), shape[0])
            for p, shape in zip(positions, shapes, strict=True)
        ]
        scales = np.concatenate(each)
    dtype = DType.INT8 if narrow else F32
    return Weights(stacked(operation, positions, dtype), rows, depth, scales)


def stacked(operation: Operation, positions: Items[int], dtype: DType) -> int:
    """The inputs at *positions* below each other, as *dtype*: a constant if all of them are."""
    build, site = operation.build, operation.site
    shapes = [site.shape(p) for p in positions]
    if len(positions) == 1:
        return weight_tensor(operation, positions[0], as_bytes=True)
    shape = (sum(s[0] for s in shapes), *shapes[0][1:])
    if all(site.input(p).is_constant for p in positions):

        def joined() -> NDArray:
            parts = [site.value(p, "a parameter") for p in positions]
            return np.concatenate([part.astype(dtype.numpy) for part in parts])

        return build.constant(dtype, shape, joined)
    target, first = build.tensor(dtype, shape), 0
    for position, part in zip(positions, shapes, strict=True):
        source = weight_tensor(operation, position, as_bytes=True)
        axes = (Position(first, ((0, 1),)), *along(*range(1, len(part))))
        build.copy("stack", operation.whole(source), Access(target, axes), part)
        first += part[0]
    return target


def vector_of(operation: Operation, positions: Items[int]) -> int:
    """The vectors at the inputs *positions* after each other, float32. Integers are multiplied by
    their scale.
    """
    site = operation.site
    operands = [site.input(p) for p in positions]
    if all(operand.dtype is F32 for operand in operands):
        return stacked(operation, positions, F32)
    require(
        all(o.dtype in {*BYTES, F32} and o.is_constant for o in operands),
        "parameters of types that are not combined here",
    )
    shape = (sum(site.shape(p)[0] for p in positions),)

    def joined() -> NDArray:
        return np.concatenate(
            [_real_values(site, p, o) for p, o in zip(positions, operands, strict=True)]
        )

    return operation.build.constant(F32, shape, joined)


def _real_values(site: Site, position: int, operand: Operand) -> NDArray:
    stored = site.value(position, "a parameter")
    if operand.dtype is F32:
        return stored
    scales = channel_scales(site, position, 0, len(stored)).astype(np.float32)
    return stored.astype(np.int8).astype(np.float32) * scales


Change: TypeAlias = Callable[[Value], Value]


def multiply(
    operation: Operation,
    source: tuple[int, Place],
    rows: tuple[int, ...],
    weights: Weights,
    write: Access,
    added: Items[Access],
    *,
    asymmetric: bool,
    change: Change = lambda value: value,
) -> None:
    """Adds the kernels of a product of *rows* with *weights*, plus what is *added*, then changed.

    The loops are those of the rows, then the unit. *source* is a tensor, and the positions of a row
    in it.
    """
    tensor, place = source
    rank = len(rows)
    data, channel = place(along(rank + 1)[0]), along(rank)[0]
    loops, scales = (*rows, weights.rows), weights.scales
    part = Products(loops, (weights.depth,), data, along(rank, rank + 1), write.axes, channel)
    quantised = None
    if scales is not None:
        given = Access(tensor, place(along(rank)[0]))
        sizes = (*rows, weights.depth)
        quantised = hybrid.quantised_part(operation, given, sizes, rank, asymmetric=asymmetric)
        tensor, part = quantised.values, replace(part, data=along(*range(rank), rank + 1))

    def finish_of(part: Products, finish: Finish) -> Expression:
        real = vector = None
        if quantised is not None and scales is not None:
            real = hybrid_total(operation, finish, part, quantised, weights.tensor, joined=True)
            vector = finish.vector(scales, F32)
        arguments = [finish.read(access.tensor, access.axes) for access in added]
        if real is not None and scales is not None:
            value = real(number_of(vector, float(scales[0])))
        else:
            value = finish.scope().argument(0)
        for argument in arguments:
            value = value + value.scope.argument(argument)
        return value.scope.finish(change(value))

    sums = F32 if scales is None else DType.INT32
    form = Form(tensor, weights.tensor, sums, (None, None), finish_of)
    emit_product(operation, "product", form, part, write.tensor)


def activated(value: Value, name: str) -> Value:
    """A fused activation of a cell."""
    if name == "TANH":
        return value.apply("tanh")
    if name == "SIGMOID":
        return value.apply("logistic")
    if name == "SIGN_BIT":
        return value.scope.select(value < 0.0, value.scope.constant(1.0, F32), 0.0)
    return value.clamp(*bounds_of(name))


def require_real(operation: Operation, *positions: int) -> None:
    """Refuses a cell unless the inputs at *positions*, and all outputs, are float32."""
    site = operation.site
    operands = [*(site.input(p) for p in positions), *site.outputs]
    if any(operand.dtype is not F32 for operand in operands):
        site.refuse_types()


def input_sums(
    operation: Operation, source: Sequence, weights: Weights, added: Items[int],
    *, asymmetric: bool, more: int | None = None,
) -> Sequence:  # fmt: skip
    """The products of every step with the *weights* of the input, plus the vectors *added*, plus
    the sequence of sums *more*, as another sequence.
    """
    rows = source.rows
    sums = operation.build.tensor(F32, (*rows, weights.rows))
    every = [Access(vector, along(2)) for vector in added]
    if more is not None:
        every.append(Access(more, along(0, 1, 2)))
    multiply(
        operation, (source.tensor, lambda deep: (*along(0, 1), deep)), rows, weights,
        Access(sums, along(0, 1, 2)), every, asymmetric=asymmetric,
    )  # fmt: skip
    return replace(source, tensor=sums, first=0)


def keep(operation: Operation, state: State, position: int, shape: tuple[int, int]) -> None:
    """Copies rows of *shape* to the output at *position*, if the operation has it."""
    if position < len(operation.site.outputs):
        target = target_of(operation, position, shape)
        operation.build.copy("state", state.element(0, 1), Access(target, along(0, 1)), shape)


SINGLE: Final = (1, 2, 3)
FORWARD: Final = (1, 2, 3, 10)
BACKWARD: Final = (5, 6, 7, 11)
"""Positions of weights, recurrent weights, bias, and the weights of an auxiliary input."""


def _direction(
    operation: Operation, positions: Items[int], source: Sequence, auxiliary: Sequence | None,
    state: int, out: Sequence, *, backward: bool = False,
) -> State:  # fmt: skip
    """Writes the outputs of one direction, h = activate(W x + A aux + R h + b). Returns the last
    one.
    """
    site = operation.site
    asymmetric = site.flag("asymmetric_quantize_inputs")
    name = site.attributes.text("fused_activation_function")
    weights, recurrent = (weights_of(operation, [p]) for p in positions[:2])
    bias = vector_of(operation, [positions[2]])
    sums = input_sums(operation, source, weights, [bias], asymmetric=asymmetric)
    if auxiliary is not None and len(positions) > 3 and site.has(positions[3]):
        other = weights_of(operation, [positions[3]])
        sums = input_sums(operation, auxiliary, other, [], asymmetric=asymmetric, more=sums.tensor)
    hidden = state_of(operation, state, (source.batch, weights.rows))
    for step in range(source.steps)[:: -1 if backward else 1]:
        before = Access(sums.tensor, sums.at(step, *along(0, 1)))
        made = step_of(out, step)
        multiply(
            operation, (hidden.tensor, hidden.place), (source.batch,), recurrent,
            made.element(0, 1), [before], asymmetric=asymmetric,
            change=lambda value: activated(value, name),
        )  # fmt: skip
        hidden = made
    return hidden


@legal("RNN", "UNIDIRECTIONAL_SEQUENCE_RNN")
def rnn(operation: Operation) -> None:
    """One step, or a sequence of them. Inputs: data, weights, recurrent weights, bias, state."""
    site = operation.site
    require_real(operation, 0, 4)
    time_major = None if site.operation.type == "RNN" else site.flag("time_major")
    source = sequence_of(operation, operation.tensor(), time_major)
    out = sequence_of(operation, operation.target(), time_major)
    last = _direction(operation, SINGLE, source, None, 4, out)
    keep(operation, last, 1, (source.batch, site.shape(3)[0]))


class Both(Struct, frozen=True):
    """The sequences of a cell of two directions: what each reads, and where it writes."""

    sources: tuple[Sequence, Sequence]
    auxiliary: Sequence | None
    outs: tuple[Sequence, Sequence]
    merged: bool


def both_of(
    operation: Operation, auxiliary: int, sizes: tuple[int, int], *, weighted: bool
) -> Both:
    """The sequences of a cell of two directions with outputs of *sizes*. A *weighted* input
    *auxiliary* joins both directions; another one is the backward direction's input.
    """
    site = operation.site
    time_major, merged = site.flag("time_major"), site.flag("merge_outputs")
    source = sequence_of(operation, operation.tensor(), time_major)
    extra = None
    if site.has(auxiliary):
        extra = sequence_of(operation, operation.tensor(auxiliary), time_major)
    require(not weighted or extra is not None, "weights of an auxiliary input that is omitted")
    other = source if weighted or extra is None else extra
    ahead = sequence_of(operation, operation.target(0), time_major)
    if merged:
        back = replace(ahead, first=sizes[0])
    else:
        back = sequence_of(operation, operation.target(1), time_major)
    return Both((source, other), extra if weighted else None, (ahead, back), merged)


@legal("BIDIRECTIONAL_SEQUENCE_RNN")
def bidirectional_rnn(operation: Operation) -> None:
    """A forward and a backward cell, whose outputs may be merged."""
    site = operation.site
    require_real(operation, 0, 4, 8)
    sizes = site.shape(3)[0], site.shape(7)[0]
    both = both_of(operation, 9, sizes, weighted=site.has(10))
    first = 1 if both.merged else 2
    directions = zip((FORWARD, BACKWARD), both.sources, (4, 8), both.outs, sizes, strict=True)
    for index, (positions, source, state, out, size) in enumerate(directions):
        last = _direction(
            operation, positions, source, both.auxiliary, state, out, backward=index == 1
        )
        keep(operation, last, first + index, (source.batch, size))
