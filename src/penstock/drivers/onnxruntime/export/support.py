"""What of a model the driver takes: an answer for each operation, without the engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Final

from penstock.drivers.onnxruntime.export.rules import judge
from penstock.engines.answers import answered, joined
from penstock.engines.site import make_sites
from penstock.engines.unrolling import flattened
from penstock.hal import AccuracyClass, Support
from penstock.ir import Model
from penstock.ir.settled import has_control_flow
from penstock.ir.types import static_shape

MAX_BYTES: Final = 1 << 31
"""What an ONNX model may hold: the limit of its wire form."""

ROOM: Final = 1 << 24
"""Kept free for everything besides the constants."""


def examine(model: Model, best: AccuracyClass = "exact") -> Sequence[Support]:
    """One answer an operation. No class is better than *best*: what a provider was measured to meet."""
    if (size := constant_bytes(model)) > MAX_BYTES - ROOM:
        reason = f"{size} bytes of constants; an ONNX model holds less than {MAX_BYTES}"
        return [Support(False, reason) for _ in model.operations]
    flat = flattened(model)
    return joined(model, flat, answered(make_sites(flat.model), judge, best))


def constant_bytes(model: Model) -> int:
    """Bytes that the constants take in an ONNX model, where 8-bit ones may become float32: those of the entry subgraph,
    and where that has control flow of all others.
    """
    total = 0
    subgraphs = model.subgraphs if has_control_flow(model) else (model.entry,)
    for operand in chain.from_iterable(graph.operands for graph in subgraphs):
        if operand.is_constant and (shape := static_shape(operand.shape)) is not None:
            total += math.prod(shape) * max(4, operand.dtype.numpy.itemsize)
    return total
