"""What the tests of the OpenVINO driver share: its CPU device."""

from __future__ import annotations

import importlib.util

import pytest

from penstock.drivers.openvino import OpenVinoDevice, create

needs_openvino = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None,
    reason="OpenVINO is not installed: pip install 'penstock[openvino]'",
)


def cpu() -> OpenVinoDevice:
    """A CPU device of its own: counters at zero."""
    (device,) = [d for d in create() if d.name == "openvino-cpu"]
    return device
