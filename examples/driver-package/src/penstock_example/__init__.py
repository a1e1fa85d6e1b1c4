"""A driver for Penstock.

Nothing here opens a device or imports an engine: Penstock calls `create` whenever devices are
listed.
"""

from penstock_example.device import ExampleDevice

__all__ = ["ExampleDevice", "create"]


def create() -> ExampleDevice:
    """The entry point of `penstock.drivers`."""
    return ExampleDevice()
