"""Random bits: bit for bit LiteRT's, and the published values of the generators."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest

from penstock.drivers.reference.kernel import Unsupported
from penstock.drivers.reference.random import philox, threefry
from penstock.errors import PenstockError
from penstock.ir import DType, Operand
from tests.support_litert import kernel_of
from tests.unit.drivers.reference.single_models import check, computed, single

STATES: Final = {
    "PHILOX": [[1, 2], [7, 2**64 - 2], [3, 2**32 - 1, 9], [5, 2**64 - 1, 2**64 - 1]],
    "DEFAULT": [[2**63 + 5, 2**40], [1, 2, 3]],
    "THREEFRY": [[1, 2], [2**64 - 1, 2**64 - 1], [2**35, 2**32 - 1]],
}


@pytest.mark.parametrize("algorithm", STATES)
@pytest.mark.parametrize("dtype", [DType.INT32, DType.UINT32, DType.INT64, DType.UINT64])
def test_rng_bit_generator_agrees_with_litert(algorithm: str, dtype: DType) -> None:
    for numbers in STATES[algorithm]:
        state = np.array(numbers, np.uint64)
        for shape in ((), (3,), (2, 3, 5)):
            outputs = [(DType.UINT64, state.shape), (dtype, shape)]
            kind = "STABLEHLO_RNG_BIT_GENERATOR"
            check(single(kind, [state], outputs, {"algorithm": algorithm}), [state])


def test_random_generators_equal_their_known_answers() -> None:
    """The zero and all-ones vectors of the Random123 distribution."""
    zero, ones = np.zeros(1, np.uint64), np.full(1, 2**64 - 1, np.uint64)
    words = [int(w[0]) for w in philox(zero[0], zero, zero)]
    assert words == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    words = [int(w[0]) for w in philox(ones[0], ones, ones)]
    assert words == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    assert [int(w[0]) for w in threefry(zero[0], zero)] == [0x6B200159, 0x99BA4EFE]
    assert [int(w[0]) for w in threefry(ones[0], ones)] == [0x1CB996FC, 0xBB002BE7]


@pytest.mark.parametrize(("algorithm", "length"), [("PHILOX", 1), ("DEFAULT", 4), ("THREEFRY", 3)])
def test_rng_bit_generator_refuses_states_of_another_length(algorithm: str, length: int) -> None:
    state = np.zeros(length, np.uint64)
    outputs = [(DType.UINT64, state.shape), (DType.UINT32, (2,))]
    model = single("STABLEHLO_RNG_BIT_GENERATOR", [state], outputs, {"algorithm": algorithm})
    with pytest.raises(PenstockError, match="state"):
        computed(model, [state])


def test_rng_bit_generator_refuses_other_types_and_unknown_sizes() -> None:
    state = Operand(DType.UINT64, (2,))
    for made in (Operand(DType.UINT8, (2,)), Operand(DType.UINT32, (None,))):
        with pytest.raises(Unsupported):
            kernel_of("STABLEHLO_RNG_BIT_GENERATOR", [state], [state, made], algorithm="PHILOX")
    with pytest.raises(Unsupported):
        kernel_of(
            "STABLEHLO_RNG_BIT_GENERATOR",
            [Operand(DType.INT64, (2,))],
            [state, Operand(DType.UINT32, (2,))],
            algorithm="PHILOX",
        )
