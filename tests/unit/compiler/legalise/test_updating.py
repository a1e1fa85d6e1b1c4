"""DYNAMIC_UPDATE_SLICE replaces a block, at a start that is constant or that a run knows."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.compiler.legalise import judge, legalise
from penstock.driverkit.site import Refused, make_sites
from penstock.ir import DType, Quantization
from tests.unit.compiler.legalise.legal_models import Given, check, feeds, layer, values

CASES = [
    ((5,), (2,), (1,)),
    ((5,), (5,), (3,)),
    ((4, 3, 6), (2, 3, 2), (1, 0, 3)),
    ((4, 3, 6), (1, 1, 1), (9, -2, 5)),
    ((2, 7), (2, 3), (-1, 99)),
]


@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT8, DType.BOOL, DType.INT64])
@pytest.mark.parametrize(("whole", "block", "start"), CASES)
def test_a_block_is_replaced(
    whole: tuple[int, ...], block: tuple[int, ...], start: tuple[int, ...], dtype: DType, fed: bool
) -> None:
    rng = np.random.default_rng(len(whole))
    if dtype is DType.BOOL:
        x, update = (rng.random(shape) > 0.5 for shape in (whole, block))
    else:
        x, update = (values(rng, dtype, shape) for shape in (whole, block))
    starts = np.array(start, np.int64 if dtype is DType.INT64 else np.int32)
    given = [Given(x, fed=True), Given(update, fed=True), Given(starts, fed=fed)]
    model = layer("DYNAMIC_UPDATE_SLICE", given, (dtype, None), {})
    (made,) = check(model, feeds(given))
    assert made.shape == whole


def test_a_constant_start_needs_copies_alone() -> None:
    given = [Given(np.zeros(s, np.float32), fed=True) for s in ((4, 3, 6), (2, 3, 2))]
    given.append(Given(np.array([1, 0, 3], np.int32)))
    program = legalise(layer("DYNAMIC_UPDATE_SLICE", given, (DType.FLOAT32, None), {}))
    assert [k.name for k in program.kernels] == ["update", *["keep"] * 4]


def test_a_block_of_another_scale_is_refused() -> None:
    zeros = np.zeros(4, np.int8)
    given = [Given(zeros, (0.1,), fed=True), Given(zeros[:2], (0.2,), fed=True)]
    given.append(Given(np.zeros(1, np.int32)))
    output = DType.INT8, Quantization((0.1,), (0,))
    (site,) = make_sites(layer("DYNAMIC_UPDATE_SLICE", given, output, {}))
    with pytest.raises(Refused, match="an update of another scale"):
        judge(site)
