"""What rules ask of operations that compute values, whichever engine they translate them for."""

from __future__ import annotations

from typing import Final, Protocol

from penstock.engines.site import Site, require
from penstock.engines.types import F32, activation
from penstock.hal import AccuracyClass
from penstock.ir import DType

LEAST_LENGTH: Final = 1e-6
"""What L2_NORMALIZATION divides by at least."""


class Lying(Protocol):
    """A graph in which values may lie channels first."""

    def is_first(self, index: int) -> bool:
        """Whether operand *index* is there as NCHW."""


def keeps_channels_first(graph: Lying, site: Site) -> bool:
    """Whether an input is there as NCHW, and all others can be brought to it."""
    if not any(map(graph.is_first, site.input_indexes)):
        return False
    return all(
        site.input(p).is_constant or len(site.shape(p)) in {0, 4} for p in range(len(site.inputs))
    )


def check_logic(site: Site) -> AccuracyClass:
    """The class of an operation on truth values."""
    for position in range(len(site.inputs)):
        site.shape(position)
        require(site.input(position).dtype is DType.BOOL, "only truth values are combined here")
    return "exact"


def require_choice(site: Site) -> None:
    """The shapes of a SELECT do not broadcast, save that one truth value may choose a row."""
    shapes = [site.shape(p) for p in range(3)]
    site.output_shape()
    if site.operation.type == "SELECT":
        vector = len(shapes[0]) == 1 and len(shapes[1]) > 1
        require(vector or shapes[0] == shapes[1] == shapes[2], "a choice that broadcasts")


def reduced_axes(site: Site) -> list[int]:
    """The constant axes of a reduction, each once, none negative."""
    rank = len(site.shape())
    axes = [a + rank if a < 0 else a for a in site.integers(1, "its axes")]
    require(all(0 <= a < rank for a in axes), f"axes {axes} of {rank} dimensions")
    return sorted(set(axes))


def require_rows(site: Site) -> None:
    """A FULLY_CONNECTED has plain weights [units, depth], and known shapes."""
    attributes = site.operation.attributes
    require(attributes.text("weights_format") == "DEFAULT", "shuffled weights are not read")
    require(not site.has(3) and len(site.outputs) == 1, "weights scaled by blocks are not read")
    site.shape(), site.output_shape()
    require(len(site.shape(1)) == 2, "weights of another rank than 2")


def check_l2(site: Site) -> AccuracyClass:
    """The class of an L2_NORMALIZATION."""
    require(len(site.shape()) >= 1, "a scalar has no axis")
    activation(site, ["NONE"])
    require(site.input().dtype is F32, "only float32 values are computed here")
    return "faithful"


def check_local(site: Site) -> AccuracyClass:
    """The class of a LOCAL_RESPONSE_NORMALIZATION."""
    require(len(site.shape()) == 4, "an image of another rank")
    require(site.operation.attributes.integer("radius") >= 0, "a negative radius")
    require(site.input().dtype is F32, "only float32 values are computed here")
    return "faithful"
