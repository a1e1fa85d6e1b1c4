"""FULLY_CONNECTED: rows of inputs times weights [units, depth]."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel, require
from penstock.drivers.reference.ops.layers.convolution import float_finish
from penstock.drivers.reference.ops.numerics.activation_range import (
    activation_bounds,
    clamp_in_place,
)
from penstock.drivers.reference.ops.numerics.block_scaled import block_scaled
from penstock.drivers.reference.ops.numerics.hybrid import (
    NARROW,
    centred_rows,
    reach_of,
    weight_scales,
    weight_values,
)
from penstock.drivers.reference.ops.numerics.products import Columns, float_product, multiply_rows
from penstock.drivers.reference.ops.numerics.shuffled import shuffled_layer
from penstock.drivers.reference.ops.numerics.weights import (
    QUANTIZED,
    REAL,
    Layer,
    Prepare,
    Scaling,
    centred,
    layer_kernel,
)
from penstock.ir import DType, NDArray


@kernel("FULLY_CONNECTED")
def fully_connected(site: Site) -> Kernel:
    """Float, quantised (uint8, int8, int16 with weights of 8 bits or fewer) and hybrid; shuffled
    uint8 weights.
    """
    source, weights, target = site.input(0), site.input(1), site.output()
    if site.attributes.text("weights_format") == "SHUFFLED4x16INT8":
        return shuffled_layer(site)
    require(len(site.outputs) == 1, "a work space beside weights in the usual order")
    if site.has(3):
        return block_scaled(site)
    if source.dtype in REAL and weights.dtype is source.dtype is target.dtype:
        return layer_kernel(site, _float_layer(site))
    if source.dtype in QUANTIZED and target.dtype in {source.dtype, DType.INT16}:
        return layer_kernel(site, _quantized_layer(site))
    if source.dtype is target.dtype is DType.FLOAT32 and weights.dtype in NARROW:
        return layer_kernel(site, _hybrid_layer(site))
    raise site.unsupported_types()


def _output(site: Site) -> Callable[[NDArray, NDArray], NDArray]:
    """What makes the output, still empty, of an input and weights."""
    keep, dtype = site.attributes.flag("keep_num_dims"), site.output().dtype.numpy

    def make(source: NDArray, weights: NDArray) -> NDArray:
        units, depth = weights.shape
        if keep:
            return np.empty((*source.shape[:-1], units), dtype)
        return np.empty((source.size // depth if depth else 0, units), dtype)

    return make


def _float_layer(site: Site) -> Prepare:
    activation = site.attributes.text("fused_activation_function")
    activation_bounds(activation)

    make = _output(site)

    def prepare(weights: NDArray, bias: NDArray | None) -> Layer:
        units, depth = weights.shape
        columns = weights.astype(np.float32, copy=False)
        multiply, rest = float_product(site, bias)
        finish = float_finish(rest, activation)

        def layer(source: NDArray) -> NDArray:
            out = make(source, weights)
            if not out.size:
                return out
            rows, results = source.reshape(-1, depth), out.reshape(-1, units)
            multiply_rows(rows, columns, results, finish, multiply)
            return out

        return layer

    return prepare


def _quantized_layer(site: Site) -> Prepare:
    scaling = Scaling.of(site, source=0, weights=1, bias=2, axis=0)
    operand = site.input(1)
    signed = scaling.signed_input

    make = _output(site)

    def prepare(weights: NDArray, bias: NDArray | None) -> Layer:
        units, depth = weights.shape
        columns = Columns(centred(weights, operand), signed.magnitude)
        finish = scaling.real_requantizer(columns.bound, columns.sums, bias)

        def layer(source: NDArray) -> NDArray:
            out = make(source, weights)
            if not out.size:
                return out
            rows = signed.signed(source).reshape(-1, depth)
            multiply_rows(rows, columns.values, out.reshape(-1, units), finish)
            return out

        return layer

    return prepare


def _hybrid_layer(site: Site) -> Prepare:
    """The one layer of TFLite whose kernel applies TANH and SIGN_BIT (1 for what is below zero,
    else 0).
    """
    activation = site.attributes.text("fused_activation_function")
    activation_bounds(activation)
    unclamped = activation in {"TANH", "SIGN_BIT"}
    asymmetric = site.attributes.flag("asymmetric_quantize_inputs")
    operand = site.input(1)
    scaling = weight_scales(operand, axis=0)

    make = _output(site)

    def prepare(weights: NDArray, bias: NDArray | None) -> Layer:
        depth = weights.shape[1]
        reach = reach_of(asymmetric=asymmetric)
        columns = Columns(weight_values(weights, operand), reach).values
        offset = None if bias is None else bias.reshape(-1)

        def layer(source: NDArray) -> NDArray:
            out = make(source, weights)
            if not out.size:
                return out
            rows, steps = centred_rows(source.reshape(-1, depth), asymmetric=asymmetric)
            sums = np.matmul(rows.astype(columns.dtype, copy=False), columns.T)
            real = np.multiply(
                sums.astype(np.float32, copy=False), scaling, out=out.reshape(sums.shape)
            )
            real *= steps
            if offset is not None:
                real += offset
            clamp_in_place(real, activation)
            if unclamped:
                out[...] = np.tanh(out) if activation == "TANH" else np.signbit(out)
            return out

        return layer

    return prepare
