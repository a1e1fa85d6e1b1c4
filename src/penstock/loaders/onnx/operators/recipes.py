"""Layers with dequantised inputs and a quantised output, as one integer operation of the IR."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct

from penstock.ir.operand import Operand
from penstock.ir.types import DType, NDArray, Quantization
from penstock.loaders.onnx.calls import Call, Tensor
from penstock.loaders.onnx.values import Layout, Value

TIED_DIGITS: Final = 14
"""Ratios of scales with fewer binary digits than this can put sums halfway between two integers."""


class Source(Struct, frozen=True, eq=False):
    """Stored integers of a dequantised value, with one scale and zero point or by channel."""

    stored: Value
    scales: NDArray
    zero_points: NDArray
    axis: int | None


Recipe: TypeAlias = Callable[[Call, Quantization, DType, str], Value | None]
"""Computes a value and its activation as integers; None if ONNX's result would differ."""


def has_ties(scales: NDArray, target: float) -> bool:
    """Whether sums times a ratio of scales can fall on halves, which TFLite rounds otherwise."""
    ratios = np.asarray(scales.astype(np.float32) / np.float32(target))
    bits = ratios.view(np.uint32).astype(np.int64) & 0x7FFFFF | 0x800000
    return bool(((bits & -bits) > 1 << (24 - TIED_DIGITS)).any())


def quantized_operand(call: Call, source: Source, layout: Layout | None) -> Tensor:
    """The stored integers of a dequantised activation, with their scale and zero point."""
    stored = source.stored
    wanted = Quantization((float(source.scales[0]),), (int(source.zero_points[0]),))
    if stored.array is not None:
        array = stored.array if layout is None else stored.array.transpose(layout)
        return Tensor(call, call.emitter.constant(array, quantization=wanted))
    operand = call.get(stored, layout)
    if call.emitter.operands[operand.index].quantization == wanted:
        return operand
    item = Operand(stored.dtype, None, name=call.emitter.label, quantization=wanted)
    name = stored.dtype.name
    return call.emit_all("CAST", [operand], [item], in_data_type=name, out_data_type=name)[0]


class Layer(Struct, frozen=True, eq=False, kw_only=True):
    """A layer with constant weights as an integer operation *kind*.

    *layout* is the layout of the activation. *arrange* orders the weights. Their output channels
    are dimension *axis* in the file and *channel* in the operation. *prepare* makes the input of
    the operation from the activation, *finish* the value of the node from its output.
    """

    kind: str
    layout: Layout | None = None
    arrange: Callable[[NDArray], NDArray]
    axis: int = 0
    channel: int = 0
    attributes: Mapping[str, int | str | bool]
    prepare: Callable[[Tensor], Tensor] = lambda operand: operand
    finish: Callable[[Tensor], Value]


def layer_recipe(layer: Layer, x: Value, weights: Value, bias: Value | None) -> Recipe | None:
    """The recipe of *layer* as integers, int8 or uint8 (TFLite); None if it is not possible."""
    source, taps = x.source, weights.source
    if not isinstance(source, Source) or not isinstance(taps, Source):
        return None
    array, dtype = taps.stored.array, source.stored.dtype
    if array is None or len(source.scales) != 1 or taps.axis not in {None, layer.axis}:
        return None
    signed = dtype is DType.INT8 and array.dtype == np.int8 and not taps.zero_points.any()
    unsigned = dtype is DType.UINT8 and array.dtype in (np.int8, np.uint8) and len(taps.scales) == 1
    if not signed and not unsigned:
        return None

    def recipe(call: Call, target: Quantization, made: DType, activation: str) -> Value | None:
        product = taps.scales * source.scales[0]
        if made is not dtype or has_ties(product, target.scale):
            return None
        inputs = [layer.prepare(quantized_operand(call, source, layer.layout))]
        inputs.append(_taps(call, layer, array, taps, unsigned=unsigned))
        if bias is not None:
            wide = _bias(bias, product)
            if wide is None:
                return None
            steps = tuple(float(np.float32(s)) for s in product)
            each = 0 if len(steps) > 1 else None
            sums = Quantization(steps, (0,) * len(steps), each)
            inputs.append(Tensor(call, call.emitter.constant(wide, quantization=sums)))
        item = Operand(made, None, name=call.emitter.label, quantization=target)
        attributes = {**layer.attributes, "fused_activation_function": activation}
        return layer.finish(call.emit_all(layer.kind, inputs, [item], **attributes)[0])

    return recipe


def _taps(call: Call, layer: Layer, array: NDArray, source: Source, *, unsigned: bool) -> Tensor:
    zeros = source.zero_points
    if unsigned and array.dtype == np.int8:
        array, zeros = (array.astype(np.int16) + 128).astype(np.uint8), zeros + 128
    scales = tuple(float(np.float32(s)) for s in source.scales)
    channel = layer.channel if len(scales) > 1 else None
    points = tuple(int(z) for z in np.broadcast_to(zeros, len(scales)))
    found = Quantization(scales, points, channel)
    return Tensor(call, call.emitter.constant(layer.arrange(array), quantization=found))


def with_activation(x: Value, made: Value, activation: str) -> Value:
    """*made*, an activation function of *x*, with the recipe that computes both at once."""
    recipe: Recipe | None = x.recipe
    if recipe is not None:

        def both(call: Call, target: Quantization, dtype: DType, name: str) -> Value | None:
            return recipe(call, target, dtype, activation) if name == "NONE" else None

        made.recipe = both
    return made


def _bias(bias: Value, product: NDArray) -> NDArray | None:
    """The bias in units of input scale times weight scale, if an int32 holds it."""
    if isinstance(bias.source, Source):
        stored = bias.source.stored.array
        scales = bias.source.scales.astype(np.float32)
        if stored is None or stored.dtype != np.int32 or bias.source.zero_points.any():
            return None
        return (
            stored if np.allclose(scales, product.astype(np.float32), rtol=1e-5, atol=0) else None
        )
    if bias.array is None:
        return None
    units = np.round(bias.array.astype(np.float64) / product)
    whole: NDArray = units.astype(np.int32)
    return whole if np.abs(units).max(initial=0) < 2**31 else None
