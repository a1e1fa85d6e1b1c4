"""The lab device: a driver with every way of caching, to test each rule without an engine.

Its entry point is `lab`. It is used only by name.
"""

from penstock.testing.lab.device import LabDevice, create

__all__ = ["LabDevice", "create"]
