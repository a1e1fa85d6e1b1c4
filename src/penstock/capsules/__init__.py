"""Failure capsules: one file with everything needed to reproduce a failure."""

from penstock.capsules.archive import Capsule, Manifest, dump, parse, read, write

__all__ = ["Capsule", "Manifest", "dump", "parse", "read", "write"]
