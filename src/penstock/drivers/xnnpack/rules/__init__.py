"""Which operations LiteRT computes, and how well, by family. `RULES` has the check of each
operation type.
"""

from __future__ import annotations

from penstock.drivers.xnnpack.rules import (
    arithmetic as _arithmetic,
    layers as _layers,
    moving as _moving,
    recurrent as _recurrent,
    reduction as _reduction,
    special as _special,
)
from penstock.drivers.xnnpack.rules.rule import RULES

__all__ = ["RULES"]

_FAMILIES = (_arithmetic, _layers, _moving, _recurrent, _reduction, _special)
