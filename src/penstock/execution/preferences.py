"""How the devices of a compiled model want its inputs and outputs to lie in memory (NNAPI section
6.8).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.compilation.prepared import PreparedStep
from penstock.hal import MemoryPreference
from penstock.hal.device import preferred_memory
from penstock.memory.layout import strictest


def preferences_of(
    operands: Iterable[int], steps: Sequence[PreparedStep]
) -> tuple[MemoryPreference, ...]:
    """One preference an operand: the strictest of the devices whose steps read or write it."""
    return tuple(
        strictest(
            preferred_memory(step.device)
            for step in steps
            if operand in step.step.inputs or operand in step.step.outputs
        )
        for operand in operands
    )
