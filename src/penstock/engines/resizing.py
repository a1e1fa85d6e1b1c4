"""What rules ask of operations that resize a picture, whichever engine they translate them for."""

from __future__ import annotations

import numpy as np

from penstock.engines.site import Site, require
from penstock.ir import NDArray


def require_resizable(site: Site) -> None:
    """The picture has a known shape, and its positions are computed in a way that TFLite has."""
    attributes = site.operation.attributes
    site.shape()
    both = attributes.flag("align_corners") and attributes.flag("half_pixel_centers")
    require(not both, "corners aligned and pixel centres halved at once")
    require(min(site.integers(1, "its size")) >= 1, "a picture of no size")


def coordinates(site: Site) -> str:
    """How positions are computed, in ONNX's words, which OpenVINO has too."""
    attributes = site.operation.attributes
    if attributes.flag("align_corners"):
        return "align_corners"
    return "half_pixel" if attributes.flag("half_pixel_centers") else "asymmetric"


def nearest(size: int, out: int, *, align: bool, half: bool) -> NDArray:
    """The position in *size* that each of *out* positions falls on: int64."""
    scale = np.float32(size) / np.float32(out)
    if align and out > 1:
        scale = np.float32(size - 1) / np.float32(out - 1)
    at = (np.arange(out, dtype=np.float32) + np.float32(0.5 if half else 0)) * scale
    # TFLite rounds halves away from zero; positions are not negative.
    whole = np.floor(at + np.float32(0.5)) if align else np.floor(at)
    found: NDArray = np.minimum(whole.astype(np.int64), size - 1)
    return found
