"""float16 where a kernel has none of its own: computed in float32, and rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from penstock.drivers.reference.ops.kernel import Kernel, Site
from penstock.ir import DType, NDArray, Operand
from penstock.ir.operations import spec_of

HALF: Final = DType.FLOAT16


def widened(site: Site) -> Site | None:
    """*site* with float32 in the place of float16; None where it has none, or runs subgraphs."""
    operands = [*(o for o in site.inputs if o is not None), *site.outputs]
    if all(o.dtype is not HALF for o in operands):
        return None
    if any(a.kind in {"subgraph", "subgraphs"} for a in spec_of(site.operation).attributes):
        return None

    def value(position: int) -> NDArray | None:
        found = site.values(position)
        return found.astype(np.float32) if found is not None and _is_half(found) else found

    return replace(
        site,
        inputs=tuple(None if o is None else _widened(o) for o in site.inputs),
        outputs=tuple(map(_widened, site.outputs)),
        values=value,
    )


def narrowed(run: Kernel, outputs: Sequence[Operand]) -> Kernel:
    """The kernel of a widened site, between float16 arrays."""
    halves = [o.dtype is HALF for o in outputs]

    def compute(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        wide = [a.astype(np.float32) if a is not None and _is_half(a) else a for a in inputs]
        return [
            np.asarray(r).astype(np.float16) if half else r
            for r, half in zip(run(wide), halves, strict=True)
        ]

    return compute


def _widened(operand: Operand) -> Operand:
    return replace(operand, dtype=DType.FLOAT32) if operand.dtype is HALF else operand


def _is_half(array: NDArray) -> bool:
    return array.dtype == np.float16
