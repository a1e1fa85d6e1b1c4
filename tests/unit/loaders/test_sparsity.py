from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from penstock import knobs, loaders
from penstock.errors import InvalidSparsity, LimitExceeded, ModelError
from penstock.export.tflite.fields import TFLITE
from tests.unit.loaders.files import FileBuilder, sparse_matrix

DENSE = np.array([[0, 1, 0, 2], [0, 0, 0, 0], [3, 0, 4, 0]], np.float32)

KINDS = {
    "int32": ("Int32Vector", np.int32),
    "uint16": ("Uint16Vector", np.uint16),
    "uint8": ("Uint8Vector", np.uint8),
}


def vector(name: str, values: Any, kind: str) -> dict[str, Any]:
    table, dtype = KINDS[kind]
    array = np.asarray(values).astype(dtype)
    content = array.tobytes() if kind == "uint8" else array
    return {
        f"{name}_type": TFLITE.unions["SparseIndexVector"].index(table),
        name: {"values": content},
    }


def load_sparse(
    shape: tuple[int, ...], values: Any, sparsity: dict[str, Any], dtype: str = "FLOAT32"
) -> Any:
    """The dense value of one sparse constant."""
    file = FileBuilder()
    w = file.tensor("w", shape, dtype, values, sparsity=sparsity)
    x, y = file.tensor("x", shape, dtype), file.tensor("y", shape, dtype)
    file.operator("ADD", [x, w], [y])
    model = loaders.load(file.finish([x], [y]))
    return model.constant(model.operands[w])


def test_densify_disappears_and_its_constant_is_dense() -> None:
    model = loaders.load(sparse_matrix(DENSE).encode())
    assert [o.type for o in model.operations] == ["ADD"]
    weights = model.operands[model.operations[0].inputs[1]]
    assert weights.name == "w"
    assert model.constant(weights).tolist() == DENSE.tolist()


@given(
    hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=6),
        elements=st.sampled_from([0.0, 0.0, 1.0, -2.0]),
    ),
    st.sampled_from(sorted(KINDS)),
    st.booleans(),
)
def test_compressed_rows_of_any_matrix(dense: Any, kind: str, transposed: bool) -> None:
    rows = dense.T if transposed else dense
    columns = [np.flatnonzero(row) for row in rows]
    if not any(map(len, columns)):
        return
    sparsity = {
        "traversal_order": [1, 0] if transposed else [0, 1],
        "dim_metadata": [
            {"format": 0, "dense_size": rows.shape[0]},
            {
                "format": 1,
                **vector("array_segments", np.cumsum([0, *map(len, columns)]), kind),
                **vector("array_indices", np.concatenate(columns), kind),
            },
        ],
    }
    assert load_sparse(dense.shape, rows[rows != 0], sparsity).tolist() == dense.tolist()


def test_sparse_blocks_are_made_dense() -> None:
    """2 x 2 blocks of a 4 x 4 matrix: block rows dense, block columns compressed, blocks dense."""
    dense = np.zeros((4, 4), np.int8)
    dense[0:2, 2:4] = [[1, 2], [3, 4]]
    dense[2:4, 0:2] = [[5, 6], [7, 8]]
    sparsity = {
        "traversal_order": [0, 1, 2, 3],
        "block_map": [0, 1],
        "dim_metadata": [
            {"format": 0, "dense_size": 2},
            {
                "format": 1,
                **vector("array_segments", [0, 1, 2], "uint8"),
                **vector("array_indices", [1, 0], "uint8"),
            },
            {"format": 0, "dense_size": 2},
            {"format": 0, "dense_size": 2},
        ],
    }
    assert (
        load_sparse((4, 4), np.arange(1, 9, dtype=np.int8), sparsity, "INT8").tolist()
        == dense.tolist()
    )


def broken(level: int, **fields: Any) -> dict[str, Any]:
    sparsity: dict[str, Any] = sparse_matrix(DENSE).graph["tensors"][0]["sparsity"]
    sparsity["dim_metadata"][level].update(fields)
    return sparsity


@pytest.mark.parametrize("sparsity", [
    {},
    {**broken(0), "traversal_order": [0, 0]},
    {**broken(0), "traversal_order": [0, 2]},
    {**broken(0), "block_map": [0]},
    {**broken(0), "dim_metadata": []},
    broken(0, dense_size=0),
    broken(0, dense_size=-3),
    broken(0, dense_size=2),
    broken(0, dense_size=4),
    broken(0, dense_size=2**31 - 1),
    broken(0, format=7),
    broken(1, array_segments=None, array_segments_type=0),
    broken(1, array_indices=None, array_indices_type=0),
    broken(1, **vector("array_segments", [0, 4, 2, 4], "int32")),
    broken(1, **vector("array_segments", [0, 2, 2, 9], "int32")),
    broken(1, **vector("array_segments", [1, 2, 2, 4], "int32")),
    broken(1, **vector("array_indices", [1, 3, 0, 9], "int32")),
    broken(1, **vector("array_indices", [1, 3, 0, -1], "int32")),
])  # fmt: skip
def test_bad_sparsity_is_named(sparsity: dict[str, Any]) -> None:
    with pytest.raises(InvalidSparsity, match=r"tensor 0 \(w\)"):
        load_sparse(DENSE.shape, DENSE[DENSE != 0], sparsity)


def test_fewer_values_than_indexes_are_named() -> None:
    with pytest.raises(InvalidSparsity, match="3 values"):
        load_sparse(DENSE.shape, np.ones(3, np.float32), broken(0))


def test_strings_and_packed_types_cannot_be_sparse() -> None:
    for dtype in ("STRING", "INT4"):
        with pytest.raises(InvalidSparsity):
            load_sparse(DENSE.shape, b"\0" * 16, broken(0), dtype)


def test_knob_limits_the_bytes_of_densified_weights() -> None:
    sparsity = broken(0)
    with knobs.override(densify_limit_mib=1):
        load_sparse(DENSE.shape, DENSE[DENSE != 0], sparsity)
        with pytest.raises(LimitExceeded, match="densify_limit_mib"):
            load_sparse((1024, 1024), DENSE[DENSE != 0], sparsity)
    with pytest.raises(ModelError):
        load_sparse((2**31 - 1, 2**31 - 1), DENSE[DENSE != 0], sparsity)


def test_blocks_must_be_dense_and_of_dimensions_that_exist() -> None:
    levels = [
        {"format": 0, "dense_size": 2},
        {"format": 0, "dense_size": 4},
        {
            "format": 1,
            **vector("array_segments", range(9), "uint8"),
            **vector("array_indices", [0] * 8, "uint8"),
        },
    ]
    sparsity = {"traversal_order": [0, 1, 2], "block_map": [0], "dim_metadata": levels}
    with pytest.raises(InvalidSparsity, match="block level must be dense"):
        load_sparse((4, 4), np.ones(8, np.int8), sparsity, "INT8")
    with pytest.raises(InvalidSparsity, match="block map"):
        load_sparse((4, 4), np.ones(8, np.int8), {**sparsity, "block_map": [2]}, "INT8")
