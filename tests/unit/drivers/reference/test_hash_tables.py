"""Tables of constant and of computed content, against LiteRT."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import ShapeMismatch
from penstock.export.tflite.fields import TFLITE
from penstock.ir import DType, NDArray, Operand
from tests.support_litert import kernel_of
from tests.support_runs import BUILT_IN, assert_same_runs, strings
from tests.unit.loaders.files import FileBuilder

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
