"""Convolutions and their transposes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from penstock.ir.types import DType, NDArray
from penstock.loaders.onnx.calls import Call, Tensor
from penstock.loaders.onnx.operators import operator, pooling
from penstock.loaders.onnx.operators.elementwise import HALVES
from penstock.loaders.onnx.operators.pooling import Window, from_image, padded, padding_of, planar
from penstock.loaders.onnx.operators.recipes import Layer, layer_recipe
from penstock.loaders.onnx.values import Value, channels_last, constant, is_uniform, uniform

MAX_GROUPS: Final = 64


def checked(call: Call) -> tuple[Value, Value, int]:
    """Input, weights and the number of spatial dimensions, checked against each other."""
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
    windows = pooling.spatial(call, shape[2:], dims[2:])
    bias = call.optional(2)
    if (axes == 3 and (groups > 1 or x.dtype is not DType.FLOAT32)) or x.dtype not in HALVES:
        return _general(call, x, weights, bias, windows, groups)
    image = pooling.image_of(call, x, axes)
    flat = planar(windows) if axes < 3 else windows
    padding = padding_of(flat)
    if padding is None:
        image, padding = padded(image, flat), "VALID"
    attributes: dict[str, int | str] = {"padding": padding}
    for window, name in zip(flat, "dhw" if axes == 3 else "hw", strict=True):
        attributes[f"stride_{name}"] = window.stride
        attributes[f"dilation_{name}_factor"] = window.dilation
    depthwise = groups == channels and groups > 1
    kind = "CONV_3D" if axes == 3 else "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D"
    if depthwise:
        attributes["depth_multiplier"] = shape[0] // groups
    inputs = [image, _filters(call, weights, axes, depthwise)]
    if bias is not None:
        inputs.append(call.get(bias))
    found = from_image(call.emit(kind, inputs, **attributes), axes)

    def prepare(operand: Tensor) -> Tensor:
        image = operand.expand(1) if axes == 1 else operand
        return image if padding_of(flat) is not None else padded(image, flat)

    if axes < 3:
        layer = Layer(
            kind=kind,
            layout=channels_last(axes + 2),
            arrange=lambda array: filter_array(array, axes, depthwise),
            channel=3 if depthwise else 0,
            attributes=attributes,
            prepare=prepare,
            finish=lambda operand: from_image(operand, axes),
        )
        found.recipe = layer_recipe(layer, x, weights, bias)
    return found


def filter_array(array: NDArray, axes: int, depthwise: bool) -> NDArray:
    """Weights [out, in, ...] as TFLite's filters: [out, h, w, in], depthwise [1, h, w, out]."""
    if axes == 1 and is_uniform(array):
        array = uniform(array[0, 0, 0], (*array.shape[:2], 1, array.shape[2]))
    elif axes == 1:
        array = array[:, :, None]
    return array.transpose((1, 2, 3, 0) if depthwise else (0, 2, 3, 1))


def _filters(call: Call, weights: Value, axes: int, depthwise: bool) -> Tensor:
    if axes == 3:
        return call.get(weights, (2, 3, 4, 1, 0))
    if weights.array is not None:
        array = filter_array(weights.array, axes, depthwise)
        return Tensor(call, call.emitter.constant(array, weights.name))
    order = (1, 2, 3, 0) if depthwise else (0, 2, 3, 1)
    if axes == 2:
        return call.get(weights, order)
    units, depth, extent = (d or 0 for d in weights.shape or ())
    return call.get(weights).reshape((units, depth, 1, extent)).transposed(order)


def _general(
    call: Call, x: Value, weights: Value, bias: Value | None, windows: list[Window], groups: int
) -> Value:
    """The convolution as a StableHLO operation, in ONNX's own layout."""
    axes = len(windows)
    places = tuple(range(2, axes + 2))
    made = call.emit(
        "STABLEHLO_CONVOLUTION",
        [call.get(x), call.get(weights)],
        window_strides=tuple(w.stride for w in windows),
        padding=tuple(p for w in windows for p in (w.before, w.after)),
        lhs_dilation=(1,) * axes,
        rhs_dilation=tuple(w.dilation for w in windows),
        window_reversal=(0,) * axes,
        input_batch_dimension=0,
        input_feature_dimension=1,
        input_spatial_dimensions=places,
        kernel_input_feature_dimension=1,
        kernel_output_feature_dimension=0,
        kernel_spatial_dimensions=places,
        output_batch_dimension=0,
        output_feature_dimension=1,
        output_spatial_dimensions=places,
        feature_group_count=groups,
        batch_group_count=1,
    ).value()
    return made if bias is None else call.pair("ADD", made, per_channel(call, bias, axes))


