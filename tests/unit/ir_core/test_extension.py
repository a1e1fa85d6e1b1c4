"""Operations and operand types of vendors' extensions in the IR."""

from __future__ import annotations

import copy
from typing import Any, Final

import numpy as np
import pytest
from msgspec.structs import replace

from penstock import errors
from penstock.export import tflite
from penstock.ir import (
    DType,
    ExtensionType,
    Lifetime,
    Model,
    ModelBuilder,
    Operand,
    Quantization,
    infer_shapes,
)
from penstock.ir.digest import form_of
from penstock.ir.operand import MAX_DATA, extension_key, name_fault, split_key
from penstock.ir.operations import spec_of

NAME: Final = "com.example.fixed"
TENSOR: Final = ExtensionType(NAME, 1, 8, data=b"abc")
SCALAR: Final = ExtensionType(NAME, 0, 4, is_tensor=False)


def network(
    kind: ExtensionType = TENSOR, name: str = NAME, code: int = 3, given: Any = SCALAR
) -> Model:
    """y = operation *code* of the scalar n."""
    builder = ModelBuilder()
    n = builder.input(DType.UINT8, (given.byte_size,), "n", extension=given)
    y = Operand(DType.UINT8, (2, kind.byte_size), name="y", extension=kind)
    return builder.build(
        builder.operation("EXTENSION", [n], [y], {"extension": name, "code": code})
    )


def test_an_operation_has_a_key_of_its_own_and_the_row_of_all_extensions() -> None:
    (operation,) = network().operations
    assert operation.key == f"EXTENSION:{NAME}:3" == extension_key(NAME, 3)
    assert spec_of(operation).name == "EXTENSION"
    assert split_key(operation.key) == (NAME, 3)


@pytest.mark.parametrize("key", [
    "ADD", "EXTENSION", "EXTENSION:", f"EXTENSION:{NAME}", f"EXTENSION:{NAME}:",
    f"EXTENSION:{NAME}:-1",
    f"EXTENSION:{NAME}:65536", f"EXTENSION:{NAME}:07", f"EXTENSION:{NAME}:1e3",
    f"EXTENSION:{NAME}:²",
    "EXTENSION:word:1", f"CUSTOM:{NAME}:1", f"EXTENSION:{NAME}:{'9' * 5000}",
])  # fmt: skip
def test_texts_that_are_no_key_of_an_extension_have_none(key: str) -> None:
    assert split_key(key) is None


@pytest.mark.parametrize("name", ["com.example.a", "a.b", "x1.y_2.3", "a." + "b" * 253])
def test_reversed_domain_names_are_names(name: str) -> None:
    assert name_fault(name) == ""


@pytest.mark.parametrize("name", [
    "", "word", "Com.example", "com.example.", ".com", "com..example", "com.exämple",
    "com.ex ample", "com.ex-ample",
    "com.example\n", "a." + "b" * 254, None, 7, b"com.example",
])  # fmt: skip
def test_names_that_are_no_reversed_domain_are_refused(name: Any) -> None:
    assert "extension" in name_fault(name)


@pytest.mark.parametrize("changed", [
    {"extension": "word"}, {"code": -1}, {"code": 1 << 16}, {"byte_size": 0},
    {"byte_size": 1 << 32},
    {"byte_size": 7}, {"is_tensor": False}, {"data": bytes(MAX_DATA + 1)},
])  # fmt: skip
def test_an_operand_of_a_malformed_type_is_refused(changed: dict[str, Any]) -> None:
    operand = Operand(DType.UINT8, (2, 8), name="y", extension=replace(TENSOR, **changed))
    builder = ModelBuilder()
    n = builder.input(DType.UINT8, (4,), "n", extension=SCALAR)
    with pytest.raises(errors.InvalidOperand):
        builder.build(
            builder.operation("EXTENSION", [n], [operand], {"extension": NAME, "code": 0})
        )


@pytest.mark.parametrize("operand", [
    Operand(DType.INT8, (2, 8), extension=TENSOR),
    Operand(DType.UINT8, (2,), extension=TENSOR),
    Operand(DType.UINT8, (), extension=TENSOR),
    Operand(DType.UINT8, (2, None), extension=TENSOR),
    Operand(DType.UINT8, (2, 8), quantization=Quantization((1.0,), (0,)), extension=TENSOR),
    Operand(DType.UINT8, (1, 4), extension=SCALAR),
    Operand(DType.UINT8, None, extension=SCALAR),
])  # fmt: skip
def test_an_operand_whose_array_its_type_does_not_have_is_refused(operand: Operand) -> None:
    builder = ModelBuilder()
    n = builder.input(DType.FLOAT32, (1,), "n")
    with pytest.raises(errors.InvalidOperand, match="is uint8 without quantisation"):
        builder.build(
            builder.operation("EXTENSION", [n], [operand], {"extension": NAME, "code": 0})
        )


@pytest.mark.parametrize("shape", [None, (None, 8), (0, 8), (8,)])
def test_the_dimensions_of_a_tensor_may_be_unknown_or_none(shape: Any) -> None:
    builder = ModelBuilder()
    n = builder.input(DType.FLOAT32, (1,), "n")
    y = Operand(DType.UINT8, shape, extension=TENSOR)
    model = builder.build(builder.operation("EXTENSION", [n], [y], {"extension": NAME, "code": 0}))
    assert infer_shapes(model).outputs[0].shape == shape


