"""Each difference of docs/differences.md, on both sides: a test that fails here may be LiteRT
mended.
"""

from __future__ import annotations

import platform
from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")

from flatbuffers import flexbuffers

import penstock
from penstock.ir import DType, NDArray, Quantization
from tests.differential.apart import Crashed
from tests.differential.draw import Draw, Drawn
from tests.differential.judge import DEFAULT, DELEGATED, REFERENCE, Judge
from tests.differential.trial import run


def single(build: Callable[[Draw], object]) -> Drawn:
    draw = Draw(np.random.default_rng(0))
    build(draw)
    return draw.finish()


def q(scale: float, zero_point: int) -> Quantization:
    return Quantization((float(np.float32(scale)),), (zero_point,))


def outputs(drawn: Drawn, judge: Judge) -> tuple[NDArray, NDArray]:
    """Penstock's output and LiteRT's."""
    return run(penstock.load(drawn.file), drawn)[0], answered(drawn, judge)


def answered(drawn: Drawn, judge: Judge, resolver: str = REFERENCE) -> NDArray:
    """LiteRT's output; not a number where it reads beyond its memory and dies of that."""
    try:
        answer = judge.ask(drawn.file, drawn.inputs, resolver)
    except Crashed:
        return np.array([np.nan], np.float32)
    assert not isinstance(answer, str), answer
    return answer[0]


def test_bitcast_keeps_all_bits(judge: Judge) -> None:
    x = np.array([1.5, -2.25], np.float32)
    drawn = single(
        lambda d: d.operation(
            "BITCAST",
            [d.value(DType.FLOAT32, x.shape, array=x, constant=False)],
            [d.output(DType.INT4)],
        )
    )
    ours, theirs = outputs(drawn, judge)
    assert (ours.shape, theirs.shape) == ((2, 8), (2, 4))
    nibbles = (ours.astype(np.int8).view(np.uint8) & 15).astype(np.uint32)
    words = (nibbles << np.arange(0, 32, 4, dtype=np.uint32)).sum(axis=1, dtype=np.uint32)
    np.testing.assert_array_equal(words.view(np.float32), x)


def test_quotients_of_less_than_a_step_are_zero(judge: Judge) -> None:
    a, b = np.array([74], np.int8), np.array([59], np.int8)
    scales = [q(0.007611226, 85), q(0.10400735, -33), q(0.08526378, 13)]
    drawn = single(
        lambda d: d.operation(
            "DIV",
            [
                d.value(DType.INT8, (1,), s, array=x, constant=False)
                for x, s in zip((a, b), scales, strict=False)
            ],
            [d.output(DType.INT8, scales[2])],
        )
    )
    ours, theirs = outputs(drawn, judge)
    assert ours.tolist() == [13]
    assert theirs.tolist() != [13]


def test_integers_without_a_scale_are_compared_as_they_are(judge: Judge) -> None:
    pair = [np.array([1, 2, 3], np.int16), np.array([1, 3, 2], np.int16)]
    drawn = single(
        lambda d: d.operation(
            "NOT_EQUAL",
            [d.value(DType.INT16, (3,), array=x, constant=False) for x in pair],
            [d.output(DType.BOOL)],
        )
    )
    # LiteRT's answer depends on what memory held.
    ours, _ = outputs(drawn, judge)
    assert ours.tolist() == [False, True, True]


def test_padding_to_nothing_keeps_the_other_dimensions(judge: Judge) -> None:
    drawn = single(
        lambda d: d.operation(
            "STABLEHLO_PAD",
            [
                d.value(DType.FLOAT32, (2, 1), constant=False),
                d.value(DType.FLOAT32, (), array=np.array(5, np.float32), constant=False),
            ],
            [d.output(DType.FLOAT32)],
            edge_padding_low=(0, -1),
            edge_padding_high=(0, 0),
            interior_padding=(0, 0),
        )
    )
    ours, theirs = outputs(drawn, judge)
    assert (ours.shape, theirs.shape) == ((2, 0), (0, 0))


