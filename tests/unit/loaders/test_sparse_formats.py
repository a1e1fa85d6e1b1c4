"""Sparse tensors of every format, against the dense ones that they were made from and LiteRT's
DENSIFY.

LiteRT takes blocks for those of their dimensions in ascending order, whatever order the file says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from penstock import loaders
from penstock.export.tflite.fields import TFLITE
from penstock.ir import NDArray
from tests.unit.loaders.files import FileBuilder

KINDS = ("Int32Vector", "Uint16Vector", "Uint8Vector")


def vector(name: str, values: Sequence[int], kind: str) -> dict[str, Any]:
    """A vector of that *kind*, or of 16 bits where bytes are too small for the values."""
    if kind == "Uint8Vector" and max(values, default=0) > 255:
        kind = "Uint16Vector"
    content = bytes(values) if kind == "Uint8Vector" else np.array(values)
    number = TFLITE.unions["SparseIndexVector"].index(kind)
    return {f"{name}_type": number, name: {"values": content}}


def compress(
    dense: NDArray,
    order: Sequence[int],
    blocks: Sequence[tuple[int, int]],
    compressed: Sequence[bool],
    kind: str,
) -> tuple[NDArray, dict[str, Any]]:
    """The stored values and the `SparsityParameters` of *dense*. *blocks* are pairs (dimension,
    size).
    """
    sizes = dict(blocks)
    split: list[int] = []
    for dimension, size in enumerate(dense.shape):
        block = sizes.get(dimension, 1)
        split += [size // block, block]
    axes = [2 * d for d in range(dense.ndim)] + [2 * d + 1 for d, _ in blocks]
    rest = [2 * d + 1 for d in range(dense.ndim) if d not in sizes]
    parts = dense.reshape(split).transpose(axes + rest)
    parts = parts.reshape(parts.shape[: len(axes)]).transpose(order)
    nodes: list[NDArray] = [parts]
    levels: list[dict[str, Any]] = []
    for level, size in enumerate(parts.shape):
        if not compressed[level]:
            levels.append({"format": 0, "dense_size": size})
            nodes = [node[i] for node in nodes for i in range(size)]
            continue
        segments, indexes, kept = [0], [], []
        for node in nodes:
            chosen = [i for i in range(size) if np.any(node[i])]
            indexes += chosen
            kept += [node[i] for i in chosen]
            segments.append(len(indexes))
        nodes = kept
        parts_ = vector("array_segments", segments, kind), vector("array_indices", indexes, kind)
        levels.append({"format": 1, **parts_[0], **parts_[1]})
    sparsity = {
        "traversal_order": list(order),
        "block_map": [d for d, _ in blocks],
        "dim_metadata": levels,
    }
    return np.array(nodes, dense.dtype).reshape(-1), sparsity


@st.composite
def formats(draw: Any, *, ascending: bool = False) -> tuple[NDArray, tuple[Any, ...]]:
    """A tensor and a way to compress it, with blocks of *ascending* dimensions or any."""
    rank = draw(st.integers(1, 4))
    shape = draw(st.lists(st.sampled_from([2, 4, 6]), min_size=rank, max_size=rank))
    dtype = draw(st.sampled_from(["float32", "float16", "int8"]))
    seed = draw(st.integers(0, 2**16))
    rng = np.random.default_rng(seed)
    dense = (rng.integers(-3, 4, shape) * (rng.random(shape) < 0.3)).astype(dtype)
    blocked = draw(st.lists(st.sampled_from(range(rank)), max_size=2, unique=True))
    blocks = [(d, 2) for d in (sorted(blocked) if ascending else blocked)]
    outer = draw(st.permutations(range(rank)))
    order = [*outer, *range(rank, rank + len(blocks))]
    compressed = [draw(st.booleans()) for _ in range(rank)] + [False] * len(blocks)
    return dense, (order, blocks, compressed, draw(st.sampled_from(KINDS)))


def densified(dense: NDArray, how: tuple[Any, ...]) -> bytes:
    values, sparsity = compress(dense, *how)
    file = FileBuilder()
    kind = dense.dtype.name.upper()
    stored = file.tensor("stored", dense.shape, kind, values, sparsity=sparsity)
    result = file.tensor("dense", dense.shape, kind)
    file.operator("DENSIFY", [stored], [result])
    return file.finish([], [result])


@given(formats())
def test_every_format_becomes_the_tensor_it_was(drawn: tuple[NDArray, tuple[Any, ...]]) -> None:
    dense, how = drawn
    model = loaders.load(densified(dense, how))
    found = model.constant(model.outputs[0])
    assert found.dtype == dense.dtype
    assert np.array_equal(found, dense)


@settings(max_examples=40)
@given(formats(ascending=True))
def test_litert_reads_the_same_sparse_weights(drawn: tuple[NDArray, tuple[Any, ...]]) -> None:
    litert = pytest.importorskip(
        "ai_edge_litert.interpreter", reason="ai-edge-litert is not installed"
    )
    dense, how = drawn
    runner = litert.Interpreter(
        model_content=densified(dense, how),
        num_threads=1,
        experimental_op_resolver_type=litert.OpResolverType.BUILTIN_REF,
    )
    runner.allocate_tensors()
    runner.invoke()
    (output,) = runner.get_output_details()
    assert np.array_equal(runner.get_tensor(output["index"]), dense)


def test_a_tensor_without_stored_values_is_zero() -> None:
    dense = np.zeros((2, 4), np.float32)
    model = loaders.load(densified(dense, ([0, 1], [], [False, True], "Int32Vector")))
    assert not model.constant(model.outputs[0]).any()