@pytest.mark.parametrize("attributes", [
    {}, {"extension": NAME}, {"code": 1}, {"extension": "word", "code": 1},
    {"extension": NAME, "code": 1 << 16},
    {"extension": NAME, "code": -1}, {"extension": NAME, "code": "1"},
    {"extension": NAME, "code": 1, "more": 2},
])  # fmt: skip
def test_an_operation_that_names_no_extension_is_refused(attributes: dict[str, Any]) -> None:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (1,), "x")
    with pytest.raises(errors.InvalidAttribute):
        builder.build(builder.operation("EXTENSION", [x], [(DType.FLOAT32, (1,))], attributes))


def test_operations_outside_extensions_take_none_of_their_types() -> None:
    builder = ModelBuilder()
    x = builder.input(DType.UINT8, (2, 8), "x", extension=TENSOR)
    with pytest.raises(errors.InvalidOperation, match=rf"RELU cannot .* 'x' .* {NAME}:1"):
        builder.build(builder.operation("RELU", [x], [(DType.UINT8, (2, 8))]))
    builder = ModelBuilder()
    x = builder.input(DType.UINT8, (2, 8), "x")
    with pytest.raises(errors.InvalidOperation, match="RELU cannot"):
        builder.build(
            builder.operation("RELU", [x], [Operand(DType.UINT8, (2, 8), extension=TENSOR)])
        )


@pytest.mark.parametrize("inner", [None, SCALAR, replace(TENSOR, data=b"abd"), TENSOR])
def test_a_branch_takes_what_it_is_given(inner: ExtensionType | None) -> None:
    builder = ModelBuilder()
    chosen = builder.input(DType.BOOL, (), "chosen")
    x = builder.input(DType.UINT8, (8,), "x", extension=TENSOR)
    branch = builder.subgraph()
    size = 8 if inner is None else inner.byte_size
    given = branch.input(DType.UINT8, (size,), "i", extension=inner)
    target = builder.add_subgraph(branch.finish([given]))
    references = {"then_subgraph_index": target, "else_subgraph_index": target}
    y = builder.operation(
        "IF", [chosen, x], [Operand(DType.UINT8, (8,), extension=TENSOR)], references
    )
    if inner == TENSOR:
        assert builder.build(y).outputs[0].extension == TENSOR
    else:
        with pytest.raises(errors.InvalidOperation):
            builder.build(y)


@pytest.mark.parametrize("other", [
    network(replace(TENSOR, code=2)),
    network(replace(TENSOR, data=b"abd")),
    network(replace(TENSOR, extension="com.example.other")),
    network(replace(TENSOR, byte_size=4)),
    network(given=ExtensionType(NAME, 0, 4)),
    network(code=4),
    network(name="com.example.other"),
])  # fmt: skip
def test_everything_of_an_extension_is_in_the_digest(other: Model) -> None:
    model = network()
    assert model == network()
    assert model.digest.structure != other.digest.structure
    mine, theirs = (form_of(m, m.operations[0]) for m in (model, other))
    assert mine.digest != theirs.digest or mine.shapes != theirs.shapes


def test_a_model_with_extensions_is_shown_and_copied() -> None:
    model = network()
    assert model.show().splitlines()[1:] == [
        "subgraph 0 'main' (main)",
        f"  input  %0 'n': {NAME}:0[] of 4 bytes",
        (
            f"  %1: {NAME}:1[2] of 8 bytes, data <3 bytes> = EXTENSION(%0) {{code=3, "
            f"extension={NAME}}}"
        ),
        f"  output %1 'y': {NAME}:1[2] of 8 bytes, data <3 bytes>",
    ]
    again = copy.deepcopy(model)
    assert again == model
    assert again.outputs[0].extension == TENSOR


def test_tflite_has_no_form_for_extensions() -> None:
    with pytest.raises(errors.NotExportable, match=f"'n' has an extension's type, {NAME}:0"):
        tflite.write(network())
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (1,), "x")
    attributes: dict[str, Any] = {"extension": NAME, "code": 0}
    plain = builder.build(builder.operation("EXTENSION", [x], [(DType.FLOAT32, (1,))], attributes))
    with pytest.raises(errors.NotExportable, match=f"no operator EXTENSION:{NAME}:0"):
        tflite.write(plain)


def test_a_constant_of_an_extensions_type_has_its_bytes() -> None:
    builder = ModelBuilder()
    value = np.arange(3, dtype=np.int64).tobytes()
    k = builder.operand(
        Operand(DType.UINT8, (3, 8), Lifetime.CONSTANT_COPY, value=value, extension=TENSOR)
    )
    attributes: dict[str, Any] = {"extension": NAME, "code": 0}
    model = builder.build(builder.operation("EXTENSION", [k], [(DType.FLOAT32, (3,))], attributes))
    assert model.constant(model.operands[k]).view(np.int64)[:, 0].tolist() == [0, 1, 2]
    short = replace(model.operands[k], value=value[:-1])
    graph = replace(model.entry, operands=(short, *model.operands[1:]))
    with pytest.raises(errors.ModelError, match="takes 24 bytes"):
        replace(model, subgraphs=(graph,))
