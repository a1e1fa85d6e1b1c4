"""The numeric forms of layers with weights: float, quantised and hybrid.

A form prepares weights as a matrix, and converts images to the numbers that it multiplies. Each
kind of layer then computes the sums in a way of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from penstock.drivers.reference.kernel import Site
from penstock.drivers.reference.numerics import hybrid, products, requantize
from penstock.drivers.reference.numerics.weights import (
    NARROW,
    QUANTIZED,
    REAL,
    Scaling,
    centred,
    flattened,
)
from penstock.ir import DType, NDArray

EVERY: Final = slice(None)
ONE: Final = np.ones(1, np.float32)


class Part(NamedTuple):
    """Images that share a `Finish`: indexes, values, and the value that stands for zero."""

    images: slice
    values: NDArray
    zero: int
    finish: products.Finish


class Prepared(NamedTuple):
    """Weights [channels, elements of one filter] in the type of the sums."""

    columns: NDArray
    parts: Callable[[NDArray], Iterable[Part]]
    multiply: products.Multiply = products.multiply_fast


Form: TypeAlias = Callable[[NDArray, "NDArray | None"], Prepared]
"""Prepares filters [channels, ...] and a bias."""


class Kind(NamedTuple):
    """A kind of layer: the positions of its image and bias, and its filters' dimension of channels.

    Depthwise layers combine both scales of hybrid inputs. *Centred* layers subtract a part's `zero`
    from its values. Only the others compute matrix products, in the order that the site asks for.
    """

    source: int = 0
    bias: int = 2
    axis: int = 0
    depthwise: bool = False
    centred: bool = False


MATRIX: Final = Kind()
DEPTHWISE: Final = Kind(axis=3, depthwise=True)
TRANSPOSED: Final = Kind(source=2, bias=3, centred=True)


def form_of(site: Site, kind: Kind = MATRIX, *, asymmetric: bool | None = True) -> Form:
    """The form that the types of a layer select. Raises `Unsupported` for other types.

    *asymmetric* is the quantisation of hybrid inputs; None if the layer has no hybrid form.
    """
    dtypes = site.input(kind.source).dtype, site.input(1).dtype, site.output().dtype
    given, weights, made = dtypes
    if given in REAL and weights is given is made:
        return float_form(site, kind)
    if given in QUANTIZED and made is given:
        scaling = Scaling.of(site, source=kind.source, weights=1, bias=kind.bias, axis=kind.axis)
        return quantized_form(site, scaling, kind)
    if asymmetric is not None and given is made is DType.FLOAT32 and weights in NARROW:
        return _hybrid_form(site, kind, asymmetric)
    raise site.unsupported_types()


def float_form(site: Site, kind: Kind = MATRIX) -> Form:
    """Computes in float32."""
    activation = requantize.fused_activation(site)

    def prepare(filters: NDArray, bias: NDArray | None) -> Prepared:
        columns = flattened(filters).astype(np.float32, copy=False)
        multiply: products.Multiply = products.multiply_fast
        rest = bias
        if kind is MATRIX or site.sums == "fused":
            multiply, rest = products.float_product(site, bias)
        finish = float_finish(rest, activation)
        return Prepared(columns, lambda x: (Part(EVERY, x, 0, finish),), multiply)

    return prepare


def float_finish(bias: NDArray | None, activation: str, *, finite: bool = True) -> products.Finish:
    """A function that adds the bias to sums in place, applies the fused activation and stores them.
    With *finite*, infinities become the greatest floats.
    """
    requantize.activation_bounds(activation)
    clamp = requantize.clamp_to_finite if finite else requantize.clamp_in_place
    offset = None if bias is None else bias.reshape(-1).astype(np.float32)

    def finish(sums: NDArray, out: NDArray) -> None:
        if offset is not None:
            np.add(sums, offset, out=sums)
        np.copyto(out, clamp(sums, activation), casting="unsafe")

    return finish


def quantized_form(
    site: Site, scaling: Scaling, kind: Kind = MATRIX, *, real: bool = False
) -> Form:
    """Computes in integers. *real*: scales in float64, as FULLY_CONNECTED does."""
    operand, signed = site.input(1), scaling.signed_input
    magnitude = signed.magnitude + (abs(signed.zero_point) if kind.centred else 0)

    def prepare(filters: NDArray, bias: NDArray | None) -> Prepared:
        columns = products.Columns(flattened(centred(filters, operand)), magnitude)
        sums = np.zeros_like(columns.sums) if kind.centred else columns.sums
        requantizer = scaling.real_requantizer if real else scaling.requantizer
        finish = requantizer(columns.bound, sums, bias)
        zero = signed.zero_point
        return Prepared(columns.values, lambda x: (Part(EVERY, signed.signed(x), zero, finish),))

    return prepare


def _hybrid_form(site: Site, kind: Kind, asymmetric: bool) -> Form:
    """Quantises each image over its own range."""
    activation, operand = requantize.fused_activation(site), site.input(1)
    scaling = hybrid.weight_scales(operand, kind.axis)

    def prepare(filters: NDArray, bias: NDArray | None) -> Prepared:
        columns = products.Columns(
            flattened(hybrid.weight_values(filters, operand)), 2 * hybrid.MAGNITUDE
        )

        def parts(images: NDArray) -> Iterator[Part]:
            rows = hybrid.quantize_rows(flattened(images), asymmetric=asymmetric)
            for index, values in enumerate(rows.values.reshape(images.shape)):
                scale, offset = rows.scales[index], rows.offsets[index]
                # DEPTHWISE_CONV_2D combines both scales. Other layers apply one after the other.
                factors = (scaling * scale, ONE) if kind.depthwise else (scaling, scale)
                corrected = np.zeros_like(offset) if kind.centred else offset
                finish = hybrid.HybridFinish(
                    columns.sums, factors[0], bias, activation, factors[1], corrected
                )
                yield Part(slice(index, index + 1), values[None], int(offset), finish)

        return Prepared(columns.values, parts)

    return prepare
