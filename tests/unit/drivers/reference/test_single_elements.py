"""Inputs of which kernels need exactly one element, whose number of elements is known only in the
run.
"""

from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import ShapeMismatch
from penstock.ir import DType, NDArray
from penstock.ir.operation import AttributeValue
from tests.unit.drivers.reference.alone import alone

X = np.ones((2, 3), np.float32)
SHAPE = np.array([2, 3], np.int32)
ONE = np.float32(1).reshape(())


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize(("kind", "inputs", "at", "attributes"), [
    ("PADV2", [X, np.ones((2, 2), np.int32), ONE], 2, {}),
    ("DILATE", [X, SHAPE, ONE], 2, {}),
    ("FILL", [SHAPE, ONE], 1, {}),
    ("RANGE", [ONE, ONE, ONE], 0, {}),
    ("RANGE", [ONE, ONE, ONE], 2, {}),
    ("SPARSE_TO_DENSE", [np.zeros((1, 2), np.int32), SHAPE, np.ones(1, np.float32), ONE], 3, {}),
    ("ONE_HOT", [SHAPE, np.int32(4).reshape(()), ONE, ONE], 3, {"axis": -1}),
])  # fmt: skip
def test_scalar_input_without_exactly_one_element_is_refused_with_its_shape(
    kind: str, inputs: list[NDArray], at: int, attributes: dict[str, AttributeValue], count: int
) -> None:
    wrong = [np.ones(count, x.dtype) if i == at else x for i, x in enumerate(inputs)]
    with pytest.raises(ShapeMismatch, match=rf"of shape \({count},\), where one element is needed"):
        alone(kind, wrong, [DType.FLOAT32], **attributes)
