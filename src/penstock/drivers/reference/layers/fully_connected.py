"""FULLY_CONNECTED, BATCH_MATMUL, and two custom operators of language models: rotation by Hadamard
matrices, and attention.

Weights of FULLY_CONNECTED are [units, depth]. BATCH_MATMUL multiplies the last two dimensions and
broadcasts the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from penstock.drivers.reference.kernel import (
    Inputs,
    Kernel,
    Outputs,
    Site,
    Unsupported,
    kernel,
    require,
    types,
)
from penstock.drivers.reference.layers.forms import Form, float_form, quantized_form
from penstock.drivers.reference.layers.weight_formats import block_scaled, shuffled_layer
from penstock.drivers.reference.numerics import hybrid, products, requantize
from penstock.drivers.reference.numerics.weights import (
    NARROW,
    QUANTIZED,
    REAL,
    Layer,
    Prepare,
    Scaling,
    given,
    layer_kernel,
)
from penstock.errors import ShapeMismatch
from penstock.ir import DType, NDArray, Operand
from penstock.ir.operations.custom_options import dot_product_attention, hadamard_size


@kernel("FULLY_CONNECTED")
def fully_connected(site: Site) -> Kernel:
    """Float, quantised (weights of 8 bits or fewer) and hybrid; shuffled uint8 weights."""
    source, weights, target = site.input(0), site.input(1), site.output()
    if site.attributes.text("weights_format") == "SHUFFLED4x16INT8":
        return shuffled_layer(site)
    require(len(site.outputs) == 1, "a work space with weights in the default format")
    if site.has(3):
        return block_scaled(site)
    if source.dtype in REAL and weights.dtype is source.dtype is target.dtype:
        return layer_kernel(site, _dense(site, float_form(site)), rank=2)
    if source.dtype in QUANTIZED and target.dtype in {source.dtype, DType.INT16}:
        scaling = Scaling.of(site, source=0, weights=1, bias=2, axis=0)
        return layer_kernel(site, _dense(site, quantized_form(site, scaling, real=True)), rank=2)
    if source.dtype is target.dtype is DType.FLOAT32 and weights.dtype in NARROW:
        return layer_kernel(site, _hybrid_layer(site), rank=2)
    raise site.unsupported_types()


def _output(site: Site, source: NDArray, weights: NDArray) -> NDArray:
    """The output, empty."""
    (units, depth), dtype = weights.shape, site.output().dtype.numpy
    if site.attributes.flag("keep_num_dims"):
        return np.empty((*source.shape[:-1], units), dtype)
    return np.empty((source.size // depth if depth else 0, units), dtype)


def _dense(site: Site, form: Form) -> Prepare:
    def prepare(weights: NDArray, bias: NDArray | None) -> Layer:
        units, depth = weights.shape
        columns, parts, multiply = form(weights, bias)

        def layer(source: NDArray) -> NDArray:
            out = _output(site, source, weights)
            for _, values, _, finish in parts(source) if out.size else ():
                rows, results = values.reshape(-1, depth), out.reshape(-1, units)
                products.multiply_rows(rows, columns, results, finish, multiply)
            return out

        return layer

    return prepare


def _hybrid_layer(site: Site) -> Prepare:
    """Prepares a hybrid layer. FULLY_CONNECTED is the only layer of TFLite that applies TANH and
    SIGN_BIT (1 for negative values, else 0).
    """
    activation = requantize.fused_activation(site)
    unclamped = activation in {"TANH", "SIGN_BIT"}
    asymmetric = site.attributes.flag("asymmetric_quantize_inputs")
    operand, scaling = site.input(1), hybrid.weight_scales(site.input(1), axis=0)

    def prepare(weights: NDArray, bias: NDArray | None) -> Layer:
        depth = weights.shape[1]
        reach = hybrid.reach_of(asymmetric=asymmetric)
        columns = products.Columns(hybrid.weight_values(weights, operand), reach).values
        offset = None if bias is None else bias.reshape(-1)

        def layer(source: NDArray) -> NDArray:
            out = _output(site, source, weights)
            if not out.size:
                return out
            rows, steps = hybrid.centred_rows(source.reshape(-1, depth), asymmetric=asymmetric)
            sums = np.matmul(rows.astype(columns.dtype, copy=False), columns.T)
            wide = sums.astype(np.float32, copy=False)
            real = np.multiply(wide, scaling, out=out.reshape(sums.shape))
            real *= steps
            if offset is not None:
                real += offset
            requantize.clamp_in_place(real, activation)
            if unclamped:
                out[...] = np.tanh(out) if activation == "TANH" else np.signbit(out)
            return out

        return layer

    return prepare


INTEGER: Final = types("int8 int16 uint8")


@kernel("BATCH_MATMUL")
def batch_matmul(site: Site) -> Kernel:
    """Float, integer, quantised and hybrid products, and int8 products as int32."""
    a, b, target = site.input(0), site.input(1), site.output()
    if a.dtype.is_float and b.dtype is a.dtype is target.dtype:
        return _product(site, partial(_float, site.output().dtype.numpy))
    if a.dtype is b.dtype is target.dtype and a.dtype in {DType.INT32, DType.INT64}:
        return _product(site, np.matmul)
    if a.dtype is b.dtype is DType.INT8 and target.dtype is DType.INT32:
        return _product(site, _stored_values)
    if a.dtype in INTEGER and b.dtype in INTEGER | NARROW and target.dtype is a.dtype:
        return _quantized(site)
    if a.dtype is target.dtype is DType.FLOAT32 and b.dtype in NARROW:
        return _hybrid(site)
    raise site.unsupported_types()


def _product(site: Site, compute: Callable[[NDArray, NDArray], NDArray]) -> Kernel:
    """The kernel that computes a product of both operands, transposed by the attributes."""
    left, right = site.attributes.flag("adj_x"), site.attributes.flag("adj_y")

    def run(inputs: Inputs) -> Outputs:
        a, b = given(inputs[0]), given(inputs[1])
        return (compute(a.swapaxes(-1, -2) if left else a, b.swapaxes(-1, -2) if right else b),)

    return run


def _float(dtype: np.dtype[Any], a: NDArray, b: NDArray) -> NDArray:
    wide = np.float64 if dtype == np.float64 else np.float32
    product = np.matmul(a.astype(wide, copy=False), b.astype(wide, copy=False))
    return np.asarray(product.astype(dtype, copy=False))


def _stored_values(a: NDArray, b: NDArray) -> NDArray:
    """Products of int8 as int32. As in TFLite, stored values are multiplied without scales."""
    dtype = products.exact_dtype(float(hybrid.MAGNITUDE * hybrid.MAGNITUDE * a.shape[-1]))
    return np.asarray(np.matmul(a.astype(dtype), b.astype(dtype)).astype(np.int32))


def _magnitude(operand: Operand, zero_point: int) -> int:
    """The greatest magnitude of a stored value minus the zero point."""
    least, greatest = requantize.integer_range(operand.dtype)
    return max(greatest - zero_point, zero_point - least)


def _quantized(site: Site) -> Kernel:
    """Products of quantised operands. Scales are multiplied in float32; sums of 16-bit inputs have
    64 bits.

    TFLite's kernel supports one scale of each operand. It reads a per-channel scale of the right
    operand as 0. Every product is then zero, and none is computed.
    """
    a, b, target = site.input(0), site.input(1), site.output()
    left, right = site.quantization(0), b.quantization
    if right is None:
        raise Unsupported(f"a right side of type {b.dtype.value} without a scale")
    quantization = site.output_quantization()
    if right.per_channel:
        return _product(site, partial(_zeros, target.dtype.numpy, quantization.zero_point))
    product = float(np.float32(left.scale) * np.float32(right.scale))
    each = _magnitude(a, left.zero_point) * _magnitude(b, right.zero_point)
    limits = requantize.integer_range(target.dtype)

    def compute(x: NDArray, y: NDArray) -> NDArray:
        bound = float(each * x.shape[-1])
        dtype = products.exact_dtype(bound)
        sums = np.matmul(_centred(x, left.zero_point, dtype), _centred(y, right.zero_point, dtype))
        out = np.empty(sums.shape, target.dtype.numpy)
        columns = sums.shape[-1]
        finish = requantize.Requantizer(
            [product / quantization.scale],
            columns,
            bound,
            target.dtype,
            quantization.zero_point,
            limits,
            wide=a.dtype is DType.INT16,
        )
        if out.size:
            finish(sums.reshape(-1, columns), out.reshape(-1, columns))
        return out

    return _product(site, compute)


def _zeros(dtype: np.dtype[Any], zero_point: int, a: NDArray, b: NDArray) -> NDArray:
    """The stored value of 0, in the shape of the product."""
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return np.full((*batch, a.shape[-2], b.shape[-1]), zero_point, dtype)


def _centred(values: NDArray, zero_point: int, dtype: np.dtype[np.generic]) -> NDArray:
    real: NDArray = values.astype(dtype)
    if zero_point:
        real -= zero_point
    return real


def _hybrid(site: Site) -> Kernel:
    """The hybrid product: each row of the left operand is quantised over its own range.

    As in TFLite, per-channel scales of the right operand apply to the product's columns, in order,
    whatever their dimension is. Extra scales are ignored.
    """
    b = site.input(1)
    if b.quantization is None:
        raise Unsupported(f"a right side of type {b.dtype.value} without a scale")
    every = np.array(b.quantization.scales, np.float32)
    asymmetric = site.attributes.flag("asymmetric_quantize_inputs")

    def compute(a: NDArray, y: NDArray) -> NDArray:
        scales = every[: y.shape[-1]] if every.size > 1 else every
        if every.size > 1 and scales.size < y.shape[-1]:
            raise ShapeMismatch(f"{every.size} scales for {y.shape[-1]} columns of a product")
        weights = hybrid.weight_values(y, b)
        dtype = products.exact_dtype(float(2 * hybrid.MAGNITUDE * 128 * a.shape[-1]))
        flat = np.ascontiguousarray(a).reshape(-1, a.shape[-1])
        rows = hybrid.quantize_rows(flat, asymmetric=asymmetric)
        left = rows.values.astype(dtype) - rows.offsets.astype(dtype)[:, None]
        sums = np.matmul(left.reshape(a.shape), weights.astype(dtype)).astype(np.float32)
        sums *= rows.scales.reshape(*a.shape[:-1], 1) * scales
        return np.asarray(sums)

    return _product(site, compute)


@kernel("CUSTOM:aeq.hadamard_rotation")
def hadamard_rotation(site: Site) -> Kernel:
    """The fast Walsh-Hadamard transform of each group, divided by the root of its size."""
    size = hadamard_size(site.attributes)
    site.require_types(site.input(0).dtype is DType.FLOAT32)
    factor = np.float32(1 / math.sqrt(size))

    def run(inputs: Inputs) -> Outputs:
        x = given(inputs[0])
        if not x.ndim or x.shape[-1] % size:
            raise ShapeMismatch(f"rows of shape {x.shape} are not a multiple of {size} elements")
        values = x.reshape(-1)
        half = 1
        while half < size:
            pairs = values.reshape(-1, 2, half)
            sums, differences = pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]
            values = np.stack([sums, differences], axis=1)
            half *= 2
        return ((values * factor).reshape(x.shape),)

    return run


@kernel("CUSTOM:odml.scaled_dot_product_attention")
def scaled_dot_product_attention(site: Site) -> Kernel:
    """Attention of heads. Consecutive heads of queries share a head of keys and values. If there is
    a cap, a hyperbolic tangent limits the scaled products before the mask is added.
    """
    options = dot_product_attention(site.attributes)
    cap = np.float32(options.logit_cap)

    def run(inputs: Inputs) -> Outputs:
        query, key, value = (given(x).transpose(0, 2, 1, 3) for x in inputs[:3])
        group = query.shape[1] // max(key.shape[1], 1)
        key, value = (np.repeat(x, group, axis=1) for x in (key, value))
        mask = inputs[3] if len(inputs) > 3 else None
        scale = 1 / math.sqrt(query.shape[3]) if options.scale is None else options.scale
        logits = (query * np.float32(scale)) @ key.swapaxes(2, 3)
        if cap:
            logits = np.tanh(logits / cap) * cap
        if mask is not None:
            logits = logits + mask
        if logits.shape[:2] != query.shape[:2] or not logits.shape[3]:
            raise ShapeMismatch(f"attention to logits of shape {logits.shape}")
        parts = np.exp(logits - logits.max(axis=-1, keepdims=True))
        parts /= parts.sum(axis=-1, keepdims=True)
        return (np.ascontiguousarray((parts @ value).transpose(0, 2, 1, 3)),)

    return run
