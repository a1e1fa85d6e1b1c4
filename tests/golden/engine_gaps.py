"""What engines and the ONNX loader do not do yet, each with its reason; strict: what starts to pass must leave."""

from __future__ import annotations

from typing import Final

ALIKE: Final = (
    "every weight of the network is alike and every logit the same 9.5e9: where sums are taken in another order a last "
    "bit of them is worth thousands, and softmax makes one class of it (each operation alone is within its class)"
)

GAPS: Final[dict[tuple[str, str, str], str]] = {
    ("light_squeezenet_onnx", "openvino-cpu", "faithful"): ALIKE,
    ("light_squeezenet_onnx", "xnnpack+onnxruntime-cpu+openvino-cpu", "faithful"): ALIKE,
}
"""By file, devices and accuracy class."""

ONNX_GAPS: Final[dict[str, str]] = {}
"""ONNX files that do not lower, by the node that stops them (tests/golden/test_onnx.py holds them to it)."""
