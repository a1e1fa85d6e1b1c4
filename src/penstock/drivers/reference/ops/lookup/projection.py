"""LSH_PROJECTION: hashes of the rows of a tensor, alike for like tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel
from penstock.drivers.reference.ops.numerics.fingerprint import fingerprints
from penstock.drivers.reference.ops.numerics.weights import given
from penstock.errors import ShapeMismatch
from penstock.ir import DType, NDArray
from penstock.ir.builder import pack_strings

AT_ONCE: Final = 1 << 22
"""Bytes hashed in one step."""


@kernel("LSH_PROJECTION")
def lsh_projection(site: Site) -> Kernel:
    """For each number of *hash* one bit: whether the weighted sum of the fingerprints of the
    input's rows, each behind the number's bytes, is positive. SPARSE makes one number of the bits
    of a hash function, the first bit highest, plus the function's index shifted left by its number
    of bits.
    """
    sparse = site.attributes.text("type") == "SPARSE"
    strings = site.input(1).dtype is DType.STRING

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        table, items = given(inputs[0]), given(inputs[1])
        weights = inputs[2] if len(inputs) > 2 else None
        if weights is not None and weights.shape != items.shape[:1]:
            raise ShapeMismatch(f"{weights.shape} weights for items of shape {items.shape}")
        if not items.ndim or not len(items):
            raise ShapeMismatch(f"LSH_PROJECTION of an input of shape {items.shape}")
        rows = _string_rows(items) if strings else _rows(items)
        bits = _bits(table.reshape(-1), rows, weights).reshape(table.shape)
        if not sparse:
            return (bits.reshape(-1).astype(np.int32),)
        width = table.shape[-1]
        places = np.arange(width - 1, -1, -1)
        numbers = (bits.astype(np.int64) << places).sum(axis=1)
        numbers += np.arange(len(bits), dtype=np.int64) << width
        return (numbers.astype(np.uint32).view(np.int32),)

    return run


def _rows(items: NDArray) -> NDArray:
    """The bytes of each row."""
    return np.frombuffer(items.tobytes(), np.uint8).reshape(len(items), items.nbytes // len(items))


def _string_rows(items: NDArray) -> NDArray:
    """The bytes of a string tensor, header and all, in as many equal pieces as it has rows."""
    packed = np.frombuffer(pack_strings(items), np.uint8)
    size = len(packed) // len(items)
    return packed[: size * len(items)].reshape(len(items), size)


def _bits(seeds: NDArray, rows: NDArray, weights: NDArray | None) -> NDArray:
    """One boolean a seed; the sums are taken in float64, row by row."""
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
