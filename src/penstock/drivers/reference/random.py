"""Random numbers, bit for bit as TFLite's if the model has seeds, and STABLEHLO_RNG_BIT_GENERATOR.

The generators are counter-based (Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy
as 1, 2, 3", SC'11). For TFLite's operations, the generator's position is state of the network: a
count of its blocks. Without seeds, the knob `random_seed` is the key. If it is not set, each run
takes a new key from the system's entropy. StableHLO's state is a key and the next counter, in words
of 64 bits.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock import knobs
from penstock.drivers.reference.kernel import Inputs, Kernel, Outputs, Site, direct, kernel, types
from penstock.drivers.reference.numerics.one_operand import reader
from penstock.drivers.reference.numerics.weights import given
from penstock.drivers.reference.structure.shape import checked, dimensions, scalar
from penstock.errors import InputError, LimitExceeded, ShapeMismatch
from penstock.ir import DType, NDArray
from penstock.ir.types import static_shape

LOW: Final = np.uint64(0xFFFFFFFF)
HALF: Final = np.uint64(32)

PHILOX_ROUNDS: Final = 10
PHILOX_FACTORS: Final = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
PHILOX_WEYL: Final = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)

WORDS: Final = 4
"""Words of one block."""

LEAST_UNIFORM: Final = np.float32(1.0e-7)
"""The least uniform number whose logarithm is taken."""


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


def words(key: int, stream: int, position: int, count: int) -> NDArray:
    """*count* words, uint32, of the generator with a 64-bit *key* and the 64-bit upper half
    *stream* of the counter, from block *position* on.
    """
    low = np.arange(-(-count // WORDS), dtype=np.uint64) + np.uint64(position % 2**64)
    blocks = philox(np.asarray(key, np.uint64), low, np.full_like(low, stream))
    return np.stack(blocks, axis=1).astype(np.uint32).reshape(-1)[:count]


def uniforms(bits: NDArray) -> NDArray:
    """float32 in [0, 1): a word's lowest 23 bits as the fraction of a number in [1, 2), less 1."""
    fraction = (bits & np.uint32(0x7FFFFF)) | np.uint32(127 << 23)
    return np.asarray(fraction.view(np.float32) - np.float32(1))


def wide_uniforms(bits: NDArray) -> NDArray:
    """float64 in [0, 1): 20 bits of a word and all of the next one are the fraction."""
    pairs = bits.reshape(-1, 2).astype(np.uint64)
    fraction = ((pairs[:, 0] & np.uint64(0xFFFFF)) << HALF) | pairs[:, 1]
    return np.asarray((fraction | np.uint64(1023 << 52)).view(np.float64) - 1.0)


def normals(bits: NDArray) -> NDArray:
    """float32 of mean 0 and deviation 1, two per pair of words, by Box and Muller's method."""
    pairs = uniforms(bits).reshape(-1, 2)
    logarithms = np.log(np.maximum(pairs[:, 0], LEAST_UNIFORM), dtype=np.float64)
    radius = np.sqrt(np.float32(-2) * logarithms.astype(np.float32))
    # In float64: NumPy's float32 functions are less accurate than the C library's.
    angle = (2 * np.pi * pairs[:, 1].astype(np.float64)).astype(np.float32).astype(np.float64)
    both = np.stack([np.sin(angle), np.cos(angle)], axis=1).astype(np.float32)
    return np.asarray(both * radius[:, None]).reshape(-1)


MOST_NUMBERS: Final = 1 << 28

MASK: Final = 2**64 - 1
AT_ONCE: Final = 1 << 20
"""Greatest number of numbers that are generated, or compared with classes, in one step."""

BLOCKS_PER_SAMPLE: Final = 512
"""Blocks that MULTINOMIAL reserves for a sample; a row's samples are a multiple of 4."""


