"""The operations of a model that the driver supports, without the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.driverkit.site import QUANTIZED, Site, make_sites
from penstock.driverkit.support import answered
from penstock.drivers.openvino.rules import judge
from penstock.hal import AccuracyClass, Support
from penstock.ir import Model

SATURATING: Final = (
    "off by up to 124 steps: without VNNI OpenVINO adds pairs of 8-bit products in 16 bits"
)


def examine(
    model: Model, best: AccuracyClass = "exact", *, sums_exactly: bool = True
) -> Sequence[Support]:
    """One answer an operation, of the class *best* at most: what the plugin was measured to meet.
    8-bit values are relaxed unless OpenVINO *sums_exactly* here.
    """
    sites = make_sites(model)
    answers = answered(sites, judge, best)
    if sums_exactly:
        return answers
    return [
        Support(True, "", "relaxed", SATURATING)
        if answer.supported and answer.accuracy in {"faithful", "stepwise"} and _is_stepped(site)
        else answer
        for site, answer in zip(sites, answers, strict=True)
    ]


def _is_stepped(site: Site) -> bool:
    return any(o is not None and o.dtype in QUANTIZED for o in (*site.inputs, *site.outputs))
