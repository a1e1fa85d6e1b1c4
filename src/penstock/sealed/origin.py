"""Whose a seal is: what `penstock.distribution` says while the devices of an entry point are made."""

from penstock.distribution import BY_THE_PROGRAM, current_origin, made_by

__all__ = ["BY_THE_PROGRAM", "current_origin", "made_by"]
