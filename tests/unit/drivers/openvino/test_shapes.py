"""Shapes that a network computes from known ones: whole numbers that OpenVINO carries along."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.ir import DType, Model, ModelBuilder, NDArray
from tests.support_openvino import cpu, needs_openvino
from tests.support_operations import run_on

pytestmark = needs_openvino

F32, I32 = DType.FLOAT32, DType.INT32
IMAGE: Final = (1, 6, 4, 3)


def whole(*values: int) -> NDArray:
    return np.array(values, np.int32)


def flattened() -> Model:
    """An image reshaped to (its batch, everything else), and that shape."""
    builder = ModelBuilder()
    x = builder.input(F32, IMAGE, "x")
    (shape,) = builder.operation("SHAPE", [x], [(I32, (4,))], {"out_type": "INT32"})
    bounds = [builder.constant(whole(v), f"c{k}") for k, v in enumerate((0, 1, 1))]
    batch = builder.operation(
        "STRIDED_SLICE", [shape, *bounds], [(I32, ())], {"shrink_axis_mask": 1}
    )
    rest = builder.constant(np.array(72, np.int32), "rest")
    pack = {"axis": 0, "values_count": 2}
    (wanted,) = builder.operation("PACK", [*batch, rest], [(I32, (2,))], pack)
    (flat,) = builder.operation("RESHAPE", [x, wanted], [(F32, (1, 72))])
    return builder.build([flat, wanted, shape])


def carried() -> Model:
    """Whole numbers of the caller, sliced, joined and reshaped."""
    builder = ModelBuilder()
    x = builder.input(I32, (2, 3), "x")
    bounds = [builder.constant(whole(*v), f"c{k}") for k, v in enumerate(((0, 1), (2, 2)))]
    (part,) = builder.operation("SLICE", [x, *bounds], [(I32, (2, 2))])
    (both,) = builder.operation("CONCATENATION", [part, x], [(I32, (2, 5))], {"axis": 1})
    size = builder.constant(whole(10), "size")
    (flat,) = builder.operation("RESHAPE", [both, size], [(I32, (10,))])
    return builder.build([flat, part])


def test_a_computed_shape_stays_on_the_device() -> None:
    model = flattened()
    answers = cpu().supported_operations(model)
    assert [a.accuracy for a in answers] == ["exact"] * 4
    assert all(a.supported for a in answers)
    (x,) = (np.random.default_rng(1).standard_normal(IMAGE, np.float32),)
    (flat, wanted, shape), *_ = run_on([cpu()], model, [[x]], "exact")
    assert np.array_equal(flat, x.reshape(1, 72))
    assert wanted.tolist() == [1, 72]
    assert shape.tolist() == [*IMAGE]
    assert [a.dtype.name for a in (wanted, shape)] == ["int32", "int32"]


def test_whole_numbers_are_carried_exactly() -> None:
    model = carried()
    limits = np.iinfo(np.int32)
    x = np.array([[limits.min, limits.max, 2**24 + 1], [-1, 0, 16_777_217]], np.int32)
    ours = run_on([cpu()], model, [[x]], "exact")
    reference = run_on(["reference"], model, [[x]])
    for got, wanted in zip(ours[0], reference[0], strict=True):
        assert got.dtype == wanted.dtype
        assert np.array_equal(got, wanted)
