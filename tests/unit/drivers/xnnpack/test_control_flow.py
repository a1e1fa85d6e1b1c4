"""Branches, which LiteRT runs as further subgraphs, and loops of known rounds, which it is given
written out.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from penstock.hal import ExecutionConfig, HostMemory, PrepareConfig, Request
from penstock.ir import AttributeValue, DType, Model, ModelBuilder
from penstock.ir.builder import SubgraphBuilder
from penstock.testing.contract.cases import looping
from tests.golden.comparison import FLOAT_SHARE
from tests.support_loops import F32, SHAPE, branching, given_to, scanning
from tests.support_operations import run_on
from tests.support_xnnpack import device, needs_litert

pytestmark = needs_litert

Branch = Callable[[SubgraphBuilder, int], list[int]]
DISTINCT = ("computed", "handed", "constant")


def deciding(
    make: Branch, shape: tuple[int, ...] = SHAPE, condition: tuple[int, ...] = ()
) -> Model:
    """An IF of *make*, or of what it is given."""
    b = ModelBuilder()
    chosen, x = b.input(DType.BOOL, condition, "chosen"), b.input(F32, shape, "x")
    first = b.subgraph("then")
    made = make(first, first.input(F32, shape))
    then = b.add_subgraph(first.finish(made))
    second = b.subgraph("else")
    otherwise = b.add_subgraph(second.finish([second.input(F32, shape)]))
    references = {"then_subgraph_index": then, "else_subgraph_index": otherwise}
    return b.build(b.operation("IF", [chosen, x], [(F32, shape)], references))


def compare(model: Model) -> None:
    (*answers,) = device().supported_operations(model)
    assert all(answer.supported for answer in answers), answers
    given = [given_to(model, seed) for seed in range(4)]
    for at, each in enumerate(given):
        each[0] = np.full(each[0].shape, at % 2 == 0) if each[0].dtype == np.bool_ else each[0]
    wanted = run_on(["reference"], model, given)
    for got, want in zip(run_on(["xnnpack"], model, given), wanted, strict=True):
        for a, b in zip(got, want, strict=True):
            assert np.abs(a - b).max() <= FLOAT_SHARE * max(1.0, np.abs(b).max())


@pytest.mark.parametrize("seed", range(16))
def test_branches_agree_with_the_reference(seed: int) -> None:
    compare(branching(seed, depth=seed % 3, others=DISTINCT))


@pytest.mark.parametrize("seed", [1, 2, 4, 6])
def test_loops_of_known_rounds_agree_with_the_reference(seed: int) -> None:
    compare(scanning(1 + seed % 4, seed, grids=False))


def test_layers_in_branches_get_the_operands_that_litert_needs() -> None:
    """A convolution without a bias, which LiteRT's kernels do not take."""
    shape = (1, 4, 4, 3)
    filters = np.random.default_rng(0).standard_normal((3, 1, 1, 3)).astype(np.float32)

    def convolve(b: SubgraphBuilder, x: int) -> list[int]:
        attributes: dict[str, AttributeValue] = {"padding": "SAME", "stride_w": 1, "stride_h": 1}
        weights = b.constant(filters)
        return b.operation("CONV_2D", [x, weights, None], [(F32, shape)], attributes)

    compare(deciding(convolve, shape))


@pytest.mark.parametrize("condition", [(), (1,)])
def test_run_writes_its_outputs_whichever_branch_is_taken(condition: tuple[int, ...]) -> None:
    model = deciding(lambda b, x: b.operation("RELU", [x], [(F32, SHAPE)]), condition=condition)
    prepared = device().prepare_model(model, PrepareConfig(num_threads=1))
    x = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)
    for truth in (True, False, False, True):
        out = np.full(SHAPE, np.nan, np.float32)
        given = HostMemory(np.full(condition, truth)), HostMemory(x)
        prepared.execute(Request(given, (HostMemory(out),)), ExecutionConfig())
        assert np.array_equal(out, np.maximum(x, 0) if truth else x)


def refusal(model: Model) -> str:
    (answer,) = device().supported_operations(model)
    assert not answer.supported
    return answer.reason


def test_control_flow_is_refused_by_name() -> None:
    unheard = deciding(
        lambda b, x: b.operation("CUSTOM", [x], [(F32, SHAPE)], {"custom_code": "of nobody"})
    )
    assert refusal(unheard).startswith("its CUSTOM:of nobody: CUSTOM:of nobody is not among")
    assert "is of constants alone" in refusal(deciding(_of_constants))
    assert "not known, or differ" in refusal(_of_unknown_shape())
    assert "its rounds are known only when it runs" in refusal(looping(1.0))


def test_a_branch_that_gives_one_value_twice_is_refused() -> None:
    model = branching(0, depth=0, others=("same",))
    (answer,) = [
        answer
        for operation, answer in zip(
            model.operations, device().supported_operations(model), strict=True
        )
        if operation.type == "IF"
    ]
    assert answer.reason == "a branch outputs one value twice, which LiteRT confuses"


def _of_constants(b: SubgraphBuilder, _: int) -> list[int]:
    return b.operation("RELU", [b.constant(np.ones(SHAPE, np.float32))], [(F32, SHAPE)])


def _of_unknown_shape() -> Model:
    b = ModelBuilder()
    chosen, x = b.input(DType.BOOL, (), "chosen"), b.input(F32, (None, 3), "x")
    targets = []
    for kind in ("RELU", "TANH"):
        inner = b.subgraph(kind)
        y = inner.input(F32, (None, 3))
        targets.append(b.add_subgraph(inner.finish(inner.operation(kind, [y], [(F32, (None, 3))]))))
    references = {"then_subgraph_index": targets[0], "else_subgraph_index": targets[1]}
    return b.build(b.operation("IF", [chosen, x], [(F32, (None, 3))], references))