@dataclass(frozen=True, slots=True)
class Generator:
    """The *seeds* of an operation, or None. *place* distinguishes it from others."""

    seeds: tuple[int, int] | None
    place: int

    @classmethod
    def of(cls, site: Site) -> Generator:
        """The generator of an operation. TFLite reads 32 bits of a seed, with their sign."""
        raw = [site.attributes.integer(name) for name in ("seed", "seed2")]
        pair = [(seed + 2**31) % 2**32 - 2**31 for seed in raw]
        seeds = (pair[0] & MASK, pair[1] & MASK) if any(pair) else None
        origin = site.operation.origin
        if origin is None or origin.subgraph < 0:
            return cls(seeds, site.operation.outputs[0])
        return cls(seeds, origin.subgraph << 32 | origin.index)

    def numbers(
        self, position: NDArray | None, count: int, make: Callable[[NDArray], NDArray]
    ) -> NDArray:
        """*count* numbers that *make* makes of words, from block *position* on. Each takes as many
        words as it has. Raises `LimitExceeded` for more than `MOST_NUMBERS`.
        """
        if count > MOST_NUMBERS:
            raise LimitExceeded(f"{count} random numbers at once; {MOST_NUMBERS} is the limit")
        key, stream = self.seeds or self._own_seeds()
        dtype = np.dtype(np.float64 if make is wide_uniforms else np.float32)
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


def _count(position: NDArray | None) -> int:
    return 0 if position is None else int(scalar(position, "a position"))


def _results(site: Site, value: NDArray, position: NDArray | None, blocks: int) -> list[NDArray]:
    """The outputs: *value*, and perhaps the position *blocks* later, which wraps."""
    if len(site.outputs) < 2:
        return [value]
    after = (_count(position) + blocks + 2**63) % 2**64 - 2**63
    return [value, np.array(after, np.int64)]


_FILLS: Final[dict[str, Callable[[NDArray], NDArray]]] = {
    "RANDOM_UNIFORM": uniforms,
    "RANDOM_STANDARD_NORMAL": normals,
}


