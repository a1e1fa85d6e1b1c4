"""Loops that ONNX Runtime is given written out, and 8-bit numbers that become its quantisation."""

from __future__ import annotations

import numpy as np
import pytest

import penstock
from penstock.drivers.onnxruntime.wire import build
from penstock.ir import DType, ModelBuilder
from penstock.testing.contract.cases import branching as unheard_branches, looping
from tests.golden.comparison import FLOAT_SHARE
from tests.support_loops import F32, STEPS, branching, given_to, on_grid, scanning
from tests.support_onnxruntime import cpu, needs_onnxruntime
from tests.support_operations import run_on

pytestmark = needs_onnxruntime


@pytest.mark.parametrize("seed", range(10))
def test_loops_of_known_rounds_agree_with_the_reference(seed: int) -> None:
    model = scanning(1 + seed % 3, seed)
    (answer,) = cpu().supported_operations(model)
    assert answer.supported, answer.reason
    given = [given_to(model, s) for s in range(2)]
    wanted = run_on(["reference"], model, given)
    for got, want in zip(run_on([cpu()], model, given), wanted, strict=True):
        for a, b in zip(got, want, strict=True):
            assert a.shape == b.shape
            # A last bit may put a value on the next step of a grid.
            steps = np.abs(a - b) > FLOAT_SHARE * np.abs(b).max()
            assert steps.mean() <= 0.05


def test_loops_of_unknown_rounds_are_refused_by_that_name() -> None:
    (answer,) = cpu().supported_operations(looping(1.0))
    assert not answer.supported
    assert "its rounds are known only when it runs" in answer.reason


def test_a_loop_is_refused_with_the_reason_of_what_it_does() -> None:
    model = scanning(2, seed=0)
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (2, 3))
    assert model.subgraphs[model.main].operations[0].type == "WHILE"
    body = b.subgraph("body")
    i, y = body.input(DType.INT64, ()), body.input(F32, (2, 3))
    (up,) = body.operation("ADD", [i, body.constant(np.array(1, np.int64))], [(DType.INT64, ())])
    (z,) = body.operation("CUSTOM", [y], [(F32, (2, 3))], {"custom_code": "of nobody"})
    test = b.subgraph("condition")
    j, _ = test.input(DType.INT64, ()), test.input(F32, (2, 3))
    limit = test.constant(np.array(3, np.int64))
    less = test.operation("LESS", [j, limit], [(DType.BOOL, ())])
    references = {
        "cond_subgraph_index": b.add_subgraph(test.finish(less)),
        "body_subgraph_index": b.add_subgraph(body.finish([up, z])),
    }
    start = b.constant(np.array(0, np.int64))
    made = b.operation("WHILE", [start, x], [(DType.INT64, ()), (F32, (2, 3))], references)
    (answer,) = cpu().supported_operations(b.build(made[1:]))
    assert answer.reason == "its CUSTOM:of nobody: CUSTOM:of nobody is not written as ONNX"


@pytest.mark.parametrize("step", STEPS)
def test_numbers_rounded_to_8_bits_are_quantised_in_two_nodes(step: float) -> None:
    b = ModelBuilder()
    x = b.input(F32, (400,), "x")
    model = b.build([on_grid(b, x, step, (400,))])
    kinds = [node.kind for node in build(model).nodes]
    assert kinds == ["QuantizeLinear", "DequantizeLinear"]
    rng = np.random.default_rng(1)
    halves = (rng.integers(-300, 300, 400) / 2 * step).astype(np.float32)
    given = [[halves], [(rng.standard_normal(400) * 100 * step).astype(np.float32)]]
    wanted = run_on(["reference"], model, given)
    for got, want in zip(run_on([cpu()], model, given), wanted, strict=True):
        assert np.array_equal(got[0], want[0])


@pytest.mark.parametrize(("low", "high"), [(-128.0, 100.0), (-5.0, 127.0), (-200.0, 300.0)])
def test_narrower_limits_stay(low: float, high: float) -> None:
    b = ModelBuilder()
    x = b.input(F32, (64,), "x")
    limits = [b.constant(np.array(v, np.float32)) for v in (low, high)]
    (y,) = b.operation("ROUND", [x], [(F32, (64,))])
    (y,) = b.operation("MAXIMUM", [y, limits[0]], [(F32, (64,))])
    (y,) = b.operation("MINIMUM", [y, limits[1]], [(F32, (64,))])
    cast = {"in_data_type": "FLOAT32", "out_data_type": "INT8"}
    model = b.build(b.operation("CAST", [y], [(DType.INT8, (64,))], cast))
    given = [[np.linspace(-400, 400, 64, dtype=np.float32)]]
    (got,), (want,) = (run_on(d, model, given) for d in ([cpu()], ["reference"]))
    assert np.array_equal(got[0], want[0])


@pytest.mark.parametrize("seed", range(16))
def test_branches_agree_with_the_reference(seed: int) -> None:
    model = branching(seed, depth=seed % 3)
    answers = cpu().supported_operations(model)
    assert all(answer.supported for answer in answers), answers
    given = [[np.array(seed_ % 2 == 0), *given_to(model, seed_)[1:]] for seed_ in range(3)]
    wanted = run_on(["reference"], model, given)
    for got, want in zip(run_on([cpu()], model, given), wanted, strict=True):
        for a, b in zip(got, want, strict=True):
            assert np.abs(a - b).max() <= FLOAT_SHARE * max(1.0, np.abs(b).max())


def test_branches_take_and_give_8_bit_values() -> None:
    b = ModelBuilder()
    chosen, x = b.input(DType.BOOL, (1,), "chosen"), b.input(DType.INT8, (2, 3), "x")
    targets = []
    for order, shape in (((0, 1), (2, 3)), ((1, 0), (3, 2))):
        inner = b.subgraph("branch")
        y = inner.input(DType.INT8, (2, 3))
        turn = inner.constant(np.array(order, np.int32))
        (z,) = inner.operation("TRANSPOSE", [y, turn], [(DType.INT8, shape)])
        back = inner.constant(np.array((2, 3), np.int32))
        made = inner.operation("RESHAPE", [z, back], [(DType.INT8, (2, 3))])
        targets.append(b.add_subgraph(inner.finish(made)))
    references = {"then_subgraph_index": targets[0], "else_subgraph_index": targets[1]}
    model = b.build(b.operation("IF", [chosen, x], [(DType.INT8, (2, 3))], references))
    values = np.array([[-128, -1, 0], [1, 2, 127]], np.int8)
    given = [[np.array([truth]), values] for truth in (True, False)]
    wanted = run_on(["reference"], model, given)
    for got, want in zip(run_on([cpu()], model, given, "exact"), wanted, strict=True):
        assert np.array_equal(got[0], want[0])


def test_branches_are_refused_with_the_reason_of_what_they_do() -> None:
    b = ModelBuilder()
    (answer,) = cpu().supported_operations(unheard_branches(b, "CUSTOM"))
    assert answer.reason.startswith("its CUSTOM:")
    assert answer.reason.endswith("is not written as ONNX")


def test_measured_run_reports_the_branch_as_one_kernel() -> None:
    with penstock.compile(
        branching(3, depth=0), devices=[cpu()], cache=False, num_threads=1
    ) as compiled:
        given = [np.array(True), *given_to(compiled.plan.model, 0)[1:]]
        (step,) = compiled.run(given, measure=True).receipt.steps
    assert "If" in {kernel.kernel for kernel in step.kernels}
