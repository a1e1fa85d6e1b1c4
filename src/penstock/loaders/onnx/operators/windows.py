"""Windows that slide over spatial dimensions: their attributes, and how the IR's padding says them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from penstock.loaders.onnx.calls import Call
from penstock.loaders.onnx.operators.common import expand, pad, squeeze
from penstock.loaders.onnx.values import Value, channels_last


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
