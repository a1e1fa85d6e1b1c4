"""Small files for the tests of delegates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from tests.unit.loaders.files import FileBuilder

SAME, RELU = 0, 1
NOTHING: Final[Mapping[str, int]] = {}
CONVOLUTION = {"padding": SAME, "stride_w": 2, "stride_h": 2, "fused_activation_function": RELU}


def chain(*kinds: str, size: int = 2) -> bytes:
    """Unary operators one after the other, on [size] floats: tensor 0 the input, tensor i the
    result of node i - 1.
    """
    file = FileBuilder()
    tensors = [file.tensor(f"t{i}", [size], shape_signature=[-1]) for i in range(len(kinds) + 1)]
    for kind, x, y in zip(kinds, tensors, tensors[1:], strict=False):
        file.operator(kind, [x], [y])
    return file.finish([tensors[0]], [tensors[-1]])


def convolved(*middle: str, after: str = "", options: Mapping[str, int] = NOTHING) -> bytes:
    """CONV_2D, the unary operators of *middle*, MEAN over height and width, and one *after* it; [1,
    5, 4, 2] to [1, 3]. *options* are the convolution's other ones.
    """
    file = FileBuilder()
    rng = np.random.default_rng(5)
    x = file.tensor("x", [1, 5, 4, 2])
    filters = file.tensor("filters", [3, 3, 3, 2], value=rng.normal(size=(3, 3, 3, 2)).astype("f4"))
    bias = file.tensor("bias", [3], value=rng.normal(size=3).astype("f4"))
    axes = file.tensor("axes", [2], "INT32", np.array([1, 2], np.int32))
    chosen = CONVOLUTION | dict(options)
    size = [1, -(-5 // chosen["stride_h"]), -(-4 // chosen["stride_w"]), 3]
    between = [file.tensor(f"between{i}", size) for i in range(len(middle) + 1)]
    y = file.tensor("y", [1, 3])
    file.operator("CONV_2D", [x, filters, bias], [between[0]], chosen)
    for kind, given, made in zip(middle, between, between[1:], strict=False):
        file.operator(kind, [given], [made])
    file.operator("MEAN", [between[-1], axes], [y], {"keep_dims": False})
    if after:
        given, y = y, file.tensor("after", [1, 3])
        file.operator(after, [given], [y])
    return file.finish([x], [y])


def diamond() -> bytes:
    """y = neg(a) + abs(a), z = neg(b) where a = relu(x), b = abs(x)."""
    file = FileBuilder()
    x, a, b, c, d, y, z = (file.tensor(n, [2]) for n in ("x", "a", "b", "c", "d", "y", "z"))
    file.operator("RELU", [x], [a])
    file.operator("ABS", [x], [b], {})
    file.operator("NEG", [a], [c], {})
    file.operator("ABS", [a], [d], {})
    file.operator("ADD", [c, d], [y], {})
    file.operator("NEG", [b], [z], {})
    return file.finish([x], [y, z])


def where_then(*kinds: str) -> bytes:
    """Indexes at which four booleans hold, as floats, then unary operators: the number of rows is
    known at run time.
    """
    file = FileBuilder()
    x = file.tensor("x", [4], "BOOL")
    rows = file.tensor("rows", [1, 1], "INT64", shape_signature=[-1, 1])
    made = [file.tensor(f"t{i}", [1, 1], shape_signature=[-1, 1]) for i in range(len(kinds) + 1)]
    file.operator("WHERE", [x], [rows], {})
    file.operator("CAST", [rows], [made[0]], {})
    for kind, given, out in zip(kinds, made, made[1:], strict=False):
        file.operator(kind, [given], [out])
    return file.finish([x], [made[-1]])
