from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock import errors
from penstock.ir import DType
from penstock.ir.subgraph import ConstantPool
from penstock.loaders.tflite.catalog import Catalog, read_catalog
from tests.unit.loaders.files import SAMPLES, FileBuilder, quantization, relu, sparse_matrix, svdf
from tests.unit.tflite import models


def catalog(content: bytes) -> Catalog:
    return read_catalog(ConstantPool(memoryview(content)))


def test_tensors_operators_and_ends_stand_as_in_the_file() -> None:
    (graph,) = catalog(models.chain()).subgraphs
    assert [t.name for t in graph.tensors] == ["x", "total", "y", "one"]
    assert graph.tensors[0].shape == (1, 2)
    assert graph.tensors[0].signature == (-1, 2)
    assert graph.tensors[3].signature is None
    assert [(o.name, o.inputs, o.outputs) for o in graph.operators] == [
        ("ADD", (0, 3), (1,)),
        ("NEG", (1,), (2,)),
    ]
    assert (graph.inputs, graph.outputs) == ((0,), (2,))


def test_constants_are_read_from_the_file() -> None:
    found = catalog(models.chain())
    np.testing.assert_array_equal(found.subgraphs[0].tensors[3].constant(found.pool), [1])
    with pytest.raises(errors.InvalidOperand):
        found.subgraphs[0].tensors[0].constant(found.pool)


def test_omitted_inputs_variables_and_resources_are_shown() -> None:
    (graph,) = catalog(svdf().encode()).subgraphs
    assert graph.operators[0].inputs[3] == -1
    assert [t.is_variable for t in graph.tensors] == [False, False, False, False, True]
    accumulator = catalog(SAMPLES[1]().encode())
    assert [s.tensors[0].dtype for s in accumulator.subgraphs] == [DType.RESOURCE] * 2


def test_custom_operators_go_by_their_own_name() -> None:
    file = FileBuilder()
    x, y = file.tensor("x", [1]), file.tensor("y", [1])
    file.operator("CUSTOM:Mystery", [x], [y])
    (operator,) = catalog(file.finish([x], [y])).subgraphs[0].operators
    assert (operator.name, operator.custom) == ("Mystery", True)


def test_quantisation_is_verbatim() -> None:
    found = catalog(models.per_channel()).subgraphs[0].tensors[1].quantization
    np.testing.assert_array_equal(found.scales, [0.25, 0.5, 1])
    np.testing.assert_array_equal(found.zero_points, [0, 0, 0])
    zero = relu(quantization=quantization([0.0], [2**40])).encode()
    kept = catalog(zero).subgraphs[0].tensors[0].quantization
    assert (kept.scales.tolist(), kept.zero_points.tolist()) == ([0.0], [2**40])


def test_sparse_tensors_show_levels_and_stored_values() -> None:
    dense = np.array([[0, 1, 0], [2, 0, 3]], np.float32)
    found = catalog(sparse_matrix(dense).encode())
    tensor = found.subgraphs[0].tensors[0]
    assert tensor.sparsity is not None
    first, second = tensor.sparsity.levels
    assert (first.dense_size, first.segments) == (2, None)
    assert second.segments is not None
    assert second.indices is not None
    assert (second.segments.tolist(), second.indices.tolist()) == ([0, 1, 3], [1, 0, 2])
    np.testing.assert_array_equal(tensor.constant(found.pool), [1, 2, 3])


def test_signatures_keep_the_files_order_and_sort_names() -> None:
    found = catalog(models.signed()).signatures
    assert list(found) == ["negate", "add", "inner"]
    assert list(found["add"].inputs.items()) == [("x", 0), ("y", 1)]
    assert found["inner"].outputs == {"between": 1}


def test_indexes_of_tensors_are_not_judged() -> None:
    file = relu()
    file.graph["inputs"] = [77]
    file.graph["operators"][0]["outputs"] = [99]
    (graph,) = catalog(file.encode()).subgraphs
    assert graph.inputs == (77,)
    assert graph.operators[0].outputs == (99,)


def _operator(**fields: object) -> bytes:
    file = relu()
    file.graph["operators"][0].update(fields)
    return file.encode()


def _code(number: int) -> bytes:
    file = relu()
    file.codes[0].update(builtin_code=number, deprecated_builtin_code=127)
    return file.encode()


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (relu(shape=[-2, 3]).encode(), errors.ShapeOverflow),
        (relu(shape=[2**31 - 1] * 3).encode(), errors.ShapeOverflow),
        (relu(buffer=9).encode(), errors.IndexOutOfRange),
        (relu(type=99).encode(), errors.UnknownType),
        (relu(quantization=quantization([1, 2], [0])).encode(), errors.InvalidQuantization),
        (relu(quantization=quantization([1, 2], [0, 0], 5)).encode(), errors.InvalidQuantization),
        (relu(value=b"abc").encode(), errors.InvalidOperand),
        (_operator(opcode_index=3), errors.IndexOutOfRange),
        (_code(30000), errors.UnknownOperator),
        (FileBuilder().encode(subgraphs=[]), errors.IndexOutOfRange),
    ],
)
def test_catalog_refuses_malformed_files(content: bytes, kind: type[errors.ModelError]) -> None:
    with pytest.raises(kind):
        catalog(content)


@given(st.integers(0, len(SAMPLES) - 1), st.data())
def test_any_damage_is_a_catalogue_or_a_named_defect(sample: int, data: st.DataObject) -> None:
    content = bytearray(SAMPLES[sample]().encode())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = catalog(bytes(content))
    except errors.ModelError:
        return
    for graph in found.subgraphs:
        for tensor in graph.tensors:
            if tensor.data is not None:
                assert 0 <= tensor.data.offset <= tensor.data.offset + tensor.data.length
                assert tensor.data.offset + tensor.data.length <= len(content)


def test_every_loadable_corpus_file_has_a_catalog(corpus: Path) -> None:
    paths = sorted((corpus / "models" / "units").glob("*.tflite"))[:40]
    assert paths
    for path in paths:
        assert catalog(path.read_bytes()).subgraphs
