"""StableHLO's operations."""