def test_single_elements_keep_their_rank(judge: Judge) -> None:
    drawn = single(
        lambda d: d.operation(
            "SELECT_V2",
            [
                d.value(dtype, shape, constant=False)
                for dtype, shape in (
                    (DType.BOOL, (1, 1)),
                    (DType.FLOAT32, (1,)),
                    (DType.FLOAT32, ()),
                )
            ],
            [d.output(DType.FLOAT32)],
        )
    )
    ours, theirs = outputs(drawn, judge)
    assert (ours.shape, theirs.shape) == ((1, 1), ())


def test_softmax_heeds_the_scale_of_its_output(judge: Judge) -> None:
    x = np.array([[1, 2, 3, 40]], np.int8)
    drawn = single(
        lambda d: d.operation(
            "SOFTMAX",
            [d.value(DType.INT8, x.shape, q(0.1, 0), array=x, constant=False)],
            [d.output(DType.INT16, q(1 / 32768, 0))],
            beta=1.0,
        )
    )
    ours, theirs = outputs(drawn, judge)
    default = judge.ask(drawn.file, drawn.inputs, DEFAULT)
    assert not isinstance(default, str), default
    np.testing.assert_array_equal(ours, default[0])
    assert theirs.tolist() != ours.tolist()


def test_litert_computes_transforms_of_length_one_wrongly(judge: Judge) -> None:
    x = np.array([[1], [2]], np.float32)
    drawn = single(
        lambda d: d.operation(
            "RFFT2D",
            [d.value(DType.FLOAT32, x.shape, array=x, constant=False), d.integers(2, 1)],
            [d.output(DType.COMPLEX64)],
        )
    )
    ours, theirs = outputs(drawn, judge)
    np.testing.assert_allclose(ours, np.fft.rfft2(x, (2, 1)).astype(np.complex64))
    assert not np.allclose(theirs, ours)


def test_a_vector_is_turned_like_a_row(judge: Judge) -> None:
    x = np.arange(16, dtype=np.float32)
    turned = []
    for shape in ((16,), (1, 16)):
        drawn = single(
            lambda d, shape=shape: d.operation(  # type: ignore[misc]  # bound by its default
                "CUSTOM:aeq.hadamard_rotation",
                [
                    d.value(
                        DType.FLOAT32, shape, array=x.reshape(shape), constant=False, static=True
                    )
                ],
                [d.output(DType.FLOAT32, None, shape)],
                custom_options=bytes(flexbuffers.Dumps({"hadamard_size": 8})),
            )
        )
        answer = answered(drawn, judge, DELEGATED)
        turned += [run(penstock.load(drawn.file), drawn)[0].reshape(-1), answer.reshape(-1)]
    np.testing.assert_allclose(turned[0], turned[2])
    np.testing.assert_allclose(turned[2], turned[3], atol=1e-5)
    assert turned[1].shape != turned[3].shape or not np.allclose(turned[1], turned[3])


@pytest.mark.parametrize("kind", ["SUM", "MEAN"])
def test_sum_and_mean_of_no_elements_are_zero(kind: str) -> None:
    """LiteRT's answer is what lay in memory, and so not compared."""
    drawn = single(
        lambda d: d.operation(
            kind,
            [d.value(DType.INT16, (2, 0), q(0.1, 0), constant=False, static=True), d.integers(1)],
            [d.output(DType.INT16, q(0.1, 0))],
            keep_dims=True,
        )
    )
    (ours,) = run(penstock.load(drawn.file), drawn)
    assert ours.tolist() == [[0], [0]]


