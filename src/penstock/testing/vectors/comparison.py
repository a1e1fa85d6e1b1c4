"""How outputs are compared: as each says itself."""

from __future__ import annotations

import numpy as np

from penstock.ir import NDArray
from penstock.testing.vectors.derive import Expected, Run


def difference(run: Run, outputs: list[NDArray]) -> str | None:
    """What is wrong with *outputs*, None where nothing is."""
    for place, (expected, got) in enumerate(zip(run.outputs, outputs, strict=True)):
        entry = expected.entry
        found: str | None = None
        if entry.compare == "near":
            found = _near(expected, got)
        elif entry.compare == "multinomial":
            found = _multinomial(run, got)
        if found is not None:
            return f"output {place} ({entry.name}): {found}"
    return None


def _near(expected: Expected, got: NDArray) -> str | None:
    """|got - want| <= atol + rtol * |want|, shapes equal; what is infinite or no number is that."""
    want, entry = expected.values, expected.entry
    if want is None:
        return None
    open_shape = want.ndim != len(entry.dims)
    if got.size != want.size if open_shape else got.shape != want.shape:
        return f"shape {got.shape}, where {want.shape} is expected"
    if want.size == 0:
        return None
    a = got.astype(np.float64).reshape(want.shape)
    b = want.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        close = np.abs(a - b) <= entry.atol + entry.rtol * np.abs(b)
    good = (close & np.isfinite(b)) | (a == b)
    good |= np.isnan(a) & np.isnan(b)
    if good.all():
        return None
    at = tuple(int(i) for i in np.argwhere(~good)[0])
    return (
        f"{int((~good).sum())} of {good.size} values differ, first at {list(at)}: "
        f"{a[at]:.9g}, where {b[at]:.9g} is expected (tolerance {entry.atol:g} + {entry.rtol:g} of it)"
    )


def _multinomial(run: Run, got: NDArray) -> str | None:
    """The share of each class among the samples is near the softmax of its logits."""
    logits = run.fed[0].astype(np.float64)
    tolerance = run.case.entry.multinomial_tolerance
    shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    if got.ndim != 2 or got.shape[0] != shares.shape[0]:
        return f"shape {got.shape} for logits of shape {logits.shape}"
    for row, (samples, wanted) in enumerate(zip(got, shares, strict=True)):
        if samples.size and not 0 <= samples.min() <= samples.max() < wanted.size:
            return f"row {row} has a class outside [0, {wanted.size})"
        found = np.bincount(samples, minlength=wanted.size) / max(samples.size, 1)
        worst = int(np.abs(found - wanted).argmax())
        if abs(found[worst] - wanted[worst]) > tolerance:
            return (
                f"row {row}: class {worst} has a share of {found[worst]:.4f}, "
                f"where {wanted[worst]:.4f} is expected (tolerance {tolerance:g})"
            )
    return None
