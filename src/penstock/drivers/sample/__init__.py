"""The sample driver: the tutorial for writing one (docs/writing-a-driver.md)."""

from penstock.drivers.sample.driver import SampleDevice, create

__all__ = ["SampleDevice", "create"]
