"""Shapes that are made of values which follow from other shapes."""

from __future__ import annotations

import numpy as np

from penstock.driverkit.unrolling import flattened
from penstock.drivers.xnnpack.static_shapes import fold_shapes, has_static_shapes
from penstock.ir import DType, Model, ModelBuilder, infer_shapes
from tests.support_xnnpack import F32, drawn, needs_litert, run_on

I32 = DType.INT32


def flattening(*, told: bool = False) -> Model:
    """RELU of pictures, each as a row: how many there are SHAPE, STRIDED_SLICE and PACK say. *told*
    is the shape of the rows an output, too.
    """
    b = ModelBuilder()
    x = b.input(F32, (None, 2, 3), "x")
    (shape,) = b.operation("SHAPE", [x], [(I32, (3,))], {"out_type": "INT32"})
    ends = [b.constant(np.array([at], np.int32)) for at in (0, 1, 1)]
    (count,) = b.operation("STRIDED_SLICE", [shape, *ends], [(I32, ())], {"shrink_axis_mask": 1})
    rest = b.constant(np.array(-1, np.int32))
    (rows,) = b.operation("PACK", [count, rest], [(I32, (2,))], {"values_count": 2})
    (bent,) = b.operation("RELU", [x], [(F32, (None, 2, 3))])
    (y,) = b.operation("RESHAPE", [bent, rows], [(F32, None)])
    return b.build([y, rows] if told else [y])


def test_computed_shape_of_a_known_image_is_folded() -> None:
    flat = flattened(infer_shapes(flattening(), {0: (4, 2, 3)}))
    assert not has_static_shapes(flat.model)
    shaped = fold_shapes(flat)
    assert [o.type for o in shaped.model.operations] == ["RELU", "RESHAPE"]
    assert shaped.origins == (3, 4)
    assert has_static_shapes(shaped.model)
    target = shaped.model.entry.operands[shaped.model.operations[1].inputs[1]]
    assert shaped.model.constant(target).tolist() == [4, -1]


def test_computed_shape_that_is_an_output_is_kept() -> None:
    flat = flattened(infer_shapes(flattening(told=True), {0: (4, 2, 3)}))
    shaped = fold_shapes(flat)
    assert shaped.origins == flat.origins
    assert has_static_shapes(shaped.model)


def test_computed_shape_of_an_unknown_image_is_kept() -> None:
    flat = flattened(infer_shapes(flattening()))
    assert [o.type for o in fold_shapes(flat).model.operations] == [
        o.type for o in flat.model.operations
    ]
    assert not has_static_shapes(fold_shapes(flat).model)


@needs_litert
def test_reshape_with_a_folded_shape_is_correct() -> None:
    model = infer_shapes(flattening(told=True), {0: (4, 2, 3)})
    inputs = drawn(model)
    y, rows = run_on(["xnnpack"], model, inputs)
    np.testing.assert_array_equal(y, np.maximum(inputs[0], 0).reshape(4, 6))
    assert rows.tolist() == [4, -1]
