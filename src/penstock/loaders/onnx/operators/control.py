"""Control flow: If, Loop and Scan."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from penstock.ir.operations.control_flow import meet
from penstock.ir.types import DType, NDArray, Shape
from penstock.loaders.onnx.calls import Call, operator
from penstock.loaders.onnx.emitter import Emitter
from penstock.loaders.onnx.graph import Graph
from penstock.loaders.onnx.lowering import captured_inputs, first_form
from penstock.loaders.onnx.operators.common import (
    arithmetic,
    cast,
    concatenate,
    expand,
    reshape,
    sizes,
)
from penstock.loaders.onnx.values import Value

FOREVER = 2**62


def _bodied(call: Call, emitter: Emitter, graph: Graph, given: Sequence[Value]) -> list[Value]:
    """The outputs of *graph* for these inputs, lowered into *emitter*."""
    inner = call.body.inside(graph, emitter)
    names = [t.name for t in graph.inputs if t.name not in graph.constants]
    if len(names) != len(given):
        raise call.node.invalid(f"a body of {len(names)} inputs is given {len(given)}")
    for name, value in zip(names, given, strict=True):
        inner.bind(name, value)
    return inner.run()


def _empty(call: Call, dtype: DType, shape: Shape) -> int:
    """Nothing yet of elements of *shape*."""
    if shape is None or None in shape:
        raise call.refuse("what a loop gathers is of unknown shape")
    array: NDArray = np.zeros((0, *(d or 0 for d in shape)), dtype.numpy)
    return call.emitter.constant(array)


def _room(call: Call, value: Value, axis: int, limit: int, dtype: DType, shape: Shape) -> int:
    """Zeros for as many elements of *shape* as there are along a dimension of *value*, which
    *limit* is.
    """
    if shape is None or None in shape:
        raise call.refuse("what a loop gathers is of unknown shape")
    rest = [d or 0 for d in shape]
    count = (value.shape or ())[axis]
    if count is not None:
        itemsize = dtype.numpy.itemsize
        call.body.lowering.budget.take(math.prod((count, *rest)) * itemsize, call.node.where)
        return call.emitter.constant(np.zeros((count, *rest), dtype.numpy))
    whole = concatenate(call, [expand(call, limit, 0), call.emitter.integers(rest, np.int64)], 0)
    room = call.emit("FILL", [whole, call.scalar(0, dtype)], dtype)
    return reshape(call, room, (-1, *rest)) if all(rest) else room


def _turned(call: Call, operand: int, axis: int, counter: int) -> int:
    """What *counter* is when a dimension of *operand* is counted from its end."""
    last = arithmetic(call, "SUB", length(call, operand, axis), call.scalar(1, DType.INT64))
    return arithmetic(call, "SUB", last, counter)


def _trial(
    call: Call, graph: Graph, given: Sequence[Value], count: int
) -> list[tuple[DType, Shape]]:
    """Types and shapes of what a round gathers, found by lowering it once and forgetting it."""
    if not count:
        return []
    mark = call.emitter.mark()
    emitter = Emitter(call.emitter.shared, call.emitter)
    inputs = [emitter.input(v.dtype, v.shape) for v in given]
    made = _bodied(call, emitter, graph, inputs)[-count:]
    found = [(v.dtype, v.shape) for v in made]
    call.emitter.back_to(mark)
    return found


@operator("Loop")
def loop_node(call: Call) -> list[Value]:
    graph = call.node.graph("body")
    carried = [call.tensor(i) for i in range(2, len(call.inputs))]
    count = len(graph.outputs) - 1 - len(carried)
    if count < 0:
        raise call.node.invalid("the body gives fewer values than it takes")
    limit = call.scalar(FOREVER, DType.INT64)
    if call.has(0):
        limit = reshape(call, cast(call, call.get(0), DType.INT64), [])
    go = reshape(call, call.get(1), []) if call.has(1) else None
    counter, flag = Value(DType.INT64, ()), Value(DType.BOOL, ())
    gathered = _trial(call, graph, [counter, flag, *carried], count)
    initial = [call.get(v) for v in carried] + [_empty(call, d, s) for d, s in gathered]

    def step(emitter: Emitter, at: Value, values: list[Value]) -> tuple[list[int], int | None]:
        inner = InBody(call, emitter)
        true = emitter.value(emitter.constant(np.array(True)))
        made = _bodied(call, emitter, graph, [at, true, *values[: len(carried)]])
        ends = [emitter.get(v) for v in made[1 : 1 + len(carried)]]
        for buffer, part in zip(values[len(carried) :], made[1 + len(carried) :], strict=True):
            ends.append(
                concatenate(inner, [emitter.get(buffer), expand(inner, emitter.get(part), 0)], 0)
            )
        return ends, reshape(inner, emitter.get(made[0]), [])

    return [call.wrap(o) for o in loop(call, limit, initial, step, go)]


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
    rest = [
        tuple(d for i, d in enumerate(v.shape or ()) if i != a)
        for v, a in zip(scanned, axes, strict=True)
    ]
    parts = [Value(v.dtype, s) for v, s in zip(scanned, rest, strict=True)]
    gathered = _trial(call, graph, [*carried, *parts], outputs)
    limit = length(call, call.get(scanned[0]), axes[0])
    initial = [call.get(v) for v in carried]
    initial += [_room(call, scanned[0], axes[0], limit, d, s) for d, s in gathered]
    for value in scanned:
        call.get(value)
    turned = node.integers("scan_output_directions", (0,) * outputs)

    def step(emitter: Emitter, now: Value, values: list[Value]) -> tuple[list[int], int | None]:
        inner = InBody(call, emitter)
        counter = emitter.get(now)
        slices = []
        for value, axis, back in zip(scanned, axes, backward, strict=True):
            sequence, place = emitter.get(value), counter
            if back:
                place = _turned(inner, sequence, axis, counter)
            slices.append(emitter.value(picked(inner, sequence, place, axis)))
        made = _bodied(call, emitter, graph, [*values[:states], *slices])
        ends = [emitter.get(v) for v in made[:states]]
        for buffer, part, front in zip(values[states:], made[states:], turned, strict=True):
            room = emitter.get(buffer)
            at = _turned(inner, room, 0, counter) if front else counter
            ends.append(placed(inner, room, at, emitter.get(part)))
        return ends, None

    along = scanned[0], axes[0]
    made = [call.wrap(o) for o in loop(call, limit, initial, step, along=along)]
    places = node.integers("scan_output_axes", (0,) * outputs)
    for i, axis in enumerate(places):
        value = made[states + i]
        rank = value.rank or 0
        at = call.axis(axis, rank)
        if at:
            order = list(range(1, rank))
            order.insert(at, 0)
            operand = call.emit(
                "TRANSPOSE", [call.get(value), call.emitter.integers(order)], value.dtype
            )
            made[states + i] = call.wrap(operand)
    return made


MAX_ROUNDS = 4

Step = Callable[[Emitter, Value, list[Value]], tuple[list[int], int | None]]
"""One round: the emitter of the body, the counter, what came from the last round; what the next
round gets, and whether there is one (None: as the counter says).
"""


def length(call: Call, operand: int, axis: int) -> int:
    """A dimension of *operand* as an int64 scalar."""
    size = (call.shape(operand) or ())[axis]
    if size is not None:
        return call.scalar(size, DType.INT64)
    place = call.emitter.constant(np.array(axis, np.int32))
    return call.emit("GATHER", [sizes(call, operand), place], DType.INT64)


def loop(
    call: Call,
    limit: int,
    initial: Sequence[int],
    step: Step,
    go: int | None = None,
    along: tuple[Value, int] | None = None,
) -> list[int]:
    """Runs *step* until the counter reaches *limit* (an int64 scalar); *go* says whether it begins
    at all.

    Where that is a dimension of a value that the rounds read, *along* names both: the condition
    then asks for it itself, so that whoever knows the shapes knows the number of rounds.
    """
    outer = call.emitter
    start = call.scalar(0, DType.INT64)
    first = [start, limit, go if go is not None else call.scalar(True, DType.BOOL), *initial]
    shapes: list[Shape] = [outer.shape(o) for o in first]
    for _ in range(MAX_ROUNDS):
        mark = outer.mark()
        body = Emitter(outer.shared, outer)
        body.label, body.index, body.where = outer.label, outer.index, outer.where
        carried = [body.input(outer.dtype(o), s) for o, s in zip(first, shapes, strict=True)]
        made, going = step(body, carried[0], carried[3:])
        one = body.constant(np.array(1, np.int64))
        counter = body.one("ADD", [body.get(carried[0]), one], DType.INT64)
        flag = body.get(carried[2]) if going is None else going
        ends = [counter, body.get(carried[1]), flag, *made]
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
    condition = _condition(outer, first, shapes, every, along)
    arguments = [*first, *(first_form(outer, v) for v in every)]
    attributes = {"cond_subgraph_index": condition, "body_subgraph_index": finished}
    dtypes = [outer.dtype(o) for o in arguments]
    made = outer.emit("WHILE", arguments, dtypes, attributes)
    for place, shape in enumerate(shapes):
        if outer.shape(made[place]) is None and shape is not None:
            raise call.refuse("the shapes of what goes round do not settle")
    return made[3 : 3 + len(initial)]


def _condition(
    outer: Emitter,
    first: Sequence[int],
    shapes: Sequence[Shape],
    captured: Sequence[Value],
    along: tuple[Value, int] | None,
) -> int:
    """Whether the counter is below its limit, and the flag is set."""
    test = Emitter(outer.shared)
    test.label, test.where = outer.label, outer.where
    carried = [test.input(outer.dtype(o), s) for o, s in zip(first, shapes, strict=True)]
    limit = test.get(carried[1])
    for value in captured:
        operand = first_form(outer, value)
        inside = test.input(outer.dtype(operand), outer.shape(operand))
        if along is not None and value is along[0]:
            layout = next(iter(outer.local(value).forms))
            place = test.constant(np.array(layout.index(along[1]), np.int32))
            dimensions = test.one("SHAPE", [test.get(inside)], DType.INT64, {"out_type": "INT64"})
            limit = test.one("GATHER", [dimensions, place], DType.INT64)
    below = test.one("LESS", [test.get(carried[0]), limit], DType.BOOL)
    both = test.one("LOGICAL_AND", [below, test.get(carried[2])], DType.BOOL)
    return outer.shared.add(test.finish([both]))


class InBody(Call):
    """A call whose operations go into the body of a loop."""

    def __init__(self, call: Call, emitter: Emitter) -> None:
        super().__init__(call.body, call.node, call.inputs)
        self.emitter = emitter


def placed(call: Call, buffer: int, counter: int, part: int) -> int:
    """*buffer* with *part* as element number *counter* of its first dimension."""
    rank = len(call.shape(buffer) or ())
    at = reshape(call, counter, [1])
    if rank > 1:
        rest = call.emitter.integers([0] * (rank - 1), np.int64)
        at = call.emit("CONCATENATION", [at, rest], DType.INT64, {"axis": 0})
    return call.emit(
        "DYNAMIC_UPDATE_SLICE", [buffer, expand(call, part, 0), at], call.emitter.dtype(buffer)
    )


def picked(call: Call, sequence: int, counter: int, axis: int = 0) -> int:
    """Element number *counter* of a dimension, which goes."""
    return call.emit("GATHER", [sequence, counter], call.emitter.dtype(sequence), {"axis": axis})