@direct(*_FILLS, accepts=lambda s: s.output().dtype is DType.FLOAT32)
def fill(site: Site, inputs: Inputs) -> Outputs:
    """A tensor of a given shape filled with random float32 numbers, from whole blocks of words."""
    generator, make = Generator.of(site), _FILLS[site.operation.type]
    shape = checked(dimensions(inputs[0]), site.operation.type)
    size = math.prod(shape)
    blocks = -(-size // WORDS)
    position = inputs[1] if len(inputs) > 1 else None
    numbers = generator.numbers(position, size, make)
    return _results(site, numbers.reshape(shape), position, blocks)


@direct("MULTINOMIAL", accepts=lambda s: s.input(0).dtype is DType.FLOAT32)
def multinomial(site: Site, inputs: Inputs) -> Outputs:
    """Samples classes with probabilities proportional to the exponentials of their logits.

    Logits that are not finite are ignored, and the greatest of a row is subtracted first. The
    sample is the first class whose running sum, in float64, exceeds a uniform part of the total.
    """
    generator, dtype = Generator.of(site), site.output().dtype.numpy
    logits, (samples,) = given(inputs[0]), dimensions(inputs[1])
    if logits.ndim != 2 or samples < 0 or (logits.size == 0 and samples and len(logits)):
        raise ShapeMismatch(f"{samples} samples of logits of shape {logits.shape}")
    rows = len(logits)
    position = inputs[2] if len(inputs) > 2 else None
    drawn = generator.numbers(position, rows * samples, wide_uniforms)
    result = np.empty((rows, samples), dtype)
    step = max(1, AT_ONCE // max(1, samples * logits.shape[1]))
    for start in range(0, rows, step):
        part = slice(start, start + step)
        result[part] = _draw(logits[part], drawn.reshape(rows, samples)[part])
    blocks = rows * -(-samples // WORDS) * WORDS * BLOCKS_PER_SAMPLE
    return _results(site, result, position, blocks)


def _draw(logits: NDArray, parts: NDArray) -> NDArray:
    """The class in each row of *logits* for each row of *parts* of the total."""
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


@kernel("RANDOM_MULTINOMIAL")
def random_multinomial(site: Site) -> Kernel:
    """int32 [batches, samples]. Logits that are not finite are never drawn. Equal seeds produce
    equal classes in every run. Seeds of 0 and 0 mean no seed (`Generator`).
    """
    site.require_types(site.input(0).dtype.is_float)
    read, samples = reader(site.input(0), "logits"), site.attributes.integer("samples")
    place = site.operation.outputs[0]

    def run(inputs: Inputs) -> Outputs:
        logits, seeds = read(inputs[0]), np.asarray(inputs[1])
        if logits.ndim != 2 or seeds.shape != (2,):
            raise ShapeMismatch(f"logits of shape {logits.shape} and seeds of shape {seeds.shape}")
        shape = checked((len(logits), samples), "RANDOM_MULTINOMIAL")
        count = shape[0] * shape[1]
        if not count:
            return (np.empty(shape, np.int32),)
        sums = _running_sums(logits)
        first, second = (int(s) & MASK for s in seeds)
        generator = Generator((first, second) if first or second else None, place)
        drawn = generator.numbers(None, count, wide_uniforms).reshape(shape)
        result = np.empty(shape, np.int32)
        for row, part, out in zip(sums, drawn, result, strict=True):
            out[:] = np.searchsorted(row, part * row[-1], "right")
        return (result,)

    return run


def _running_sums(logits: NDArray) -> NDArray:
    """Running sums of the exponentials of each row's finite logits minus the greatest, float64."""
    finite = np.isfinite(logits)
    if not finite.any(axis=1).all():
        raise InputError("a row of logits has no class that can be drawn")
    known = np.where(finite, logits, np.float32(-np.inf)).astype(np.float64)
    return np.cumsum(np.exp(known - known.max(axis=1, keepdims=True)), axis=1)


Words = list[NDArray]
"""Blocks of random bits, one array of 32-bit words (in uint64) for each word of a block."""

THREEFRY_PARITY: Final = np.uint64(0x1BD11BDA)
THREEFRY_ROTATIONS: Final = ((13, 15, 26, 6), (17, 29, 16, 24))
THREEFRY_ROUNDS: Final = 5
"""The number of rounds, each of four rotations."""


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


def _philox_bits(state: NDArray, counters: NDArray) -> Words:
    """The key of a state of two words is the counter's high word too."""
    return philox(state[0], counters, np.full_like(counters, state[2 if state.size == 3 else 0]))


ALGORITHMS: Final[dict[str, tuple[Callable[[NDArray, NDArray], Words], int, set[int]]]] = {
    "DEFAULT": (_philox_bits, 4, {2, 3}),
    "PHILOX": (_philox_bits, 4, {2, 3}),
    "THREEFRY": (lambda state, counters: threefry(state[0], counters), 2, {2}),
}
"""A generator, the words of its blocks, and the lengths that its state may have."""


@kernel("STABLEHLO_RNG_BIT_GENERATOR")
def rng_bit_generator(site: Site) -> Kernel:
    """The state after the bits, and random bits of 32 or 64 an element; the default is Philox."""
    name = site.attributes.text("algorithm")
    bits, each, lengths = ALGORITHMS[name]
    shape, dtype = static_shape(site.output(1).shape), site.output(1).dtype
    whole = dtype in types("int32 uint32 int64 uint64")
    site.require_types(site.input(0).dtype is DType.UINT64 and whole and shape is not None)
    full = checked(shape or (), "random bits")
    words = math.prod(full) * ((dtype.bits or 0) // 32)

    def run(inputs: Inputs) -> Outputs:
        state = given(inputs[0])
        if state.ndim != 1 or state.size not in lengths:
            raise ShapeMismatch(f"a {name} state of shape {state.shape}")
        blocks, after = -(-words // each), state.copy()
        after[1:2] += np.uint64(blocks)
        counters = state[1] + np.arange(blocks, dtype=np.uint64)
        stream = np.stack(bits(state, counters), axis=-1).astype("<u4").reshape(-1)[:words]
        return after, stream.view(dtype.numpy.newbyteorder("<")).astype(dtype.numpy).reshape(full)

    return run
