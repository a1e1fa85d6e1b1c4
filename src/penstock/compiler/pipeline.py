"""The passes in their order, each from a program to a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.compiler.fold import fold
from penstock.compiler.fuse import fuse
from penstock.compiler.layout import lay_out
from penstock.compiler.program import Program
from penstock.compiler.tabulate import tabulate
from penstock.compiler.target import Target

PASSES: Final[dict[str, Callable[[Program, Target], Program]]] = {
    "fold": lambda program, _: fold(program),
    "fuse": lambda program, _: fuse(program),
    "layout": lay_out,
    "tabulate": lambda program, _: tabulate(program),
}


def upto(program: Program, stage: str, target: Target) -> Program:
    """*program* after every pass up to *stage*, for *target*."""
    for name, step in PASSES.items():
        program = step(program, target)
        if name == stage:
            break
    return program
