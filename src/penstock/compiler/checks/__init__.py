"""The invariants of programs and of plans of their memory (`penstock.compiler.program`).

`check` and `check_plan` raise `BrokenProgram`, which names the kernel and the tensor. Passes do not
call them: tests do, after every pass.
"""

from __future__ import annotations

from penstock.compiler.checks.failing import BrokenProgram
from penstock.compiler.checks.nests import check_kernels
from penstock.compiler.checks.plans import check_plan
from penstock.compiler.checks.tensors import check_tensors
from penstock.compiler.checks.writes import check_writes
from penstock.compiler.program import Program


def check(program: Program) -> None:
    """Raises `BrokenProgram` unless *program* holds every invariant."""
    check_tensors(program)
    check_kernels(program)
    check_writes(program)


__all__ = ["BrokenProgram", "check", "check_plan"]
