"""RANDOM_MULTINOMIAL: classes drawn by their probabilities (NNAPI)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel
from penstock.drivers.reference.ops.lookup.random import Generator
from penstock.drivers.reference.ops.numerics.real_values import reader
from penstock.drivers.reference.ops.structure.shape import checked
from penstock.errors import InputError, ShapeMismatch
from penstock.ir import NDArray

MASK: Final = 2**64 - 1


@kernel("RANDOM_MULTINOMIAL")
def random_multinomial(site: Site) -> Kernel:
    """int32 [batches, samples]; logits that are not finite are never drawn. The same seeds give the
    same classes at every run; seeds of 0 and 0 are none (`Generator`).
    """
    if not site.input(0).dtype.is_float:
        raise site.unsupported_types()
    read, samples = reader(site.input(0), "logits"), site.attributes.integer("samples")
    place = site.operation.outputs[0]

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
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
        drawn = generator.reals(None, count).reshape(shape)
        result = np.empty(shape, np.int32)
        for row, part, out in zip(sums, drawn, result, strict=True):
            out[:] = np.searchsorted(row, part * row[-1], "right")
        return (result,)

    return run


def _running_sums(logits: NDArray) -> NDArray:
    """Running sums of the exponentials of each row's finite logits, less the greatest, float64."""
    finite = np.isfinite(logits)
    if not finite.any(axis=1).all():
        raise InputError("a row of logits has no class that can be drawn")
    known = np.where(finite, logits, np.float32(-np.inf)).astype(np.float64)
    return np.cumsum(np.exp(known - known.max(axis=1, keepdims=True)), axis=1)
