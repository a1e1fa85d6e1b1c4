"""What a network puts around convolutions and OpenVINO does without: zeros before, dimensions of 1
and turns behind.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

from penstock.drivers.openvino.compiling import build_graph
from penstock.drivers.openvino.engine import core
from penstock.ir import DType, Model, ModelBuilder, NDArray, Quantization
from tests.golden.comparison import FLOAT_SHARE
from tests.support_openvino import cpu, needs_openvino
from tests.support_operations import F32, run_on

pytestmark = needs_openvino

IMAGE: Final = (1, 6, 7, 3)
AROUND: Final = ((0, 0), (1, 2), (0, 1), (0, 0))
STEPS: Final[dict[str, Any]] = {"stride_h": 2, "stride_w": 1}


def drawn(*shape: int) -> NDArray:
    values: NDArray = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    return values


def padded(
    padding: str, pads: tuple[tuple[int, int], ...] = AROUND, *, shown: bool = False
) -> Model:
    """A convolution and a depthwise one over the same padded image, which is an output too where it
    is *shown*.
    """
    b = ModelBuilder()
    x = b.input(F32, IMAGE, "x")
    shape = tuple(d + sum(p) for d, p in zip(IMAGE, pads, strict=True))
    (wide,) = b.operation("PAD", [x, b.constant(np.array(pads, np.int32))], [(F32, shape)])
    rows, columns = shape[1:3] if padding == "SAME" else (shape[1] - 2, shape[2] - 2)
    out = (-(-rows // 2), columns)
    attributes = {**STEPS, "padding": padding}
    weights, slopes = b.constant(drawn(5, 3, 3, 3), "w"), b.constant(drawn(1, 3, 3, 3), "s")
    (conv,) = b.operation("CONV_2D", [wide, weights, None], [(F32, (1, *out, 5))], attributes)
    (depthwise,) = b.operation(
        "DEPTHWISE_CONV_2D", [wide, slopes, None], [(F32, (1, *out, 3))], attributes
    )
    return b.build([conv, depthwise, wide] if shown else [conv, depthwise])


def kinds(model: Model) -> list[str]:
    return [node.get_type_name() for node in build_graph(model).finish("x").get_ordered_ops()]


@pytest.mark.parametrize("shown", [False, True])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_a_convolution_pads_by_itself(padding: str, shown: bool) -> None:
    model = padded(padding, shown=shown)
    assert ("Pad" in kinds(model)) == shown
    (ours,), (wanted,) = (
        run_on([d], model, [[drawn(*IMAGE)]], "faithful") for d in (cpu(), "reference")
    )
    for got, expected in zip(ours, wanted, strict=True):
        assert np.abs(got - expected).max() <= FLOAT_SHARE * np.abs(expected).max()


def test_channels_that_are_added_stay_a_padding() -> None:
    b = ModelBuilder()
    x = b.input(F32, (1, 6, 7, 2), "x")
    pads = b.constant(np.array(((0, 0), (1, 1), (0, 0), (0, 1)), np.int32))
    (wide,) = b.operation("PAD", [x, pads], [(F32, (1, 8, 7, 3))])
    w = b.constant(drawn(5, 1, 1, 3), "w")
    attributes: dict[str, Any] = {"stride_h": 1, "stride_w": 1, "padding": "VALID"}
    model = b.build(b.operation("CONV_2D", [wide, w, None], [(F32, (1, 8, 7, 5))], attributes))
    assert "Pad" in kinds(model)
    given = [[drawn(1, 6, 7, 2)]]
    ((ours,),), ((wanted,),) = (run_on([d], model, given) for d in (cpu(), "reference"))
    assert np.abs(ours - wanted).max() <= FLOAT_SHARE * np.abs(wanted).max()


def test_quantised_images_are_padded_with_their_zero() -> None:
    b, rng = ModelBuilder(), np.random.default_rng(1)
    grid, out = Quantization((0.05,), (3,)), Quantization((0.11,), (4,))
    x = b.input(DType.INT8, IMAGE, "x", grid)
    pads = b.constant(np.array(AROUND, np.int32))
    (wide,) = b.operation("PAD", [x, pads], [(DType.INT8, (1, 9, 8, 3), grid)])
    weights = rng.integers(-127, 128, (5, 3, 3, 3)).astype(np.int8)
    w = b.constant(weights, "w", Quantization((0.01,), (0,)))
    attributes: dict[str, Any] = {"stride_h": 1, "stride_w": 1, "padding": "VALID"}
    model = b.build(
        b.operation("CONV_2D", [wide, w, None], [(DType.INT8, (1, 7, 6, 5), out)], attributes)
    )
    assert "Pad" not in kinds(model)
    given = [[rng.integers(-128, 128, IMAGE).astype(np.int8)]]
    ((ours,),), ((wanted,),) = (run_on([d], model, given, "relaxed") for d in (cpu(), "reference"))
    assert np.abs(ours.astype(int) - wanted.astype(int)).max() <= 1


@pytest.mark.parametrize(
    ("image", "shape", "order", "turns"),
    [
        ((1, 1, 9, 3), (1, 9, 4), (0, 2, 1), 0),
        ((1, 9, 1, 3), (9, 4), (1, 0), 0),
        ((2, 1, 9, 3), (2, 1, 1, 9, 4), (0, 1, 2, 4, 3), 0),
        ((1, 1, 9, 3), (9, 4), (0, 1), 1),
        ((1, 1, 1, 3), (1, 4), (0, 1), 0),
        ((1, 9, 2, 3), (9, 8), (1, 0), 1),
    ],
)
def test_an_image_is_turned_behind_a_reshape_by_dimensions_of_1(
    image: tuple[int, ...], shape: tuple[int, ...], order: tuple[int, ...], turns: int
) -> None:
    """A convolution, its image in another rank, and that turned: as it lies, where there is nothing
    but 1 between.
    """
    b = ModelBuilder()
    x, w = b.input(F32, image, "x"), b.constant(drawn(4, 1, 1, 3), "w")
    attributes: dict[str, Any] = {"stride_h": 1, "stride_w": 1, "padding": "SAME"}
    (y,) = b.operation("CONV_2D", [x, w, None], [(F32, (*image[:3], 4))], attributes)
    (flat,) = b.operation("RESHAPE", [y, b.constant(np.array(shape, np.int32))], [(F32, shape)])
    out = tuple(shape[axis] for axis in order)
    permutation = b.constant(np.array(order, np.int32), "order")
    model = b.build(b.operation("TRANSPOSE", [flat, permutation], [(F32, out)]))
    ((ours,),), ((wanted,),) = (run_on([d], model, [[drawn(*image)]]) for d in (cpu(), "reference"))
    assert np.abs(ours - wanted).max() <= FLOAT_SHARE * np.abs(wanted).max()
    compiled = core().compile_model(build_graph(model).finish("x"), "CPU", {})
    nodes = compiled.get_runtime_model().get_ordered_ops()
    kinds = [node.get_rt_info()["layerType"].astype(str) for node in nodes]
    assert kinds.count("Transpose") <= turns
