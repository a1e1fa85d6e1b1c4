"""Convolutions and their transposes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from penstock.ir.types import DType, NDArray
from penstock.loaders.onnx.calls import Call, operator
from penstock.loaders.onnx.operators.common import (
    cast,
    concatenate,
    expand,
    pad,
    pair,
    sizes,
    slice_axis,
    squeeze,
)
from penstock.loaders.onnx.operators.pooling import (
    Window,
    from_image,
    image_of,
    padded,
    padding_of,
    planar,
    spatial,
)
from penstock.loaders.onnx.operators.recipes import Layer, layer_recipe
from penstock.loaders.onnx.values import Layout, Value, channels_last, constant, is_uniform, uniform

MAX_GROUPS = 64
PLAIN = frozenset({DType.FLOAT32, DType.FLOAT16})


def checked(call: Call) -> tuple[Value, Value, int]:
    """Input, weights and the number of spatial dimensions, which fit each other."""
    x, weights = call.tensor(0), call.tensor(1)
    rank = x.rank or 0
    if rank < 3 or rank > 5 or weights.rank != rank:
        raise call.mismatch(f"an input of shape {x.shape} and weights of shape {weights.shape}")
    if None in (weights.shape or ()):
        raise call.refuse("weights of unknown shape")
    return x, weights, rank - 2


@operator("Conv")
def convolution(call: Call) -> Value:
    x, weights, axes = checked(call)
    shape = tuple(d or 0 for d in weights.shape or ())
    groups = call.node.integer("group", 1)
    dims = x.shape or ()
    channels = dims[1] if dims[1] is not None else shape[1] * groups
    if groups < 1 or channels != shape[1] * groups or shape[0] % groups:
        raise call.mismatch(f"{channels} channels, weights of shape {shape} and {groups} groups")
    windows = spatial(call, shape[2:], dims[2:])
    bias = call.value(2) if call.has(2) else None
    if (axes == 3 and (groups > 1 or x.dtype is not DType.FLOAT32)) or x.dtype not in PLAIN:
        return _general(call, x, weights, bias, windows, groups)
    image = image_of(call, x, axes)
    if axes == 3:
        return _volume(call, image, weights, bias, windows)
    flat = planar(windows)
    padding = padding_of(flat)
    if padding is None:
        image, padding = padded(call, image, flat), "VALID"
    attributes: dict[str, int | str] = {
        "padding": padding,
        "stride_h": flat[0].stride,
        "stride_w": flat[1].stride,
        "dilation_h_factor": flat[0].dilation,
        "dilation_w_factor": flat[1].dilation,
    }
    depthwise = groups == channels and groups > 1
    kind = "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D"
    if depthwise:
        attributes["depth_multiplier"] = shape[0] // groups
    inputs = [image, _filters(call, weights, axes, depthwise)]
    if bias is not None:
        inputs.append(call.get(bias))
    found = from_image(call, call.emit(kind, inputs, x.dtype, attributes), axes)
    layer = _integer_layer(kind, axes, flat, attributes, depthwise=depthwise)
    found.recipe = layer_recipe(layer, x, weights, bias)
    return found


def _integer_layer(
    kind: str,
    axes: int,
    windows: list[Window],
    attributes: dict[str, int | str],
    *,
    depthwise: bool,
) -> Layer:
    """The same convolution of quantised values."""

    def prepare(call: Call, operand: int) -> int:
        image = expand(call, operand, 1) if axes == 1 else operand
        return image if padding_of(windows) is not None else padded(call, image, windows)

    def finish(call: Call, operand: int) -> tuple[int, Layout]:
        made = squeeze(call, operand, [1]) if axes == 1 else operand
        return made, channels_last(axes + 2)

    return Layer(
        kind,
        channels_last(axes + 2),
        lambda array: filter_array(array, axes, depthwise),
        0,
        3 if depthwise else 0,
        dict(attributes),
        prepare,
        finish,
    )


def filter_array(array: NDArray, axes: int, depthwise: bool) -> NDArray:
    """Weights [out, in, ...] as TFLite's filters: [out, h, w, in], depthwise [1, h, w, out]."""
    if axes == 1:
        array = (
            array[:, :, None]
            if not is_uniform(array)
            else uniform(array[0, 0, 0], (*array.shape[:2], 1, array.shape[2]))
        )
    order = (1, 2, 3, 0) if depthwise else (0, 2, 3, 1)
    return array.transpose(order)


