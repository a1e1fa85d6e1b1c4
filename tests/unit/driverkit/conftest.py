"""The engine is loaded before descriptors are counted: what its import opens is no test's leak."""

from __future__ import annotations

from contextlib import suppress

import pytest

from penstock.drivers.onnxruntime import engine
from penstock.errors import DeviceUnavailable


@pytest.fixture(scope="session", autouse=True)
def loaded() -> None:
    with suppress(DeviceUnavailable):
        engine.onnxruntime()
        engine.onnx()
