"""Sequences that are convolved as images of one row: right, whatever stands between, and never
turned for nothing.
"""

from __future__ import annotations

import numpy as np
import pytest

from penstock.drivers.onnxruntime.wire import build
from penstock.ir import Model, ModelBuilder
from tests.golden.comparison import FLOAT_SHARE
from tests.support_loops import F32
from tests.support_onnxruntime import cpu, needs_onnxruntime
from tests.support_operations import run_on

pytestmark = needs_onnxruntime

STEPS, CHANNELS = 6, 4
SEQUENCE = (1, STEPS, CHANNELS)
IMAGE = (1, 1, STEPS, CHANNELS)
BETWEEN = ("RELU", "TANH", "SQUARE", "ADD", "itself", "constant", "slice", "turn", "mean", "join")


def convolved(b: ModelBuilder, x: int, rng: np.random.Generator) -> int:
    """A sequence through a convolution of three steps, and back to a sequence."""
    axis = b.constant(np.array(1, np.int32))
    (image,) = b.operation("EXPAND_DIMS", [x, axis], [(F32, IMAGE)])
    weights = b.constant(rng.standard_normal((CHANNELS, 1, 3, CHANNELS)).astype(np.float32))
    attributes = {"padding": "SAME", "stride_w": 1, "stride_h": 1}
    made = b.operation("CONV_2D", [image, weights, None], [(F32, IMAGE)], attributes)  # type: ignore[arg-type]  # any attributes
    return b.operation("SQUEEZE", made, [(F32, SEQUENCE)], {"squeeze_dims": (1,)})[0]


def between(b: ModelBuilder, kind: str, x: int, rng: np.random.Generator) -> int:
    """*x* through something that keeps its shape."""
    flat = (1, CHANNELS, STEPS)
    match kind:
        case "ADD":
            (y,) = b.operation("RELU", [x], [(F32, SEQUENCE)])
            return b.operation("ADD", [x, y], [(F32, SEQUENCE)])[0]
        case "itself":
            return b.operation("MUL", [x, x], [(F32, SEQUENCE)])[0]
        case "constant":
            k = b.constant(rng.standard_normal(CHANNELS).astype(np.float32))
            return b.operation("MUL", [x, k], [(F32, SEQUENCE)])[0]
        case "slice":
            begin, size = (b.constant(np.array(v, np.int32)) for v in ((0, 2, 1), (1, 3, 2)))
            (y,) = b.operation("SLICE", [x, begin, size], [(F32, (1, 3, 2))])
            pads = b.constant(np.array([[0, 0], [2, 1], [1, 1]], np.int32))
            return b.operation("PAD", [y, pads], [(F32, SEQUENCE)])[0]
        case "turn":
            order = b.constant(np.array((0, 2, 1), np.int32))
            (y,) = b.operation("TRANSPOSE", [x, order], [(F32, flat)])
            (y,) = b.operation("ABS", [y], [(F32, flat)])
            return b.operation("TRANSPOSE", [y, order], [(F32, SEQUENCE)])[0]
        case "mean":
            axis = b.constant(np.array([1], np.int32))
            shapes = [(F32, (1, 1, CHANNELS))]
            (y,) = b.operation("MEAN", [x, axis], shapes, {"keep_dims": True})
            return b.operation("SUB", [x, y], [(F32, SEQUENCE)])[0]
        case "join":
            (y,) = b.operation("CONCATENATION", [x, x], [(F32, (1, 12, CHANNELS))], {"axis": 1})
            begin, size = (b.constant(np.array(v, np.int32)) for v in ((0, 3, 0), SEQUENCE))
            return b.operation("SLICE", [y, begin, size], [(F32, SEQUENCE)])[0]
    return b.operation(kind, [x], [(F32, SEQUENCE)])[0]


def chain(kinds: list[str], seed: int = 0) -> Model:
    rng = np.random.default_rng(seed)
    b = ModelBuilder()
    x = convolved(b, b.input(F32, SEQUENCE, "x"), rng)
    for kind in kinds:
        x = between(b, kind, x, rng)
    y = convolved(b, x, rng)
    return b.build([y, x])


@pytest.mark.parametrize("seed", range(20))
def test_operations_between_convolutions_agree_with_the_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = chain([BETWEEN[i] for i in rng.integers(0, len(BETWEEN), 1 + seed % 4)], seed)
    given = [[rng.standard_normal(SEQUENCE).astype(np.float32)]]
    (got,), (wanted,) = (run_on(d, model, given) for d in ([cpu()], ["reference"]))
    for a, b in zip(got, wanted, strict=True):
        assert a.shape == b.shape
        assert np.abs(a - b).max() <= FLOAT_SHARE * max(1.0, np.abs(b).max())


@pytest.mark.parametrize("kind", BETWEEN)
def test_single_operation_between_convolutions_agrees_with_the_reference(kind: str) -> None:
    model = chain([kind])
    given = [[np.random.default_rng(5).standard_normal(SEQUENCE).astype(np.float32)]]
    (got,), (wanted,) = (run_on(d, model, given) for d in ([cpu()], ["reference"]))
    for a, b in zip(got, wanted, strict=True):
        assert np.abs(a - b).max() <= FLOAT_SHARE * max(1.0, np.abs(b).max())


def test_activations_stand_right_behind_their_convolutions() -> None:
    b = ModelBuilder()
    rng = np.random.default_rng(0)
    x = between(b, "RELU", convolved(b, b.input(F32, SEQUENCE, "x"), rng), rng)
    model = b.build([between(b, "RELU", convolved(b, x, rng), rng)])
    kinds = [node.kind for node in build(model).nodes]
    assert kinds[-6:] == ["Conv", "Relu", "Conv", "Relu", "Reshape", "Transpose"]
