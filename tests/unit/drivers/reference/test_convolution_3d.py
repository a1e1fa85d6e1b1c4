"""CONV_3D and CONV_3D_TRANSPOSE beside LiteRT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pytest

from penstock.drivers.reference.kernel import Unsupported
from penstock.errors import PenstockError
from penstock.ir import DType, Model, NDArray, Operand
from tests.support_litert import kernel_of
from tests.unit.drivers.reference.single_models import check, computed, single

STEPS: Final = [
    ((1, 1, 1), (1, 1, 1)),
    ((2, 1, 3), (1, 1, 1)),
    ((1, 1, 1), (2, 3, 1)),
    ((3, 2, 2), (1, 2, 2)),
]
ACTIVATIONS: Final = ["NONE", "RELU", "RELU6", "RELU_N1_TO_1", "TANH", "SIGN_BIT"]
F32: Final = DType.FLOAT32


def attributes_of(strides: Sequence[int], dilations: Sequence[int], **more: Any) -> dict[str, Any]:
    found = {f"stride_{a}": s for a, s in zip("dhw", strides, strict=True)}
    return {
        **found,
        **{f"dilation_{a}_factor": d for a, d in zip("dhw", dilations, strict=True)},
        **more,
    }


def floats(seed: int, *shape: int) -> NDArray:
    """Quarters in [-2, 2]: sums of their products are exact in any order."""
    return (np.random.default_rng(seed).integers(-8, 9, shape) / 4).astype(np.float32)


def outputs_of(size: int, extent: int, stride: int, dilation: int, padding: str) -> int:
    reach = (extent - 1) * dilation + 1
    return -(-size // stride) if padding == "SAME" else (size - reach + stride) // stride


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(("strides", "dilations"), STEPS)
@pytest.mark.parametrize("reference", [True, False])
def test_conv_3d_agrees_with_litert(
    strides: Sequence[int], dilations: Sequence[int], padding: str, reference: bool
) -> None:
    volume, filters = floats(1, 2, 6, 7, 5, 3), floats(2, 2, 3, 3, 3, 4)
    for number, activation in enumerate(ACTIVATIONS):
        inputs = [volume, filters, floats(3, 4)][: 2 + number % 2]
        attributes = attributes_of(
            strides, dilations, padding=padding, fused_activation_function=activation
        )
        check(single("CONV_3D", inputs, [(F32, None)], attributes), inputs, reference=reference)


def test_conv_3d_of_one_element_and_constant_filters_agrees_with_litert() -> None:
    volume, filters, bias = floats(1, 1, 3, 4, 5, 6), floats(2, 1, 1, 1, 6, 2), floats(3, 2)
    attributes = attributes_of((1, 1, 1), (1, 1, 1), padding="VALID")
    model = single("CONV_3D", [volume, filters, bias], [(F32, None)], attributes, constant=(1, 2))
    check(model, [volume])


def transposed(
    shape: Sequence[int], inputs: Sequence[NDArray], attributes: dict[str, Any]
) -> tuple[Model, list[NDArray]]:
    """Filters, volume and bias; the output's shape is a constant."""
    sizes = np.array(shape, np.int32)
    model = single(
        "CONV_3D_TRANSPOSE", [sizes, *inputs], [(F32, tuple(shape))], attributes, constant=(0,)
    )
    return model, list(inputs)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(("strides", "dilations"), STEPS)
@pytest.mark.parametrize("reference", [True, False])
def test_conv_3d_transpose_agrees_with_litert(
    strides: Sequence[int], dilations: Sequence[int], padding: str, reference: bool
) -> None:
    size, extents = (6, 7, 5), (2, 3, 3)
    places = [
        outputs_of(*numbers, padding)
        for numbers in zip(size, extents, strides, dilations, strict=True)
    ]
    volume, filters = floats(1, 2, *places, 3), floats(2, *extents, 4, 3)
    for number, activation in enumerate(ACTIVATIONS):
        inputs = [filters, volume, floats(3, 4)][: 2 + number % 2]
        attributes = attributes_of(
            strides, dilations, padding=padding, fused_activation_function=activation
        )
        check(*transposed((2, *size, 4), inputs, attributes), reference=reference)


def test_conv_3d_transpose_output_shape_may_be_known_at_run_time() -> None:
    attributes = attributes_of((2, 2, 2), (1, 1, 1), padding="SAME")
    inputs = [
        np.array([1, 4, 4, 3, 2], np.int32),
        floats(1, 3, 3, 3, 2, 3),
        floats(2, 1, 2, 2, 2, 3),
    ]
    model = single("CONV_3D_TRANSPOSE", inputs, [(F32, None)], attributes)
    constant, rest = transposed(inputs[0].tolist(), inputs[1:], attributes)
    np.testing.assert_array_equal(computed(model, inputs)[0], computed(constant, rest)[0])
    for wrong in (
        [1, 4, 4, 3, 3],
        [2, 4, 4, 3, 2],
        [1, 4, 4, 3],
        [1, -4, 4, 3, 2],
        [1, 2**30, 2**30, 1, 2],
    ):
        with pytest.raises(PenstockError):
            computed(model, [np.array(wrong, np.int32), *inputs[1:]])


@pytest.mark.parametrize("shape", [(0, 4, 4, 4, 2), (1, 1, 4, 4, 2)])
def test_conv_3d_without_output_positions_is_empty(shape: tuple[int, ...]) -> None:
    attributes = attributes_of((1, 1, 1), (1, 1, 1), padding="VALID")
    inputs = [np.ones(shape, np.float32), np.ones((2, 2, 2, 2, 3), np.float32)]
    (got,) = computed(single("CONV_3D", inputs, [(F32, None)], attributes), inputs)
    assert got.size == 0
    assert got.shape[4] == 3


def test_a_dilation_that_no_padding_could_fill_is_refused() -> None:
    attributes = attributes_of((1, 1, 1), (2**30, 1, 1), padding="SAME")
    inputs = [np.ones((1, 2, 2, 2, 1), np.float32), np.ones((2, 1, 1, 1, 1), np.float32)]
    with pytest.raises(PenstockError):
        computed(single("CONV_3D", inputs, [(F32, None)], attributes), inputs)


def test_conv_3d_refuses_what_litert_refuses() -> None:
    attributes = attributes_of((1, 1, 1), (1, 1, 1), padding="SAME")
    operands = [Operand(DType.BFLOAT16, (1, 2, 2, 2, 1)), Operand(DType.BFLOAT16, (1, 1, 1, 1, 1))]
    with pytest.raises(Unsupported):
        kernel_of("CONV_3D", operands, operands[:1], **attributes)
