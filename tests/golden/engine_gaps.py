"""What engines and the ONNX loader do not do yet, each with its reason; strict: what starts to pass must leave."""

from __future__ import annotations

from typing import Final

GAPS: Final[dict[tuple[str, str, str], str]] = {}
"""By file, devices and accuracy class."""

ONNX_GAPS: Final[dict[str, str]] = {}
"""ONNX files that do not lower, by the node that stops them (tests/golden/test_onnx.py holds them to it)."""
