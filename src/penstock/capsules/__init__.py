"""Failure capsules: what a maintainer needs to repeat a failure, in one file; and the last failures
that were kept.
"""

from penstock.capsules.archive import Capsule, Manifest, dump, parse, read, write

__all__ = ["Capsule", "Manifest", "dump", "parse", "read", "write"]
