from __future__ import annotations

from typing import Any

import pytest

from penstock import errors, loaders
from penstock.export.tflite.encoding import encode
from penstock.export.tflite.fields import OPTIONS_OF_OPERATOR, TFLITE
from penstock.ir import DType, infer_shapes
from penstock.ir.operand import Origin
from penstock.ir.operations import OPERATIONS
from tests.unit.loaders.files import FileBuilder, relu


def convolution(**options: Any) -> FileBuilder:
    file = FileBuilder()
    x, w = file.tensor("x", [1, 5, 5, 1]), file.tensor("w", [2, 3, 3, 1])
    y = file.tensor("y", [1, 3, 3, 2])
    file.operator("CONV_2D", [x, w, -1], [y], {"stride_w": 1, "stride_h": 1, **options})
    file.end([x, w], [y])
    return file


def test_options_become_attributes_of_the_same_names() -> None:
    (conv,) = loaders.load(convolution(padding=1, fused_activation_function=3).encode()).operations
    assert dict(conv.attributes) == {
        "dilation_h_factor": 1,
        "dilation_w_factor": 1,
        "fused_activation_function": "RELU6",
        "padding": "VALID",
        "quantized_bias_type": "FLOAT32",
        "stride_h": 1,
        "stride_w": 1,
    }


def test_the_operation_table_has_every_option_of_the_format() -> None:
    for operator, table in OPTIONS_OF_OPERATOR.items():
        row = {a.name for a in OPERATIONS[operator].attributes}
        assert {f.name for f in TFLITE.table(table).fields} <= row, operator


def test_an_omitted_input_has_no_value() -> None:
    model = loaders.load(convolution().encode())
    assert not model.operands[model.operations[0].inputs[2]].has_value


def test_origins_are_the_files_own_numbers() -> None:
    model = loaders.load(relu().encode())
    number = TFLITE.number("BuiltinOperator", "RELU")
    assert model.operations[0].origin == Origin(0, 0, number, 1)
    assert model.operands[1].origin == Origin(0, 1)


def test_operator_code_is_the_larger_of_both_fields() -> None:
    file = relu()
    number = TFLITE.number("BuiltinOperator", "RELU")
    for code in ({"deprecated_builtin_code": number}, {"builtin_code": number}):
        assert loaders.load(file.encode(operator_codes=[code])).operations[0].type == "RELU"


def test_a_custom_operator_keeps_its_name_and_options() -> None:
    file = FileBuilder()
    x, y = file.tensor("x", [1]), file.tensor("y", [1])
    file.operator("CUSTOM:Mine", [x], [y], custom_options=b"abc")
    (mine,) = loaders.load(file.finish([x], [y])).operations
    assert (
        mine.type,
        mine.attributes.text("custom_code"),
        mine.attributes.blob("custom_options"),
    ) == ("CUSTOM", "Mine", b"abc")


def test_large_custom_options_stand_behind_the_flatbuffer() -> None:
    file = FileBuilder()
    x, y = file.tensor("x", [1]), file.tensor("y", [1])
    operator = file.operator(
        "CUSTOM:Mine", [x], [y], large_custom_options_offset=1 << 20, large_custom_options_size=5
    )
    size = len(file.finish([x], [y]))
    operator["large_custom_options_offset"] = size
    content = file.encode()
    assert len(content) == size
    assert (
        loaders.load(content + b"12345").operations[0].attributes.blob("custom_options") == b"12345"
    )
    with pytest.raises(errors.OffsetOutOfBounds):
        loaders.load(content + b"1234")


def test_a_composite_keeps_its_decomposition() -> None:
    file = FileBuilder()
    x, y = file.tensor("x", [1]), file.tensor("y", [1])
    options = {
        "name": "my.op",
        "decomposition_subgraph_index": 1,
        "composite_attributes": b"\1\2",
        "version": 2,
    }
    file.operator("STABLEHLO_COMPOSITE", [x], [y], options)
    file.end([x], [y])
    file.begin()
    x, y = file.tensor("x", [1]), file.tensor("y", [1])
    file.operator("RELU", [x], [y])
    attributes = loaders.load(file.finish([x], [y])).operations[0].attributes
    assert attributes.text("name") == "my.op"
    assert attributes.integer("decomposition_subgraph_index") == 1
    assert attributes.blob("composite_attributes") == b"\1\2"


def test_the_sum_has_the_type_of_its_second_input() -> None:
    file = FileBuilder()
    a, b = file.tensor("a", [1], "INT32"), file.tensor("b", [1], "INT32")
    y = file.tensor("y", [1], "FLOAT32")
    file.operator("ADD", [a, b], [y])
    assert loaders.load(file.finish([a, b], [y])).outputs[0].dtype is DType.INT32


