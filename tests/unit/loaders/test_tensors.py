from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from penstock import errors, loaders
from penstock.export.tflite.fields import TFLITE
from penstock.ir import DType, Lifetime, Model, Quantization, infer_shapes
from penstock.ir.builder import pack
from tests.unit.loaders.files import FileBuilder, quantization, relu


def constant(value: Any, shape: tuple[int, ...], dtype: str, **fields: Any) -> Model:
    """A model whose first operand is one constant, read by a custom operator."""
    file = FileBuilder()
    c, y = file.tensor("c", shape, dtype, value, **fields), file.tensor("y", [1])
    file.operator("CUSTOM:use", [c], [y])
    return loaders.load(file.finish([], [y]))


@pytest.mark.parametrize(("dtype", "array"), [
    ("FLOAT32", np.array([1.5, -2.5], np.float32)),
    ("FLOAT16", np.array([1.5, -2.5], np.float16)),
    ("BFLOAT16", np.array([1.5, -2.5], ml_dtypes.bfloat16)),
    ("FLOAT64", np.array([1.5, -2.5])),
    ("FLOAT8_E4M3FN", np.array([1.5, -2.5], ml_dtypes.float8_e4m3fn)),
    ("FLOAT8_E5M2", np.array([1.5, -2.5], ml_dtypes.float8_e5m2)),
    ("INT8", np.array([-128, 127], np.int8)),
    ("UINT8", np.array([0, 255], np.uint8)),
    ("INT16", np.array([-(2**15), 7], np.int16)),
    ("UINT16", np.array([2**16 - 1, 7], np.uint16)),
    ("INT32", np.array([-(2**31), 7], np.int32)),
    ("UINT32", np.array([2**32 - 1, 7], np.uint32)),
    ("INT64", np.array([-(2**63), 7], np.int64)),
    ("UINT64", np.array([2**64 - 1, 7], np.uint64)),
    ("BOOL", np.array([True, False])),
    ("COMPLEX64", np.array([1 + 2j, 3], np.complex64)),
    ("COMPLEX128", np.array([1 + 2j, 3], np.complex128)),
    ("STRING", np.array([b"one", b""], object)),
])  # fmt: skip
def test_a_constant_has_its_value(dtype: str, array: Any) -> None:
    model = constant(array, array.shape, dtype)
    operand = model.operands[0]
    assert operand.dtype is DType(dtype.lower())
    assert model.constant(operand).tolist() == array.tolist()


@pytest.mark.parametrize(
    ("dtype", "values"), [("INT4", [-8, 7, 3]), ("UINT4", [0, 15, 9]), ("INT2", [-2, 1, 0, -1, 1])]
)
def test_packed_types_are_unpacked_when_asked_for(dtype: str, values: list[int]) -> None:
    packed, _ = pack(np.array(values, np.int8), DType(dtype.lower()))
    model = constant(packed, (len(values),), dtype)
    assert model.operands[0].value == packed
    assert model.constant(model.operands[0]).astype(int).tolist() == values


def test_every_type_of_the_format_has_an_operand_type() -> None:
    for name in TFLITE.numbers("TensorType"):
        file = FileBuilder()
        y = file.tensor("y", [1], name)
        file.operator("CUSTOM:make", [], [y])
        assert loaders.load(file.finish([], [y])).outputs[0].dtype.value == name.lower()


def test_large_constants_stay_in_the_file_and_small_ones_are_copied() -> None:
    small, large = np.arange(32, dtype=np.float32), np.arange(33, dtype=np.float32)
    model = constant(small, (32,), "FLOAT32")
    assert model.operands[0].lifetime is Lifetime.CONSTANT_COPY
    model = constant(large, (33,), "FLOAT32")
    assert model.operands[0].lifetime is Lifetime.CONSTANT_POOL
    view = np.frombuffer(model.pools[0].view, np.uint8)
    assert np.shares_memory(model.constant(model.operands[0]), view)


def test_a_buffer_may_be_longer_than_its_tensor() -> None:
    model = constant(np.arange(5, dtype=np.float32), (2,), "FLOAT32")
    assert model.constant(model.operands[0]).tolist() == [0, 1]


def test_a_tensor_without_elements_is_a_constant_without_bytes() -> None:
    file = FileBuilder()
    none, y = file.tensor("none", [0, 3]), file.tensor("y", [0, 3])
    file.operator("RELU", [none], [y])
    model = loaders.load(file.finish([], [y]))
    assert model.constant(model.operands[none]).shape == (0, 3)


def test_shape_signature_makes_dimensions_unknown() -> None:
    model = loaders.load(relu([1, 4], shape_signature=[-1, 4]).encode())
    assert model.inputs[0].shape == (None, 4)
    assert loaders.load(relu([1, 4], shape_signature=[]).encode()).inputs[0].shape == (1, 4)
    assert loaders.load(relu([0, 4]).encode()).inputs[0].shape == (0, 4)


