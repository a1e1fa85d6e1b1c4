"""The rules by operation type: a check with the accuracy class, a layout, and an emitter."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from penstock.drivers.openvino.rules.rule import RULES, examine

FAMILIES: Final = (
    "elementwise", "images", "layers", "moving", "reduction", "rounding",
)  # fmt: skip
"""Modules whose functions register themselves."""

__all__ = ["RULES", "examine"]

for _family in FAMILIES:
    import_module(f"{__name__}.{_family}")
