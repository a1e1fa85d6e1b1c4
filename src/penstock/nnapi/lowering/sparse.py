"""DENSIFY, which only experimental builds of NNAPI have."""

from __future__ import annotations

from typing import Final

from penstock.nnapi.description import EXPERIMENTAL
from penstock.nnapi.lowering.registry import lowers
from penstock.nnapi.lowering.site import Site

MOST_LEVELS: Final = 16
"""Levels of a sparse tensor: its dimensions and blocks together."""


def _lists() -> str:
    """Segments and indices of the levels, in a form."""
    pairs = [f"segments_{at}:i32? indices_{at}:i32?" for at in range(MOST_LEVELS)]
    return "[" + " [".join(pairs) + "]" * MOST_LEVELS


@lowers(
    "DENSIFY",
    level=EXPERIMENTAL,
    form=f"values:T order:i32 blocks:i32? formats:i32 sizes:i32 {_lists()} -> output:T",
    T="f32 f16 i32 b8 q8 q8s q8y q16y q16a",
)
def densify(site: Site) -> None:
    names = [*site.match.inputs]
    for name in names:
        if site.given(name):
            site.require_rank(name, 1)
    order = site.shape(site.tensor("order"))
    levels, given = (len(names) - 5) // 2, None if order is None else order[0]
    site.require(given in {None, levels}, f"{levels} pairs of lists for {given} levels")
    site.require_same_quantization("values", "output")
    site.finish("DENSIFY_LEVELS", [site.tensor(name) for name in names])
