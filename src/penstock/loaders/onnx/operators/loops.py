"""Loops as WHILE: a counter, its limit, and what a round hands to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from penstock.ir.operations.control_flow import meet
from penstock.ir.types import DType, Shape
from penstock.loaders.onnx.calls import Call
from penstock.loaders.onnx.emitter import Emitter
from penstock.loaders.onnx.lowering import captured_inputs, first_form
from penstock.loaders.onnx.operators.common import expand, reshape, sizes
from penstock.loaders.onnx.values import Value

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
