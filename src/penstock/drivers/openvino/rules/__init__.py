"""The rules, by operation type: what is taken, in which class, and the nodes it becomes."""

from __future__ import annotations

from penstock.drivers.openvino.rules import (
    convolution,
    elementwise,
    images,
    matrices,
    quantization,
    reduction,
    slicing,
    structure,
)
from penstock.drivers.openvino.rules.rule import RULES, Rule

__all__ = [
    "RULES",
    "Rule",
    "convolution",
    "elementwise",
    "images",
    "matrices",
    "quantization",
    "reduction",
    "slicing",
    "structure",
]
