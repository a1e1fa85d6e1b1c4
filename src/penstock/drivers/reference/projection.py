"""LSH_PROJECTION: locality-sensitive hashes of the rows of a tensor.

The hash is FarmHash's 64-bit fingerprint (Fingerprint64, its "na" variant). It is computed for many
byte strings of one length at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from penstock.drivers.reference.kernel import Inputs, Outputs, Site, direct
from penstock.drivers.reference.numerics.weights import given
from penstock.errors import ShapeMismatch
from penstock.ir import DType, NDArray
from penstock.ir.builder import pack_strings

AT_ONCE: Final = 1 << 22
"""Number of bytes hashed in one step."""


@direct("LSH_PROJECTION")
def lsh_projection(site: Site, inputs: Inputs) -> Outputs:
    """One bit for each number of *hash*: whether a weighted sum of the fingerprints of the input's
    rows is positive. Each fingerprint is computed from the number's bytes, followed by the row's.

    SPARSE combines the bits of one hash function into a number, the first bit highest. It adds the
    function's index, shifted left by the number of bits.
    """
    sparse = site.attributes.text("type") == "SPARSE"
    strings = site.input(1).dtype is DType.STRING
    table, items = given(inputs[0]), given(inputs[1])
    weights = inputs[2] if len(inputs) > 2 else None
    if weights is not None and weights.shape != items.shape[:1]:
        raise ShapeMismatch(f"{weights.shape} weights for items of shape {items.shape}")
    if not items.ndim or not len(items):
        raise ShapeMismatch(f"LSH_PROJECTION of an input of shape {items.shape}")
    # A string tensor's bytes, with its header, are divided equally among its rows.
    stored = pack_strings(items) if strings else items.tobytes()
    size = len(stored) // len(items)
    rows = np.frombuffer(stored, np.uint8)[: size * len(items)].reshape(len(items), size)
    bits = _bits(table.reshape(-1), rows, weights).reshape(table.shape)
    if not sparse:
        return (bits.reshape(-1).astype(np.int32),)
    width = table.shape[-1]
    places = np.arange(width - 1, -1, -1)
    numbers = (bits.astype(np.int64) << places).sum(axis=1)
    numbers += np.arange(len(bits), dtype=np.int64) << width
    return (numbers.astype(np.uint32).view(np.int32),)


def _bits(seeds: NDArray, rows: NDArray, weights: NDArray | None) -> NDArray:
    """One boolean for each seed; sums are float64, row by row."""
    size = 4 + rows.shape[1]
    first = np.ascontiguousarray(seeds).view(np.uint8).reshape(1, -1, 4)
    sums = np.zeros((1, len(seeds)), np.float64)
    step = max(1, AT_ONCE // max(1, len(seeds) * size))
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        keys = np.empty((len(part), len(seeds), size), np.uint8)
        keys[:, :, :4] = first
        keys[:, :, 4:] = part[:, None]
        signed = fingerprints(keys.reshape(-1, size)).view(np.int64).astype(np.float64)
        shares = signed.reshape(len(part), -1)
        if weights is not None:
            shares *= weights[start : start + step, None].astype(np.float64)
        sums = np.cumsum(np.concatenate([sums, shares]), axis=0)[-1:]
    return np.asarray(sums[0] > 0)


K0: Final = np.uint64(0xC3A5C85C97CB3127)
K1: Final = np.uint64(0xB492B66FBE98F273)
K2: Final = np.uint64(0x9AE16A3B2F90404F)
BLOCK: Final = 64
SEED: Final = 81

Word: TypeAlias = "NDArray | np.uint64"
Fetch: TypeAlias = "Callable[[int], NDArray]"


def fingerprints(strings: NDArray) -> NDArray:
    """The fingerprint, uint64, of each row of *strings* (uint8)."""
    count, size = strings.shape
    if size == 0:
        return np.full(count, K2)

    def fetch(at: int) -> NDArray:
        return np.ascontiguousarray(strings[:, at : at + 8]).view("<u8")[:, 0].astype(np.uint64)

    with np.errstate(over="ignore"):
        if size <= 16:
            return _short(strings, fetch)
        if size <= 32:
            return _medium(fetch, size)
        return _long(fetch, size) if size <= BLOCK else _blocks(strings, fetch)


def _rotate(x: Word, by: int) -> NDArray:
    return np.asarray((x >> np.uint64(by)) | (x << np.uint64(64 - by)))


def _mix(x: Word) -> NDArray:
    return np.asarray(x ^ (x >> np.uint64(47)))


def _pair(low: Word, high: Word, multiplier: Word) -> NDArray:
    first = _mix((low ^ high) * multiplier)
    return np.asarray(_mix((high ^ first) * multiplier) * multiplier)


def _multiplier(size: int) -> np.uint64:
    return K2 + np.uint64(2 * size)


def _short(strings: NDArray, fetch: Fetch) -> NDArray:
    size = strings.shape[1]
    if size >= 8:
        multiplier = _multiplier(size)
        head, tail = fetch(0) + K2, fetch(size - 8)
        low = _rotate(tail, 37) * multiplier + head
        return _pair(low, (_rotate(head, 25) + tail) * multiplier, multiplier)
    if size >= 4:
        halves = [
            np.ascontiguousarray(strings[:, at : at + 4]).view("<u4")[:, 0].astype(np.uint64)
            for at in (0, size - 4)
        ]
        low = np.uint64(size) + (halves[0] << np.uint64(3))
        return _pair(low, halves[1], _multiplier(size))
    first, middle, last = (strings[:, i].astype(np.uint64) for i in (0, size >> 1, size - 1))
    y = first + (middle << np.uint64(8))
    z = np.uint64(size) + (last << np.uint64(2))
    return np.asarray(_mix(y * K2 ^ z * K0) * K2)


def _middle(fetch: Fetch, size: int, first: Word) -> tuple[NDArray, NDArray]:
    """The words that strings of more than 16 bytes mix first."""
    a, b = fetch(0) * first, fetch(8)
    c, d = fetch(size - 8) * _multiplier(size), fetch(size - 16) * K2
    return _rotate(a + b, 43) + _rotate(c, 30) + d, a + _rotate(b + K2, 18) + c


def _medium(fetch: Fetch, size: int) -> NDArray:
    return _pair(*_middle(fetch, size, K1), _multiplier(size))


def _long(fetch: Fetch, size: int) -> NDArray:
    multiplier = _multiplier(size)
    y, other = _middle(fetch, size, K2)
    z = _pair(y, other, multiplier)
    e, f = fetch(16) * multiplier, fetch(24)
    g, h = (y + fetch(size - 32)) * multiplier, (z + fetch(size - 24)) * multiplier
    low, high = _rotate(e + f, 43) + _rotate(g, 30) + h, e + _rotate(f + fetch(0) * K2, 18) + g
    return _pair(low, high, multiplier)


class _State:
    """The 56-byte state of the hash."""

    def __init__(self, fetch: Fetch) -> None:
        y = np.uint64(SEED) * K1 + np.uint64(113)
        self.fetch = fetch
        self.x: Word = np.uint64(SEED) * K2 + fetch(0)
        self.y: Word = y
        self.z: Word = _mix(y * K2 + np.uint64(113)) * K2
        self.v: tuple[Word, Word] = np.uint64(0), np.uint64(0)
        self.w: tuple[Word, Word] = np.uint64(0), np.uint64(0)

    def block(self, at: int, multiplier: Word, weight: int) -> None:
        """Mixes in the block at *at*; *weight* is 1, or 9 for the last block."""
        fetch, (v0, v1), (w0, w1) = self.fetch, self.v, self.w
        nine = np.uint64(weight)
        x = _rotate(self.x + self.y + v0 + fetch(at + 8), 37) * multiplier
        y = _rotate(self.y + v1 + fetch(at + 48), 42) * multiplier
        x ^= w1 * nine
        y += v0 * nine + fetch(at + 40)
        z = _rotate(self.z + w0, 33) * multiplier
        self.v = self._half(at, v1 * multiplier, x + w0)
        self.w = self._half(at + 32, z + w1, y + fetch(at + 16))
        self.x, self.y, self.z = z, y, x

    def _half(self, at: int, a: Word, b: Word) -> tuple[Word, Word]:
        words = [self.fetch(at + 8 * i) for i in range(4)]
        a = a + words[0]
        b = _rotate(b + a + words[3], 21)
        c = a
        a = a + words[1] + words[2]
        b = b + _rotate(a, 44)
        return a + words[3], b + c


def _blocks(strings: NDArray, fetch: Fetch) -> NDArray:
    whole, rest = divmod(strings.shape[1] - 1, BLOCK)
    words = np.ascontiguousarray(strings[:, : whole * BLOCK]).view("<u8").T.astype(np.uint64)
    state = _State(lambda at: words[at >> 3])
    for block in range(whole):
        state.block(block * BLOCK, K1, 1)
    state.fetch = fetch
    multiplier = K1 + ((state.z & np.uint64(0xFF)) << np.uint64(1))
    w0 = state.w[0] + np.uint64(rest)
    v0 = state.v[0] + w0
    state.v, state.w = (v0, state.v[1]), (w0 + v0, state.w[1])
    state.block(whole * BLOCK + rest - 63, multiplier, 9)
    low = _pair(state.v[0], state.w[0], multiplier) + _mix(state.y) * K0 + state.z
    return _pair(low, _pair(state.v[1], state.w[1], multiplier) + state.x, multiplier)