def _filters(call: Call, weights: Value, axes: int, depthwise: bool) -> int:
    if weights.array is not None:
        return call.emitter.constant(filter_array(weights.array, axes, depthwise), weights.name)
    order: Sequence[int] = (1, 2, 3, 0) if depthwise else (0, 2, 3, 1)
    if axes == 2:
        return call.get(weights, tuple(order))
    shape = weights.shape or ()
    target = (shape[0], shape[1], 1, shape[2])
    operand = call.emit(
        "RESHAPE",
        [call.get(weights), call.emitter.integers([d or 0 for d in target])],
        weights.dtype,
        {"new_shape": tuple(d or 0 for d in target)},
    )
    return call.emit("TRANSPOSE", [operand, call.emitter.integers(order)], weights.dtype)


def _volume(
    call: Call, volume: int, weights: Value, bias: Value | None, windows: list[Window]
) -> Value:
    padding = padding_of(windows)
    if padding is None:
        volume, padding = padded(call, volume, windows), "VALID"
    attributes: dict[str, int | str] = {"padding": padding}
    for window, axis in zip(windows, "dhw", strict=True):
        attributes[f"stride_{axis}"] = window.stride
        attributes[f"dilation_{axis}_factor"] = window.dilation
    inputs = [volume, call.get(weights, (2, 3, 4, 1, 0))]
    if bias is not None:
        inputs.append(call.get(bias))
    return call.wrap(call.emit("CONV_3D", inputs, weights.dtype, attributes), channels_last(5))


def _general(
    call: Call,
    x: Value,
    weights: Value,
    bias: Value | None,
    windows: list[Window],
    groups: int,
) -> Value:
    """By StableHLO, in ONNX's own layout."""
    axes = len(windows)
    attributes: dict[str, int | tuple[int, ...]] = {
        "window_strides": tuple(w.stride for w in windows),
        "padding": tuple(p for w in windows for p in (w.before, w.after)),
        "lhs_dilation": (1,) * axes,
        "rhs_dilation": tuple(w.dilation for w in windows),
        "window_reversal": (0,) * axes,
        "input_batch_dimension": 0,
        "input_feature_dimension": 1,
        "input_spatial_dimensions": tuple(range(2, axes + 2)),
        "kernel_input_feature_dimension": 1,
        "kernel_output_feature_dimension": 0,
        "kernel_spatial_dimensions": tuple(range(2, axes + 2)),
        "output_batch_dimension": 0,
        "output_feature_dimension": 1,
        "output_spatial_dimensions": tuple(range(2, axes + 2)),
        "feature_group_count": groups,
        "batch_group_count": 1,
    }
    operands = [call.get(x), call.get(weights)]
    made = call.wrap(call.emit("STABLEHLO_CONVOLUTION", operands, x.dtype, attributes))
    if bias is None:
        return made
    return pair(call, "ADD", made, per_channel(call, bias, axes))


def per_channel(call: Call, vector: Value, axes: int) -> Value:
    """A vector of one element a channel, as it broadcasts over [n, c, ...]."""
    if vector.array is not None:
        return constant(vector.array.reshape((1, -1) + (1,) * axes))
    target = (1, -1) + (1,) * axes
    operand = call.emit(
        "RESHAPE",
        [call.get(vector), call.emitter.integers(target)],
        vector.dtype,
        {"new_shape": target},
    )
    return call.wrap(operand)


@operator("ConvTranspose")
def transpose_convolution(call: Call) -> Value:
    x, weights, axes = checked(call)
    if weights.array is None:
        raise call.refuse("weights computed while running")
    dims, shape = x.shape or (), weights.array.shape
    groups = call.node.integer("group", 1)
    if groups < 1 or groups > MAX_GROUPS or shape[0] % groups:
        raise call.refuse(f"{groups} groups of {shape[0]} channels")
    if dims[1] not in (None, shape[0]):
        raise call.mismatch(f"{dims[1]} channels and weights of shape {shape}")
    if x.dtype not in PLAIN:
        raise call.refuse(f"a transposed convolution of {x.dtype.value}")
    if None in dims[2:]:
        raise call.refuse("a transposed convolution of unknown size")
    windows = spatial(_without_auto_pad(call), shape[2:], dims[2:])
    extra = call.node.integers("output_padding", (0,) * axes)
    windows = _cropped(call, windows, extra)
    dense = _dilated(call, weights.array, [w.dilation for w in windows])
    bias = call.value(2) if call.has(2) else None
    image = image_of(call, x, axes)
    each, parts = shape[0] // groups, []
    channel_axis = len(call.shape(image) or ()) - 1
    for group in range(groups):
        part = image
        if groups > 1:
            part = slice_axis(call, image, channel_axis, group * each, (group + 1) * each)
        filters = dense[group * each : (group + 1) * each]
        parts.append(_one_group(call, part, filters, windows, extra, dims[0]))
    made = concatenate(call, parts, channel_axis)
    flat = planar(windows) if axes < 3 else windows
    for at, window in enumerate(flat, 1):
        full = (call.shape(made) or ())[at] or 0
        if window.before or window.after > 0:
            end = full - max(window.after, 0)
            made = slice_axis(call, made, at, window.before, end)
        if window.after < 0:
            pads = [
                (0, -window.after) if i == at else (0, 0)
                for i in range(len(call.shape(made) or ()))
            ]
            made = pad(call, made, pads)
    found = from_image(call, made, axes)
    return found if bias is None else pair(call, "ADD", found, per_channel(call, bias, axes))


