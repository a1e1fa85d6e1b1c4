"""Hash tables whose content is known at run time only: what they lower to."""

from __future__ import annotations

import numpy as np
import pytest

from penstock import loaders
from penstock.errors import InvalidOperand, InvalidOperation
from penstock.ir import DType, Model
from tests.unit.loaders.files import FileBuilder, computed_table, hash_table


def load(file: FileBuilder) -> Model:
    return loaders.load(file.encode())


def test_a_computed_table_is_state_that_its_first_import_fills() -> None:
    model = load(computed_table())
    assert [o.type for o in model.operations] == ["IF", "HASHTABLE_FIND"]
    assert [(v.dtype, v.shape) for v in model.variables] == [
        (DType.BOOL, ()),
        (DType.INT64, (None,)),
        (DType.STRING, (None,)),
    ]
    choose, find = model.operations
    filled, keys, values = model.entry.states
    assert choose.inputs[:3] == (filled.input, keys.input, values.input)
    assert [model.operands[i].name for i in choose.inputs[3:]] == ["new keys", "names"]
    assert find.inputs[:2] == choose.outputs == (keys.output, values.output)
    assert filled.output is not None
    assert model.constant(model.operands[filled.output]).item() is True
    kept, brought = (
        model.subgraphs[choose.attributes.integer(name)]
        for name in ("then_subgraph_index", "else_subgraph_index")
    )
    assert kept.outputs == kept.inputs[:2]
    assert brought.outputs == brought.inputs[2:]


def test_two_contents_make_state_of_a_table() -> None:
    file = hash_table()
    other = file.tensor("other", [3], "INT64", np.array([5, 6, 8], np.int64))
    file.operator("HASHTABLE_IMPORT", [0, other, 2], [])
    model = load(file)
    assert [o.type for o in model.operations] == ["IF", "HASHTABLE_FIND", "IF"]
    assert len(model.variables) == 3
    assert len(model.subgraphs) == 3


def test_a_table_that_is_only_measured() -> None:
    file = computed_table()
    size = file.tensor("size", [1], "INT64")
    file.operator("HASHTABLE_SIZE", [0], [size])
    model = load(file)
    assert model.operations[-1].type == "HASHTABLE_SIZE"
    assert model.operations[-1].inputs == (model.entry.states[1].output,)


def test_subgraph_passes_a_filled_table_to_its_caller() -> None:
    file = computed_table()
    entry = file.graph
    imports = entry["operators"].pop(1)
    assert imports["inputs"][1] == entry["inputs"].pop()
    file.operator("CALL_ONCE", [], [], {"init_subgraph_index": 1})
    entry["operators"].insert(0, entry["operators"].pop())
    file.begin("fill")
    table = file.tensor("table", [], "RESOURCE")
    keys = file.tensor("keys", [3], "INT64", np.array([1, 2, 3], np.int64))
    negated = file.tensor("negated", [3], "INT64")
    names = file.tensor("names", [3], "STRING", np.array([b"a", b"b", b"c"], object))
    file.operator("HASHTABLE", [], [table], entry["operators"][1]["builtin_options"])
    file.operator("NEG", [keys], [negated])
    file.operator("HASHTABLE_IMPORT", [table, negated, names], [])
    file.end([], [])
    model = load(file)
    assert [o.type for o in model.operations] == ["IF", "HASHTABLE_FIND"]
    assert [v.dtype for v in model.variables].count(DType.BOOL) == 2
    assert [o.type for o in model.subgraphs[1].operations] == ["NEG", "IF"]


def test_two_types_of_one_table_are_named() -> None:
    file = computed_table()
    other = file.tensor("other", [3], "INT32", np.array([5, 6, 8], np.int32))
    file.operator("HASHTABLE_IMPORT", [0, other, 2], [])
    with pytest.raises(InvalidOperand, match="a table is int64 elsewhere and int32 here"):
        load(file)


def test_an_import_without_values_is_named() -> None:
    file = hash_table()
    file.graph["operators"][1]["inputs"] = [0, 1]
    with pytest.raises(InvalidOperation, match="keys and values"):
        load(file)
