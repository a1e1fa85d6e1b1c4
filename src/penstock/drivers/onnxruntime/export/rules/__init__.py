"""The rules, by operation type: what is taken, in which class, and the nodes it becomes."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from penstock.drivers.onnxruntime.export.rules.rule import RULES, judge

FAMILIES: Final = (
    "branches",
    "conversion",
    "convolution",
    "elementwise",
    "images",
    "matrices",
    "normalization",
    "quantization",
    "recurrent",
    "reduction",
    "slicing",
    "structure",
)
"""Modules whose functions register themselves."""

__all__ = ["RULES", "judge"]

for _family in FAMILIES:
    import_module(f"{__name__}.{_family}")
