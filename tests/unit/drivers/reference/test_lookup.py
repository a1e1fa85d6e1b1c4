"""Embeddings, lookups by key, and hash tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock.errors import ShapeMismatch
from penstock.export.tflite.fields import TFLITE
from penstock.ir import DType, NDArray, Operand, Quantization
from penstock.ir.builder import pack
from tests.support_litert import Given, Wanted, assert_agrees, kernel_of, q, refusal, run_alone
from tests.support_runs import BUILT_IN, assert_same_runs, strings
from tests.unit.loaders.files import FileBuilder

F32 = DType.FLOAT32
IDS = np.array([2, 0, 4, 1], np.int32)
LIMITS = {DType.INT8: (-128, 128), DType.UINT8: (0, 256), DType.INT4: (-8, 8), DType.INT2: (-2, 2)}
PER_ROW = Quantization(tuple(float(np.float32(s)) for s in (0.1, 0.2, 0.3, 0.7, 0.9)), (0,) * 5, 0)


@pytest.mark.parametrize(
    "dtype",
    [
        F32,
        DType.FLOAT16,
        DType.INT8,
        DType.UINT8,
        DType.INT16,
        DType.INT32,
        DType.INT64,
        DType.BOOL,
        DType.FLOAT64,
        DType.COMPLEX64,
    ],
)
def test_embedding_lookup_agrees_with_litert(dtype: DType) -> None:
    table = np.random.default_rng(0).integers(0, 2, (5, 3)).astype(dtype.numpy)
    for shape in ((5, 3), (5, 3, 1)):
        picked = [Given(IDS), Given(table.reshape(shape))]
        assert_agrees(run_alone("EMBEDDING_LOOKUP", picked, [Wanted(dtype)]), 0)


@pytest.mark.parametrize("quantization", [q(0.3), PER_ROW])
@pytest.mark.parametrize("dtype", LIMITS)
def test_embedding_lookup_dequantises_integer_rows(
    dtype: DType, quantization: Quantization
) -> None:
    table = np.random.default_rng(1).integers(*LIMITS[dtype], (5, 8)).astype(dtype.numpy)
    given = [Given(IDS), Given(table, quantization, constant=True, dtype=dtype)]
    assert_agrees(run_alone("EMBEDDING_LOOKUP", given, [Wanted(F32)]), 0)


def test_embedding_lookup_refuses_what_litert_misreads() -> None:
    ids, out = Operand(DType.INT32, (2,)), [Operand(F32, (2, 4))]
    table = Operand(DType.INT8, (3, 4), quantization=q(0.5, 1))
    assert "zero point" in refusal("EMBEDDING_LOOKUP", [ids, table], out)
    wide = Operand(DType.INT16, (3, 4), quantization=q(0.5))
    assert "int16" in refusal("EMBEDDING_LOOKUP", [ids, wide], out)


@pytest.mark.parametrize("wrong", [-1, 3])
def test_embedding_lookup_refuses_an_id_outside_the_table(wrong: int) -> None:
    operands = [Operand(DType.INT32, (1,)), Operand(F32, (3, 2))]
    run = kernel_of("EMBEDDING_LOOKUP", operands, [Operand(F32, (1, 2))])
    with pytest.raises(IndexError, match=r"0\.\.2"):
        run([np.array([wrong], np.int32), np.zeros((3, 2), np.float32)])


@pytest.mark.parametrize("dtype", ["INT4", "INT2"])
@pytest.mark.parametrize("target", ["FLOAT32", "FLOAT16"])
@pytest.mark.parametrize("size", [4, 16, 48])
def test_embedding_lookup_scales_rows_by_blocks(dtype: str, target: str, size: int) -> None:
    rng = np.random.default_rng(2)
    file = FileBuilder()
    ids, rows = file.tensor("ids", [4], "INT32"), file.tensor("rows", [4, 48], target)
    table = blockwise(file, rng.integers(*LIMITS[DType[dtype]], (5, 48)), DType[dtype], size, rng)
    file.operator("EMBEDDING_LOOKUP", [ids, table], [rows])
    assert_same_runs(file.finish([ids], [rows]), [[IDS]])


def blockwise(
    file: FileBuilder, values: NDArray, dtype: DType, size: int, rng: np.random.Generator
) -> int:
    """A matrix in blocks of *size*, with random scales in a tensor of their own."""
    rows, depth = values.shape
    scales = (rng.random((rows, depth // size)) + 0.1).astype(np.float16)
    place = file.tensor("scales", scales.shape, "FLOAT16", scales)
    kind = TFLITE.unions["QuantizationDetails"].index("BlockwiseQuantization")
    details = {"scales": place, "zero_points": -1, "block_size": size}
    return file.tensor(
        "weights",
        values.shape,
        dtype.name,
        pack(values.astype(dtype.numpy), dtype)[0],
        quantization={"details_type": kind, "details": details},
    )


@pytest.mark.parametrize("size", [16, 32, 64])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_fully_connected_scales_weights_by_blocks(size: int, biased: bool, keep: bool) -> None:
    rng = np.random.default_rng(3)
    shape = [2, 3, 64] if keep else [3, 64]
    file = FileBuilder()
    x, y = file.tensor("x", shape), file.tensor("y", [*shape[:-1], 8])
    weights = blockwise(file, rng.integers(-8, 8, (8, 64)), DType.INT4, size, rng)
    bias = file.tensor("bias", [8], value=rng.normal(size=8).astype(np.float32)) if biased else -1
    file.operator("FULLY_CONNECTED", [x, weights, bias], [y], {"keep_num_dims": keep})
    file.codes[-1]["version"] = 12
    feed = [rng.normal(size=shape).astype(np.float32)]
    assert_same_runs(file.finish([x], [y]), [feed], BUILT_IN, 2e-6)


PLACES = {
    "in order": ([[0, 0], [0, 2], [1, 0], [1, 1], [2, 1]], [3, 3]),
    "out of order": ([[0, 0], [1, 0], [0, 1], [1, 0], [0, 2]], [3, 3]),
    "three deep": ([[0, 0, 0], [0, 0, 1], [1, 0, 1], [1, 0, 1], [1, 1, 2]], [2, 2, 3]),
    "one deep": ([[0], [1], [2], [3], [4]], [6]),
}


@pytest.mark.parametrize("combiner", ["SUM", "MEAN", "SQRTN"])
@pytest.mark.parametrize("case", PLACES)
@pytest.mark.parametrize("weights", [[0.5, -0.25, 2, 1, 3], [0, 0, 1, -1, 2]])
def test_embedding_lookup_sparse_agrees_with_litert(
    combiner: str, case: str, weights: list[float]
) -> None:
    places, dense = PLACES[case]
    params = np.random.default_rng(4).normal(size=(6, 3, 2)).astype(np.float32)
    given = [
        Given(np.array([1, 3, 0, 5, 5], np.int32)),
        Given(np.array(places, np.int32)),
        Given(np.array(dense, np.int32), constant=True),
        Given(np.array(weights, np.float32)),
        Given(params, constant=True),
    ]
    found = run_alone("EMBEDDING_LOOKUP_SPARSE", given, [Wanted(F32)], combiner=combiner)
    for got, wanted in zip(found.run(), found.wanted, strict=True):
        np.testing.assert_array_equal(got, wanted)


def sparse(**changes: Any) -> list[NDArray]:
    arrays: dict[str, Any] = {
        "ids": np.array([0, 1], np.int32),
        "places": np.array([[0, 0], [1, 0]], np.int32),
        "dense": np.array([2, 2], np.int32),
        "weights": np.ones(2, np.float32),
        "params": np.ones((2, 3), np.float32),
    }
    return list((arrays | changes).values())


def test_embedding_lookup_sparse_of_no_ids_is_zero() -> None:
    (result,) = _combine(
        sparse(
            ids=np.zeros(0, np.int32),
            places=np.zeros((0, 2), np.int32),
            weights=np.zeros(0, np.float32),
        )
    )
    assert result.tolist() == [[0] * 3] * 2


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"ids": np.array([0, 2], np.int32)}, IndexError),
        ({"places": np.array([[0, 0], [2, 0]], np.int32)}, IndexError),
        ({"places": np.array([[0], [1]], np.int32)}, ShapeMismatch),
        ({"weights": np.ones(3, np.float32)}, ShapeMismatch),
        ({"dense": np.array([2**30, 2**30, 1], np.int32)}, ShapeMismatch),
    ],
)
def test_embedding_lookup_sparse_refuses_inconsistent_inputs(
    changes: dict[str, NDArray], error: type[Exception]
) -> None:
    with pytest.raises(error):
        _combine(sparse(**changes))


def _combine(arrays: list[NDArray]) -> list[NDArray]:
    i32 = Operand(DType.INT32, None)
    operands = [i32, i32, i32, Operand(F32, None), Operand(F32, None)]
    return list(kernel_of("EMBEDDING_LOOKUP_SPARSE", operands, [Operand(F32, None)])(arrays))


@given(
    st.lists(st.integers(-5, 5), min_size=1, max_size=9),
    st.lists(st.integers(-6, 6), min_size=1, max_size=9),
)
def test_hashtable_lookup_finds_equal_keys_as_a_binary_search(
    keys: list[int], queries: list[int]
) -> None:
    """Of equal keys, or of unsorted ones, the one that the search comes to."""

    def search(query: int) -> int:
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high) // 2
            if keys[middle] == query:
                return middle
            low, high = (middle + 1, high) if keys[middle] < query else (low, middle)
        return -1

    i32 = Operand(DType.INT32, None)
    run = kernel_of("HASHTABLE_LOOKUP", [i32] * 3, [i32, Operand(DType.UINT8, None)])
    places = [search(query) for query in queries]
    found, hits = run([np.array(a, np.int32) for a in (queries, keys, range(1, len(keys) + 1))])
    assert found.tolist() == [p + 1 for p in places]
    assert hits.tolist() == [p >= 0 for p in places]


@pytest.mark.parametrize("keys", [[1, 2, 3, 7], [1, 3, 3, 3], [3, 3, 3, 3], [1, 5, 2, 3]])
@pytest.mark.parametrize("dtype", [F32, DType.INT32, DType.UINT8, DType.STRING])
def test_hashtable_lookup_agrees_with_litert(keys: list[int], dtype: DType) -> None:
    values: NDArray = np.arange(4).astype(dtype.numpy)
    if dtype is DType.STRING:
        values = strings("w", "", "yy", "z")
    elif dtype is F32:
        values = np.arange(8, dtype=np.float32).reshape(4, 2)
    given = [
        Given(np.array([1, 9, 3, 3, -5], np.int32)),
        Given(np.array(keys, np.int32), constant=True),
        Given(values),
    ]
    outputs = [Wanted(dtype), Wanted(DType.UINT8)]
    assert_agrees(run_alone("HASHTABLE_LOOKUP", given, outputs), 0)


KEYS = {"INT64": np.array([1, 2, 3], np.int64), "STRING": strings("a", "b", "c")}
OTHERS = {"INT64": np.array([1, 9, 3], np.int64), "STRING": strings("a", "", "c")}
QUERIES = {"INT64": np.array([3, 9, 1], np.int64), "STRING": strings("c", "", "a")}
DEFAULTS = {"INT64": np.array(-1, np.int64), "STRING": strings("none").reshape(())}


def begin(file: FileBuilder, key: str, value: str) -> int:
    table = file.tensor("table", [], "RESOURCE")
    types = {
        name: TFLITE.number("TensorType", dtype)
        for name, dtype in (("key_dtype", key), ("value_dtype", value))
    }
    file.operator("HASHTABLE", [], [table], {"table_id": 7, **types})
    return table


def ask(file: FileBuilder, table: int, key: str, value: str) -> tuple[int, list[int]]:
    """HASHTABLE_FIND and HASHTABLE_SIZE: the query and what both give."""
    query, found = file.tensor("query", [3], key), file.tensor("found", [3], value)
    default = file.tensor("default", [], value, DEFAULTS[value])
    size = file.tensor("size", [1], "INT64")
    file.operator("HASHTABLE_FIND", [table, query, default], [found])
    file.operator("HASHTABLE_SIZE", [table], [size])
    return query, [found, size]


def constant_table(key: str, value: str, keys: NDArray) -> bytes:
    file = FileBuilder()
    table = begin(file, key, value)
    content = file.tensor("keys", [3], key, keys), file.tensor("values", [3], value, KEYS[value])
    file.operator("HASHTABLE_IMPORT", [table, *content], [])
    query, results = ask(file, table, key, value)
    return file.finish([query], results)


def computed_table(key: str, value: str, imports: int = 1) -> bytes:
    """Keys and values are inputs; a second import is ignored."""
    file = FileBuilder()
    table = begin(file, key, value)
    keys, values = file.tensor("keys", [3], key), file.tensor("values", [3], value)
    shape = file.tensor("shape", [1], "INT32", np.array([3], np.int32))
    reshaped = file.tensor("reshaped", [3], key)
    file.operator("RESHAPE", [keys, shape], [reshaped], {"new_shape": [3]})
    for content in (reshaped, keys)[:imports]:
        file.operator("HASHTABLE_IMPORT", [table, content, values], [])
    query, results = ask(file, table, key, value)
    return file.finish([query, keys, values], results)


@pytest.mark.parametrize(("key", "value"), [("INT64", "STRING"), ("STRING", "INT64")])
def test_hash_table_of_constants_agrees_with_litert(key: str, value: str) -> None:
    assert_same_runs(constant_table(key, value, KEYS[key]), [[QUERIES[key]]], BUILT_IN)
    doubled = KEYS[key][[0, 1, 0]]
    found, size = assert_same_runs(constant_table(key, value, doubled), [[QUERIES[key]]], BUILT_IN)[
        0
    ]
    assert found[2] == KEYS[value][0]
    assert size.tolist() == [2]


@pytest.mark.parametrize("imports", [1, 2])
@pytest.mark.parametrize(("key", "value"), [("INT64", "STRING"), ("STRING", "INT64")])
def test_computed_hash_table_is_filled_once(key: str, value: str, imports: int) -> None:
    feeds = [[QUERIES[key], keys, KEYS[value]] for keys in (KEYS[key], OTHERS[key])]
    feeds.append([OTHERS[key], KEYS[key], KEYS[value]])
    assert_same_runs(computed_table(key, value, imports), feeds, BUILT_IN)


def test_hash_table_is_filled_once_by_another_subgraph() -> None:
    file = FileBuilder()
    file.operator("CALL_ONCE", [], [], {"init_subgraph_index": 1})
    query, results = ask(file, begin(file, "INT64", "STRING"), "INT64", "STRING")
    file.end([query], results)
    file.begin("fill")
    table = begin(file, "INT64", "STRING")
    keys = file.tensor("keys", [3], "INT64", KEYS["INT64"])
    negated = file.tensor("negated", [3], "INT64")
    values = file.tensor("values", [3], "STRING", KEYS["STRING"])
    file.operator("NEG", [keys], [negated])
    file.operator("HASHTABLE_IMPORT", [table, negated, values], [])
    file.end([], [])
    feeds = [[np.array([-3, 3, -1], np.int64)]] * 2
    assert_same_runs(file.encode(), feeds, BUILT_IN)


@pytest.mark.parametrize("dtype", [DType.INT64, DType.STRING])
def test_empty_hash_table_finds_nothing(dtype: DType) -> None:
    key = Operand(dtype, (None,))
    value, default = Operand(DType.INT64, (None,)), Operand(DType.INT64, ())
    run = kernel_of("HASHTABLE_FIND", [key, value, key, default], [value])
    queries = QUERIES[dtype.name].reshape(3, 1)
    (found,) = run([queries[:0, 0], np.zeros(0, np.int64), queries, np.array(-1, np.int64)])
    assert found.tolist() == [[-1]] * 3
    with pytest.raises(ShapeMismatch):
        run([queries[:, 0], np.zeros(2, np.int64), queries, np.array(-1, np.int64)])
