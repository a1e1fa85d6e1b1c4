"""The device `llvm`, for tests that need it."""

from __future__ import annotations

from typing import Final

import pytest

from penstock.drivers.llvm import LlvmDevice
from tests.support_engine_entry import EngineEntry, Recording

MISSING: Final = LlvmDevice().check()

needs_llvm: Final = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
"""Skips a test where the device cannot be used: without llvmlite, or on another processor."""


class Recorded(Recording, LlvmDevice):
    """Keeps the configuration that it was last asked to load with."""


class LlvmEntry(EngineEntry):
    """As `EngineEntry`, of the device `llvm`."""

    def device(self) -> LlvmDevice:
        return LlvmDevice()

    def recorded(self) -> LlvmDevice:
        return Recorded()