def no_subgraph(root: dict[str, Any]) -> None:
    root["subgraphs"] = []


def old_schema(root: dict[str, Any]) -> None:
    root["version"] = 2


def unknown_operator(root: dict[str, Any]) -> None:
    root["operator_codes"][0]["builtin_code"] = 30000


def negative_operator(root: dict[str, Any]) -> None:
    root["operator_codes"][0].update(builtin_code=-5, deprecated_builtin_code=-6)


def placeholder_operator(root: dict[str, Any]) -> None:
    root["operator_codes"][0].update(builtin_code=127, deprecated_builtin_code=127)


def nameless_custom(root: dict[str, Any]) -> None:
    root["operator_codes"][0].update(builtin_code=32, deprecated_builtin_code=32)


def code_index(root: dict[str, Any]) -> None:
    root["subgraphs"][0]["operators"][0]["opcode_index"] = 250


def input_index(root: dict[str, Any]) -> None:
    root["subgraphs"][0]["operators"][0]["inputs"] = [99]


def input_below_minus_one(root: dict[str, Any]) -> None:
    root["subgraphs"][0]["operators"][0]["inputs"] = [-2]


def omitted_output(root: dict[str, Any]) -> None:
    root["subgraphs"][0]["operators"][0]["outputs"] = [-1]


def intermediate_index(root: dict[str, Any]) -> None:
    root["subgraphs"][0]["operators"][0]["intermediates"] = [5]


def graph_input(root: dict[str, Any]) -> None:
    root["subgraphs"][0]["inputs"] = [12345]


def graph_output(root: dict[str, Any]) -> None:
    root["subgraphs"][0]["outputs"] = [-1]


def no_output(root: dict[str, Any]) -> None:
    root["subgraphs"][0]["operators"][0]["outputs"] = []


def reads_itself(root: dict[str, Any]) -> None:
    root["subgraphs"][0]["operators"][0]["inputs"] = [1]


def two_writers(root: dict[str, Any]) -> None:
    root["subgraphs"][0]["operators"] *= 2


def writes_its_input(root: dict[str, Any]) -> None:
    root["subgraphs"][0]["operators"][0]["outputs"] = [0]


def wrong_options(root: dict[str, Any]) -> None:
    operator = root["subgraphs"][0]["operators"][0]
    operator.update(builtin_options_type=1, builtin_options={})
    root["operator_codes"][0].update(deprecated_builtin_code=0, builtin_code=0)


def unknown_options(root: dict[str, Any]) -> None:
    root["operator_codes"][0].update(deprecated_builtin_code=0, builtin_code=0)
    operator = root["subgraphs"][0]["operators"][0]
    kind = TFLITE.unions["BuiltinOptions"].index("AddOptions")
    operator.update(builtin_options_type=kind, builtin_options={"fused_activation_function": 99})


def without_inputs(root: dict[str, Any]) -> None:
    root["subgraphs"][0]["operators"][0]["inputs"] = []


@pytest.mark.parametrize(("change", "error"), [
    (no_subgraph, errors.IndexOutOfRange),
    (old_schema, errors.NotAModel),
    (unknown_operator, errors.UnknownOperator),
    (negative_operator, errors.UnknownOperator),
    (placeholder_operator, errors.UnknownOperator),
    (nameless_custom, errors.UnknownOperator),
    (code_index, errors.IndexOutOfRange),
    (input_index, errors.IndexOutOfRange),
    (input_below_minus_one, errors.IndexOutOfRange),
    (omitted_output, errors.IndexOutOfRange),
    (intermediate_index, errors.IndexOutOfRange),
    (graph_input, errors.IndexOutOfRange),
    (graph_output, errors.IndexOutOfRange),
    (no_output, (errors.InvalidOperation, errors.UnwrittenOperand)),
    (reads_itself, errors.CyclicModel),
    (two_writers, errors.DuplicateWriter),
    (writes_its_input, errors.DuplicateWriter),
    (wrong_options, errors.InvalidAttribute),
    (unknown_options, errors.InvalidAttribute),
    (without_inputs, errors.InvalidOperation),
])  # fmt: skip
def test_a_broken_graph_is_named(change: Any, error: type[errors.ModelError]) -> None:
    file = relu()
    change(file.root)
    with pytest.raises(error):
        loaders.load(file.encode())


def entries(**ends: list[dict[str, Any]]) -> dict[str, Any]:
    both = {
        "inputs": [{"name": "in", "tensor_index": 0}],
        "outputs": [{"name": "out", "tensor_index": 1}],
    }
    return {"signature_key": "go", **both, **ends}


