"""What the tests of the OpenVINO driver share: its CPU device."""

from __future__ import annotations

import importlib.util

import pytest

from penstock.drivers.openvino import OpenVinoDevice, create
from penstock.drivers.openvino.installation import sums_exactly

needs_openvino = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None,
    reason="OpenVINO is not installed: pip install 'penstock-nn[openvino]'",
)

needs_exact_sums = pytest.mark.skipif(
    not sums_exactly(),
    reason="OpenVINO adds pairs of 8-bit products in 16 bits here: the processor has no VNNI, or a "
    "variable keeps it from it",
)


def cpu() -> OpenVinoDevice:
    """A CPU device of its own: counters at zero."""
    (device,) = [d for d in create() if d.name == "openvino-cpu"]
    return device
