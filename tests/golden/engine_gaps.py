"""What engines and the ONNX loader do not do yet, each with its reason; strict: what starts to pass
must leave.
"""

from __future__ import annotations

from typing import Final

from penstock.hal import AccuracyClass
from tests.golden.engine_grid import Arrangement

ONE_BY_ONE: Final = (
    "dealt out in turn, only XNNPACK's own layers and the reference's take part, as in LiteRT by "
    "default but fewer: of an 8-bit "
    "convolution 1.1 % of the results lie a step lower, of a depthwise one 1.9 %, none further, of "
    "other operations "
    "hardly any. On the way a step more here becomes others there, until few and many come to the "
    "same: on average "
    "the RMS is 0.87 of LiteRT's, and 0.83 with a third of these steps (docs/xnnpack.md); the "
    "largest of a few cases is chance: "
)

GAPS: Final[dict[tuple[str, str, str], str]] = {}
"""By file and group of cases, devices, and accuracy class: engines as first choice, and all
together.
"""

ALTERNATING_GAPS: Final[dict[tuple[str, str], str]] = {
    ("mobilenet_v2_inat_insect_uint8-i", "faithful"): (
        f"{ONE_BY_ONE}15 steps on one image (RMS 0.47), 4 on noise; LiteRT 8 and 6 (RMS 0.25), "
        "which allows 13"
    ),
    ("posenet_257_int8-i", "faithful"): (
        f"{ONE_BY_ONE}0.0430 on the third of four outputs (RMS 0.0016); LiteRT 0.0234 (0.0010), "
        "which allows 0.0391"
    ),
    ("resnet8_cifar10_int8-r", "faithful"): (
        f"{ONE_BY_ONE}32 of 256 steps of a softmax on one of three images of noise, 9 and 1 on the "
        "others; LiteRT 0, 15 and 1, which allows 23.5"
    ),
    ("mobilenet_v1_0.25_128_uint8-i", "relaxed"): (
        "the two best classes of a cat, 34 and 30 of 256 steps on every engine alone, are both 34 "
        "on all in turn: a tie, in "
        "which the other goes first"
    ),
}
"""By file and group of cases, and accuracy class: all engines in turn."""

ONNX_GAPS: Final[dict[str, str]] = {}
"""ONNX files that do not lower, by the node that stops them (tests/golden/test_onnx.py holds them
to it).
"""


def gap_of(
    arrangement: Arrangement, group: str, engines: tuple[str, ...], accuracy: AccuracyClass
) -> str | None:
    """Why *group*, a file's id and its group of cases, fails as known; None if it is not known."""
    if arrangement == "alternating":
        return ALTERNATING_GAPS.get((group, accuracy))
    return GAPS.get((group, "+".join(engines), accuracy))
