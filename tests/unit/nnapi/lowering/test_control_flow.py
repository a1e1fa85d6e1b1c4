"""IF and WHILE (NNAPI section 8.5)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from penstock.errors import InvalidOperation, LimitExceeded, ModelError, UnknownOperator
from penstock.nnapi.description import (
    NnapiLifetime,
    NnapiModel,
    NnapiOperand,
    NnapiOperation,
    NnapiSubgraph,
    OperandType,
)
from penstock.nnapi.lowering import lower
from tests.unit.nnapi.lowering.one import constant, i, run, t

INPUT, OUTPUT = NnapiLifetime.SUBGRAPH_INPUT, NnapiLifetime.SUBGRAPH_OUTPUT


def given(kind: str, *shape: int) -> NnapiOperand:
    return replace(t(kind, *shape), lifetime=INPUT)


def written(kind: str, *shape: int) -> NnapiOperand:
    return replace(t(kind, *shape), lifetime=OUTPUT)


def reference(index: int) -> NnapiOperand:
    return NnapiOperand(OperandType.SUBGRAPH, (), NnapiLifetime.SUBGRAPH, subgraph=index)


def branch(kind: str, *shape: int) -> NnapiSubgraph:
    """One operand and itself: ADD or SUB."""
    operands = (given("f32", *shape), i(0), written("f32", *shape))
    return NnapiSubgraph(operands, (NnapiOperation(kind, (0, 0, 1), (2,)),), (0,), (2,))


def choice(*branches: NnapiSubgraph) -> NnapiModel:
    operands = (given("b8", 1), reference(0), reference(1), given("f32", 2), written("f32", 2))
    main = NnapiSubgraph(operands, (NnapiOperation("IF", (0, 1, 2, 3), (4,)),), (0, 3), (4,))
    return NnapiModel(main, branches)


def test_lowered_if_runs_the_chosen_branch() -> None:
    model = lower(choice(branch("ADD", 2), branch("SUB", 2)))
    x = np.array([1.0, 2.0], np.float32)
    assert run(model, [np.array([True]), x])[0].tolist() == [2.0, 4.0]
    assert run(model, [np.array([False]), x])[0].tolist() == [0.0, 0.0]


def test_shared_branch_is_lowered_once() -> None:
    source = choice(branch("ADD", 2))
    operands = list(source.main.operands)
    operands[2] = reference(0)
    same = replace(source, main=replace(source.main, operands=tuple(operands)))
    assert len(lower(same).subgraphs) == 2


@pytest.mark.parametrize("wrong", [branch("SUB", 3), branch("SUB", 1, 2)])
def test_branches_take_what_they_are_given(wrong: NnapiSubgraph) -> None:
    with pytest.raises(InvalidOperation, match="operand 0 that otherwise takes is of another type"):
        lower(choice(branch("ADD", 2), wrong))


def test_a_defect_in_a_branch_keeps_its_place_and_its_cause() -> None:
    with pytest.raises(UnknownOperator, match=r"^subgraph 1, operation 0 \(NO\): ") as caught:
        lower(choice(branch("ADD", 2), branch("NO", 2)))
    cause = caught.value.__cause__
    assert isinstance(cause, UnknownOperator)
    assert cause.where is None


def counting(body_outputs: int = 2) -> NnapiModel:
    """n, state, limit: while n < limit, n + 1 and state + n; the state is not given out."""
    three = (given("i32", 1), given("i32", 1), given("i32", 1))
    condition = NnapiSubgraph(
        (*three, written("b8", 1)), (NnapiOperation("LESS", (0, 2), (3,)),), (0, 1, 2), (3,)
    )
    one = constant("i32", [1])
    body = NnapiSubgraph(
        (*three, one, i(0), written("i32", 1), written("i32", 1)),
        (NnapiOperation("ADD", (0, 3, 4), (5,)), NnapiOperation("ADD", (1, 0, 4), (6,))),
        (0, 1, 2),
        (5, 6)[:body_outputs],
    )
    operands = (reference(0), reference(1), *three, written("i32", 1))
    main = NnapiSubgraph(
        operands, (NnapiOperation("WHILE", (0, 1, 2, 3, 4), (5,)),), (2, 3, 4), (5,)
    )
    return NnapiModel(main, (condition, body))


def test_a_loop_hands_through_what_it_only_reads() -> None:
    model = lower(counting())
    start = [np.array([n], np.int32) for n in (0, 0, 5)]
    assert run(model, start)[0].tolist() == [5]
    assert run(model, [*start[:2], np.array([-1], np.int32)])[0].tolist() == [0]
    body = model.subgraphs[model.operations[0].attributes.integer("body_subgraph_index")]
    assert len(body.inputs) == len(body.outputs) == 3


def test_a_loop_that_gives_more_than_its_body_is_refused() -> None:
    source = counting()
    wider = replace(
        source.main,
        operands=(*source.main.operands, *[written("i32", 1)] * 2),
        operations=(NnapiOperation("WHILE", (0, 1, 2, 3, 4), (5, 6, 7)),),
        outputs=(5, 6, 7),
    )
    with pytest.raises(InvalidOperation, match="3 outputs of a body that gives 2"):
        lower(replace(source, main=wider))


def test_a_condition_gives_one_boolean() -> None:
    source = counting()
    body = source.referenced[1]
    with pytest.raises(ModelError):
        lower(replace(source, referenced=(body, body)))


def test_a_subgraph_that_refers_to_itself_is_refused() -> None:
    """The branch's own branches are itself."""
    inner = NnapiSubgraph(
        (given("b8", 1), reference(0), given("f32", 2), written("f32", 2)),
        (NnapiOperation("IF", (0, 1, 1, 0, 2), (3,)),),
        (0, 2),
        (3,),
    )
    operands = (given("b8", 1), reference(0), given("f32", 2), written("f32", 2))
    main = NnapiSubgraph(operands, (NnapiOperation("IF", (0, 1, 1, 0, 2), (3,)),), (0, 2), (3,))
    with pytest.raises(InvalidOperation, match="a subgraph refers to itself") as caught:
        lower(NnapiModel(main, (inner,)))
    assert caught.value.__cause__ is not caught.value


@pytest.mark.parametrize(("depth", "good"), [(126, True), (500, False)])
def test_subgraphs_refer_to_each_other_in_bounded_depth(depth: int, good: bool) -> None:
    """One branch chooses the next, the other is the last, which adds."""

    def link(target: int) -> NnapiSubgraph:
        branches = reference(target), reference(depth)
        operands = (given("b8", 1), *branches, given("f32", 2), written("f32", 2))
        return NnapiSubgraph(operands, (NnapiOperation("IF", (0, 1, 2, 0, 3), (4,)),), (0, 3), (4,))

    operands = (given("b8", 1), given("f32", 2), i(0), written("f32", 2))
    last = NnapiSubgraph(operands, (NnapiOperation("ADD", (1, 1, 2), (3,)),), (0, 1), (3,))
    model = NnapiModel(link(0), (*(link(at + 1) for at in range(depth)), last))
    if good:
        assert len(lower(model).subgraphs) == depth + 2
    else:
        with pytest.raises(LimitExceeded, match="more than 128 deep"):
            lower(model)


def test_control_flow_needs_level_4() -> None:
    with pytest.raises(ModelError, match="needs feature level 4"):
        lower(choice(branch("ADD", 2), branch("SUB", 2)), 3)
