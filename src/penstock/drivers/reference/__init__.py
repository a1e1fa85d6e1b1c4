"""The reference driver."""

from penstock.drivers.reference.driver import ReferenceDevice
from penstock.hal import Device


def create() -> Device:
    """The entry point."""
    return ReferenceDevice()


__all__ = ["ReferenceDevice", "create"]
