"""The lab device: a driver with every way of caching, so that each rule can be tested without an
engine.

It is found under the entry point `lab`, and used only when it is named.
"""

from penstock.testing.lab.device import LabDevice, create

__all__ = ["LabDevice", "create"]
