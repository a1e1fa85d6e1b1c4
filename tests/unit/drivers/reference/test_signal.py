import numpy as np
import pytest

from penstock.ir import DType, Operand
from tests.support_litert import Given, Wanted, assert_agrees, kernel_of, run_alone


@pytest.mark.parametrize("lengths", [(8, 8), (16, 16), (4, 32), (1, 2)])
def test_rfft2d_of_cropped_and_padded_images_agrees_with_litert(lengths: tuple[int, int]) -> None:
    image = Given(np.random.default_rng(0).normal(0, 1, (2, 3, 16, 12)).astype(np.float32))
    size = Given(np.array(lengths, np.int32), constant=True)
    assert_agrees(run_alone("RFFT2D", [image, size], [Wanted(DType.COMPLEX64)]))


@pytest.mark.parametrize("kind", ["COMPLEX_ABS", "REAL", "IMAG"])
def test_real_imag_and_complex_abs_agree_with_litert(kind: str) -> None:
    rng = np.random.default_rng(1)
    x = (rng.normal(0, 1, (3, 5)) + 1j * rng.normal(0, 1, (3, 5))).astype(np.complex64)
    assert_agrees(run_alone(kind, [Given(x)], [Wanted(DType.FLOAT32)]))


def test_real_imag_and_complex_abs_of_a_scalar_are_scalars() -> None:
    x = Operand(DType.COMPLEX64, ())
    (got,) = kernel_of("REAL", [x], [Operand(DType.FLOAT32, ())])([np.array(2 + 1j, np.complex64)])
    assert got.shape == ()