def per_channel(call: Call, vector: Value, axes: int) -> Value:
    """A vector with one element for each channel, in a shape that broadcasts over [n, c, ...]."""
    target = (1, -1) + (1,) * axes
    if vector.array is not None:
        return constant(vector.array.reshape(target))
    return call.get(vector).reshape(target).value()


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
    if x.dtype not in HALVES:
        raise call.refuse(f"a transposed convolution of {x.dtype.value}")
    if None in dims[2:]:
        raise call.refuse("a transposed convolution of unknown size")
    # In a transposed convolution, `auto_pad` determines the size of the output (`_cropped`).
    attributes = {k: v for k, v in call.node.attributes.items() if k != "auto_pad"}
    plain = Call(call.body, replace(call.node, attributes=attributes), call.inputs)
    windows = pooling.spatial(plain, shape[2:], dims[2:])
    extra = call.node.integers("output_padding", (0,) * axes)
    windows = _cropped(call, windows, extra)
    dense = _dilated(call, weights.array, [w.dilation for w in windows])
    image = pooling.image_of(call, x, axes)
    each, parts = shape[0] // groups, []
    channel_axis = len(image.dims) - 1
    for start in range(0, shape[0], each):
        part = image if groups == 1 else image.slice(channel_axis, start, start + each)
        parts.append(_one_group(part, dense[start : start + each], windows, extra, dims[0]))
    made = call.concatenate(parts, channel_axis)
    for at, window in enumerate(planar(windows) if axes < 3 else windows, 1):
        if window.before or window.after > 0:
            full = made.dims[at] or 0
            made = made.slice(at, window.before, full - max(window.after, 0))
        if window.after < 0:
            behind = -window.after
            made = made.pad([(0, behind if i == at else 0) for i in range(len(made.dims))])
    found, bias = from_image(made, axes), call.optional(2)
    return found if bias is None else call.pair("ADD", found, per_channel(call, bias, axes))


def _whole(window: Window, extra: int) -> int:
    """The extent of the result along one axis before it is cropped."""
    return ((window.size or 0) - 1) * window.stride + window.reach + extra


def _cropped(call: Call, windows: list[Window], extra: Sequence[int]) -> list[Window]:
    """Windows whose `before` and `after` are the elements cropped from the whole result."""
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
        total = _whole(window, more) - target
        if total < 0:
            # The result is larger than all windows: its last elements are the bias alone.
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
    call.charge(math.prod(whole) * array.itemsize)
    dense = np.zeros(whole, array.dtype)
    dense[(slice(None), slice(None), *(slice(None, None, d) for d in dilations))] = array
    return dense


def _one_group(
    image: Tensor, filters: NDArray, windows: list[Window], extra: Sequence[int], batch: int | None
) -> Tensor:
    call, axes = image.call, len(windows)
    full = [_whole(w, e) for w, e in zip(windows, extra, strict=True)]
    if axes == 1:
        full, filters = [1, *full], filters[:, :, None]
    size = [*full, filters.shape[1]]
    if batch is None:
        first = image.sizes().part([0], [1])
        target = call.concatenate([first, call.vector(size, np.int64)], 0)
        target = target.cast(DType.INT32)
    else:
        target = call.vector([batch, *size])
    order: tuple[int, ...] = (1, 2, 3, 0)
    kind, names, flat = "TRANSPOSE_CONV", "hw", planar(windows)
    if axes == 3:
        kind, names, flat, order = "CONV_3D_TRANSPOSE", "dhw", windows, (2, 3, 4, 1, 0)
    strides = {f"stride_{n}": w.stride for n, w in zip(names, flat, strict=True)}
    taps = call.literal(filters.transpose(order))
    return call.emit(kind, [target, taps, image], image.dtype, padding="VALID", **strides)
