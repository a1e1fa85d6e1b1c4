"""Loops whose rounds follow from constants and shapes are written out, round by round."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.compiler import interpreter
from penstock.compiler.checks import check as check_program
from penstock.compiler.legalise import judge, legalise
from penstock.compiler.legalise.loops import MOST_ROUNDS
from penstock.driverkit.site import Refused, make_sites
from penstock.ir import DType, Model, ModelBuilder, NDArray
from tests.support_compiler import TARGETS, differences, random_inputs, reference, stages
from tests.support_loops import scanning
from tests.unit.compiler.legalise.legal_models import check

F32, I32 = DType.FLOAT32, DType.INT32
SHAPE = (2, 3)


def counting(limit: NDArray | None, step: int = 1) -> Model:
    """x = x * 2 + counter, while a counter from 0 on is less than *limit* (None: an input)."""
    b = ModelBuilder()
    x = b.input(F32, SHAPE, "x")
    bound = b.input(I32, (), "limit") if limit is None else b.constant(limit)
    shapes = [(I32, ()), (I32, ()), (F32, SHAPE)]
    condition = b.subgraph("condition")
    counter, most, _ = (condition.input(*shape) for shape in shapes)
    less = condition.operation("LESS", [counter, most], [(DType.BOOL, ())])
    body = b.subgraph("body")
    counter, most, held = (body.input(*shape) for shape in shapes)
    none = {"fused_activation_function": "NONE"}
    (real,) = body.operation("CAST", [counter], [(F32, ())])
    (twice,) = body.operation("ADD", [held, held], [(F32, SHAPE)], none)
    (made,) = body.operation("ADD", [twice, real], [(F32, SHAPE)], none)
    more = body.constant(np.array(step, np.int32))
    (following,) = body.operation("ADD", [counter, more], [(I32, ())], none)
    references = {
        "cond_subgraph_index": b.add_subgraph(condition.finish(less)),
        "body_subgraph_index": b.add_subgraph(body.finish([following, most, made])),
    }
    start = b.constant(np.array(0, np.int32))
    made_all = b.operation("WHILE", [start, bound, x], shapes, references)
    return b.build(list(made_all))


X = np.linspace(-4, 4, 6, dtype=np.float32).reshape(SHAPE)


@pytest.mark.parametrize("rounds", [0, 1, 5])
def test_a_loop_is_written_round_by_round(rounds: int) -> None:
    model = counting(np.array(rounds, np.int32))
    counter, limit, _ = check(model, [X])
    assert [int(counter), int(limit)] == [rounds, rounds]
    additions = [k for k in legalise(model).kernels if k.name == "add"]
    assert len(additions) == 2 * rounds


def test_the_step_of_the_counter_decides_how_many_rounds_there_are() -> None:
    counter, *_ = check(counting(np.array(7, np.int32), step=3), [X])
    assert counter == 9


@pytest.mark.parametrize("seed", range(4))
def test_a_scan_reads_and_writes_a_part_in_each_round(seed: int) -> None:
    model = scanning(4, seed, grids=False)
    inputs = random_inputs(model, seed)
    wanted = reference(model, inputs)
    for target in TARGETS:
        for name, program in stages(model, target):
            check_program(program)
            assert differences(wanted, interpreter.run(program, inputs)) == [], name


def refusal(model: Model) -> str:
    (site,) = make_sites(model)
    with pytest.raises(Refused) as refused:
        judge(site)
    return str(refused.value)


def test_loops_whose_rounds_depend_on_data_are_refused() -> None:
    assert "whose rounds only a run knows" in refusal(counting(None))


def test_loops_of_too_many_rounds_are_refused() -> None:
    assert "a loop of more than" in refusal(counting(np.array(MOST_ROUNDS + 1, np.int32)))
    assert "a loop of more than" in refusal(counting(np.array(1, np.int32), step=0))
