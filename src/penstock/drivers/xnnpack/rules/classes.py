"""The accuracy classes that a rule returns: one for each kernel set of LiteRT."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.drivers.xnnpack.engine import Kernels
from penstock.hal import ACCURACY_RANK, AccuracyClass


class Classes(msgspec.Struct, frozen=True):
    """The accuracy class of an operation by kernel set; None if the set does not support it.
    *expanded* is the class of XNNPACK for the operation in its expanded form (`hybrid_layers`).
    """

    xnnpack: AccuracyClass | None
    builtin: AccuracyClass | None
    expanded: AccuracyClass | None = None

    def meets(self, accuracy: AccuracyClass) -> list[Kernels]:
        """The kernel sets that meet *accuracy*, the faster one first."""
        pairs: tuple[tuple[Kernels, tuple[AccuracyClass | None, ...]], ...] = (
            ("xnnpack", (self.xnnpack, self.expanded)),
            ("builtin", (self.builtin,)),
        )
        return [k for k, classes in pairs if any(_is_met(c, accuracy) for c in classes)]

    def needs_expansion(self, accuracy: AccuracyClass) -> bool:
        """Whether XNNPACK meets *accuracy* only in the expanded form."""
        return self.expanded is not None and not _is_met(self.xnnpack, accuracy)

    @property
    def best(self) -> AccuracyClass:
        """The best of the classes."""
        known = [c for c in (self.xnnpack, self.builtin, self.expanded) if c is not None]
        return max(known, key=ACCURACY_RANK.__getitem__)


def _is_met(known: AccuracyClass | None, accuracy: AccuracyClass) -> bool:
    return known is not None and ACCURACY_RANK[known] >= ACCURACY_RANK[accuracy]


EXACT: Final = Classes("exact", "exact")
FAITHFUL: Final = Classes("faithful", "faithful")
EXACT_BUILTIN: Final = Classes("faithful", "exact")
"""Quantised operations whose rounding in XNNPACK differs from TFLite's by at most one step."""
