"""Instruction sets: what generated code may use, as data, and the instructions that differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.drivers.llvm.isa.record import RECORDS, Isa
from penstock.facade import lazily

if TYPE_CHECKING:
    from penstock.drivers.llvm.isa.instructions import Instructions

__all__ = ["RECORDS", "Instructions", "Isa"]

# A model from the cache needs the records alone.
__getattr__ = lazily(__name__, {"instructions": "Instructions"})
