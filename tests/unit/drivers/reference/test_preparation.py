"""Constant weights are prepared with the model, and not to answer what is supported."""

from __future__ import annotations

import numpy as np
import pytest

from penstock import hal
from penstock.drivers.reference import ReferenceDevice
from penstock.drivers.reference.numerics import products
from penstock.ir import AttributeValue, DType, Model, ModelBuilder, NDArray, Quantization

STEP, PRODUCT = Quantization((0.5,), (0,)), Quantization((0.25,), (0,))
F32, I8 = DType.FLOAT32, DType.INT8
IMAGE = (1, 4, 4, 2)
WINDOW: dict[str, AttributeValue] = {"padding": "SAME", "stride_w": 1, "stride_h": 1}


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of weights that were prepared, layer by layer."""
    found: list[int] = []
    columns = products.Columns

    def counting(weights: NDArray, magnitude: int) -> products.Columns:
        found.append(weights.size)
        return columns(weights, magnitude)

    monkeypatch.setattr(products, "Columns", counting)
    return found


def layers() -> Model:
    """A convolution, a depthwise one, a transposed one, and a fully connected layer in a branch."""
    builder = ModelBuilder()
    branch = builder.subgraph()
    flat = branch.input(I8, (1, 32), quantization=STEP)
    units = branch.constant(np.ones((3, 32), np.int8), quantization=STEP)
    made = branch.operation("FULLY_CONNECTED", [flat, units, None], [(I8, (1, 3), STEP)])
    index = builder.add_subgraph(branch.finish(made))

    def weights(*shape: int) -> int:
        return builder.constant(np.ones(shape, np.int8), quantization=STEP)

    image = [(I8, IMAGE, STEP)]
    x = builder.input(I8, IMAGE, "x", STEP)
    bias = builder.constant(np.ones(2, np.int32))
    (x,) = builder.operation("CONV_2D", [x, weights(2, 3, 3, 2), bias], image, WINDOW)
    (x,) = builder.operation("DEPTHWISE_CONV_2D", [x, weights(1, 3, 3, 2), None], image, WINDOW)
    shape = builder.constant(np.array(IMAGE, np.int32))
    (x,) = builder.operation("TRANSPOSE_CONV", [shape, weights(2, 3, 3, 2), x, None], image, WINDOW)
    rows = builder.constant(np.array([1, 32], np.int32))
    (x,) = builder.operation("RESHAPE", [x, rows], [(I8, (1, 32), STEP)])
    condition = builder.input(DType.BOOL, (1,), "condition")
    attributes: dict[str, AttributeValue] = {
        "then_subgraph_index": index,
        "else_subgraph_index": index,
    }
    return builder.build(builder.operation("IF", [condition, x], [(I8, (1, 3), STEP)], attributes))


def test_weights_are_prepared_with_the_model_and_not_for_a_question(prepared: list[int]) -> None:
    device, model = ReferenceDevice(), layers()
    assert all(answer.supported for answer in device.supported_operations(model))
    assert prepared == []
    made = device.prepare_model(model, hal.PrepareConfig())
    assert sorted(prepared) == [18, 36, 36, 96]
    inputs = np.zeros(IMAGE, np.int8), np.array([True])
    request = hal.Request(
        tuple(hal.HostMemory(a) for a in inputs), (hal.HostMemory(np.empty((1, 3), np.int8)),)
    )
    made.execute(request, hal.ExecutionConfig())
    assert len(prepared) == 4


def dense(data: DType, weights: NDArray, bias: NDArray | None = None) -> Model:
    builder = ModelBuilder()
    quantization = None if data is F32 else STEP
    x = builder.input(data, (1, 128), "x", quantization)
    w = builder.constant(weights, quantization=quantization)
    b = None if bias is None else builder.constant(bias, quantization=PRODUCT)
    return builder.build(
        builder.operation("FULLY_CONNECTED", [x, w, b], [(data, (1, 2), quantization)])
    )


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            dense(I8, np.ones((2, 128), np.int8), np.ones(3, np.int32)),
            "not computable as it stands: operands could not be broadcast together",
        ),
        (
            dense(F32, np.ones((2, 64, 2), np.float32)),
            "not computable as it stands: too many values to unpack",
        ),
    ],
    ids=["bias of another length", "weights of another rank"],
)
def test_constants_that_cannot_be_prepared_are_refused_when_asked(
    model: Model, reason: str
) -> None:
    (answer,) = ReferenceDevice().supported_operations(model)
    assert not answer.supported
    assert answer.reason.startswith(reason)
