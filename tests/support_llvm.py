"""The device `llvm`, for tests that need it."""

from __future__ import annotations

from typing import Final

import pytest

from penstock.drivers.llvm import LlvmDevice

MISSING: Final = LlvmDevice().check()

needs_llvm: Final = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
"""Skips a test where the device cannot be used: without llvmlite, or on another processor."""
