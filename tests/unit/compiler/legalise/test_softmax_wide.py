"""SOFTMAX of 8-bit values to int16 of any scale gives the results of the reference device, whatever
the number of terms: sums are added in NumPy's order.
"""

from __future__ import annotations

import numpy as np
import pytest

from penstock.compiler import interpreter
from penstock.compiler.legalise.routines import RoutineWriter
from penstock.compiler.legalise.softmax_wide import pairwise
from penstock.ir import DType, Quantization
from tests.support_routines import routine_program
from tests.unit.compiler.legalise.legal_models import Given, check, feeds, layer

COUNTS = (1, 7, 8, 12, 16, 100, 128, 129, 300, 1001)


@pytest.mark.parametrize("count", COUNTS)
def test_terms_are_added_in_numpys_order(count: int) -> None:
    def write(w: RoutineWriter, given: int) -> None:
        w.keep(0, w.number(0), pairwise(w, lambda at: w.load(given, at), 0, count))

    program = routine_program(DType.FLOAT32, count, 1, write)
    rng = np.random.default_rng(count)
    x = (rng.standard_normal(count) * 10.0 ** rng.integers(-3, 4, count)).astype(np.float32)
    (got,) = interpreter.run(program, [x])
    assert got.view(np.float32)[0] == x.sum()


@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8])
@pytest.mark.parametrize("shape", [(5,), (3, 12), (2, 3, 40), (1, 200)])
@pytest.mark.parametrize("scale", [2.0**-15, 0.0001])
def test_shares_are_those_of_the_reference(
    shape: tuple[int, ...], dtype: DType, scale: float
) -> None:
    rng = np.random.default_rng(len(shape))
    limits = np.iinfo(dtype.numpy)
    x = rng.integers(limits.min, limits.max, shape, dtype.numpy, endpoint=True)
    given = [Given(x, (0.07,), 3, fed=True)]
    output = DType.INT16, Quantization((scale,), (-5,))
    (shares,) = check(layer("SOFTMAX", given, output, {"beta": 1.5}), feeds(given))
    assert len(np.unique(shares)) > 1
