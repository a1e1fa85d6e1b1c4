"""Where LiteRT computes recurrent operations wrongly (docs/differences.md), on both sides: a test
that fails here may be LiteRT mended. What would write outside LiteRT's own arrays is run by
Penstock alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from penstock.ir import DType, NDArray
from tests.unit.drivers.reference import support_lstm
from tests.unit.drivers.reference.support_cells import SIZES, both_case
from tests.unit.drivers.reference.support_recurrent import (
    Case,
    Constant,
    Item,
    run_litert,
    run_reference,
)

REAL, INT8 = DType.FLOAT32, DType.INT8
SIZE = SIZES.size


def sides(case: Case, runs: int = 1) -> tuple[list[NDArray], list[NDArray]]:
    """Penstock's outputs of the last of *runs*, and LiteRT's."""
    feeds = case.feeds(np.random.default_rng(0), runs)
    return run_reference(case.model(), feeds)[-1], run_litert(case.model(), feeds)[-1]


def differ(ours: Sequence[NDArray], theirs: Sequence[NDArray]) -> bool:
    return any(
        np.abs(a.astype(np.float64) - b.astype(np.float64)).max() > 1e-3
        for a, b in zip(ours, theirs, strict=True)
    )


def with_inputs(case: Case, changed: Mapping[int, Item]) -> Case:
    inputs = [changed.get(at, item) for at, item in enumerate(case.inputs)]
    return replace(case, inputs=inputs)


@pytest.mark.parametrize(
    ("weights", "time_major", "auxiliary", "linked"),
    [
        (REAL, False, SIZE, True),
        (INT8, False, SIZE, True),
        (REAL, True, 6, False),
        (INT8, False, 6, False),
        (INT8, True, 0, False),
    ],
)
def test_bidirectional_rnn_differs_from_litert_as_documented(
    weights: DType, time_major: bool, auxiliary: int, linked: bool
) -> None:
    """Penstock is right whichever dimension comes first (test_rnn.py)."""
    case = both_case(
        np.random.default_rng(1),
        weights,
        time_major=time_major,
        auxiliary=auxiliary,
        linked=linked,
        fused_activation_function="TANH",
    )
    assert differ(*sides(case))


@pytest.mark.parametrize("kind", ["rnn", "lstm"])
@pytest.mark.parametrize("weights", [REAL, INT8])
@pytest.mark.parametrize("time_major", [False, True])
def test_bidirectional_merged_outputs_are_side_by_side(
    kind: str, weights: DType, time_major: bool
) -> None:
    results: list[list[NDArray]] = []
    for merge in (False, True):
        rng = np.random.default_rng(2)
        if kind == "rnn":
            case = both_case(rng, weights, time_major=time_major, merge=merge)
        else:
            case = support_lstm.bidirectional_case(
                support_lstm.Form(time_major=time_major), rng, weights, merge=merge
            )
        feeds = case.feeds(np.random.default_rng(3), 2)
        results.append([np.concatenate(r, axis=2) for r in run_reference(case.model(), feeds)])
    for apart, merged in zip(*results, strict=True):
        np.testing.assert_array_equal(apart, merged)


@pytest.mark.parametrize("weights", [REAL, INT8])
def test_lstm_without_activation_outputs_the_cell_state(weights: DType) -> None:
    """The first step from zeros is h = o * (i * g)."""
    case = support_lstm.real_case(support_lstm.Form(kind="LSTM"), np.random.default_rng(4), weights)
    case.attributes["fused_activation_function"] = "NONE"
    ours, theirs = sides(case)
    assert differ(ours, theirs)
    if weights is REAL:
        (feed,) = case.feeds(np.random.default_rng(0), 1)
        arrays = [i.value if isinstance(i, Constant) else feed[0] for i in case.inputs]
        gates = [feed[0] @ arrays[1 + g].T + arrays[12 + g] for g in range(4)]
        admit, shown = (1 / (1 + np.exp(-gates[g])) for g in (0, 3))
        np.testing.assert_allclose(ours[0], shown * admit * gates[2], rtol=1e-5, atol=1e-6)


def test_lstm_peepholes_use_every_cell() -> None:
    """Without recurrent weights the cells do not depend on the projection: nor does what one output
    shows.
    """
    form = support_lstm.Form(kind="LSTM", peephole=True, outputs=6)
    wide = support_lstm.integer_case(form, np.random.default_rng(5))
    none = {
        at: Constant(np.zeros_like(item.value), item.quantization)
        for at in range(5, 9)
        if isinstance(item := wide.inputs[at], Constant)
    }
    shown = 3
    projection, target, state = wide.inputs[16], wide.outputs[0], wide.inputs[18]
    assert isinstance(projection, Constant)
    narrow = {at: Constant(item.value[:, :shown], item.quantization) for at, item in none.items()}
    few: dict[int, Item] = {
        **narrow,
        16: Constant(projection.value[:shown], projection.quantization),
        18: replace(state, shape=(2, shown)) if not isinstance(state, Constant | None) else None,
    }
    case = replace(with_inputs(wide, few), outputs=[replace(target, shape=(2, shown))])
    ours, theirs = sides(case)
    every, judged = sides(with_inputs(wide, dict(none)))
    np.testing.assert_array_equal(every[0], judged[0])
    np.testing.assert_array_equal(ours[0], every[0][:, :shown])
    assert differ(ours, theirs)


def test_output_gate_of_the_12_intermediate_lstm_has_its_own_parameters() -> None:
    """The zero point of a product of zero weights takes no part."""
    results = []
    for zero_point in (-15, 19):
        case = support_lstm.narrow_case(np.random.default_rng(6), tame=False)
        weights = case.inputs[8]
        assert isinstance(weights, Constant)
        zeros = Constant(np.zeros_like(weights.value), weights.quantization)
        points = case.attributes["intermediate_zero_points"]
        assert isinstance(points, tuple)
        case = with_inputs(case, {8: zeros})
        case.attributes["intermediate_zero_points"] = (*points[:11], zero_point)
        results.append(sides(case, runs=3)[0][0])
    np.testing.assert_array_equal(results[0], results[1])
    assert differ(*sides(support_lstm.narrow_case(np.random.default_rng(6), tame=False), runs=3))


def test_twelve_intermediate_results_with_an_input_gate_or_peepholes() -> None:
    """LiteRT leaves both out without a word."""
    full = support_lstm.narrow_case(np.random.default_rng(7), coupled=False)
    assert differ(*sides(full))
    absent: dict[int, Item] = dict.fromkeys((1, 5, 12, 20))
    coupled = sides(with_inputs(full, absent))
    np.testing.assert_array_equal(coupled[0][0], coupled[1][0])
    np.testing.assert_array_equal(coupled[1][0], sides(full)[1][0])
    assert differ(*sides(support_lstm.narrow_case(np.random.default_rng(8), peephole=True)))
