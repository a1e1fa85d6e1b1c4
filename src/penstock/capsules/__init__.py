"""Failure capsules: all that a maintainer needs to repeat a failure, in one file."""

from penstock.capsules.archive import Capsule, Manifest, dump, parse, read, write

__all__ = ["Capsule", "Manifest", "dump", "parse", "read", "write"]
