"""Inputs drawn for a model that is measured."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest

from penstock.ir import DType, Operand, Quantization
from penstock.runtime.tuning import example

GRID: Final = Quantization((0.5,), (0,))


@pytest.mark.parametrize("dtype", [DType.UINT8, DType.INT32])
def test_whole_numbers_in_the_shape_of_a_picture_are_drawn_as_its_colours(dtype: DType) -> None:
    drawn = example(Operand(dtype, (1, 40, 50, 3)))
    assert (drawn.dtype, drawn.min(), drawn.max()) == (dtype.numpy, 0, 255)
    assert not example(Operand(dtype, (1, 40, 50, 7))).any()
    assert not example(Operand(dtype, (1, 40))).any()


def test_quantised_values_are_drawn_over_their_range() -> None:
    drawn = example(Operand(DType.INT8, (1, 4000), quantization=GRID))
    assert (drawn.dtype.name, drawn.min(), drawn.max()) == ("int8", -128, 127)


def test_floats_are_drawn_from_0_to_1() -> None:
    drawn = example(Operand(DType.FLOAT32, (1000,)))
    assert drawn.dtype == np.float32
    assert 0 <= drawn.min() < 0.01
    assert 0.99 < drawn.max() <= 1


def test_examples_are_the_same_at_each_call() -> None:
    operand = Operand(DType.FLOAT32, (10,))
    assert np.array_equal(example(operand), example(operand))