def test_signatures_name_the_ends_of_a_subgraph() -> None:
    signature = loaders.load(relu().encode(signature_defs=[entries()])).signatures["go"]
    assert (signature.subgraph, signature.inputs, signature.outputs) == (
        0,
        (("in", 0),),
        (("out", 1),),
    )


@pytest.mark.parametrize(("signatures", "error"), [
    ([entries(), entries()], errors.InvalidSignature),
    ([entries(inputs=[{"name": "a", "tensor_index": 0}] * 2)], errors.InvalidSignature),
    ([entries(outputs=[{"name": "a", "tensor_index": 7}])], errors.IndexOutOfRange),
    ([{**entries(), "subgraph_index": 1}], errors.IndexOutOfRange),
])  # fmt: skip
def test_a_broken_signature_is_named(
    signatures: list[dict[str, Any]], error: type[errors.ModelError]
) -> None:
    with pytest.raises(error, match="signature"):
        loaders.load(relu().encode(signature_defs=signatures))


def test_a_signature_of_inner_tensors_is_left_out_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stale = entries(inputs=[{"name": "in", "tensor_index": 1}])
    model = loaders.load(relu().encode(signature_defs=[stale]))
    assert not model.signatures
    assert "left out" in caplog.text


def test_subgraphs_that_enter_each_other_are_named() -> None:
    file = FileBuilder()
    for target in (1, 0):
        if target == 0:
            file.begin()
        c, x, y = file.tensor("c", [1], "BOOL"), file.tensor("x", [1]), file.tensor("y", [1])
        file.operator(
            "IF", [c, x], [y], {"then_subgraph_index": target, "else_subgraph_index": target}
        )
        file.end([c, x], [y])
    with pytest.raises(errors.CyclicModel, match="entered again"):
        loaders.load(file.encode())


def test_a_subgraph_out_of_range_is_named() -> None:
    file = FileBuilder()
    c, x, y = file.tensor("c", [1], "BOOL"), file.tensor("x", [1]), file.tensor("y", [1])
    file.operator("IF", [c, x], [y], {"then_subgraph_index": 9, "else_subgraph_index": 0})
    with pytest.raises(errors.IndexOutOfRange, match="subgraph 9 of 1"):
        loaders.load(file.finish([c, x], [y]))


def test_constants_beyond_the_flatbuffer() -> None:
    file = FileBuilder()
    x, w, y = (
        file.tensor("x", [64]),
        file.tensor("w", [64], value=bytes(256)),
        file.tensor("y", [64]),
    )
    file.operator("ADD", [x, w], [y])
    file.end([x], [y])
    file.buffers[1] = {"offset": 1 << 20, "size": 256}
    size = len(encode(TFLITE, file.root))
    file.buffers[1] = {"offset": size, "size": 256}
    content = file.encode() + b"\0\0\x80?" * 64
    model = loaders.load(content)
    assert model.constant(model.operands[w]).tolist() == [1.0] * 64
    with pytest.raises(errors.OffsetOutOfBounds, match="buffer 1"):
        loaders.load(content[:-1])


def test_enumerations_and_subgraphs_in_vectors() -> None:
    file = FileBuilder()
    a, b, y = (file.tensor(n, [1, 1]) for n in "aby")
    options = {
        "lhs_contracting_dimensions": [1],
        "rhs_contracting_dimensions": [0],
        "precision_config": [2, 0],
    }
    file.operator("STABLEHLO_DOT_GENERAL", [a, b], [y], options)
    (dot,) = loaders.load(file.finish([a, b], [y])).operations
    assert dot.attributes["precision_config"] == (2, 0)


def test_the_branches_of_a_case_are_followed() -> None:
    file = FileBuilder()
    i, y = file.tensor("i", [], "INT32"), file.tensor("y", [1])
    file.operator("STABLEHLO_CASE", [i], [y], {"branch_subgraph_indices": [0]})
    with pytest.raises(errors.CyclicModel):
        loaders.load(file.finish([i], [y]))
    file.graph["operators"][0]["builtin_options2"] = {"branch_subgraph_indices": [1, 7]}
    with pytest.raises(errors.IndexOutOfRange, match="subgraph 1 of 1"):
        loaders.load(file.encode())


def test_a_scalar_among_concatenated_vectors_is_named() -> None:
    file = FileBuilder()
    a, b, y = file.tensor("a", [2]), file.tensor("b", []), file.tensor("y", [3])
    file.operator("CONCATENATION", [a, b], [y], {})
    model = loaders.load(file.finish([a, b], [y]))
    with pytest.raises(errors.ShapeMismatch, match="rank"):
        infer_shapes(model)
