"""Pooling, and the windows that convolutions and poolings share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from penstock.ir.types import DType, NDArray
from penstock.loaders.onnx.calls import Call, Tensor
from penstock.loaders.onnx.operators import operator
from penstock.loaders.onnx.operators.elementwise import HALVES
from penstock.loaders.onnx.values import Layout, Value, channels_last


class Window(Struct, frozen=True):
    """One spatial axis: *extent* elements, *dilation* apart, *stride* from window to window."""

    extent: int
    stride: int
    dilation: int
    before: int
    after: int
    size: int | None

    @property
    def reach(self) -> int:
        return (self.extent - 1) * self.dilation + 1

    @property
    def same_total(self) -> int | None:
        """The padding that gives size / stride outputs; None if it depends on an unknown size."""
        if self.stride == 1:
            return self.reach - 1
        if self.size is None:
            return None
        return max((-(-self.size // self.stride) - 1) * self.stride + self.reach - self.size, 0)


def spatial(call: Call, extents: Sequence[int], sizes: Sequence[int | None]) -> list[Window]:
    """The node's windows, `auto_pad` resolved. `after` < 0 if none reaches the last elements."""
    node, count = call.node, len(extents)
    strides = node.integers("strides", (1,) * count)
    dilations = node.integers("dilations", (1,) * count)
    pads = node.integers("pads", (0,) * (2 * count))
    if not len(strides) == len(dilations) == count or len(pads) != 2 * count:
        raise call.mismatch(
            f"strides {strides}, dilations {dilations}, pads {pads} for {count} dimensions"
        )
    if min((*strides, *dilations, *extents), default=1) < 1:
        raise call.mismatch("extents, strides and dilations are positive")
    mode = node.text("auto_pad", "NOTSET")
    columns = extents, strides, dilations, pads[:count], pads[count:], sizes
    windows = [Window(*row) for row in zip(*columns, strict=True)]
    if mode == "NOTSET":
        return windows
    if mode == "VALID":
        return [replace(w, before=0, after=0) for w in windows]
    if mode not in {"SAME_UPPER", "SAME_LOWER"}:
        raise node.invalid(f"auto_pad {mode!r}")
    found = []
    for window in windows:
        if (total := window.same_total) is None:
            raise call.refuse(f"auto_pad {mode} over a dimension of unknown size")
        before = total // 2 if mode == "SAME_UPPER" else total - total // 2
        found.append(replace(window, before=before, after=total - before))
    return found


def padding_of(windows: Sequence[Window]) -> str | None:
    """VALID or SAME if one of them describes the padding of all axes; otherwise None."""
    if all(w.before == 0 and w.after == 0 for w in windows):
        return "VALID"
    return "SAME" if all(_is_same(w) for w in windows) else None


