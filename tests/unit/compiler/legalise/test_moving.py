"""Slices and padding: their programs give what the reference device gives."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest

from penstock.compiler import interpreter
from penstock.compiler.legalise import legalise
from penstock.errors import GeneralFailure
from penstock.ir import DType, Quantization
from penstock.ir.operation import AttributeValue
from tests.unit.compiler.legalise.legal_models import Given, check, layer, values

F32, I8, I32 = DType.FLOAT32, DType.INT8, DType.INT32
SHAPE: Final = (4, 5, 6)
NONE: Final[dict[str, AttributeValue]] = {
    "begin_mask": 0, "end_mask": 0, "ellipsis_mask": 0, "new_axis_mask": 0, "shrink_axis_mask": 0,
    "offset": False,
}  # fmt: skip


def whole(*numbers: int) -> Given:
    return Given(np.array(numbers, np.int32))


@pytest.mark.parametrize(
    ("bounds", "masks"),
    [
        (((1, 0, 2), (3, 5, 6), (1, 2, 3)), {}),
        (((-1, 4, 5), (-5, 0, -7), (-1, -2, -3)), {}),
        (((1, 2), (9, 3), (1, 1)), {"ellipsis_mask": 1}),
        (((0, 1, 2), (0, 3, 4), (1, 1, 1)), {"ellipsis_mask": 2, "begin_mask": 1, "end_mask": 1}),
        (((0, 1, 2), (0, 3, 4), (1, 1, 1)), {"new_axis_mask": 1}),
        (((2, -1, 1), (0, 0, 5), (1, 1, 2)), {"shrink_axis_mask": 3}),
        (((1, 1, 1), (2, 3, 4), (1, 1, 1)), {"offset": True}),
        (((2,), (4,), (1,)), {}),
        (((3, 1, 1), (0, 0, 0), (-1, 1, 2)), {"begin_mask": 6, "end_mask": 7}),
    ],
)
def test_slices_with_masks(
    bounds: tuple[tuple[int, ...], ...], masks: dict[str, AttributeValue]
) -> None:
    rng = np.random.default_rng(0)
    array = values(rng, F32, SHAPE)
    inputs = [Given(array, fed=True), *(whole(*numbers) for numbers in bounds)]
    check(layer("STRIDED_SLICE", inputs, (F32, None), {**NONE, **masks}), [array])


@pytest.mark.parametrize("dtype", [F32, I8, DType.INT64, DType.BOOL], ids=lambda d: d.value)
def test_padding_with_a_number_that_a_run_knows(dtype: DType) -> None:
    rng = np.random.default_rng(1)
    pads = Given(np.array([[1, 0], [0, 2], [3, 1]], np.int32))
    for number in (0, 1):
        array = (values(rng, I8, SHAPE) % 2).astype(dtype.numpy)
        value = np.array([number]).astype(dtype.numpy)
        model = layer(
            "PADV2", [Given(array, fed=True), pads, Given(value, fed=True)], (dtype, None), {}
        )
        check(model, [array, value])


def test_padding_of_floats_has_no_zero_point() -> None:
    rng = np.random.default_rng(1)
    array = values(rng, F32, SHAPE)
    pads = Given(np.array([[1, 0], [0, 2], [3, 1]], np.int32))
    output = F32, Quantization((0.5,), (2,))
    (found,) = check(layer("PAD", [Given(array, fed=True), pads], output, {}), [array])
    assert not found[0].any()


def test_fill_repeats_a_number_that_a_run_knows() -> None:
    value = Given(np.array(7, np.int32), fed=True)
    model = layer("FILL", [whole(2, 3), value], (I32, None), {})
    (got,) = interpreter.run(legalise(model), [value.array])
    assert got.tolist() == [[7] * 3] * 2


def test_a_run_that_fails_names_the_operation() -> None:
    data, places = np.zeros((3, 2), np.float32), np.array([0, 3], np.int32)
    attributes: dict[str, AttributeValue] = {"axis": 0, "batch_dims": 0}
    inputs = [Given(data, fed=True), Given(places, fed=True)]
    program = legalise(layer("GATHER", inputs, (F32, None), attributes))
    assert program.failures == ("operation 0 (GATHER): an index outside 0..2",)
    assert len(program.flags) == 1
    assert len(program.results) == 1
    with pytest.raises(GeneralFailure, match=r"operation 0 \(GATHER\): an index outside 0\.\.2"):
        interpreter.run(program, [data, places])