def test_a_computed_value_without_dimensions_or_rank_is_not_declared() -> None:
    for is_declared in (False, True):
        file = FileBuilder()
        x, y, z = file.tensor("x"), file.tensor("y", has_rank=is_declared), file.tensor("z", [2])
        file.operator("RELU", [x], [y])
        file.operator("RELU", [y], [z])
        model = loaders.load(file.finish([x], [z]))
        assert [o.shape for o in model.operands] == [(), (), (2,)]
        # Callers declare the shape of an input.
        assert [o.shape_declared for o in model.operands] == [True, is_declared, True]
        inferred = infer_shapes(model, {0: (2,)})
        assert inferred.operands[y].shape == (2,)
        assert inferred.operands[y].shape_declared == is_declared


def test_quantisation_per_tensor_and_per_channel() -> None:
    file = relu([2, 3], quantization=quantization([0.5], [3]))
    assert loaders.load(file.encode()).inputs[0].quantization == Quantization((0.5,), (3,))
    file = relu([2, 3], quantization=quantization([0.5, 0.25, 2], [0, 0, 0], axis=1))
    assert loaders.load(file.encode()).inputs[0].quantization == Quantization(
        (0.5, 0.25, 2.0), (0, 0, 0), 1
    )


def test_a_single_scale_of_a_channel_is_per_tensor() -> None:
    file = relu([1, 3], quantization=quantization([0.5]))
    assert loaders.load(file.encode()).inputs[0].quantization == Quantization((0.5,), (0,))


def test_without_scales_there_is_no_quantisation() -> None:
    tables: list[dict[str, Any]] = [
        {"min": [0.0], "max": [1.0]},
        {"scale": []},
        quantization([0.0]),
    ]
    for table in tables:
        assert (
            loaders.load(relu([2, 3], quantization=table).encode()).inputs[0].quantization is None
        )


@pytest.mark.parametrize("table", [
    {"scale": [1.0]},
    quantization([1.0], [0, 0]),
    quantization([1.0, 2.0, 3.0], axis=0),
    quantization([1.0], axis=2),
    quantization([1.0], axis=-1),
    quantization([float("nan")]),
    quantization([float("inf")]),
    quantization([-1.0]),
    quantization([1.0], [2**40]),
    {"details_type": 1, "details": {"custom": b"x"}},
    {"details_type": 3, "details": {}},
])  # fmt: skip
def test_bad_quantisation_is_named(table: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidQuantization, match=r"tensor 0 \(x\)"):
        loaders.load(relu([2, 3], quantization=table).encode())


def test_an_integer_tensor_with_scale_zero_is_named() -> None:
    file = FileBuilder()
    x, y = (file.tensor(n, [2], "INT8", quantization=quantization([0.0])) for n in "xy")
    file.operator("RELU", [x], [y])
    with pytest.raises(errors.InvalidQuantization, match="zero"):
        loaders.load(file.finish([x], [y]))


@pytest.mark.parametrize(("fields", "error"), [
    ({"type": 77}, errors.UnknownType),
    ({"shape": [-1, 4]}, errors.ShapeOverflow),
    ({"shape": [2**31 - 1] * 4}, errors.ShapeOverflow),
    ({"shape": [1] * 40}, errors.ShapeOverflow),
    ({"shape": [0, 2**31 - 1, 2**31 - 1, 4]}, errors.ShapeOverflow),
    ({"buffer": 9}, errors.IndexOutOfRange),
    ({"external_buffer": 1}, errors.InvalidOperand),
])  # fmt: skip
def test_a_bad_tensor_is_named_with_its_place(
    fields: dict[str, Any], error: type[errors.ModelError]
) -> None:
    file = relu([1, 4])
    file.graph["tensors"][0].update(fields)
    content = file.encode()
    with pytest.raises(error, match=r"subgraph 0, (tensor|operand) 0 \(x\)"):
        loaders.load(content)


@pytest.mark.parametrize(("value", "shape", "dtype"), [
    (b"\0" * 7, (2,), "FLOAT32"),
    (b"\0", (3,), "INT4"),
    (b"\0" * 8, (), "RESOURCE"),
    (b"\0" * 8, (), "VARIANT"),
    (b"\1\0\0\0", (1,), "STRING"),
    (b"\2\0\0\0" + b"\x0c\0\0\0" * 3, (1,), "STRING"),
    (b"\1\0\0\0" + b"\x0c\0\0\0" + b"\x0d\0\0\0", (1,), "STRING"),
    (b"\1\0\0\0" + b"\x0c\0\0\0" + b"\x08\0\0\0", (1,), "STRING"),
    (b"\1\0\0\0" + b"\xff\xff\xff\xff" + b"\x0c\0\0\0", (1,), "STRING"),
])  # fmt: skip
def test_a_value_that_does_not_fit_is_named(
    value: bytes, shape: tuple[int, ...], dtype: str
) -> None:
    with pytest.raises(errors.InvalidOperand, match=r"tensor 0 \(c\)"):
        constant(value, shape, dtype)


def test_a_variable_tensor_with_a_buffer_is_refused() -> None:
    with pytest.raises(errors.InvalidOperand, match="variable tensor"):
        constant(np.ones(2, np.float32), (2,), "FLOAT32", is_variable=True)
