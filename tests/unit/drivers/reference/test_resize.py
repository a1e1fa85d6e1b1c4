import numpy as np
import pytest

from penstock.ir import DType, Operand
from tests.support_litert import Given, Wanted, assert_agrees, q, refusal, run_alone, uniform

PLACES = [(False, False), (True, False), (False, True)]


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT8, DType.UINT8, DType.INT16])
@pytest.mark.parametrize(("align", "half"), PLACES)
@pytest.mark.parametrize("seed", range(12))
def test_resize_agrees_with_litert(dtype: DType, align: bool, half: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    height, width = rng.integers(1, 12, 2).tolist()
    quantization = None if dtype.is_float else q(0.1)
    image = Given(uniform(rng, dtype, (2, height, width, 3)), quantization)
    size = Given(rng.integers(1, 20, 2).astype(np.int32), constant=True)
    for kind in ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"):
        recorded = run_alone(
            kind,
            [image, size],
            [Wanted(dtype, quantization)],
            align_corners=align,
            half_pixel_centers=half,
        )
        assert_agrees(recorded)


def test_resize_refuses_aligned_corners_with_half_pixels() -> None:
    image, size = Operand(DType.FLOAT32, (1, 2, 2, 1)), Operand(DType.INT32, (2,))
    both = {"align_corners": True, "half_pixel_centers": True}
    assert "corners" in refusal("RESIZE_BILINEAR", [image, size], [image], **both)