def _is_same(window: Window) -> bool:
    if (total := window.same_total) is None:
        return False
    behind = total - total // 2
    if window.stride == 1 or window.size is None:
        return window.before == total // 2 and window.after == behind
    made = (window.size + window.before + window.after - window.reach) // window.stride + 1
    if made != -(-window.size // window.stride):
        return False
    return window.before == total // 2 and window.after <= behind + window.stride


def image_of(call: Call, x: Value, axes: int) -> Tensor:
    """*x* with channels last. With one spatial dimension, it is an image one element high."""
    operand = call.get(x, channels_last(axes + 2))
    return operand.expand(1) if axes == 1 else operand


def from_image(operand: Tensor, axes: int) -> Value:
    return (operand.squeeze(1) if axes == 1 else operand).value(channels_last(axes + 2))


def planar(windows: Sequence[Window]) -> list[Window]:
    """Windows over height and width."""
    return list(windows) if len(windows) == 2 else [Window(1, 1, 1, 0, 0, 1), *windows]


def padded(operand: Tensor, windows: Sequence[Window], value: NDArray | float = 0) -> Tensor:
    """An operand with channels last, padded by *windows*."""
    return operand.pad([(0, 0), *((w.before, w.after) for w in windows), (0, 0)], value)


MAX_COUNTED = 1 << 24


def _windows(call: Call) -> tuple[Value, list[Window], list[Window]]:
    """The input, its windows as in the file, and the padding that rounding up adds at the end."""
    x = call.tensor(0)
    dims = x.shape or ()
    if len(dims) < 3:
        raise call.mismatch(f"a pool over an input of shape {dims}")
    extents = call.node.integers("kernel_shape")
    if len(extents) != len(dims) - 2:
        raise call.mismatch(f"a window of {extents} over an input of shape {dims}")
    windows = spatial(call, extents, dims[2:])
    if not call.node.integer("ceil_mode", 0):
        return x, windows, windows
    grown = []
    for window in windows:
        if window.size is None:
            raise call.refuse("ceil_mode over a dimension of unknown size")
        room = window.size + window.before + window.after - window.reach
        count = -(-room // window.stride) + 1
        if (count - 1) * window.stride >= window.size + window.before:
            count -= 1
        behind = (count - 1) * window.stride + window.reach - window.size - window.before
        grown.append(replace(window, after=behind))
    return x, windows, grown


@operator("MaxPool")
def max_pool(call: Call) -> Value:
    """A padding element is never the maximum."""
    x, _, windows = _windows(call)
    if len(call.node.outputs) > 1 and call.node.outputs[1]:
        raise call.refuse("the indices of maxima")
    axes = len(windows)
    if axes > 2 or x.dtype not in HALVES or any(w.dilation > 1 for w in windows):
        lowest = -math.inf if x.dtype.is_float else np.iinfo(x.dtype.numpy).min
        made, layout = _reduced(call, x, windows, "MAXIMUM", np.array(lowest, x.dtype.numpy))
        return made.value(layout)
    image, flat = image_of(call, x, axes), planar(windows)
    padding = padding_of(flat)
    if padding is None:
        low = np.array(np.finfo(np.float32).min if x.dtype is DType.FLOAT32 else -65504)
        image, padding = padded(image, flat, low), "VALID"
    return from_image(_pooled(image, "MAX_POOL_2D", flat, padding), axes)


def _pooled(image: Tensor, kind: str, windows: Sequence[Window], padding: str) -> Tensor:
    high, wide = windows
    strides = {"stride_h": high.stride, "stride_w": wide.stride}
    extents = {"filter_height": high.extent, "filter_width": wide.extent}
    return image.fn(kind, padding=padding, **strides, **extents)


def _reduced(
    call: Call, x: Value, windows: Sequence[Window], function: str, initial: NDArray
) -> tuple[Tensor, Layout]:
    """Windows over any number of dimensions, in the layout of the input."""
    operand, layout = call.stored(x)
    every: list[Window | None] = [None, None, *windows]
    ordered = [every[axis] for axis in layout]
    pads = [(0, 0) if w is None else (w.before, w.after) for w in ordered]
    operand = operand.pad(pads, initial)
    vectors = [
        call.vector((1 if w is None else getattr(w, name) for w in ordered), np.int64)
        for name in ("extent", "stride", "dilation")
    ]
    inputs = [operand, call.literal(initial.reshape(())), *vectors]
    return call.emit("REDUCE_WINDOW", inputs, reduce_function=function), layout


def _counts(call: Call, given: Window, grown: Window, padding_counts: bool) -> NDArray:
    """The number of elements that count in each window of one axis."""
    if given.size is None:
        raise call.refuse("padding that does not count, over a dimension of unknown size")
    if grown.extent * (given.size + grown.extent) > MAX_COUNTED:
        raise call.refuse(f"a window of {grown.extent} over {given.size}")
    outputs = (grown.size or 0) + grown.before + grown.after - grown.reach
    starts = np.arange(outputs // grown.stride + 1) * grown.stride - grown.before
    places = starts[:, None] + np.arange(grown.extent) * grown.dilation
    low, high = (-given.before, given.size + given.after) if padding_counts else (0, given.size)
    found: NDArray = ((places >= low) & (places < high)).sum(axis=1)
    return found


@operator("AveragePool")
def average_pool(call: Call) -> Value:
    x, given, grown = _windows(call)
    counts_padding = bool(call.node.integer("count_include_pad", 0))
    axes = len(grown)
    simple = axes <= 2 and x.dtype in HALVES and all(w.dilation == 1 for w in grown)
    flat = planar(grown) if axes <= 2 else grown
    padding = padding_of(flat)
    plain = padding == "VALID" or (padding == "SAME" and not counts_padding)
    if simple and plain and padding is not None and grown is given:
        image = image_of(call, x, axes)
        return from_image(_pooled(image, "AVERAGE_POOL_2D", flat, padding), axes)
    whole = math.prod(w.extent for w in grown)
    even = grown is given and (counts_padding or all(w.before == w.after == 0 for w in given))
    counts = None
    if not even:
        each = [_counts(call, g, w, counts_padding) for g, w in zip(given, grown, strict=True)]
        counts = np.maximum(np.prod(np.meshgrid(*each, indexing="ij"), axis=0), 1)
    if simple:
        image = padded(image_of(call, x, axes), flat)
        made = _pooled(image, "AVERAGE_POOL_2D", flat, "VALID")
        if counts is not None:
            share = (whole / counts).astype(x.dtype.numpy)
            made *= call.literal(share.reshape((1, *(1,) * (axes == 1), *share.shape, 1)))
        return from_image(made, axes)
    total, layout = _reduced(call, x, grown, "ADD", np.zeros((), x.dtype.numpy))
    share = np.array(1 / whole) if counts is None else (1 / counts)[None, None].transpose(layout)
    return (total * call.literal(share.astype(x.dtype.numpy))).value(layout)


@operator("LpPool")
def lp_pool(call: Call) -> Value:
    """The p-th root of the sum of p-th powers of each window."""
    x, _, windows = _windows(call)
    operand, layout = call.stored(x)
    zero = np.zeros((), x.dtype.numpy)
    total, order = _reduced(call, _powers(operand).value(layout), windows, "ADD", zero)
    return _root(total).value(order)


def _powers(operand: Tensor) -> Tensor:
    p = operand.call.node.number("p", 2)
    if p == 2:
        return operand * operand
    return abs(operand) if p == 1 else abs(operand) ** p


def _root(operand: Tensor) -> Tensor:
    p = operand.call.node.number("p", 2)
    if p == 1:
        return operand
    return operand.fn("SQRT") if p == 2 else operand ** (1 / p)


GLOBAL: Final = {"GlobalAveragePool": "MEAN", "GlobalMaxPool": "REDUCE_MAX", "GlobalLpPool": "SUM"}


@operator(*GLOBAL)
def global_pool(call: Call) -> Value:
    """Reduces all dimensions but batch and channels, and keeps them as dimensions of 1."""
    operand, layout = call.stored(call.tensor(0))
    places = sorted(layout.index(axis) for axis in range(2, len(layout)))
    powers = call.node.op == "GlobalLpPool"
    made = _powers(operand) if powers else operand
    made = made.reduced(GLOBAL[call.node.op], places, True)
    return (_root(made) if powers else made).value(layout)
