"""Cuts: what a step model holds, in which order, and that nothing is copied."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from penstock.ir import DType, Lifetime, Model, ModelBuilder, Operand, Origin
from penstock.partitioning.split import Cutter
from tests.support_devices import evaluate
from tests.unit.partitioning.models import SHAPE, Net

LARGE = np.arange(64, dtype=np.float32).reshape(8, 8)


def names(model: Model, indexes: tuple[int, ...]) -> list[str]:
    return [model.operands[i].name for i in indexes]


def test_boundary_in_nnapi_s_order() -> None:
    """Inputs: main inputs, temporaries, main outputs read inside. Outputs: main outputs,
    temporaries.
    """
    net = Net()
    second, first = net.source("second"), net.source("first")
    out, temporary = net.relu("out", first), net.relu("temporary", second)
    a = net.add("a", out, temporary)
    b = net.add("b", first, second)
    c = net.add("c", b, a)
    last = net.add("last", c, a)
    model = net.build([last, b, out])
    cut = Cutter(model).cut((2, 3, 4))
    assert names(model, cut.inputs) == ["second", "first", "temporary", "out"]
    assert names(model, cut.outputs) == ["b", "a", "c"]
    step = cut.model.entry
    assert [step.operands[i].name for i in step.inputs] == ["second", "first", "temporary", "out"]
    assert {step.operands[i].lifetime for i in step.inputs} == {Lifetime.SUBGRAPH_INPUT}
    assert {step.operands[i].lifetime for i in step.outputs} == {Lifetime.SUBGRAPH_OUTPUT}
    assert (cut.operations, len(step.operations)) == ((2, 3, 4), 3)


def test_inner_values_of_a_step_are_temporary_and_unused_ones_dropped() -> None:
    net = Net()
    x = net.source("x")
    net.source("unused")
    inside = net.relu("inside", x)
    model = net.build([net.relu("y", inside), net.relu("other", x)])
    step = Cutter(model).cut((0, 1)).model
    assert [(o.name, o.lifetime) for o in step.operands] == [
        ("x", Lifetime.SUBGRAPH_INPUT),
        ("inside", Lifetime.TEMPORARY_VARIABLE),
        ("y", Lifetime.SUBGRAPH_OUTPUT),
    ]


def test_an_output_that_is_also_read_inside_is_an_output_once() -> None:
    net = Net()
    x = net.source("x")
    y = net.relu("y", x)
    model = net.build([net.add("z", y, y), y])
    cut = Cutter(model).cut((0, 1))
    assert names(model, cut.outputs) == ["z", "y"]
    assert len(cut.model.entry.inputs) == 1


def test_constants_are_located_not_copied() -> None:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (8, 8), "x")
    large, small = (
        builder.constant(LARGE, "large"),
        builder.constant(np.full((1, 1), 2, np.float32), "small"),
    )
    (a,) = builder.operation("ADD", [x, large], [Operand(DType.FLOAT32, (8, 8), name="a")])
    (b,) = builder.operation("MUL", [a, small], [Operand(DType.FLOAT32, (8, 8), name="b")])
    (c,) = builder.operation("MUL", [b, large], [Operand(DType.FLOAT32, (8, 8), name="c")])
    model = builder.build([c])
    cut = Cutter(model).cut((0, 1))
    assert cut.model.pools == model.pools
    assert all(one is other for one, other in zip(cut.model.pools, model.pools, strict=True))
    by_name = {o.name: o for o in cut.model.operands}
    assert by_name["large"] is model.operands[large]
    assert by_name["small"] is model.operands[small]
    assert by_name["large"].lifetime is Lifetime.CONSTANT_POOL
    assert np.shares_memory(
        cut.model.constant(by_name["large"]), model.constant(model.operands[large])
    )
    x0 = np.ones((8, 8), np.float32)
    assert np.array_equal(evaluate(cut.model, [x0])[0], (x0 + LARGE) * 2)


def test_an_omitted_input_stays_omitted() -> None:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (1, 8), "x")
    weights = builder.constant(LARGE, "w")
    (y,) = builder.operation(
        "FULLY_CONNECTED", [x, weights, None], [Operand(DType.FLOAT32, (1, 8), name="y")]
    )
    (z,) = builder.operation("RELU", [y], [Operand(DType.FLOAT32, (1, 8), name="z")])
    cut = Cutter(builder.build([z])).cut((0,))
    (operation,) = cut.model.operations
    lifetimes = [cut.model.operands[i].lifetime for i in operation.inputs]
    assert lifetimes == [Lifetime.SUBGRAPH_INPUT, Lifetime.CONSTANT_POOL, Lifetime.NO_VALUE]
    assert len(cut.inputs) == 1


def test_results_that_nobody_reads_stay_in_the_operation() -> None:
    net = Net()
    x = net.source("x")
    parts = [Operand(DType.FLOAT32, SHAPE[1:], name=f"part{k}") for k in range(2)]
    _, second = net.operation("UNPACK", [x], parts, {"num": 2, "axis": 0})
    (y,) = net.operation("RELU", [second], [Operand(DType.FLOAT32, SHAPE[1:], name="y")])
    model = net.build([y])
    cut = Cutter(model).cut((0,))
    assert names(model, cut.outputs) == ["part1"]
    assert len(cut.model.operations[0].outputs) == 2


def test_readers_that_do_not_count_draw_nothing_over_the_boundary() -> None:
    net = Net()
    x = net.source("x")
    a = net.relu("a", x)
    b = net.relu("b", a)
    net.relu("dead", a)
    model = net.build([b])
    assert names(model, Cutter(model).cut((0, 1)).outputs) == ["b", "a"]
    assert names(model, Cutter(model, readers=(0, 1)).cut((0, 1)).outputs) == ["b"]


def test_state_operands_become_plain_inputs_and_outputs() -> None:
    net = Net()
    x = net.source("x")
    variable = net.variable("total", DType.FLOAT32, SHAPE)
    before = net.operand(Operand(DType.FLOAT32, SHAPE, Lifetime.SUBGRAPH_INPUT, "before"))
    after = net.add("after", before, x)
    y = net.relu("y", after)
    net.state(variable, before, after)
    model = net.build([y])
    cut = Cutter(model).cut((0,))
    assert names(model, cut.inputs) == ["x", "before"]
    assert names(model, cut.outputs) == ["after"]
    assert (cut.model.entry.states, cut.model.variables) == ((), ())


def nested() -> Model:
    """Subgraphs 1 to 4: 4 is called by the second IF, 2 by 4 and by nobody else, 1 and 3 by the
    first.
    """
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, SHAPE, "x")
    truth = builder.constant(np.array(True))

    def leaf(kind: str) -> int:
        inner = builder.subgraph(kind)
        (y,) = inner.operation(kind, [inner.input(DType.FLOAT32, SHAPE)], [(DType.FLOAT32, SHAPE)])
        return builder.add_subgraph(inner.finish([y]))

    one, two, three = leaf("RELU"), leaf("NEG"), leaf("NEG")
    inner = builder.subgraph("outer")
    argument, inner_truth = inner.input(DType.FLOAT32, SHAPE), inner.constant(np.array(True))
    (y,) = inner.operation(
        "IF",
        [inner_truth, argument],
        [(DType.FLOAT32, SHAPE)],
        {"then_subgraph_index": two, "else_subgraph_index": two},
    )
    four = builder.add_subgraph(inner.finish([y]))
    (a,) = builder.operation(
        "IF",
        [truth, x],
        [Operand(DType.FLOAT32, SHAPE, name="a")],
        {"then_subgraph_index": one, "else_subgraph_index": three},
    )
    (b,) = builder.operation(
        "IF",
        [truth, a],
        [Operand(DType.FLOAT32, SHAPE, name="b")],
        {"then_subgraph_index": four, "else_subgraph_index": one},
    )
    return builder.build([b])


def test_referenced_subgraphs_are_carried_along_and_renumbered() -> None:
    model = nested()
    step = Cutter(model).cut((1,)).model
    assert [s.name for s in step.subgraphs] == ["main", "outer", "RELU", "NEG"]
    (operation,) = step.operations
    assert operation.attributes.integer("then_subgraph_index") == 1
    assert operation.attributes.integer("else_subgraph_index") == 2
    (inner,) = step.subgraphs[1].operations
    assert inner.attributes.integer("then_subgraph_index") == 3
    x = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
    whole = evaluate(model, [x])[0]
    first = Cutter(model).cut((0,)).model
    assert len(first.subgraphs) == 3
    assert np.array_equal(evaluate(step, evaluate(first, [x]))[0], whole)


def test_a_cut_of_another_entry_subgraph() -> None:
    """The entry need not be subgraph 0; in the cut it is."""
    model = nested()
    entered = replace(model, main=4)
    step = Cutter(entered).cut((0,)).model
    assert (step.main, step.entry.name) == (0, "outer")
    assert [s.name for s in step.subgraphs] == ["outer", "NEG"]


def test_names_and_origins_are_kept() -> None:
    net = Net()
    x = net.source("x")
    model = net.build([net.relu("y", x)])
    operands = tuple(replace(o, origin=Origin(0, 7 + i)) for i, o in enumerate(model.operands))
    operations = tuple(replace(o, origin=Origin(0, 3, 19, 2)) for o in model.operations)
    entry = replace(model.entry, operands=operands, operations=operations)
    step = Cutter(replace(model, subgraphs=(entry,))).cut((0,)).model
    assert [(o.name, o.origin) for o in step.operands] == [("x", Origin(0, 7)), ("y", Origin(0, 8))]
    assert step.operations[0].origin == Origin(0, 3, 19, 2)
