"""What LiteRT computes otherwise than its operations say: diagonals and StableHLO, on both sides.

The entries are those of docs/differences.md; a test that fails here may be LiteRT mended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")

from penstock.ir import DType, Model, ModelBuilder, NDArray, SubgraphBuilder
from tests.unit.drivers.reference import single_models

F32: Final = DType.FLOAT32
SCALAR: Final = [(F32, ())]


def both(model: Model, feeds: Sequence[NDArray], **how: Any) -> tuple[NDArray, NDArray]:
    """Penstock's output and LiteRT's."""
    return single_models.computed(model, feeds)[0], single_models.judged(model, feeds, **how)[0]


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.FLOAT64, DType.UINT16, DType.UINT64])
def test_diagonals_are_taken_for_floats_of_32_bits(dtype: DType) -> None:
    rng = np.random.default_rng(6)
    x, diagonal = single_models.values(rng, dtype, (4, 3)), single_models.values(rng, dtype, (3,))
    wanted = np.where(np.eye(4, 3, dtype=bool), diagonal, x)
    model = single_models.single("MATRIX_SET_DIAG", [x, diagonal], [(dtype, None)])
    ours, theirs = both(model, [x, diagonal])
    np.testing.assert_array_equal(ours, wanted)
    assert not np.array_equal(theirs, wanted)


def test_shifts_from_the_width_on_are_undefined() -> None:
    a, b = np.full(4, 5, np.int32), np.array([32, 33, 100, -8], np.int32)
    model = single_models.single("STABLEHLO_SHIFT_LEFT", [a, b], [(DType.INT32, a.shape)])
    ours, theirs = both(model, [a, b], reference=False)
    np.testing.assert_array_equal(ours, [0, 0, 0, 0])
    assert theirs.any()


def adds_twice(region: SubgraphBuilder) -> Sequence[int]:
    a, _ = region.input(F32, ()), region.input(F32, ())
    return region.operation("ADD", [a, a], SCALAR)


def adds_a_constant(region: SubgraphBuilder) -> Sequence[int]:
    a, _ = region.input(F32, ()), region.input(F32, ())
    return region.operation("ADD", [a, region.constant(np.array(2, np.float32))], SCALAR)


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (adds_twice, 4.0),
        (adds_a_constant, 5.0),
        (single_models.combining("ADD", F32, fused_activation_function="RELU_N1_TO_1"), 1.0),
    ],
)
def test_regions_of_windows_are_known_by_their_operation_alone(
    body: single_models.Body, wanted: float
) -> None:
    x, initial = np.array([10, 20], np.float32), np.array(1, np.float32)
    model = single_models.single(
        "STABLEHLO_REDUCE_WINDOW",
        [x, initial],
        [(F32, None)],
        {"window_dimensions": (2,)},
        body_subgraph_index=body,
    )
    ours, theirs = both(model, [x, initial])
    assert (ours.tolist(), theirs.tolist()) == ([wanted], [31.0])


def test_scatter_whose_region_keeps_the_operand_leaves_the_update() -> None:
    def keeping(region: SubgraphBuilder) -> Sequence[int]:
        a, _ = region.input(F32, ()), region.input(F32, ())
        return [a]

    x, updates = np.zeros((2, 1), np.float32), np.ones((1, 1), np.float32)
    inputs = [x, np.array([[1]], np.int32), updates]
    attributes: dict[str, Any] = {
        "update_window_dims": (1,),
        "inserted_window_dims": (0,),
        "scatter_dims_to_operand_dims": (0,),
        "index_vector_dim": 1,
    }
    model = single_models.single(
        "STABLEHLO_SCATTER",
        inputs,
        [(F32, x.shape)],
        attributes,
        update_computation_subgraph_index=keeping,
    )
    ours, theirs = both(model, inputs)
    assert (ours.tolist(), theirs.tolist()) == ([[0], [0]], [[0], [1]])


def test_branches_beside_other_subgraphs() -> None:
    builder = ModelBuilder()
    index, x = builder.input(DType.INT32, (), "index"), builder.input(F32, (2,), "x")
    branch = builder.subgraph("branch")
    y = branch.input(F32, (2,))
    branches = (
        builder.add_subgraph(branch.finish(branch.operation("ADD", [y, y], [(F32, (2,))]))),
    )
    (chosen,) = builder.operation(
        "STABLEHLO_CASE", [index, x], [(F32, (2,))], {"branch_subgraph_indices": branches}
    )
    other = builder.subgraph("other")
    a, b = other.input(F32, (2,)), other.input(F32, (2,))
    product = builder.add_subgraph(other.finish(other.operation("MUL", [a, b], [(F32, (2,))])))
    result = builder.operation(
        "STABLEHLO_COMPOSITE",
        [chosen, x],
        [(F32, (2,))],
        {"name": "test.product", "decomposition_subgraph_index": product},
    )
    model, feeds = builder.build(result), [np.array(0, np.int32), np.array([1, 2], np.float32)]
    np.testing.assert_array_equal(single_models.computed(model, feeds)[0], [2, 8])
    with pytest.raises(RuntimeError, match="STABLEHLO_CASE"):
        single_models.judged(model, feeds, reference=False)
