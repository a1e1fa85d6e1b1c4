"""Instruction sets: what generated code may use, as data, and the instructions that differ."""

from __future__ import annotations

from penstock.drivers.llvm.isa.instructions import Instructions
from penstock.drivers.llvm.isa.record import RECORDS, Isa

__all__ = ["RECORDS", "Instructions", "Isa"]
