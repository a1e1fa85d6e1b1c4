"""The differences of docs/differences.md in packed and block-scaled weights, attention and growing
variables.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")

from penstock import loaders
from penstock.export.tflite.fields import TFLITE
from penstock.ir import DType, NDArray
from penstock.ir.builder import pack
from tests.differential.judge import DEFAULT, DELEGATED, REFERENCE, Judge
from tests.support_runs import flexible, penstock_runs
from tests.unit.loaders.files import FileBuilder, quantization


def both(
    judge: Judge, content: bytes, feed: list[NDArray], resolver: str = REFERENCE
) -> tuple[NDArray, NDArray]:
    """Penstock's output and LiteRT's."""
    answer = judge.ask(content, feed, resolver)
    assert not isinstance(answer, str), answer
    return penstock_runs(content, [feed])[0][0], answer[0]


@pytest.mark.parametrize(("dtype", "depth"), [(DType.INT4, 7), (DType.INT2, 6)])
def test_rows_need_not_end_with_a_byte(judge: Judge, dtype: DType, depth: int) -> None:
    table = (np.arange(3 * depth) % 4 - 2).reshape(3, depth).astype(dtype.numpy)
    file = FileBuilder()
    ids, rows = file.tensor("ids", [3], "INT32"), file.tensor("rows", [3, depth])
    packed, scale = pack(table, dtype)[0], quantization([0.5])
    params = file.tensor("params", table.shape, dtype.name, packed, quantization=scale)
    file.operator("EMBEDDING_LOOKUP", [ids, params], [rows])
    ours, theirs = both(judge, file.finish([ids], [rows]), [np.arange(3, dtype=np.int32)])
    assert ours.tolist() == (table.astype(np.float32) / 2).tolist()
    assert theirs[0].tolist() == ours[0].tolist()
    assert theirs[1].tolist() != ours[1].tolist()


def layer_scaled_by_blocks(rows: int, activation: str) -> bytes:
    """Each output is -32 before the activation where the input is ones."""
    file = FileBuilder()
    x, y = file.tensor("x", [1, 32]), file.tensor("y", [1, rows])
    scales = file.tensor("scales", [rows, 1], "FLOAT16", np.ones((rows, 1), np.float16))
    blocks = {
        "details_type": TFLITE.unions["QuantizationDetails"].index("BlockwiseQuantization"),
        "details": {"scales": scales, "zero_points": -1, "block_size": 32},
    }
    weights = pack(np.full((rows, 32), -1, DType.INT4.numpy), DType.INT4)[0]
    w = file.tensor("w", [rows, 32], "INT4", weights, quantization=blocks)
    fused = TFLITE.number("ActivationFunctionType", activation)
    file.operator("FULLY_CONNECTED", [x, w, -1], [y], {"fused_activation_function": fused})
    file.codes[-1]["version"] = 12
    return file.finish([x], [y])


ONES = [np.ones((1, 32), np.float32)]


def test_layers_scaled_by_blocks_are_clamped(judge: Judge) -> None:
    ours, theirs = both(judge, layer_scaled_by_blocks(8, "RELU"), ONES, DEFAULT)
    assert not ours.any()
    np.testing.assert_allclose(theirs, np.full((1, 8), -32, np.float32), 1e-6)


@pytest.mark.parametrize(("rows", "resolver"), [(1, DEFAULT), (3, DEFAULT), (8, REFERENCE)])
def test_layers_scaled_by_blocks_of_any_height_are_computed(
    judge: Judge, rows: int, resolver: str
) -> None:
    ours, theirs = both(judge, layer_scaled_by_blocks(rows, "NONE"), ONES, resolver)
    np.testing.assert_allclose(ours, np.full((1, rows), -32, np.float32), 1e-6)
    assert not theirs.any()


def attention(batches: int, heads: int, options: dict[str, Any]) -> tuple[bytes, list[NDArray]]:
    rng = np.random.default_rng(0)
    shapes = [(batches, 3, 2, 8), (batches, 5, heads, 8), (batches, 5, heads, 8)]
    arrays = [rng.normal(size=s).astype(np.float32) for s in shapes]
    file = FileBuilder()
    inputs = [file.tensor(f"i{i}", s) for i, s in enumerate(shapes)]
    output = file.tensor("output", shapes[0])
    name = "CUSTOM:odml.scaled_dot_product_attention"
    file.operator(name, inputs, [output], custom_options=flexible(options))
    return file.finish(inputs, [output]), arrays


def test_a_scale_of_64_bits_is_read_whole(judge: Judge) -> None:
    content, arrays = attention(1, 2, {"scale": 0.3})
    ours, theirs = both(judge, content, arrays, DELEGATED)
    nearly, same = both(judge, *attention(1, 2, {"scale": float(np.float32(0.3))}), DELEGATED)
    np.testing.assert_allclose(ours, nearly, 0, 1e-6)
    np.testing.assert_allclose(same, nearly, 0, 1e-6)
    assert np.abs(theirs - ours).max() > 0.01


def test_attention_of_each_batch_uses_its_own_keys(judge: Judge) -> None:
    content, arrays = attention(2, 1, {"scale": 0.5})
    ours, theirs = both(judge, content, arrays, DELEGATED)
    alone, _ = attention(1, 1, {"scale": 0.5})
    second = penstock_runs(alone, [[a[1:] for a in arrays]])[0][0]
    np.testing.assert_allclose(ours[1:], second, 0, 1e-6)
    assert np.abs(theirs - ours).max() > 0.01


def test_sparse_blocks_follow_the_block_map_of_the_file(judge: Judge) -> None:
    dense = np.arange(16, dtype=np.float32).reshape(4, 4)
    stored = dense.reshape(2, 2, 2, 2).transpose(0, 2, 3, 1).reshape(-1)
    level = {"format": 0, "dense_size": 2}
    sparsity = {"traversal_order": [0, 1, 2, 3], "block_map": [1, 0], "dim_metadata": [level] * 4}
    file = FileBuilder()
    sparse = file.tensor("sparse", [4, 4], value=stored, sparsity=sparsity)
    x, y, made = (file.tensor(n, [4, 4]) for n in ("x", "y", "made"))
    file.operator("DENSIFY", [sparse], [made])
    file.operator("ADD", [x, made], [y])
    ours, theirs = both(judge, file.finish([x], [y]), [np.zeros((4, 4), np.float32)])
    assert ours.tolist() == dense.tolist()
    assert theirs.tolist() != dense.tolist()


def test_a_variable_is_read_whole(judge: Judge) -> None:
    file = FileBuilder()
    variable = file.tensor("variable", [], "RESOURCE")
    x, read, y = (
        file.tensor(n, [n_], shape_signature=[-1]) for n, n_ in (("x", 2), ("r", 1), ("y", 1))
    )
    file.operator("VAR_HANDLE", [], [variable], {"container": "", "shared_name": "v"})
    file.operator("ASSIGN_VARIABLE", [variable, x], [])
    file.operator("READ_VARIABLE", [variable], [read])
    file.operator("NEG", [read], [y])
    content = file.finish([x], [y])
    assert loaders.load(content).variables[0].shape == (None,)
    ours, theirs = both(judge, content, [np.array([1, 2], np.float32)])
    assert ours.tolist() == [-1, -2]
    assert theirs.tolist() == [-1]
