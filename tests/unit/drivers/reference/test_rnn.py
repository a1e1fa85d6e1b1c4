"""Basic recurrent cells against LiteRT's kernels, over steps and successive runs."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.ir import DType, Operand
from penstock.ir.operand import OMITTED
from tests.support_litert import kernel_of, refusal
from tests.unit.drivers.reference import support_recurrent
from tests.unit.drivers.reference.support_cells import (
    REAL,
    SIZES,
    Sizes,
    both_case,
    sequence_case,
    step_case,
)

WEIGHTS = [(REAL, False), (DType.INT8, False), (DType.INT8, True), (DType.UINT8, True)]
SIZE, STEPS = SIZES.size, SIZES.steps


@pytest.mark.parametrize(("weights", "asymmetric"), WEIGHTS)
@pytest.mark.parametrize(
    "activation", ["NONE", "RELU", "RELU6", "RELU_N1_TO_1", "TANH", "SIGN_BIT"]
)
def test_rnn_agrees_with_litert(activation: str, weights: DType, asymmetric: bool) -> None:
    rng = np.random.default_rng(1)
    case = step_case(
        rng, weights, fused_activation_function=activation, asymmetric_quantize_inputs=asymmetric
    )
    support_recurrent.compare(case, case.feeds(rng, 4, reach=2.0))


@pytest.mark.parametrize(("weights", "asymmetric"), WEIGHTS)
@pytest.mark.parametrize("time_major", [False, True])
def test_unidirectional_rnn_agrees_with_litert(
    time_major: bool, weights: DType, asymmetric: bool
) -> None:
    rng = np.random.default_rng(2)
    case = sequence_case(
        rng,
        weights,
        time_major=time_major,
        fused_activation_function="TANH",
        asymmetric_quantize_inputs=asymmetric,
    )
    support_recurrent.compare(case, case.feeds(rng, 3, reach=2.0))


@pytest.mark.parametrize(
    ("weights", "time_major", "auxiliary", "linked", "steps", "merge"),
    [
        (REAL, False, 0, False, STEPS, False),
        (REAL, False, 0, False, STEPS, True),
        (REAL, True, 0, False, STEPS, False),
        (REAL, True, 0, False, STEPS, True),
        (REAL, False, 6, False, STEPS, True),
        (REAL, True, SIZE, False, STEPS, False),
        (REAL, True, SIZE, True, STEPS, True),
        (DType.INT8, False, 0, False, STEPS, True),
        (DType.INT8, False, SIZE, False, STEPS, False),
        (DType.INT8, False, SIZE, False, STEPS, True),
        (DType.INT8, True, 6, False, 1, False),
        (DType.INT8, True, SIZE, True, 1, False),
    ],
)
def test_bidirectional_rnn_agrees_with_litert(
    weights: DType, time_major: bool, auxiliary: int, linked: bool, steps: int, merge: bool
) -> None:
    rng = np.random.default_rng(3)
    case = both_case(
        rng,
        weights,
        Sizes(steps=steps),
        time_major=time_major,
        merge=merge,
        auxiliary=auxiliary,
        linked=linked,
        fused_activation_function="TANH",
    )
    support_recurrent.compare(case, case.feeds(rng, 3, reach=2.0))


def test_rnn_computes_float16_in_float32() -> None:
    rng = np.random.default_rng(4)
    case = sequence_case(rng, REAL, time_major=True, fused_activation_function="RELU")
    given = [
        support_recurrent.values(rng, DType.FLOAT16, support_recurrent.shape_of(o))
        for o in case.operands(DType.FLOAT16)
    ]
    results = []
    for dtype in (DType.FLOAT16, REAL):
        inputs = case.operands(dtype)
        run = kernel_of(case.kind, inputs, [inputs[0], inputs[4]], **case.attributes)
        results.append(run([a.astype(dtype.numpy) for a in given]))
    for half, single in zip(*results, strict=True):
        assert half.dtype == np.float16
        np.testing.assert_array_equal(half, single.astype(np.float16))


def test_rnn_refuses_unsupported_types() -> None:
    inputs = [Operand(DType.INT8, (2, 4))] * 5
    assert "RNN of" in refusal("RNN", inputs, inputs[:2])
    doubtful = [Operand(REAL, (2, 4)), Operand(DType.INT16, (5, 4)), *[Operand(REAL, (5, 5))] * 3]
    assert "int16" in refusal("RNN", doubtful, doubtful[:2])


def test_bidirectional_rnn_refuses_auxiliary_weights_without_the_input() -> None:
    case = both_case(np.random.default_rng(5), REAL, time_major=True, auxiliary=SIZE)
    inputs = case.operands(REAL)
    inputs[9] = OMITTED
    assert "without input 9" in refusal(case.kind, inputs, inputs[:4], **case.attributes)


@pytest.mark.parametrize("weights", [REAL, DType.INT8])
def test_bidirectional_rnn_equals_two_unidirectional_ones(weights: DType) -> None:
    """What LiteRT's kernels get wrong is what two cells make of their own inputs."""
    rng = np.random.default_rng(6)
    case = both_case(
        rng, weights, time_major=True, auxiliary=SIZE, linked=True, fused_activation_function="TANH"
    )
    (feed,) = case.feeds(rng, 1, reach=2.0)
    ((ahead, back),) = support_recurrent.run_reference(case.model(), [feed])
    for source, start, wanted in ((feed[0], 1, ahead), (feed[1][::-1], 5, back[::-1])):
        one = support_recurrent.Case(
            "UNIDIRECTIONAL_SEQUENCE_RNN",
            [case.inputs[0], *case.inputs[start : start + 4]],
            [support_recurrent.Tensor(REAL, wanted.shape)],
            {"time_major": True, "fused_activation_function": "TANH"},
        )
        ((found,),) = support_recurrent.run_reference(one.model(), [[np.ascontiguousarray(source)]])
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("weights", [REAL, DType.INT8])
@pytest.mark.parametrize(("auxiliary", "linked"), [(6, False), (SIZE, True)])
def test_rnn_results_do_not_depend_on_the_order_of_batch_and_time(
    weights: DType, auxiliary: int, linked: bool
) -> None:
    results = []
    for time_major in (True, False):
        rng = np.random.default_rng(7)
        case = both_case(
            rng,
            weights,
            time_major=time_major,
            auxiliary=auxiliary,
            linked=linked,
            fused_activation_function="TANH",
        )
        feed = [
            rng.uniform(-1, 1, (STEPS, SIZES.batch, n)).astype(np.float32)
            for n in (SIZE, auxiliary)
        ]
        if not time_major:
            feed = [np.ascontiguousarray(np.swapaxes(f, 0, 1)) for f in feed]
        (outputs,) = support_recurrent.run_reference(case.model(), [feed])
        results.append(outputs if time_major else [np.swapaxes(o, 0, 1) for o in outputs])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
