"""Weights whose scales, one a block of each row, are an input of their operation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.export.tflite.fields import TFLITE

BLOCK_SCALED: Final[Mapping[str, int]] = {"EMBEDDING_LOOKUP": 2, "FULLY_CONNECTED": 3}
"""Operations that take scales of blocks, and the position of these among their inputs; the weights'
is 1.
"""


def blockwise(scales: int, size: int) -> dict[str, Any]:
    """The `QuantizationParameters` of a tensor in blocks of *size* elements, whose scales are
    tensor *scales*.
    """
    return {
        "details_type": TFLITE.unions["QuantizationDetails"].index("BlockwiseQuantization"),
        "details": {"scales": scales, "zero_points": -1, "block_size": size},
    }
