"""Numbers that no image has: they are refused before anything is made of them."""

from __future__ import annotations

import math

import pytest

from penstock.errors import InvalidAttribute, ShapeOverflow
from tests.unit.nnapi.lowering.one import b, f, lowered, t


@pytest.mark.parametrize("scale", [math.inf, -math.inf, math.nan, 0.0, -1.0])
def test_scales_that_are_no_numbers(scale: float) -> None:
    given = [t("f32", 1, 4, 4, 1), f(scale), f(1.0)]
    with pytest.raises(InvalidAttribute, match="a scale of RESIZE_BILINEAR is not above 0"):
        lowered("RESIZE_BILINEAR", given, [t("f32", 1, None, None, 1)])


@pytest.mark.parametrize("name", ["RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"])
def test_sizes_beyond_32_bits(name: str) -> None:
    given = [t("f32", 1, 4, 4, 1), f(1e30), f(1.0), b(False)]
    with pytest.raises(ShapeOverflow, match=f"{name} needs sizes beyond 32 bits"):
        lowered(name, given, [t("f32", 1, None, None, 1)])
