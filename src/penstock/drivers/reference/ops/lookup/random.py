"""Random numbers: TFLite's, bit for bit, where the model gives seeds.

The generator's position, a count of its blocks, is state of the network. Without seeds it is keyed
by the knob `random_seed`, or anew for every run by the system's entropy where that is not set.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from penstock import knobs
from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel
from penstock.drivers.reference.ops.numerics.philox import (
    WORDS,
    normals,
    uniforms,
    wide_uniforms,
    words,
)
from penstock.drivers.reference.ops.numerics.weights import given
from penstock.drivers.reference.ops.structure.shape import checked, dimensions, scalar
from penstock.errors import LimitExceeded, ShapeMismatch
from penstock.ir import DType, NDArray

MOST_NUMBERS: Final = 1 << 28

MASK: Final = 2**64 - 1
AT_ONCE: Final = 1 << 20
"""Numbers made, or compared with classes, in one step."""

BLOCKS_PER_SAMPLE: Final = 512
"""Blocks that MULTINOMIAL sets aside for each sample, their number a row rounded up to a multiple
of 4.
"""


@dataclass(frozen=True, slots=True)
class Generator:
    """The *seeds* of one operation, None where the model gives none; *place* tells it from others."""

    seeds: tuple[int, int] | None
    place: int

    @classmethod
    def of(cls, site: Site) -> Generator:
        """Of an operation's seeds, of which TFLite reads the lower 32 bits, with their sign."""
        pair = [_signed(site.attributes.integer(name)) for name in ("seed", "seed2")]
        seeds = (pair[0] & MASK, pair[1] & MASK) if any(pair) else None
        origin = site.operation.origin
        if origin is None or origin.subgraph < 0:
            return cls(seeds, site.operation.outputs[0])
        return cls(seeds, origin.subgraph << 32 | origin.index)

    def reals(self, position: NDArray | None, count: int) -> NDArray:
        """*count* float64 in [0, 1) from block *position* on."""
        return self._numbers(position, count, wide_uniforms, np.dtype(np.float64))

    def singles(
        self, position: NDArray | None, count: int, make: Callable[[NDArray], NDArray]
    ) -> NDArray:
        """*count* float32 that *make* makes of a word each, from block *position* on."""
        return self._numbers(position, count, make, np.dtype(np.float32))

    def _numbers(
        self,
        position: NDArray | None,
        count: int,
        make: Callable[[NDArray], NDArray],
        dtype: np.dtype[Any],
    ) -> NDArray:
        """`LimitExceeded` beyond `MOST_NUMBERS`, before anything is allocated."""
        if count > MOST_NUMBERS:
            raise LimitExceeded(f"{count} random numbers at once; {MOST_NUMBERS} is the limit")
        key, stream = self.seeds or self._own_seeds()
        each = dtype.itemsize // 4
        numbers = np.empty(count + -count % WORDS, dtype)
        for start in range(0, len(numbers), AT_ONCE):
            part = numbers[start : start + AT_ONCE]
            place = _count(position) + start * each // WORDS
            part[:] = make(words(key, stream, place, len(part) * each))
        return numbers[:count]

    def _own_seeds(self) -> tuple[int, int]:
        seed = knobs.random_seed()
        if seed < 0:
            return secrets.randbits(64), secrets.randbits(64)
        return seed & MASK, self.place


def _signed(seed: int) -> int:
    return (seed + 2**31) % 2**32 - 2**31


def _count(position: NDArray | None) -> int:
    return 0 if position is None else int(scalar(position, "a position"))


def _results(site: Site, value: NDArray, position: NDArray | None, blocks: int) -> list[NDArray]:
    """The outputs: *value*, and where there is one the position *blocks* further on, which wraps."""
    if len(site.outputs) < 2:
        return [value]
    after = (_count(position) + blocks + 2**63) % 2**64 - 2**63
    return [value, np.array(after, np.int64)]


_FILLS: Final[dict[str, Callable[[NDArray], NDArray]]] = {
    "RANDOM_UNIFORM": uniforms,
    "RANDOM_STANDARD_NORMAL": normals,
}


@kernel(*_FILLS)
def fill(site: Site) -> Kernel:
    """A given shape filled with random float32 numbers, whole blocks of words after another."""
    generator, make = Generator.of(site), _FILLS[site.operation.type]
    if site.output().dtype is not DType.FLOAT32:
        raise site.unsupported_types()

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        shape = checked(dimensions(inputs[0]), site.operation.type)
        size = math.prod(shape)
        blocks = -(-size // WORDS)
        position = inputs[1] if len(inputs) > 1 else None
        numbers = generator.singles(position, size, make)
        return _results(site, numbers.reshape(shape), position, blocks)

    return run


@kernel("MULTINOMIAL")
def multinomial(site: Site) -> Kernel:
    """Classes drawn by the exponentials of their finite logits, less the greatest of a row: the
    first whose running sum, float64, exceeds a uniform part of the whole.
    """
    generator, dtype = Generator.of(site), site.output().dtype.numpy
    if site.input(0).dtype is not DType.FLOAT32:
        raise site.unsupported_types()

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        logits, (samples,) = given(inputs[0]), dimensions(inputs[1])
        if logits.ndim != 2 or samples < 0 or (logits.size == 0 and samples and len(logits)):
            raise ShapeMismatch(f"{samples} samples of logits of shape {logits.shape}")
        rows = len(logits)
        position = inputs[2] if len(inputs) > 2 else None
        drawn = generator.reals(position, rows * samples)
        result = np.empty((rows, samples), dtype)
        step = max(1, AT_ONCE // max(1, samples * logits.shape[1]))
        for start in range(0, rows, step):
            part = slice(start, start + step)
            result[part] = _draw(logits[part], drawn.reshape(rows, samples)[part])
        blocks = rows * -(-samples // WORDS) * WORDS * BLOCKS_PER_SAMPLE
        return _results(site, result, position, blocks)

    return run


def _draw(logits: NDArray, parts: NDArray) -> NDArray:
    """Places among each row of *logits* for each row of *parts* of the whole."""
    if not logits.shape[1]:
        return np.zeros(parts.shape, np.int64)
    finite = np.isfinite(logits)
    least = np.float32(np.finfo(np.float32).min)
    greatest = np.max(np.where(finite, logits, least), axis=1, keepdims=True)
    weights = np.exp(logits.astype(np.float64) - greatest.astype(np.float64))
    sums = np.cumsum(np.where(finite, weights, 0.0), axis=1)
    targets = parts * sums[:, -1:]
    if len(logits) == 1:
        return np.asarray(np.searchsorted(sums[0], targets[0], "right")[None])
    return np.asarray((sums[:, None, :] <= targets[:, :, None]).sum(axis=2))
