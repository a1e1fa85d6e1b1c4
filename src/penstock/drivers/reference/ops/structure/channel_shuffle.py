"""CHANNEL_SHUFFLE: channels dealt out to groups (NNAPI; Zhang et al., "ShuffleNet", 2018)."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel, require
from penstock.drivers.reference.ops.numerics.weights import given
from penstock.drivers.reference.ops.structure.shape import normal_axis
from penstock.errors import ShapeMismatch
from penstock.ir import NDArray


@kernel("CHANNEL_SHUFFLE")
def channel_shuffle(site: Site) -> Kernel:
    """Channel g * n + i of n a group goes to place i * groups + g."""
    groups, axis = site.attributes.integer("groups"), site.attributes.integer("axis")
    require(groups > 0, f"{groups} groups of channels")
    require(site.input(0).quantization == site.output().quantization, "shuffling that rescales")

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        x = given(inputs[0])
        along = normal_axis(axis, x.ndim)
        before, size, after = x.shape[:along], x.shape[along], x.shape[along + 1 :]
        if size % groups:
            raise ShapeMismatch(f"{size} channels are not a multiple of {groups} groups")
        split = x.reshape(*before, groups, size // groups, *after)
        return (split.swapaxes(along, along + 1).reshape(x.shape),)

    return run
