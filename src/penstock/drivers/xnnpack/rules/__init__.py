"""The operations that LiteRT computes, and their accuracy: `RULES` has their checks by type."""

from __future__ import annotations

# Importing a module registers its rules.
from penstock.drivers.xnnpack.rules import arithmetic, layers, moving, special  # noqa: F401
from penstock.drivers.xnnpack.rules.rule import RULES

__all__ = ["RULES"]
