"""The rounds of loops that are known before a run."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.ir import DType, Model, ModelBuilder
from penstock.partitioning.rounds import expected_runs, rounds_of
from penstock.partitioning.work import GUESSED_ITERATIONS
from tests.support_loops import scanning


def counting(
    start: int | None = 0, *, step: int = 1, last: int = 10, test: str = "LESS", adds: str = "ADD"
) -> Model:
    """A loop that counts from *start* (None: an input)."""
    b, integer = ModelBuilder(), DType.INT32
    given = b.input(integer, ()) if start is None else b.constant(np.array(start, np.int32))
    condition, body = b.subgraph("condition"), b.subgraph("body")
    limit = condition.constant(np.array(last, np.int32))
    less = condition.operation(test, [condition.input(integer, ()), limit], [(DType.BOOL, ())])
    counter, more = body.input(integer, ()), body.constant(np.array(step, np.int32))
    after = body.operation(adds, [counter, more], [(integer, ())])
    attributes = {
        "cond_subgraph_index": b.add_subgraph(condition.finish(less)),
        "body_subgraph_index": b.add_subgraph(body.finish(after)),
    }
    return b.build(b.operation("WHILE", [given], [(integer, ())], attributes))


def rounds(model: Model) -> int | None:
    (loop,) = [o for o in model.operations if o.type == "WHILE"]
    return rounds_of(model, model.main, loop)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (counting(), 10),
        (counting(4, step=3), 2),
        (counting(test="LESS_EQUAL"), 11),
        (counting(20), 0),
        (counting(None), None),
        (counting(step=-1), None),
        (counting(adds="MUL"), None),
        (counting(test="GREATER"), None),
    ],
)
def test_loop_that_counts_to_a_constant_has_known_rounds(
    model: Model, expected: int | None
) -> None:
    assert rounds(model) == expected
    (loop,) = model.operations
    runs = expected_runs(model, model.main, loop)
    assert runs == (GUESSED_ITERATIONS if expected is None else expected)


def test_scan_of_a_sequence_has_as_many_rounds_as_the_sequence_has_parts() -> None:
    assert rounds(scanning(7, 0)) == 7


def test_limit_may_be_a_dimension_of_what_the_loop_carries_unchanged() -> None:
    b, integer = ModelBuilder(), DType.INT32
    x = b.input(DType.FLOAT32, (2, 7))
    start = b.constant(np.array(0, np.int32))
    condition, body = b.subgraph("condition"), b.subgraph("body")
    counter, rows = condition.input(integer, ()), condition.input(DType.FLOAT32, (2, None))
    (shape,) = condition.operation("SHAPE", [rows], [(integer, (2,))])
    index = condition.constant(np.array(1, np.int32))
    (limit,) = condition.operation("GATHER", [shape, index], [(integer, ())])
    less = condition.operation("LESS", [counter, limit], [(DType.BOOL, ())])
    inner, carried = body.input(integer, ()), body.input(DType.FLOAT32, (2, None))
    more = body.constant(np.array(1, np.int32))
    after = body.operation("ADD", [inner, more], [(integer, ())])
    attributes = {
        "cond_subgraph_index": b.add_subgraph(condition.finish(less)),
        "body_subgraph_index": b.add_subgraph(body.finish([*after, carried])),
    }
    results = [(integer, ()), (DType.FLOAT32, (2, 7))]
    assert rounds(b.build(b.operation("WHILE", [start, x], results, attributes))) == 7
