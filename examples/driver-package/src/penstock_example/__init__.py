"""A driver for Penstock.

This module opens no device and imports no engine, because Penstock calls `create` whenever devices
are listed.
"""

from penstock_example.device import ExampleDevice

__all__ = ["ExampleDevice", "create"]


def create() -> ExampleDevice:
    """The entry point of `penstock.drivers`."""
    return ExampleDevice()
