"""Variables from run to run, against LiteRT."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock
from penstock import loaders
from penstock.errors import NotExportable
from penstock.export.tflite import write
from tests.support_runs import assert_same_runs, flexible, litert, penstock_runs
from tests.unit.loaders.files import FileBuilder, accumulator

X = np.array([1, 2], np.float32)


def handle(file: FileBuilder, name: str = "v") -> int:
    tensor = file.tensor(name, [], "RESOURCE")
    file.operator("VAR_HANDLE", [], [tensor], {"container": "", "shared_name": name})
    return tensor


def initialise(file: FileBuilder, name: str, value: list[float]) -> None:
    """A subgraph of its own that assigns a constant."""
    file.begin()
    variable = handle(file, name)
    constant = file.tensor("initial", [len(value)], value=np.array(value, np.float32))
    file.operator("ASSIGN_VARIABLE", [variable, constant], [])
    file.end([], [])


def growing() -> bytes:
    """v = v and x joined: a variable whose shape is known at run time only, as is the read
    one's.
    """
    file = FileBuilder()
    file.operator("CALL_ONCE", [], [], {"init_subgraph_index": 1})
    v, x = handle(file), file.tensor("x", [2])
    before, after = file.tensor("before"), file.tensor("after")
    file.operator("READ_VARIABLE", [v], [before])
    file.operator("CONCATENATION", [before, x], [after], {"axis": 0})
    file.operator("ASSIGN_VARIABLE", [v, after], [])
    file.end([x], [after])
    initialise(file, "v", [5])
    return file.encode()


def test_a_variable_may_grow() -> None:
    *_, last = assert_same_runs(growing(), [[X], [X * 2], [X * 3]])
    assert last[0].tolist() == [5, 1, 2, 2, 4, 3, 6]


def test_initialisers_may_enter_others() -> None:
    file = FileBuilder()
    file.operator("CALL_ONCE", [], [], {"init_subgraph_index": 1})
    v, w, x = handle(file), handle(file, "w"), file.tensor("x", [2])
    a, b, total, y = (file.tensor(n, [2]) for n in ("a", "b", "total", "y"))
    file.operator("READ_VARIABLE", [v], [a])
    file.operator("READ_VARIABLE", [w], [b])
    file.operator("ADD", [a, x], [total])
    file.operator("ASSIGN_VARIABLE", [v, total], [])
    file.operator("ADD", [total, b], [y])
    file.end([x], [y])
    initialise(file, "v", [1, 2])
    file.operator("CALL_ONCE", [], [], {"init_subgraph_index": 2})
    initialise(file, "w", [10, 20])
    assert_same_runs(file.encode(), [[X]] * 3)


def test_branches_assign_different_variables() -> None:
    file = FileBuilder()
    c, x, y = file.tensor("c", [1], "BOOL"), file.tensor("x", [2]), file.tensor("y", [2])
    file.operator("CALL_ONCE", [], [], {"init_subgraph_index": 3})
    file.operator("CALL_ONCE", [], [], {"init_subgraph_index": 4})
    file.operator("IF", [c, x], [y], {"then_subgraph_index": 1, "else_subgraph_index": 2})
    read = [file.tensor(n, [2]) for n in ("read v", "read w")]
    for name, tensor in zip("vw", read, strict=True):
        file.operator("READ_VARIABLE", [handle(file, name)], [tensor])
    file.end([c, x], [y, *read])
    for own, other in ("vw", "wv"):
        file.begin()
        x, y, changed = (file.tensor(n, [2]) for n in ("x", "y", "changed"))
        file.operator("NEG", [x], [changed])
        file.operator("ASSIGN_VARIABLE", [handle(file, own), changed], [])
        file.operator("READ_VARIABLE", [handle(file, other)], [y])
        file.end([x], [y])
    initialise(file, "v", [1, 1])
    initialise(file, "w", [2, 2])
    feeds = [[np.array([c]), X * k] for k, c in enumerate((True, False, False, True), 1)]
    assert_same_runs(file.encode(), feeds)


def composite() -> bytes:
    """The main subgraph is a composite of a sum that goes on from run to run."""
    file = FileBuilder()
    x, y = file.tensor("x", [2]), file.tensor("y", [2])
    options: dict[str, Any] = {
        "name": "sum",
        "decomposition_subgraph_index": 1,
        "version": 1,
        "composite_attributes": flexible({"a": 1}),
    }
    file.operator("STABLEHLO_COMPOSITE", [x], [y], options)
    file.end([x], [y])
    file.begin("sum")
    file.operator("CALL_ONCE", [], [], {"init_subgraph_index": 2})
    v, x = handle(file), file.tensor("x", [2])
    before, after, drawn, y = (file.tensor(n, [2]) for n in ("before", "after", "drawn", "y"))
    shape = file.tensor("shape", [1], "INT32", np.array([2], np.int32))
    file.operator("READ_VARIABLE", [v], [before])
    file.operator("ADD", [x, before], [after])
    file.operator("ASSIGN_VARIABLE", [v, after], [])
    file.operator("RANDOM_UNIFORM", [shape], [drawn], {"seed": 1, "seed2": 2})
    file.operator("ADD", [after, drawn], [y])
    file.end([x], [y])
    initialise(file, "v", [5, 6])
    return file.encode()


def test_composites_carry_state() -> None:
    assert_same_runs(composite(), [[X]] * 3)


@pytest.mark.parametrize("make", [lambda: accumulator().encode(), composite])
def test_written_variable_is_the_next_read_value(make: Any) -> None:
    content = make()
    try:
        again = write(loaders.load(content))
    except NotExportable as refusal:
        pytest.fail(str(refusal))
    first = assert_same_runs(content, [[X]] * 3)
    second = assert_same_runs(again, [[X]] * 3)
    for a, b in zip(first, second, strict=True):
        assert a[0].tolist() == b[0].tolist()


def counting(kind: str) -> bytes:
    """A loop whose body adds its counter to a variable."""
    file = FileBuilder()
    file.operator("CALL_ONCE", [], [], {"init_subgraph_index": 3})
    i, n, total = (file.tensor(name, [], "INT32") for name in ("i", "n", "total"))
    file.operator(kind, [i], [n], {"cond_subgraph_index": 1, "body_subgraph_index": 2})
    file.operator("READ_VARIABLE", [handle(file)], [total])
    file.end([i], [n, total])
    file.begin("cond")
    i, less = file.tensor("i", [], "INT32"), file.tensor("less", [], "BOOL")
    file.operator("LESS", [i, file.tensor("limit", [], "INT32", np.int32(5))], [less])
    file.end([i], [less])
    file.begin("body")
    i, j, before, after = (file.tensor(n, [], "INT32") for n in ("i", "j", "before", "after"))
    v, one = handle(file), file.tensor("one", [], "INT32", np.int32(1))
    file.operator("READ_VARIABLE", [v], [before])
    file.operator("ADD", [before, i], [after])
    file.operator("ASSIGN_VARIABLE", [v, after], [])
    file.operator("ADD", [i, one], [j])
    file.end([i], [j])
    file.begin("init")
    v, initial = handle(file), file.tensor("initial", [], "INT32", np.int32(100))
    file.operator("ASSIGN_VARIABLE", [v, initial], [])
    file.end([], [])
    return file.encode()


def test_loops_carry_state() -> None:
    feeds = [[np.array(2, np.int32)]] * 2
    runs = assert_same_runs(counting("WHILE"), feeds)
    assert runs[1][1] == 118
    # LiteRT has no kernel of StableHLO's loop, which is the same.
    assert penstock_runs(counting("STABLEHLO_WHILE"), feeds) == runs


def test_a_set_and_a_get_signature_share_a_variable() -> None:
    file = FileBuilder()
    v, x, y = handle(file), file.tensor("x", [2]), file.tensor("y", [2])
    file.operator("NEG", [x], [y])
    file.operator("ASSIGN_VARIABLE", [v, y], [])
    file.end([x], [y])
    file.begin("get")
    v, y = handle(file), file.tensor("y", [2])
    file.operator("READ_VARIABLE", [v], [y])
    file.end([], [y])
    ends = [("set", [("x", 1)], [("y", 2)], 0), ("get", [], [("y", 1)], 1)]
    content = file.encode(
        signature_defs=[
            {
                "signature_key": name,
                "inputs": [{"name": n, "tensor_index": i} for n, i in inputs],
                "outputs": [{"name": n, "tensor_index": i} for n, i in outputs],
                "subgraph_index": subgraph,
            }
            for name, inputs, outputs, subgraph in ends
        ]
    )
    runner = litert.Interpreter(model_content=content)
    theirs = runner.get_signature_runner("set")(x=X), runner.get_signature_runner("get")()
    model = penstock.load(content)
    with (
        penstock.compile(model, signature="set", cache=None) as setter,
        penstock.compile(model, signature="get", cache=None) as getter,
    ):
        state = setter.new_state()
        ours = setter.run([X], state=state), getter.run([], state=state)
    assert [o[0].tolist() for o in ours] == [t["y"].tolist() for t in theirs]
