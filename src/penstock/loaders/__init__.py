"""Bytes from outside become a valid `Model`, or a named defect; all care for hostile input lives
here.
"""

from penstock.loaders.registry import load

__all__ = ["load"]
