"""Operands joined into one, or one parted into several."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from penstock.drivers.reference.ops.kernel import (
    Kernel,
    Site,
    kernel,
    require,
    tensor_quantization,
)
from penstock.drivers.reference.ops.numerics.activation_range import integer_range
from penstock.drivers.reference.ops.numerics.tables import (
    by_bits,
    look_up,
    round_half_away,
    stored_values,
)
from penstock.drivers.reference.ops.structure.shape import dimensions, normal_axis
from penstock.errors import ShapeMismatch
from penstock.ir import DType, NDArray, Quantization


@kernel("CONCATENATION")
def concatenation(site: Site) -> Kernel:
    """The inputs one after another along an axis; uint8 ones are brought to the output's scale,
    int16 ones keep their stored values, as TFLite has it.
    """
    axis = site.attributes.integer("axis")
    activation = site.attributes.text("fused_activation_function")
    require(activation == "NONE", f"CONCATENATION with {activation}")
    dtype = site.output().dtype
    require(all(o is None or o.dtype is dtype for o in site.inputs), "CONCATENATION of two types")
    rescalers = [_rescaler(site, at) for at in range(len(site.inputs))]

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        parts = (np.asarray(x) for x in inputs)
        return (
            np.concatenate(
                [p if r is None else r(p) for p, r in zip(parts, rescalers, strict=True)], axis
            ),
        )

    return run


def _rescaler(site: Site, index: int) -> Callable[[NDArray], NDArray] | None:
    """What brings an input to the output's scale and zero point; None where nothing does."""
    given, made = site.input(index).quantization, site.output().quantization
    dtype = site.output().dtype
    if dtype not in {DType.UINT8, DType.INT8} or given == made:
        return None
    given = tensor_quantization(site.input(index), f"input {index}")
    made = tensor_quantization(site.output(), "the output")
    if (given.scale, given.zero_point) == (made.scale, made.zero_point):
        return None
    require(dtype is DType.UINT8, f"CONCATENATION of {dtype.value} of another scale or zero point")
    table = by_bits(_rescaled(stored_values(dtype), given, made), dtype).astype(np.uint8)
    return lambda x: look_up(table, x)


def _rescaled(stored: NDArray, given: Quantization, made: Quantization) -> NDArray:
    scale = np.float32(given.scale) * (np.float32(1) / np.float32(made.scale))
    bias = np.float32(-given.zero_point) * scale
    scaled = round_half_away(stored.astype(np.float32) * scale + bias) + made.zero_point
    result: NDArray = np.clip(scaled, *integer_range(DType.UINT8))
    return result


@kernel("PACK")
def pack(site: Site) -> Kernel:
    """Inputs of one shape stacked along a new axis."""
    axis = site.attributes.integer("axis")
    return lambda inputs: (np.stack([np.asarray(x) for x in inputs], axis),)


@kernel("UNPACK")
def unpack(site: Site) -> Kernel:
    """The slices along an axis, which goes."""
    axis, count = site.attributes.integer("axis"), len(site.outputs)

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        x = np.moveaxis(np.asarray(inputs[0]), axis, 0)
        if len(x) != count:
            raise ShapeMismatch(f"UNPACK of a dimension of {len(x)} into {count}")
        return [np.asarray(part, order="C") for part in x]

    return run


@kernel("SPLIT")
def split(site: Site) -> Kernel:
    """Equal parts along an axis, the first input."""
    count = len(site.outputs)

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        (axis,), x = dimensions(inputs[0]), np.asarray(inputs[1])
        axis = normal_axis(axis, x.ndim)
        if x.shape[axis] % count:
            raise ShapeMismatch(f"SPLIT of a dimension of {x.shape[axis]} into {count}")
        return [np.asarray(part, order="C") for part in np.split(x, count, axis)]

    return run


@kernel("SPLIT_V")
def split_v(site: Site) -> Kernel:
    """Parts of given sizes along an axis; one size may be -1, what the others leave."""
    count = len(site.outputs)

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        x, sizes, (axis,) = np.asarray(inputs[0]), dimensions(inputs[1]), dimensions(inputs[2])
        axis = normal_axis(axis, x.ndim)
        rest = x.shape[axis] - sum(s for s in sizes if s != -1)
        fits = rest >= 0 if -1 in sizes else rest == 0
        if not fits or len(sizes) != count or sizes.count(-1) > 1 or min(sizes) < -1:
            raise ShapeMismatch(f"SPLIT_V of a dimension of {x.shape[axis]} into {sizes}")
        ends = np.cumsum([rest if s == -1 else s for s in sizes])[:-1]
        return [np.asarray(part, order="C") for part in np.split(x, ends, axis)]

    return run
