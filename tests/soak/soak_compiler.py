"""Random operations and fused chains, compiled for every instruction set that this machine runs,
against the device `reference`:

    python -m tests.soak.soak_compiler [--count N] [--least M] [--seed S] [--jobs J] [--show F]
        [--only FAMILY ...]

Goes on until the compiler has taken *count* models, and *least* of every family that it takes any
of. Exit code 1 where results differ: integers have to be equal, floats within the bound of `exact`.
Each batch runs in a process of its own, so that a fault in generated code is a failure with the
model's number. The short version is tests/unit/drivers/llvm/test_random.py.
"""

from __future__ import annotations

import sys
from typing import Final

from tests.soak.families import soak
from tests.support_compiler_trials import Trial, tried
from tests.support_generated import sets_here

COUNT: Final = 20_000
LEAST: Final = 500


def attempt(family: str, number: int) -> Trial:
    """The outcome on every instruction set of this machine."""
    return tried(family, number, sets_here())


def where() -> str:
    return ", ".join(isa.name for isa in sets_here())


if __name__ == "__main__":
    sys.exit(soak(__spec__.name, attempt, COUNT, LEAST, where))
