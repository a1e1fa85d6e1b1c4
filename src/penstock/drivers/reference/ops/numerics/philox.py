"""Philox 4x32-10, a counter-based generator (Salmon et al., "Parallel Random Numbers: As Easy as 1,
2, 3", SC'11), and the real numbers that TFLite's random operations make of its words.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.ir import NDArray

ROUNDS: Final = 10
MULTIPLIERS: Final = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
WEYL: Final = (0x9E3779B9, 0xBB67AE85)
WORD: Final = 0xFFFFFFFF
LOW: Final = np.uint64(WORD)
HALF: Final = np.uint64(32)

WORDS: Final = 4
"""Words of one block."""

LEAST_UNIFORM: Final = np.float32(1.0e-7)
"""What a uniform number counts as at least, where its logarithm is taken."""


def words(key: int, stream: int, position: int, count: int) -> NDArray:
    """*count* words, uint32, of the generator with a 64-bit *key* and the 64-bit upper half
    *stream* of the counter, from block *position* on.
    """
    blocks = -(-count // WORDS)
    lower = np.arange(blocks, dtype=np.uint64) + np.uint64(position % 2**64)
    counter = [
        lower & LOW,
        lower >> HALF,
        np.full(blocks, stream & WORD, np.uint64),
        np.full(blocks, stream >> 32, np.uint64),
    ]
    keys = [key & WORD, key >> 32]
    for _ in range(ROUNDS):
        first, second = counter[0] * MULTIPLIERS[0], counter[2] * MULTIPLIERS[1]
        counter = [
            (second >> HALF) ^ counter[1] ^ np.uint64(keys[0]),
            second & LOW,
            (first >> HALF) ^ counter[3] ^ np.uint64(keys[1]),
            first & LOW,
        ]
        keys = [(k + w) & WORD for k, w in zip(keys, WEYL, strict=True)]
    return np.stack(counter, axis=1).astype(np.uint32).reshape(-1)[:count]


def uniforms(bits: NDArray) -> NDArray:
    """float32 in [0, 1), one a word: its lowest 23 bits as the fraction of a number from 1 to 2,
    less 1.
    """
    fraction = (bits & np.uint32(0x7FFFFF)) | np.uint32(127 << 23)
    return np.asarray(fraction.view(np.float32) - np.float32(1))


def wide_uniforms(bits: NDArray) -> NDArray:
    """float64 in [0, 1), one a pair of words: 20 bits of the first and the second as the fraction."""
    pairs = bits.reshape(-1, 2).astype(np.uint64)
    fraction = ((pairs[:, 0] & np.uint64(0xFFFFF)) << HALF) | pairs[:, 1]
    return np.asarray((fraction | np.uint64(1023 << 52)).view(np.float64) - 1.0)


def normals(bits: NDArray) -> NDArray:
    """float32 of mean 0 and deviation 1, two a pair of words, by Box and Muller's method."""
    pairs = uniforms(bits).reshape(-1, 2)
    logarithms = np.log(np.maximum(pairs[:, 0], LEAST_UNIFORM), dtype=np.float64)
    radius = np.sqrt(np.float32(-2) * logarithms.astype(np.float32))
    # In float64, for NumPy's float32 functions are further off than the C library's.
    angle = (2 * np.pi * pairs[:, 1].astype(np.float64)).astype(np.float32).astype(np.float64)
    both = np.stack([np.sin(angle), np.cos(angle)], axis=1).astype(np.float32)
    return np.asarray(both * radius[:, None]).reshape(-1)
