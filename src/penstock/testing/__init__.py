"""The kits for authors of drivers: contract suites, doubles, strategies. Versioned with the HAL."""