def _without_auto_pad(call: Call) -> Call:
    """The call, `auto_pad` left out: it decides about the output's size here, which `_cropped`
    works out.
    """
    from msgspec.structs import replace

    attributes = {k: v for k, v in call.node.attributes.items() if k != "auto_pad"}
    return Call(call.body, replace(call.node, attributes=attributes), call.inputs)


def _cropped(call: Call, windows: list[Window], extra: Sequence[int]) -> list[Window]:
    """Windows whose `before` and `after` are what is cut off the whole result."""
    from msgspec.structs import replace

    mode = call.node.text("auto_pad", "NOTSET")
    wanted: list[int | None] = [None] * len(windows)
    if call.node.has("output_shape"):
        wanted = list(call.node.integers("output_shape")[-len(windows) :])
    elif mode in {"SAME_UPPER", "SAME_LOWER"}:
        wanted = [(w.size or 0) * w.stride for w in windows]
    elif mode == "VALID":
        return [replace(w, before=0, after=0) for w in windows]
    found = []
    for window, target, more in zip(windows, wanted, extra, strict=True):
        if target is None:
            found.append(window)
            continue
        full = ((window.size or 0) - 1) * window.stride + window.reach + more
        total = full - target
        if total < 0:
            # More is wanted than there is: nothing but the bias reaches what is added behind.
            found.append(replace(window, before=0, after=total))
            continue
        small = total // 2
        before = small if mode == "SAME_UPPER" else total - small
        found.append(replace(window, before=before, after=total - before))
    return found


def _dilated(call: Call, array: NDArray, dilations: Sequence[int]) -> NDArray:
    """Filters with zeros between their elements."""
    if all(d == 1 for d in dilations):
        return array
    extents = [(k - 1) * d + 1 for k, d in zip(array.shape[2:], dilations, strict=True)]
    whole = (*array.shape[:2], *extents)
    call.body.lowering.budget.take(math.prod(whole) * array.itemsize, call.node.where)
    dense = np.zeros(whole, array.dtype)
    places = (slice(None), slice(None), *(slice(None, None, d) for d in dilations))
    dense[places] = array
    return dense


def _one_group(
    call: Call,
    image: int,
    filters: NDArray,
    windows: list[Window],
    extra: Sequence[int],
    batch: int | None,
) -> int:
    axes = len(windows)
    dtype = call.emitter.dtype(image)
    full = [
        ((w.size or 0) - 1) * w.stride + w.reach + e for w, e in zip(windows, extra, strict=True)
    ]
    if axes == 1:
        full, filters = [1, *full], filters[:, :, None]
    size = [*full, filters.shape[1]]
    if batch is None:
        first = call.emit(
            "SLICE",
            [sizes(call, image), call.emitter.integers([0]), call.emitter.integers([1])],
            DType.INT64,
        )
        both = concatenate(call, [first, call.emitter.integers(size, np.int64)], 0)
        target = cast(call, both, DType.INT32)
    else:
        target = call.emitter.integers([batch, *size])
    order: tuple[int, ...] = (1, 2, 3, 0)
    names, kind, flat = "hw", "TRANSPOSE_CONV", windows
    if axes == 3:
        order, names, kind = (2, 3, 4, 1, 0), "dhw", "CONV_3D_TRANSPOSE"
    else:
        flat = planar(windows)
    strides = {f"stride_{n}": w.stride for n, w in zip(names, flat, strict=True)}
    chosen: dict[str, int | str] = {"padding": "VALID", **strides}
    taps = call.emitter.constant(filters.transpose(order))
    return call.emit(kind, [target, taps, image], dtype, chosen)
