"""Operations of subgraphs are written in the place of the operation that refers to them."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.compiler.legalise import judge, legalise
from penstock.driverkit.site import Refused, make_sites
from penstock.ir import DType, Model, ModelBuilder, NDArray
from penstock.ir.operation import AttributeValue
from tests.unit.compiler.legalise.legal_models import check

F32, I32 = DType.FLOAT32, DType.INT32
NONE: dict[str, AttributeValue] = {"fused_activation_function": "NONE"}
SHAPE = (3, 5)


def branch(builder: ModelBuilder, kind: str, dtype: DType, constant: float) -> int:
    """A subgraph of one operation of its input and a constant; returns its number."""
    graph = builder.subgraph(kind)
    x = graph.input(dtype, SHAPE, "x")
    number = graph.constant(np.full(SHAPE, constant, dtype.numpy))
    attributes = {} if kind == "FLOOR_MOD" else NONE
    made = graph.operation(kind, [x, number], [(dtype, SHAPE, None)], attributes)
    return builder.add_subgraph(graph.finish(made))


def choice(condition: NDArray | None, dtype: DType = F32, second: str = "MUL") -> Model:
    """A model of an IF; its condition is an input if *condition* is None."""
    builder = ModelBuilder()
    if condition is None:
        chosen = builder.input(DType.BOOL, (1,), "condition")
    else:
        chosen = builder.constant(condition)
    x = builder.input(dtype, SHAPE, "x")
    attributes: dict[str, AttributeValue] = {
        "then_subgraph_index": branch(builder, "ADD", dtype, 2),
        "else_subgraph_index": branch(builder, second, dtype, 3),
    }
    made = builder.operation("IF", [chosen, x], [(dtype, SHAPE, None)], attributes)
    return builder.build(made)


X = np.linspace(-4, 4, 15, dtype=np.float32).reshape(SHAPE)


@pytest.mark.parametrize("condition", [False, True])
def test_a_constant_condition_writes_one_branch(condition: bool) -> None:
    model = choice(np.array([condition]))
    check(model, [X])
    assert len(legalise(model).kernels) == 1


@pytest.mark.parametrize("condition", [False, True])
def test_the_results_of_one_branch_are_taken(condition: bool) -> None:
    check(choice(None), [np.array([condition]), X])


def test_branches_whose_inputs_may_have_no_result_are_refused() -> None:
    """The other branch's failure would fail the run."""
    builder = ModelBuilder()
    condition = builder.input(DType.BOOL, (1,), "condition")
    x, y = (builder.input(I32, SHAPE, name) for name in ("x", "y"))
    indexes = []
    for kind in ("ADD", "FLOOR_MOD"):
        graph = builder.subgraph(kind)
        pair = [graph.input(I32, SHAPE, name) for name in ("a", "b")]
        made = graph.operation(kind, pair, [(I32, SHAPE, None)], NONE if kind == "ADD" else {})
        indexes.append(builder.add_subgraph(graph.finish(made)))
    attributes: dict[str, AttributeValue] = {
        "then_subgraph_index": indexes[0], "else_subgraph_index": indexes[1]
    }  # fmt: skip
    made = builder.operation("IF", [condition, x, y], [(I32, SHAPE, None)], attributes)
    (site,) = make_sites(builder.build(made))
    with pytest.raises(Refused, match="a branch whose inputs may have no result"):
        judge(site)


def test_a_composite_is_its_decomposition() -> None:
    builder = ModelBuilder()
    x = builder.input(F32, SHAPE, "x")
    attributes: dict[str, AttributeValue] = {
        "name": "odml.scale", "decomposition_subgraph_index": branch(builder, "MUL", F32, 0.5),
    }  # fmt: skip
    made = builder.operation("STABLEHLO_COMPOSITE", [x], [(F32, SHAPE, None)], attributes)
    check(builder.build(made), [X])
