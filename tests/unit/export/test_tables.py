"""Hash tables on their way through the writer."""

from __future__ import annotations

import pytest

from penstock import loaders
from penstock.errors import NotExportable
from penstock.export.tflite import write
from tests.support_runs import BUILT_IN, assert_same_runs
from tests.unit.drivers.reference import test_lookup
from tests.unit.loaders.files import FileBuilder


@pytest.mark.parametrize(("key", "value"), [("INT64", "STRING"), ("STRING", "INT64")])
def test_one_table_is_asked_for_values_and_size(key: str, value: str) -> None:
    model = loaders.load(test_lookup.constant_table(key, value, test_lookup.KEYS[key]))
    content = write(model)
    assert loaders.load(content) == model
    assert_same_runs(content, [[test_lookup.QUERIES[key]]], BUILT_IN)


@pytest.mark.parametrize("key", ["INT64", "STRING"])
def test_a_table_that_is_only_measured(key: str) -> None:
    file = FileBuilder()
    table, size = file.tensor("table", [], "RESOURCE"), file.tensor("size", [1], "INT64")
    types = (
        {"key_dtype": 4, "value_dtype": 5} if key == "INT64" else {"key_dtype": 5, "value_dtype": 4}
    )
    keys = file.tensor("keys", [3], key, test_lookup.KEYS[key])
    value = "STRING" if key == "INT64" else "INT64"
    values = file.tensor("values", [3], value, test_lookup.KEYS[value])
    file.operator("HASHTABLE", [], [table], {"table_id": 1, **types})
    file.operator("HASHTABLE_IMPORT", [table, keys, values], [])
    file.operator("HASHTABLE_SIZE", [table], [size])
    model = loaders.load(file.finish([], [size]))
    content = write(model)
    assert loaders.load(content) == model
    assert assert_same_runs(content, [[]], BUILT_IN)[0][0].tolist() == [3]


def test_a_computed_table_has_no_form() -> None:
    with pytest.raises(NotExportable, match="holds strings"):
        write(loaders.load(test_lookup.computed_table("INT64", "STRING")))
