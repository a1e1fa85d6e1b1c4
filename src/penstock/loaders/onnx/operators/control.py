"""Control flow (If, Loop and Scan), sequences of known length, and strings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np

from penstock.ir.operations.control_flow import meet
from penstock.ir.types import DType, Shape
from penstock.loaders.onnx.calls import Call, Tensor
from penstock.loaders.onnx.emitter import Emitter
from penstock.loaders.onnx.graph import Graph
from penstock.loaders.onnx.lowering import captured_inputs, first_form
from penstock.loaders.onnx.operators import operator
from penstock.loaders.onnx.operators.elementwise import strings
from penstock.loaders.onnx.values import Value, constant, sequence

FOREVER: Final = 2**62
MAX_ROUNDS: Final = 4

Step: TypeAlias = "Callable[[Call, Value, list[Value]], tuple[list[Tensor], Tensor | None]]"
"""One round of a loop. Gets the call whose operations form the body, the counter, and the values of
the last round. Returns the values for the next round, and whether there is a next round (None: the
counter decides).
"""


def _bodied(call: Call, graph: Graph, given: Sequence[Value]) -> list[Value]:
    """The outputs of *graph* for these inputs, lowered into the emitter of *call*."""
    inner = call.body.inside(graph, call.emitter)
    names = [t.name for t in graph.inputs if t.name not in graph.constants]
    if len(names) != len(given):
        raise call.node.invalid(f"a body of {len(names)} inputs is given {len(given)}")
    for name, value in zip(names, given, strict=True):
        inner.bind(name, value)
    return inner.run()


def _known(call: Call, shape: Shape) -> list[int]:
    if shape is None or None in shape:
        raise call.refuse("what a loop gathers is of unknown shape")
    return [d or 0 for d in shape]


def _room(call: Call, value: Value, axis: int, limit: Tensor, dtype: DType, shape: Shape) -> Tensor:
    """Zeros for *limit* elements of *shape*: *limit* is the size of dimension *axis* of *value*."""
    rest = _known(call, shape)
    count = (value.shape or ())[axis]
    if count is not None:
        call.charge(math.prod((count, *rest)) * dtype.numpy.itemsize)
        return call.literal(np.zeros((count, *rest), dtype.numpy))
    whole = call.concatenate([limit.expand(0), call.vector(rest, np.int64)], 0)
    room = call.emit("FILL", [whole, call.scalar(0, dtype)], dtype)
    return room.reshape((-1, *rest)) if all(rest) else room


def _trial(
    call: Call, graph: Graph, given: Sequence[Value], count: int
) -> list[tuple[DType, Shape]]:
    """The types and shapes of what a round collects, found by lowering the round on trial."""
    if not count:
        return []
    mark = call.emitter.mark()
    emitter = Emitter(call.emitter.shared, call.emitter)
    inputs = [emitter.input(v.dtype, v.shape) for v in given]
    made = _bodied(call.within(emitter), graph, inputs)[-count:]
    call.emitter.back_to(mark)
    return [(v.dtype, v.shape) for v in made]


@operator("Loop")
def loop_node(call: Call) -> list[Value]:
    graph = call.node.graph("body")
    carried = [call.tensor(i) for i in range(2, len(call.inputs))]
    count = len(graph.outputs) - 1 - len(carried)
    if count < 0:
        raise call.node.invalid("the body gives fewer values than it takes")
    limit = call.scalar(FOREVER, DType.INT64)
    if call.has(0):
        limit = call.get(0).cast(DType.INT64).reshape([])
    go = call.get(1).reshape([]) if call.has(1) else None
    counter, flag = Value(DType.INT64, ()), Value(DType.BOOL, ())
    gathered = _trial(call, graph, [counter, flag, *carried], count)
    initial = [call.get(v) for v in carried]
    initial += [call.literal(np.zeros((0, *_known(call, s)), d.numpy)) for d, s in gathered]

    def step(inner: Call, at: Value, values: list[Value]) -> tuple[list[Tensor], Tensor | None]:
        true = inner.literal(np.array(True)).value()
        made = _bodied(inner, graph, [at, true, *values[: len(carried)]])
        ends = [inner.get(v) for v in made[1 : 1 + len(carried)]]
        for buffer, part in zip(values[len(carried) :], made[1 + len(carried) :], strict=True):
            ends.append(inner.concatenate([inner.get(buffer), inner.get(part).expand(0)], 0))
        return ends, inner.get(made[0]).reshape([])

    return [o.value() for o in loop(call, limit, initial, step, go)]


@operator("Scan")
def scan(call: Call) -> list[Value]:
    if call.version < 9:
        raise call.refuse("Scan before opset 9")
    graph, node = call.node.graph("body"), call.node
    count = node.integer("num_scan_inputs")
    states = len(call.inputs) - count
    if count < 1 or states < 0:
        raise node.invalid(f"{count} of {len(call.inputs)} inputs are scanned")
    outputs = len(graph.outputs) - states
    carried = [call.tensor(i) for i in range(states)]
    scanned = [call.tensor(states + i) for i in range(count)]
    axes = [
        call.axis(a, v.rank or 0)
        for a, v in zip(node.integers("scan_input_axes", (0,) * count), scanned, strict=True)
    ]
    backward = node.integers("scan_input_directions", (0,) * count)
    parts = []
    for value, axis in zip(scanned, axes, strict=True):
        shape = value.shape or ()
        parts.append(Value(value.dtype, (*shape[:axis], *shape[axis + 1 :])))
    gathered = _trial(call, graph, [*carried, *parts], outputs)
    limit = length(call.get(scanned[0]), axes[0])
    initial = [call.get(v) for v in carried]
    initial += [_room(call, scanned[0], axes[0], limit, d, s) for d, s in gathered]
    for value in scanned:
        call.get(value)
    turned = node.integers("scan_output_directions", (0,) * outputs)

    def step(inner: Call, now: Value, values: list[Value]) -> tuple[list[Tensor], Tensor | None]:
        counter = inner.get(now)
        slices = []
        for value, axis, back in zip(scanned, axes, backward, strict=True):
            sequence = inner.get(value)
            place = length(sequence, axis) - 1 - counter if back else counter
            slices.append(sequence.gather(place, axis).value())
        made = _bodied(inner, graph, [*values[:states], *slices])
        ends = [inner.get(v) for v in made[:states]]
        for buffer, part, front in zip(values[states:], made[states:], turned, strict=True):
            room = inner.get(buffer)
            at = length(room, 0) - 1 - counter if front else counter
            ends.append(placed(room, at, inner.get(part)))
        return ends, None

    along = scanned[0], axes[0]
    made = [o.value() for o in loop(call, limit, initial, step, along=along)]
    for i, axis in enumerate(node.integers("scan_output_axes", (0,) * outputs), states):
        order = list(range(1, made[i].rank or 0))
        order.insert(call.axis(axis, made[i].rank or 0), 0)
        made[i] = call.get(made[i]).transposed(order).value()
    return made


def length(x: Tensor, axis: int) -> Tensor:
    """A dimension of *x* as an int64 scalar."""
    if (size := x.dims[axis]) is not None:
        return x.call.scalar(size, DType.INT64)
    return x.sizes().gather(x.call.place(axis))


def placed(buffer: Tensor, counter: Tensor, part: Tensor) -> Tensor:
    """*buffer* with *part* written as element *counter* of its first dimension."""
    call, rank = buffer.call, len(buffer.dims)
    at = counter.reshape([1])
    if rank > 1:
        at = call.emit("CONCATENATION", [at, call.vector([0] * (rank - 1), np.int64)], axis=0)
    return call.emit("DYNAMIC_UPDATE_SLICE", [buffer, part.expand(0), at])


def loop(
    call: Call,
    limit: Tensor,
    initial: Sequence[Tensor],
    step: Step,
    go: Tensor | None = None,
    along: tuple[Value, int] | None = None,
) -> list[Tensor]:
    """Runs *step* until the counter reaches *limit* (an int64 scalar). *go* says whether the first
    round runs.

    If the limit is a dimension of a value that the rounds read, *along* names the value and the
    dimension. The condition then computes the limit from the value, so that known shapes give a
    known number of rounds.
    """
    outer = call.emitter
    start = call.scalar(0, DType.INT64)
    going = call.scalar(True, DType.BOOL) if go is None else go
    first = [t.index for t in (start, limit, going, *initial)]
    shapes: list[Shape] = [outer.shape(o) for o in first]
    for _ in range(MAX_ROUNDS):
        mark = outer.mark()
        body = Emitter(outer.shared, outer)
        body.label, body.index, body.where = outer.label, outer.index, outer.where
        carried = [body.input(outer.dtype(o), s) for o, s in zip(first, shapes, strict=True)]
        made, again = step(call.within(body), carried[0], carried[3:])
        counter = Tensor(call.within(body), body.get(carried[0])) + 1
        flag = body.get(carried[2]) if again is None else again.index
        ends = [counter.index, body.get(carried[1]), flag, *(t.index for t in made)]
        after = [meet(s, body.shape(o)) for s, o in zip(shapes, ends, strict=True)]
        if after == shapes:
            break
        outer.back_to(mark)
        shapes = after
    else:
        raise call.refuse("the shapes of what goes round do not settle")
    every = list(body.captured)
    extra = captured_inputs(body, every, outer)
    inputs = [body.get(c) for c in carried] + extra
    finished = outer.shared.add(body.finish([*ends, *extra], inputs))
    # The condition: the counter is below its limit, and the flag is true.
    test = Emitter(outer.shared)
    test.label, test.where = outer.label, outer.where
    inner = call.within(test)
    tested = [test.input(outer.dtype(o), s) for o, s in zip(first, shapes, strict=True)]
    now, last, proceed = (inner.get(value) for value in tested[:3])
    for value in every:
        operand = first_form(outer, value)
        inside = test.input(outer.dtype(operand), outer.shape(operand))
        if along is not None and value is along[0]:
            layout = next(iter(outer.local(value).forms))
            last = inner.get(inside).sizes().gather(inner.place(layout.index(along[1])))
    both = inner.emit("LOGICAL_AND", [now < last, proceed])
    condition = outer.shared.add(test.finish([both.index]))
    arguments = [*first, *(first_form(outer, v) for v in every)]
    attributes = {"cond_subgraph_index": condition, "body_subgraph_index": finished}
    results = outer.emit("WHILE", arguments, [outer.dtype(o) for o in arguments], attributes)
    for place, shape in enumerate(shapes):
        if outer.shape(results[place]) is None and shape is not None:
            raise call.refuse("the shapes of what goes round do not settle")
    return [Tensor(call, o) for o in results[3 : 3 + len(initial)]]


MAX_ITEMS: Final = 4096


def _items(call: Call) -> list[Value]:
    items = call.value(0).items
    if items is None:
        raise call.refuse("a sequence computed while running")
    return items


def _place(call: Call, index: int, size: int, limit: int) -> int:
    """The position from input *index*, below *limit*, counted from the front of *size*."""
    place = call.integers(index, "the position")[0]
    place = place + size if place < 0 else place
    if not 0 <= place < limit:
        raise call.mismatch(f"position {place} of a sequence of {size}")
    return place


operator("SequenceEmpty")(lambda _: sequence([]))
operator("SequenceConstruct")(
    lambda call: sequence([call.value(i) for i in range(len(call.inputs))])
)
operator("SequenceLength")(lambda call: constant(np.array(len(_items(call)), np.int64)))


@operator("SequenceInsert")
def insert(call: Call) -> Value:
    items = list(_items(call))
    size = len(items)
    place = _place(call, 2, size, size + 1) if call.has(2) else size
    items.insert(place, call.value(1))
    return sequence(items)


@operator("SequenceErase")
def erase(call: Call) -> Value:
    items = list(_items(call))
    if not items:
        raise call.mismatch("nothing is left to take out")
    del items[_place(call, 1, len(items), len(items)) if call.has(1) else -1]
    return sequence(items)


@operator("SequenceAt")
def at(call: Call) -> Value:
    items = _items(call)
    if not items:
        raise call.mismatch("an element of an empty sequence")
    return items[_place(call, 1, len(items), len(items))]


@operator("SplitToSequence")
def split(call: Call) -> Value:
    x = call.tensor(0)
    axis, given, keep = call.own_axis(x), call.optional(1), True
    size = (x.shape or ())[axis]
    if given is not None and given.array is None:
        count = (given.shape or ())[0] if given.rank == 1 else None
        if count is None or count > MAX_ITEMS:
            raise call.refuse("the number of parts is unknown")
        return sequence([m.value() for m in _split(call, x, call.get(given), axis, count)])
    if given is not None and given.array is not None and given.array.ndim:
        parts = [int(v) for v in given.array.tolist()]
    else:
        each = 1 if given is None else int(np.asarray(given.array))
        if size is None or each < 1:
            raise call.refuse("equal parts of a dimension of unknown size")
        if size // each > MAX_ITEMS:
            raise call.refuse(f"a sequence of {size // each}")
        keep = given is not None or bool(call.node.integer("keepdims", 1))
        parts = [min(each, size - i) for i in range(0, size, each)]
    if len(parts) > MAX_ITEMS or (size is not None and sum(parts) != size):
        raise call.mismatch(f"{len(parts)} parts of a dimension of {size}")
    made = _split(call, x, call.vector(parts), axis, len(parts))
    return sequence([(m if keep else m.squeeze(axis)).value() for m in made])


def _split(call: Call, x: Value, lengths: Tensor, axis: int, count: int) -> list[Tensor]:
    inputs = [call.get(x), lengths, call.place(axis)]
    return call.emit_all("SPLIT_V", inputs, [x.dtype] * count, num_splits=count)


@operator("ConcatFromSequence")
def join(call: Call) -> Value:
    items = _items(call)
    if not items:
        raise call.mismatch("an empty sequence is joined")
    new = bool(call.node.integer("new_axis", 0))
    axis = call.axis(call.node.integer("axis"), (items[0].rank or 0) + new)
    operands = [call.get(i).expand(axis) if new else call.get(i) for i in items]
    return call.concatenate(operands, axis).value()


@operator("StringNormalizer")
def normalizer(call: Call) -> Value:
    """Removes stop words from a vector or the one row of a matrix; one empty word is left."""
    x = call.tensor(0)
    if x.dtype is not DType.STRING:
        raise call.node.invalid(f"strings are taken, not {x.dtype.value}")
    if call.node.text("case_change_action", "NONE") != "NONE":
        raise call.refuse("a change of case")
    words = call.node.strings("stopwords", ())
    if not words:
        return x
    if not call.node.integer("is_case_sensitive", 0):
        raise call.refuse("stop words in any case")
    if x.rank not in (1, 2):
        raise call.mismatch(f"strings of shape {x.shape}")
    operand = call.get(x)
    if x.rank == 2:
        operand = operand.squeeze(0)
    found = operand.expand(1).equals(call.literal(strings(words).reshape(1, -1)))
    kept = found.reduced("REDUCE_ANY", [1]).fn("LOGICAL_NOT")
    left = operand.gather(kept.fn("WHERE", DType.INT64).squeeze(1)).value()
    branches = []
    for value in (left, constant(strings([b""]))):
        emitter = Emitter(call.emitter.shared, call.emitter)
        branches.append((emitter, [emitter.local(value)]))
    some = kept.reduced("REDUCE_ANY", [0]).value()
    made = call.get(call.body.emit_if(call.node, some, branches)[0])
    return (made.expand(0) if x.rank == 2 else made).value()
