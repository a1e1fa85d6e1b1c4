"""StableHLO's operations on elements and shapes that LiteRT registers."""

from __future__ import annotations

from penstock.ir.types import PACKED
from tests.differential.draw import Draw
from tests.differential.registry import SWEPT, cases


@cases(
    "STABLEHLO_ADD", "STABLEHLO_MULTIPLY", "STABLEHLO_MAXIMUM", "STABLEHLO_MINIMUM",
    "STABLEHLO_AND",
    "STABLEHLO_SHIFT_LEFT",
    slots=1,
)  # fmt: skip
def pair(draw: Draw, kind: str) -> None:
    dtype, shape = draw.type(0), draw.shape()
    quantization = draw.quantization(dtype, scaled=draw.quantized is True and draw.chance(0.3))
    low, high = (0, 5) if kind == "STABLEHLO_SHIFT_LEFT" else (None, None)
    a = draw.value(dtype, shape, quantization)
    b = draw.value(dtype, shape, quantization, low=low, high=high)
    draw.operation(kind, [a, b], [draw.output(dtype, quantization)])


@cases("STABLEHLO_PAD", choices=[[d for d in SWEPT if d not in PACKED]])
def padding(draw: Draw, kind: str) -> None:
    dtype, shape = draw.type(0), draw.shape(1)
    x, value = draw.value(dtype, shape), draw.value(dtype, ())
    draw.operation(
        kind,
        [x, value],
        [draw.output(dtype)],
        edge_padding_low=tuple(draw.integer(-1 if d > 1 else 0, 2) for d in shape),
        edge_padding_high=tuple(draw.integer(-1 if d > 2 else 0, 2) for d in shape),
        interior_padding=tuple(draw.integer(0, 2) for _ in shape),
    )
