"""What the tests of the ONNX Runtime driver share: its CPU device."""

from __future__ import annotations

import importlib.util

import pytest

from penstock.drivers.onnxruntime import OnnxRuntimeDevice, create

needs_onnxruntime = pytest.mark.skipif(
    any(importlib.util.find_spec(package) is None for package in ("onnx", "onnxruntime")),
    reason="ONNX Runtime is not installed: pip install 'penstock-nn[onnxruntime]'",
)


def cpu() -> OnnxRuntimeDevice:
    """A CPU device of its own: counters at zero."""
    (device,) = [d for d in create() if d.name == "onnxruntime-cpu"]
    return device
