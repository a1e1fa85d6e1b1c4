"""STABLEHLO_RNG_BIT_GENERATOR: counter-based generators (Salmon, Moraes, Dror and Shaw, "Parallel
random numbers: as easy as 1, 2, 3", 2011). The state is a key and the next counter, in words of 64
bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel
from penstock.drivers.reference.ops.numerics.weights import given
from penstock.drivers.reference.ops.structure.shape import checked
from penstock.errors import ShapeMismatch
from penstock.ir import DType, NDArray
from penstock.ir.types import static_shape

Words = list[NDArray]
"""Blocks of random bits, one array of 32-bit words (in uint64) for each word of a block."""

LOW: Final = np.uint64(0xFFFFFFFF)
HALF: Final = np.uint64(32)

PHILOX_ROUNDS: Final = 10
PHILOX_FACTORS: Final = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
PHILOX_WEYL: Final = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)

THREEFRY_PARITY: Final = np.uint64(0x1BD11BDA)
THREEFRY_ROTATIONS: Final = ((13, 15, 26, 6), (17, 29, 16, 24))
THREEFRY_ROUNDS: Final = 5
"""Of four rotations each."""


def philox(key: NDArray, low: NDArray, high: NDArray) -> Words:
    """Philox4x32-10 of 128-bit counters, given as words of 64 bits."""
    k0, k1 = key & LOW, key >> HALF
    a, b, c, d = low & LOW, low >> HALF, high & LOW, high >> HALF
    for _ in range(PHILOX_ROUNDS):
        first, second = a * PHILOX_FACTORS[0], c * PHILOX_FACTORS[1]
        a, b, c, d = (
            (second >> HALF) ^ b ^ k0,
            second & LOW,
            (first >> HALF) ^ d ^ k1,
            first & LOW,
        )
        k0, k1 = (k0 + PHILOX_WEYL[0]) & LOW, (k1 + PHILOX_WEYL[1]) & LOW
    return [a, b, c, d]


def threefry(key: NDArray, counter: NDArray) -> Words:
    """Threefry2x32-20 of 64-bit counters."""
    keys = [key & LOW, key >> HALF]
    keys.append(THREEFRY_PARITY ^ keys[0] ^ keys[1])
    a, b = ((counter & LOW) + keys[0]) & LOW, ((counter >> HALF) + keys[1]) & LOW
    for number in range(THREEFRY_ROUNDS):
        for rotation in THREEFRY_ROTATIONS[number % 2]:
            a = (a + b) & LOW
            b = (((b << np.uint64(rotation)) | (b >> np.uint64(32 - rotation))) & LOW) ^ a
        a = (a + keys[(number + 1) % 3]) & LOW
        b = (b + keys[(number + 2) % 3] + np.uint64(number + 1)) & LOW
    return [a, b]


def _advanced(state: NDArray, blocks: int) -> tuple[NDArray, NDArray]:
    """The counters of *blocks* blocks, low words, and the state after them; nothing is carried
    beyond.
    """
    after = state.copy()
    after[1:2] += np.uint64(blocks)
    return state[1] + np.arange(blocks, dtype=np.uint64), after


def _philox_bits(state: NDArray, words: int) -> tuple[Words, NDArray]:
    """*words* words of bits and the next state; the key is the high word of a counter without one."""
    if state.shape not in {(2,), (3,)}:
        raise ShapeMismatch(f"a Philox state of shape {state.shape}")
    counters, after = _advanced(state, -(-words // 4))
    high = np.full_like(counters, state[2 if state.size == 3 else 0])
    return philox(state[0], counters, high), after


def _threefry_bits(state: NDArray, words: int) -> tuple[Words, NDArray]:
    if state.shape != (2,):
        raise ShapeMismatch(f"a Threefry state of shape {state.shape}")
    counters, after = _advanced(state, -(-words // 2))
    return threefry(state[0], counters), after


ALGORITHMS: Final[dict[str, Callable[[NDArray, int], tuple[Words, NDArray]]]] = {
    "DEFAULT": _philox_bits,
    "PHILOX": _philox_bits,
    "THREEFRY": _threefry_bits,
}


@kernel("STABLEHLO_RNG_BIT_GENERATOR")
def rng_bit_generator(site: Site) -> Kernel:
    """The state after the bits, and random bits of 32 or 64 an element; the default is Philox."""
    bits = ALGORITHMS[site.attributes.text("algorithm")]
    shape, dtype = static_shape(site.output(1).shape), site.output(1).dtype
    numbers = {DType.INT32, DType.UINT32, DType.INT64, DType.UINT64}
    if site.input(0).dtype is not DType.UINT64 or dtype not in numbers or shape is None:
        raise site.unsupported_types()
    full = checked(shape, "random bits")
    words = math.prod(full) * ((dtype.bits or 0) // 32)

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        blocks, after = bits(given(inputs[0]), words)
        stream = np.stack(blocks, axis=-1).astype("<u4").reshape(-1)[:words]
        return after, stream.view(dtype.numpy.newbyteorder("<")).astype(dtype.numpy).reshape(full)

    return run
