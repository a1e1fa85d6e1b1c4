"""The kits for authors of drivers: contract suites, doubles, strategies. Versioned with the HAL."""

from penstock.testing.copies import assert_no_copies

__all__ = ["assert_no_copies"]
