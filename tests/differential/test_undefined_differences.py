"""The differences of docs/differences.md where LiteRT's C++ is undefined, or reads parameters that
say nothing: both sides.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")

import penstock
from penstock.ir import DType, NDArray, Quantization
from tests.differential.draw import Draw, Value
from tests.differential.judge import Judge
from tests.differential.trial import Outcome, examine, run
from tests.support_litert import q

F32, I8, U8, I32, BOOL = DType.FLOAT32, DType.INT8, DType.UINT8, DType.INT32, DType.BOOL


@pytest.fixture
def draw() -> Draw:
    return Draw(np.random.default_rng(0), zeros=False)


def known(draw: Draw, judge: Judge) -> tuple[NDArray, NDArray]:
    """Penstock's first output and LiteRT's, which differ as the record says."""
    drawn = draw.finish()
    assert examine(drawn, judge).outcome is Outcome.KNOWN, drawn.listing
    theirs = judge.ask(drawn.file, drawn.inputs)
    assert not isinstance(theirs, str)
    return run(penstock.load(drawn.file), drawn)[0], theirs[0]


def given(
    draw: Draw, array: NDArray, quantization: Quantization | None = None, *, constant: bool = False
) -> Value:
    dtype = DType(array.dtype.name)
    return draw.value(dtype, array.shape, quantization, array=array, constant=constant)


def test_floats_that_no_integer_holds_saturate(draw: Draw, judge: Judge) -> None:
    x = given(draw, np.array([3.4e38, np.nan, -np.inf], np.float32))
    draw.operation("QUANTIZE", [x], [draw.output(I8, q(0.02, 5))])
    ours, theirs = known(draw, judge)
    assert ours.tolist() == [127, 5, -128]
    assert theirs.tolist() == [-128, -128, -128]


def test_joined_values_beyond_32_bits_saturate(draw: Draw, judge: Judge) -> None:
    parts = [
        given(draw, np.array([171], np.uint8), q(1e5)),
        given(draw, np.array([1], np.uint8), q(1e-6, 2)),
    ]
    draw.operation("CONCATENATION", parts, [draw.output(U8, q(1e-6, 2))], axis=0)
    ours, theirs = known(draw, judge)
    assert ours.tolist() == [255, 1]
    assert theirs.tolist() == [0, 1]


@pytest.mark.parametrize("asymmetric", [False, True])
def test_rows_that_are_not_finite_make_rows_that_are_no_numbers(
    draw: Draw, judge: Judge, *, asymmetric: bool
) -> None:
    x = given(draw, np.array([[1, np.nan], [1, 2]], np.float32))
    w = given(draw, np.array([[1, 2], [3, 4]], np.int8), q(0.1), constant=True)
    draw.operation(
        "FULLY_CONNECTED", [x, w], [draw.output(F32)], asymmetric_quantize_inputs=asymmetric
    )
    ours, theirs = known(draw, judge)
    assert np.isnan(ours[0]).all()
    assert not np.isnan(theirs[0]).any()
    np.testing.assert_allclose(ours[1], theirs[1], 1e-5)


def test_scales_of_1_and_more_are_compared(draw: Draw, judge: Judge) -> None:
    a = given(draw, np.array([103], np.int8), q(30.7476, 93))
    b = given(draw, np.array([-54], np.int8), q(5.3774, -97))
    draw.operation("GREATER", [a, b], [draw.output(BOOL)])
    ours, theirs = known(draw, judge)
    assert ours.tolist() == [True]
    assert theirs.tolist() == [False]


def test_differences_of_far_smaller_scale_saturate(draw: Draw, judge: Judge) -> None:
    a = given(draw, np.array([255], np.uint8), q(0.0156))
    b = given(draw, np.array([1], np.uint8), q(0.0093))
    draw.operation("SUB", [a, b], [draw.output(U8, q(1e-8, 2))])
    ours, theirs = known(draw, judge)
    assert ours.tolist() == [255]
    assert theirs.tolist() == [3]


def test_space_to_batch_fills_bool_with_false(draw: Draw, judge: Judge) -> None:
    x = given(draw, np.array([[[[False]]]]), q(0.5, 3))
    pads = draw.constant(np.array([[1, 0], [0, 0]], np.int32))
    draw.operation(
        "SPACE_TO_BATCH_ND", [x, draw.integers(1, 1), pads], [draw.output(BOOL, q(0.5, 3))]
    )
    ours, theirs = known(draw, judge)
    assert ours.reshape(-1).tolist() == [False, False]
    assert theirs.reshape(-1).tolist() == [True, False]
