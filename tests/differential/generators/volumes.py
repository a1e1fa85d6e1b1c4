"""Convolutions of volumes."""

from __future__ import annotations

import numpy as np

from tests.differential.draw import Draw
from tests.differential.registry import cases


@cases("CONV_3D", "CONV_3D_TRANSPOSE", slots=1)
def volumes(draw: Draw, kind: str) -> None:
    dtype, padding = draw.type(0), draw.pick(("SAME", "VALID"))
    strides = [draw.integer(1, 3) for _ in range(3)]
    dilations = [draw.integer(1, 2) for _ in range(3)]
    extents = [draw.integer(1, 3) for _ in range(3)]
    reach = [(e - 1) * d + 1 for e, d in zip(extents, dilations, strict=True)]
    sizes = [r + draw.integer(0, 4) for r in reach]
    outputs = [
        -(-n // s) if padding == "SAME" else (n - r + s) // s
        for n, r, s in zip(sizes, reach, strides, strict=True)
    ]
    batch, depth, channels = draw.integer(1, 2), draw.integer(1, 4), draw.integer(1, 4)
    if kind == "CONV_3D":
        inputs = [
            draw.value(dtype, (batch, *sizes, depth)),
            draw.value(dtype, (*extents, depth, channels)),
        ]
    else:
        target = np.array([batch, *sizes, channels], np.int32)
        inputs = [
            draw.parameter(target),
            draw.value(dtype, (*extents, channels, depth)),
            draw.value(dtype, (batch, *outputs, depth)),
        ]
    if draw.chance(0.7):
        inputs.append(draw.value(dtype, (channels,)))
    numbers = {f"stride_{a}": s for a, s in zip("dhw", strides, strict=True)}
    numbers |= {f"dilation_{a}_factor": d for a, d in zip("dhw", dilations, strict=True)}
    draw.operation(
        kind,
        inputs,
        [draw.output(dtype)],
        padding=padding,
        fused_activation_function=draw.activation(),
        **numbers,
    )
