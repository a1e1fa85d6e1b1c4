"""Activations in place, on the views that recurrent kernels hand them."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.drivers.reference.recurrent.cells import FUNCTIONS


@pytest.mark.parametrize("cells", [1, 2, 5])
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_recurrent_activations_work_in_place_on_views(name: str, cells: int) -> None:
    gates = np.linspace(-3, 3, 3 * 4 * cells, dtype=np.float32).reshape(3, 4, cells)
    wanted = FUNCTIONS[name](gates[:, -1].copy())
    np.testing.assert_array_equal(FUNCTIONS[name](gates[:, -1]), wanted)
