"""The rules, by operation type: what is taken, in which class, and the nodes it becomes."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from penstock.drivers.openvino.rules.rule import RULES

FAMILIES: Final = (
    "choices",
    "convolution",
    "elementwise",
    "images",
    "matrices",
    "normalization",
    "quantization",
    "reduction",
    "slicing",
    "structure",
)
"""Modules whose functions register themselves."""

__all__ = ["RULES"]

for _family in FAMILIES:
    import_module(f"{__name__}.{_family}")
