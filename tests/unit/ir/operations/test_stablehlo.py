"""Shape rules of StableHLO operations, by the examples and constraints of its specification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pytest

from penstock.errors import ModelError
from penstock.ir import DType, Shape
from tests.unit.ir.operations.single import (
    FLOAT,
    INT,
    Given,
    Input,
    Output,
    inferred,
    scalar,
    shapes,
    single,
    x,
)

BOOL = DType.BOOL


def out(*dimensions: int, dtype: DType = FLOAT) -> Output:
    return Output(dtype, dimensions)


def check(kind: str, inputs: Sequence[Given], expected: Shape, **attributes: Any) -> None:
    assert shapes(f"STABLEHLO_{kind}", inputs, [FLOAT], attributes) == [expected]


def refuse(kind: str, inputs: Sequence[Given], **attributes: Any) -> None:
    with pytest.raises(ModelError):
        shapes(f"STABLEHLO_{kind}", inputs, [FLOAT], attributes)


@pytest.mark.parametrize(
    "kind",
    ["ABS", "NEGATE", "CBRT", "COSINE", "EXPONENTIAL", "FLOOR", "LOG", "LOGISTIC", "RSQRT", "TANH"],
)
def test_stablehlo_functions_keep_the_shape(kind: str) -> None:
    check(kind, [x(2, None)], (2, None))


@pytest.mark.parametrize("kind", ["SUBTRACT", "DIVIDE", "REMAINDER", "POWER", "AND", "OR"])
def test_stablehlo_operands_must_have_one_shape(kind: str) -> None:
    check(kind, [x(2, None), x(None, 3)], (2, 3))
    refuse(kind, [x(2, 3), x(3)])
    refuse(kind, [x(2, 3), x(1, 3)])


def test_stablehlo_compare_and_select_infer_shapes() -> None:
    assert shapes("STABLEHLO_COMPARE", [x(2, 3), x(2, 3)], [BOOL]) == [(2, 3)]
    check("SELECT", [x(2, 3, dtype=BOOL), x(2, 3), x(2, 3)], (2, 3))
    check("SELECT", [x(dtype=BOOL), x(2, 3), x(2, 3)], (2, 3))
    refuse("SELECT", [x(3, dtype=BOOL), x(2, 3), x(2, 3)])
    check("CLAMP", [x(), x(2, 3), x(2, 3)], (2, 3))
    refuse("CLAMP", [x(3), x(2, 3), x()])


def test_stablehlo_operations_that_move_data_infer_shapes() -> None:
    check("CONCATENATE", [x(2, 3), x(2, 4), x(2, 1)], (2, 8), dimension=1)
    refuse("CONCATENATE", [x(2, 3), x(3, 4)], dimension=1)
    refuse("CONCATENATE", [x(2, 3), x(2, 4)], dimension=2)
    refuse("CONCATENATE", [x(2, 3), x(2, 4)], dimension=-1)
    refuse("CONCATENATE", [])
    check("CONCATENATE", [x(2, 3), Input(None)], None, dimension=1)
    check("TRANSPOSE", [x(2, 3, 4)], (4, 2, 3), permutation=(2, 0, 1))
    refuse("TRANSPOSE", [x(2, 3, 4)], permutation=(2, 0, 0))
    refuse("TRANSPOSE", [x(2, 3, 4)], permutation=(1, 0))
    check("SLICE", [x(5, 6)], (2, 2), start_indices=(0, 1), limit_indices=(4, 5), strides=(2, 3))
    refuse("SLICE", [x(5, 6)], start_indices=(0, 1), limit_indices=(4, 7), strides=(2, 3))
    refuse("SLICE", [x(5, 6)], start_indices=(0, 1), limit_indices=(4, 5), strides=(2, 0))
    check("DYNAMIC_SLICE", [x(5, 6), *[x(dtype=INT)] * 2], (2, 6), slice_sizes=(2, 6))
    refuse("DYNAMIC_SLICE", [x(5, 6), *[x(dtype=INT)] * 2], slice_sizes=(2, 7))
    check("DYNAMIC_UPDATE_SLICE", [x(5, 6), x(2, 2), *[x(dtype=INT)] * 2], (5, 6))
    zero = scalar(0, np.float32)
    check(
        "PAD",
        [x(3, 4), zero],
        (8, 5),
        edge_padding_low=(1, -1),
        edge_padding_high=(0, 2),
        interior_padding=(2, 0),
    )
    refuse(
        "PAD",
        [x(3, 4), zero],
        edge_padding_low=(-9, 0),
        edge_padding_high=(0, 0),
        interior_padding=(0, 0),
    )


def test_stablehlo_declared_shapes_are_used() -> None:
    assert shapes("STABLEHLO_IOTA", [], [out(2, 3)], {"iota_dimension": 1}) == [(2, 3)]
    assert shapes("STABLEHLO_RESHAPE", [x(2, 3)], [out(6)]) == [(6,)]
    assert shapes("STABLEHLO_CONVERT", [x(2, 3)], [INT]) == [(2, 3)]
    kind, attributes = "STABLEHLO_BROADCAST_IN_DIM", {"broadcast_dimensions": (0, 2)}
    assert shapes(kind, [x(1, 3)], [out(2, 5, 3)], attributes) == [(2, 5, 3)]
    for model in (
        single("STABLEHLO_RESHAPE", [x(2, 3)], [out(7)]),
        single(kind, [x(4, 3)], [out(2, 5, 3)], attributes),
        single(kind, [x(3)], [out(2, 5, 3)], attributes),
    ):
        with pytest.raises(ModelError):
            inferred(model)


DOT: Final = {
    "lhs_batching_dimensions": (0,),
    "rhs_batching_dimensions": (0,),
    "lhs_contracting_dimensions": (2,),
    "rhs_contracting_dimensions": (1,),
}


def test_dot_general_infers_its_shape() -> None:
    check("DOT_GENERAL", [x(2, 2, 4), x(2, 4, 5)], (2, 2, 5), **DOT)
    check("DOT_GENERAL", [x(None, 2, 4), x(2, 4, None)], (2, 2, None), **DOT)
    refuse("DOT_GENERAL", [x(2, 2, 3), x(2, 4, 5)], **DOT)
    refuse("DOT_GENERAL", [x(3, 2, 4), x(2, 4, 5)], **DOT)
    check("DOT_GENERAL", [x(3, 4), x(5, 6)], (3, 4, 5, 6))


CONVOLUTION: Final[dict[str, Any]] = {
    "window_strides": (4, 4),
    "padding": (0, 0, 0, 0),
    "lhs_dilation": (2, 2),
    "rhs_dilation": (1, 1),
    "input_batch_dimension": 0,
    "input_feature_dimension": 3,
    "input_spatial_dimensions": (1, 2),
    "kernel_input_feature_dimension": 2,
    "kernel_output_feature_dimension": 3,
    "kernel_spatial_dimensions": (0, 1),
    "output_batch_dimension": 0,
    "output_feature_dimension": 3,
    "output_spatial_dimensions": (1, 2),
    "feature_group_count": 1,
    "batch_group_count": 1,
}


def test_stablehlo_convolution_infers_its_shape() -> None:
    """The example of the specification: [1, 4, 4, 1] by [3, 3, 1, 1], base dilation 2, stride 4."""
    inputs = [x(1, 4, 4, 1), x(3, 3, 1, 1)]
    check("CONVOLUTION", inputs, (1, 2, 2, 1), **CONVOLUTION)
    check("CONVOLUTION", inputs, (1, 2, 2, 1), **{**CONVOLUTION, "window_strides": (3, 3)})
    check("CONVOLUTION", inputs, (1, 3, 2, 1), **{**CONVOLUTION, "padding": (4, 1, 0, 0)})
    refuse("CONVOLUTION", inputs, **{**CONVOLUTION, "padding": (4, 1)})
    refuse("CONVOLUTION", inputs, **{**CONVOLUTION, "output_feature_dimension": 7})
    refuse("CONVOLUTION", inputs, **{**CONVOLUTION, "lhs_dilation": (0, 1)})
    first = {**CONVOLUTION, "output_feature_dimension": 1, "output_spatial_dimensions": (2, 3)}
    check("CONVOLUTION", inputs, (1, 1, 2, 2), **first)


def test_stablehlo_gather_infers_its_shape() -> None:
    attributes = {
        "offset_dims": (2, 3),
        "collapsed_slice_dims": (0,),
        "start_index_map": (1, 0),
        "index_vector_dim": 2,
        "slice_sizes": (1, 2, 2),
    }
    check("GATHER", [x(3, 4, 2), x(2, None, 2, dtype=INT)], (2, None, 2, 2), **attributes)
    check("GATHER", [x(3, 4, 2), Input(None, INT)], None, **attributes)
    refuse("GATHER", [x(3, 4, 2), x(2, 3, 2, dtype=INT)], **{**attributes, "offset_dims": (2, 9)})
    refuse("GATHER", [x(3, 4, 2), x(2, 3, 2, dtype=INT)], **{**attributes, "offset_dims": (2,)})


NO_BODY: Final = {"body_subgraph_index": -1}


def test_stablehlo_reductions_take_operands_then_initial_values() -> None:
    zero = scalar(0, np.float32)
    model = shapes(
        "STABLEHLO_REDUCE",
        [x(2, 3), x(2, 3), zero, zero],
        [FLOAT, FLOAT],
        {"dimensions": (1,), **NO_BODY},
    )
    assert model == [(2,), (2,)]
    with pytest.raises(ModelError):
        shapes(
            "STABLEHLO_REDUCE",
            [x(2, 3), x(2, 3), zero],
            [FLOAT, FLOAT],
            {"dimensions": (1,), **NO_BODY},
        )
    window: dict[str, Any] = {
        "window_dimensions": (2, 1),
        "window_strides": (4, 1),
        "base_dilations": (2, 1),
        "window_dilations": (3, 1),
        "padding": (2, 1, 0, 0),
        **NO_BODY,
    }
    assert shapes("STABLEHLO_REDUCE_WINDOW", [x(3, 2), zero], [FLOAT], window) == [(2, 2)]
    assert shapes(
        "STABLEHLO_SORT",
        [x(2, None), x(None, 3)],
        [FLOAT, FLOAT],
        {"comparator_subgraph_index": -1},
    ) == [(2, 3), (2, 3)]
    scatter = [x(3, 4, 2), x(2, 3, 2, dtype=INT), x(2, 3, 2, 2)]
    assert shapes(
        "STABLEHLO_SCATTER", scatter, [FLOAT], {"update_computation_subgraph_index": -1}
    ) == [(3, 4, 2)]
