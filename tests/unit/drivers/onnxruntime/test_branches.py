"""Branches in an ONNX model, which holds each as often as it is entered, and the names of its
outputs.
"""

from __future__ import annotations

import numpy as np
import pytest

from penstock.driverkit.unrolling import flattened
from penstock.drivers.onnxruntime.graph import Node
from penstock.drivers.onnxruntime.rules.rule import MOST_IN_BRANCHES, MOST_NESTED, in_branches
from penstock.drivers.onnxruntime.wire import build
from penstock.errors import GeneralFailure
from penstock.hal import PrepareConfig
from penstock.ir import Attributes, DType, Model, ModelBuilder, Operation, Subgraph
from penstock.ir.operand import Lifetime, Operand
from tests.support_nesting import nested as chained
from tests.support_onnxruntime import cpu, needs_onnxruntime
from tests.support_operations import run_on

pytestmark = needs_onnxruntime


def nested(depth: int) -> Model:
    """Both branches of each IF are the next subgraph; the last one negates."""
    flag = Operand(DType.BOOL, (1,), Lifetime.SUBGRAPH_INPUT, "flag")
    x = Operand(DType.FLOAT32, (2,), Lifetime.SUBGRAPH_INPUT, "x")
    y = Operand(DType.FLOAT32, (2,), Lifetime.SUBGRAPH_OUTPUT)
    graphs = []
    for inner in range(1, depth + 1):
        both = Attributes(then_subgraph_index=inner, else_subgraph_index=inner)
        graphs.append(
            Subgraph((flag, x, y), (Operation("IF", (0, 0, 1), (2,), both),), (0, 1), (2,))
        )
    graphs.append(Subgraph((flag, x, y), (Operation("NEG", (1,), (2,)),), (0, 1), (2,)))
    return Model(tuple(graphs))


@pytest.mark.parametrize("depth", [1, 3, 11])
def test_every_branch_is_counted_as_often_as_it_is_written(depth: int) -> None:
    branches = sum(2**k for k in range(1, depth + 1))
    assert in_branches(flattened(nested(depth)).model) == (2 * branches, depth)


def test_branches_that_would_become_too_much_are_refused_by_name() -> None:
    (good,) = cpu().supported_operations(nested(3))
    assert good.supported, good.reason
    model = nested(11)
    (answer,) = cpu().supported_operations(model)
    assert not answer.supported
    assert f"ONNX Runtime is given {MOST_IN_BRANCHES} at most" in answer.reason
    with pytest.raises(GeneralFailure, match="each as often as it is written"):
        cpu().prepare_model(model, PrepareConfig())


def test_outputs_are_named_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    named = 0
    rename = Node.rename

    def counted(node: Node, names: dict[str, str]) -> None:
        nonlocal named
        named += 1
        rename(node, names)

    monkeypatch.setattr(Node, "rename", counted)
    b = ModelBuilder()
    values = [b.input(DType.FLOAT32, (2,), "x")]
    for _ in range(20):
        values += b.operation("NEG", [values[-1]], [(DType.FLOAT32, (2,))])
    graph = build(b.build(values[1:]))
    assert [name for name, _ in graph.outputs] == [f"o{k}" for k in range(20)]
    assert named == len(graph.nodes) == 20


def test_a_value_that_is_two_outputs_has_both_names() -> None:
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (2,), "x")
    (y,) = b.operation("NEG", [x], [(DType.FLOAT32, (2,))])
    shape = b.constant(np.array([2], np.int32))
    again = [b.operation("RESHAPE", [v, shape], [(DType.FLOAT32, (2,))])[0] for v in (y, x)]
    (got,) = run_on([cpu()], b.build([y, *again]), [[np.array([1, -2], np.float32)]])
    assert [v.tolist() for v in got] == [[-1, 2], [-1, 2], [1, -2]]


def test_branches_nested_deeper_than_onnxruntime_reads_are_refused_by_name() -> None:
    for depth in (MOST_NESTED, MOST_NESTED + 1):
        model = chained("IF", depth)
        (answer,) = cpu().supported_operations(model)
        assert answer.supported is (depth == MOST_NESTED), answer.reason
        if answer.supported:
            cpu().prepare_model(model, PrepareConfig()).close()
        else:
            assert f"ONNX Runtime reads {MOST_NESTED} at most" in answer.reason