def test_local_response_normalization_sums_both_sides_of_a_channel(judge: Judge) -> None:
    x = np.ones((1, 1, 1, 3), np.float32)
    drawn = single(
        lambda d: d.operation(
            "LOCAL_RESPONSE_NORMALIZATION",
            [d.value(DType.FLOAT32, x.shape, array=x, constant=False)],
            [d.output(DType.FLOAT32)],
            radius=1,
            bias=0.0,
            alpha=1.0,
            beta=1.0,
        )
    )
    ours, theirs = outputs(drawn, judge)
    np.testing.assert_allclose(ours.reshape(-1), [1 / 2, 1 / 3, 1 / 2], 1e-6)
    assert not np.allclose(theirs, ours)


def test_a_constant_product_is_rescaled(judge: Judge) -> None:
    x, made = np.array([[50]], np.int8), q(0.0117769, -12)
    answers = []
    for constant in (False, True):
        drawn = single(
            lambda d, constant=constant: d.operation(  # type: ignore[misc]  # bound by its default
                "REDUCE_PROD",
                [
                    d.value(DType.INT8, x.shape, q(0.0147697, 0), array=x, constant=constant),
                    d.integers(0),
                ],
                [d.output(DType.INT8, made)],
                keep_dims=False,
            )
        )
        answers.append([a.tolist() for a in outputs(drawn, judge)])
    assert answers == [[[51], [51]], [[51], [50]]]


def test_dimensions_without_an_offset_are_whole() -> None:
    """LiteRT reads past its operands, and is not asked."""
    x = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    drawn = single(
        lambda d: d.operation(
            "STRIDED_SLICE",
            [
                d.value(DType.FLOAT32, x.shape, array=x, constant=False),
                *(d.integers(v, v) for v in (0, 1, 1)),
            ],
            [d.output(DType.FLOAT32)],
            offset=True,
        )
    )
    (ours,) = run(penstock.load(drawn.file), drawn)
    np.testing.assert_array_equal(ours, x[:1, :1])


def test_floats_beyond_all_integers_saturate() -> None:
    """What LiteRT answers is undefined, and not compared."""
    x = np.array([3.4e38, -3.4e38], np.float32)
    drawn = single(
        lambda d: d.operation(
            "QUANTIZE",
            [d.value(DType.FLOAT32, x.shape, array=x, constant=False)],
            [d.output(DType.INT8, q(0.02, 3))],
        )
    )
    assert run(penstock.load(drawn.file), drawn)[0].tolist() == [127, -128]


@pytest.mark.skipif(
    platform.machine().lower() not in {"x86_64", "amd64"},
    reason="what a NaN does to LiteRT's four lanes is known of x86 alone",
)
@pytest.mark.parametrize(("row", "their"), [
    ([np.nan, 1, 2, 3], 0), ([1, 2, np.nan, 3], 1), ([np.nan, 1, 2], 2), ([2, np.nan, 1], 0),
])  # fmt: skip
def test_the_largest_beside_what_is_no_number(row: list[float], their: int, judge: Judge) -> None:
    x, axis = np.array(row, np.float32), np.array([0], np.int32)
    drawn = single(
        lambda d: d.operation(
            "ARG_MAX",
            [
                d.value(DType.FLOAT32, x.shape, array=x, constant=False),
                d.value(DType.INT32, axis.shape, array=axis, constant=True),
            ],
            [d.output(DType.INT32)],
            output_type="INT32",
        )
    )
    ours, theirs = outputs(drawn, judge)
    assert (ours.item(), theirs.item()) == (int(np.nanargmax(x)), their)


def test_sizes_of_a_slice_have_the_type_of_its_beginnings_to_litert(judge: Judge) -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    drawn = single(
        lambda d: d.operation(
            "SLICE",
            [
                d.value(DType.FLOAT32, x.shape, array=x, constant=False),
                d.value(DType.INT32, (3,), array=np.array([0, 0, 0], np.int32), constant=False),
                d.value(DType.INT64, (3,), array=np.array([-1, -1, 1], np.int64), constant=False),
            ],
            [d.output(DType.FLOAT32)],
        )
    )
    ours, theirs = outputs(drawn, judge)
    np.testing.assert_array_equal(ours, x[:, :, :1])
    assert theirs.shape == (2, 3, 4)
