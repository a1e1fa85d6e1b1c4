"""CONV_3D and CONV_3D_TRANSPOSE: float volumes NDHWC, filters [depth, height, width, in, out] and
[depth, height, width, out, in].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel, require
from penstock.drivers.reference.ops.layers.convolution import float_finish
from penstock.drivers.reference.ops.layers.padding import Axis, slide
from penstock.drivers.reference.ops.layers.volumes import convolve, pad, spread
from penstock.drivers.reference.ops.numerics.activation_range import activation_bounds
from penstock.drivers.reference.ops.numerics.products import float_product
from penstock.drivers.reference.ops.numerics.weights import Layer, given, layer_kernel
from penstock.drivers.reference.ops.structure.shape import checked, dimensions
from penstock.errors import ShapeMismatch
from penstock.ir import Attributes, DType, NDArray

AXES: Final = "dhw"


@dataclass(frozen=True, slots=True)
class Steps:
    """What the attributes say about windows, one number a spatial dimension."""

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    padding: str

    @classmethod
    def of(cls, attributes: Attributes) -> Steps:
        strides = tuple(attributes.integer(f"stride_{axis}") for axis in AXES)
        dilations = tuple(attributes.integer(f"dilation_{axis}_factor") for axis in AXES)
        require(min(*strides, *dilations) > 0, f"strides {strides} and dilations {dilations}")
        return cls(strides, dilations, attributes.text("padding"))

    def over(self, shape: Sequence[int], extents: Sequence[int]) -> list[Axis]:
        """Windows of *extents* over the spatial dimensions of *shape*, NDHWC."""
        return [
            slide(*sizes, self.padding)
            for sizes in zip(shape[1:4], extents, self.strides, self.dilations, strict=True)
        ]


def _check(site: Site, volume: int) -> tuple[Steps, str]:
    """The windows and the activation of a float operation; `Unsupported` for other types."""
    operands = [site.input(volume), site.input(1), site.output()]
    if any(operand.dtype is not DType.FLOAT32 for operand in operands):
        raise site.unsupported_types()
    activation = site.attributes.text("fused_activation_function")
    activation_bounds(activation)
    return Steps.of(site.attributes), activation


@kernel("CONV_3D")
def conv_3d(site: Site) -> Kernel:
    """Convolution of float volumes."""
    steps, activation = _check(site, 0)

    def prepare(filters: NDArray, bias: NDArray | None) -> Layer:
        *extents, depth, channels = filters.shape
        columns = np.ascontiguousarray(filters.reshape(-1, channels).T)
        multiply, rest = float_product(site, bias)
        finish = float_finish(rest, activation)

        def layer(volume: NDArray) -> NDArray:
            if volume.ndim != 5 or volume.shape[4] != depth:
                raise ShapeMismatch(
                    f"a volume of shape {volume.shape} for filters of {filters.shape}"
                )
            window = steps.over(volume.shape, extents)
            shape = (len(volume), *(axis.outputs for axis in window), channels)
            out = np.empty(checked(shape, "a convolution"), np.float32)
            if out.size:
                convolve(pad(volume, window), columns, window, out, finish, multiply)
            return out

        return layer

    return layer_kernel(site, prepare)


@kernel("CONV_3D_TRANSPOSE")
def conv_3d_transpose(site: Site) -> Kernel:
    """The gradient of CONV_3D with respect to its input; the output's shape is the first input."""
    steps, activation = _check(site, 2)
    biased = site.has(3)

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        shape, filters, volume = (
            checked(dimensions(inputs[0]), "a convolution"),
            *map(given, inputs[1:3]),
        )
        *extents, channels, depth = filters.shape
        if (
            len(shape) != 5
            or (shape[0], shape[4]) != (len(volume), channels)
            or volume.shape[4] != depth
        ):
            raise ShapeMismatch(
                f"an output of shape {shape} of a volume of {volume.shape} and filters of {filters.shape}"
            )
        finish = float_finish(inputs[3] if biased else None, activation)
        window = steps.over(shape, extents)
        out = np.zeros(shape, np.float32)
        for part, target in zip(volume, out, strict=True):
            spread(part, filters, window, target)
        sums = out.reshape(-1, channels)
        finish(sums, sums)
        return (out,)

    return run
