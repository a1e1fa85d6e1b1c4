"""Pooling, and the windows that convolutions and poolings share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from penstock.ir.types import DType, NDArray
from penstock.loaders.onnx.calls import Call, operator
from penstock.loaders.onnx.operators.common import arithmetic, axis_in, expand, number, pad, squeeze
from penstock.loaders.onnx.values import Layout, Value, channels_last


class Window(Struct, frozen=True):
    """One spatial axis: *extent* elements *dilation* apart, a *stride* from window to window."""

    extent: int
    stride: int
    dilation: int
    before: int
    after: int
    size: int | None

    @property
    def reach(self) -> int:
        return (self.extent - 1) * self.dilation + 1


def spatial(call: Call, extents: Sequence[int], sizes: Sequence[int | None]) -> list[Window]:
    """The windows of a node, padding by `auto_pad` worked out; `after` may be negative where
    nothing reaches.
    """
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
    found = []
    for i in range(count):
        before, after = pads[i], pads[i + count]
        if mode == "VALID":
            before = after = 0
        elif mode in {"SAME_UPPER", "SAME_LOWER"}:
            before, after = _same(call, extents[i], strides[i], dilations[i], sizes[i], mode)
        elif mode != "NOTSET":
            raise node.invalid(f"auto_pad {mode!r}")
        found.append(Window(extents[i], strides[i], dilations[i], before, after, sizes[i]))
    return found


def _same(
    call: Call, extent: int, stride: int, dilation: int, size: int | None, mode: str
) -> tuple[int, int]:
    reach = (extent - 1) * dilation + 1
    if stride == 1:
        total = reach - 1
    elif size is None:
        raise call.refuse(f"auto_pad {mode} over a dimension of unknown size")
    else:
        total = max((-(-size // stride) - 1) * stride + reach - size, 0)
    half = total // 2
    return (half, total - half) if mode == "SAME_UPPER" else (total - half, half)


def padding_of(windows: Sequence[Window]) -> str | None:
    """VALID or SAME where one of these says the padding of all axes; None where neither does."""
    if all(w.before == 0 and w.after == 0 for w in windows):
        return "VALID"
    return "SAME" if all(_is_same(w) for w in windows) else None


def _is_same(window: Window) -> bool:
    if window.stride == 1:
        total = window.reach - 1
    elif window.size is None:
        return False
    else:
        outputs = -(-window.size // window.stride)
        total = max((outputs - 1) * window.stride + window.reach - window.size, 0)
        made = (window.size + window.before + window.after - window.reach) // window.stride + 1
        if made != outputs:
            return False
        return window.before == total // 2 and window.after <= total - total // 2 + window.stride
    return window.before == total // 2 and window.after == total - total // 2


def image_of(call: Call, x: Value, axes: int) -> int:
    """*x* with channels last; with one spatial dimension, as pictures one element high."""
    operand = call.get(x, channels_last(axes + 2))
    return expand(call, operand, 1) if axes == 1 else operand


def from_image(call: Call, operand: int, axes: int) -> Value:
    if axes == 1:
        operand = squeeze(call, operand, [1])
    return call.wrap(operand, channels_last(axes + 2))


def planar(windows: Sequence[Window]) -> list[Window]:
    """Windows over height and width."""
    return list(windows) if len(windows) == 2 else [Window(1, 1, 1, 0, 0, 1), *windows]


def padded(call: Call, operand: int, windows: Sequence[Window], value: float = 0) -> int:
    """An operand with channels last, padded as *windows* say."""
    pads = [(0, 0), *((w.before, w.after) for w in windows), (0, 0)]
    return pad(call, operand, pads, value)


MAX_COUNTED = 1 << 24

PLAIN = frozenset({DType.FLOAT32, DType.FLOAT16})


def _windows(call: Call) -> tuple[Value, list[Window], list[Window]]:
    """The input, its windows as the file has them, and with what rounding up adds behind."""
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


def _lowest(dtype: DType) -> NDArray:
    if dtype.is_float:
        return np.array(-math.inf, dtype.numpy)
    return np.array(np.iinfo(dtype.numpy).min, dtype.numpy)


@operator("MaxPool")
def max_pool(call: Call) -> Value:
    """Padding never is the maximum."""
    x, _, windows = _windows(call)
    if len(call.node.outputs) > 1 and call.node.outputs[1]:
        raise call.refuse("the indices of maxima")
    axes = len(windows)
    if axes > 2 or x.dtype not in PLAIN or any(w.dilation > 1 for w in windows):
        return _reduced(call, x, windows, "MAXIMUM", _lowest(x.dtype))
    image, flat = image_of(call, x, axes), planar(windows)
    padding = padding_of(flat)
    if padding is None:
        low = np.array(np.finfo(np.float32).min if x.dtype is DType.FLOAT32 else -65504)
        image, padding = padded(call, image, flat, low), "VALID"  # type: ignore[arg-type]  # a scalar array
    made = call.emit("MAX_POOL_2D", [image], x.dtype, _pool(flat, padding))
    return from_image(call, made, axes)


def _pool(windows: Sequence[Window], padding: str) -> dict[str, int | str]:
    return {
        "padding": padding,
        "stride_h": windows[0].stride,
        "stride_w": windows[1].stride,
        "filter_height": windows[0].extent,
        "filter_width": windows[1].extent,
    }


def _reduced(
    call: Call, x: Value, windows: Sequence[Window], function: str, initial: NDArray
) -> Value:
    """Windows over any number of dimensions, in the layout the input is there in."""
    rank = len(windows) + 2
    layout = call.emitter.layout_of([x], rank)
    every: list[Window | None] = [None, None, *windows]
    ordered = [every[axis] for axis in layout]
    operand = call.get(x, layout)
    pads = [(0, 0) if w is None else (w.before, w.after) for w in ordered]
    operand = pad(call, operand, pads, initial)
    vectors = [
        call.emitter.integers((1 if w is None else getattr(w, name) for w in ordered), np.int64)
        for name in ("extent", "stride", "dilation")
    ]
    inputs = [operand, call.emitter.constant(initial.reshape(())), *vectors]
    made = call.emit("REDUCE_WINDOW", inputs, x.dtype, {"reduce_function": function})
    return call.wrap(made, layout)


def _counts(call: Call, given: Window, grown: Window, padding_counts: bool) -> NDArray:
    """How many elements count in each window of one axis."""
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
    dilated = any(w.dilation > 1 for w in grown)
    simple = axes <= 2 and x.dtype in PLAIN and not dilated
    flat = planar(grown) if axes <= 2 else grown
    padding = padding_of(flat)
    if (
        simple
        and padding is not None
        and (padding == "VALID" or not counts_padding)
        and grown is given
    ):
        image = image_of(call, x, axes)
        made = call.emit("AVERAGE_POOL_2D", [image], x.dtype, _pool(flat, padding))
        return from_image(call, made, axes)
    whole = math.prod(w.extent for w in grown)
    even = grown is given and (counts_padding or all(w.before == w.after == 0 for w in given))
    counts = None
    if not even:
        each = [_counts(call, g, w, counts_padding) for g, w in zip(given, grown, strict=True)]
        counts = np.maximum(np.prod(np.meshgrid(*each, indexing="ij"), axis=0), 1)
    if simple:
        image = padded(call, image_of(call, x, axes), flat)
        made = call.emit("AVERAGE_POOL_2D", [image], x.dtype, _pool(flat, "VALID"))
        if counts is not None:
            share = (whole / counts).astype(x.dtype.numpy)
            share = share.reshape((1, *((1,) if axes == 1 else ()), *share.shape, 1))
            made = arithmetic(call, "MUL", made, call.emitter.constant(share))
        return from_image(call, made, axes)
    total = _reduced(call, x, grown, "ADD", np.zeros((), x.dtype.numpy))
    layout, operand = next(iter(total.forms.items()))
    if counts is None:
        share = np.array(1 / whole).astype(x.dtype.numpy)
    else:
        share = (1 / counts).astype(x.dtype.numpy)[None, None].transpose(layout)
    return call.wrap(arithmetic(call, "MUL", operand, call.emitter.constant(share)), layout)


@operator("LpPool")
def lp_pool(call: Call) -> Value:
    """The root of the sum of powers of each window."""
    x, _, windows = _windows(call)
    p = call.node.number("p", 2)
    raised, layout = _powers(call, x, p)
    total = _reduced(call, call.wrap(raised, layout), windows, "ADD", np.zeros((), x.dtype.numpy))
    order, operand = next(iter(total.forms.items()))
    return call.wrap(_root(call, operand, p), order)


def _powers(call: Call, x: Value, p: float) -> tuple[int, Layout]:
    layout = call.emitter.layout_of([x], x.rank or 0)
    operand = call.get(x, layout)
    if p == 2:
        return arithmetic(call, "MUL", operand, operand), layout
    size = call.emit("ABS", [operand], x.dtype)
    return (size if p == 1 else arithmetic(call, "POW", size, number(call, p, x.dtype))), layout


def _root(call: Call, operand: int, p: float) -> int:
    dtype = call.emitter.dtype(operand)
    if p == 1:
        return operand
    if p == 2:
        return call.emit("SQRT", [operand], dtype)
    return arithmetic(call, "POW", operand, number(call, 1 / p, dtype))


def over_space(call: Call, kind: str, operand: int, layout: Layout) -> int:
    """All but batch and channels reduced, their dimensions kept as 1."""
    places = sorted(axis_in(layout, axis) for axis in range(2, len(layout)))
    return call.emit(
        kind,
        [operand, call.emitter.integers(places)],
        call.emitter.dtype(operand),
        {"keep_dims": True},
    )


def _globally(call: Call, kind: str) -> Value:
    x = call.tensor(0)
    layout = call.emitter.layout_of([x], x.rank or 0)
    return call.wrap(over_space(call, kind, call.get(x, layout), layout), layout)


@operator("GlobalAveragePool")
def global_average_pool(call: Call) -> Value:
    return _globally(call, "MEAN")


@operator("GlobalMaxPool")
def global_max_pool(call: Call) -> Value:
    return _globally(call, "REDUCE_MAX")


@operator("GlobalLpPool")
def global_lp_pool(call: Call) -> Value:
    p = call.node.number("p", 2)
    raised, layout = _powers(call, call.tensor(0), p)
    return call.wrap(_root(call, over_space(call, "SUM", raised, layout), p), layout)
