"""Images of operations that say where the channels stand, as NHWC."""

from __future__ import annotations

import numpy as np

from penstock.drivers.reference.ops.kernel import Site
from penstock.errors import ShapeMismatch
from penstock.ir import NDArray


def channels_first(site: Site) -> bool:
    """Whether the images of *site* are NCHW."""
    return site.attributes.text("data_layout") == "NCHW"


def to_nhwc(image: NDArray, first: bool) -> NDArray:
    """A view of *image*, which must have four dimensions, with the channels last; *first* says that
    they come first.
    """
    if image.ndim != 4:
        raise ShapeMismatch(f"an image batch of shape {image.shape}, which is not of rank 4")
    return image.transpose(0, 2, 3, 1) if first else image


def from_nhwc(image: NDArray, first: bool) -> NDArray:
    """The way back, in memory too."""
    return np.asarray(image.transpose(0, 3, 1, 2), order="C") if first else image
