"""Loads generated object code without LLVM: ELF in, executable memory out."""

from __future__ import annotations

from penstock.drivers.llvm.load.image import Image, load

__all__ = ["Image", "load"]
