"""Checks of routines: their variables, types and tensors."""

from __future__ import annotations

from penstock.compiler.checks.expressions import fault_of
from penstock.compiler.checks.failing import tensor_name
from penstock.compiler.program import Kernel, Program
from penstock.compiler.routine import (
    OWN,
    Assign,
    If,
    Load,
    Routine,
    Statement,
    Store,
    While,
    statements,
)
from penstock.ir import DType


def routine_fault(program: Program, kernel: Kernel, routine: Routine) -> str | None:
    """What is wrong with *kernel*, which runs *routine*; None if nothing is."""
    if kernel.loops or kernel.reduced or kernel.accesses or kernel.border is not None:
        return "runs a routine, and has loops, reads or a border too"
    for tensor in routine.reads:
        if not 0 <= tensor < len(program.tensors):
            return f"reads tensor {tensor}: the program has {len(program.tensors)}"
    written = kernel.write.tensor
    if len(program.tensors[written].shape) != 1:
        return f"writes {tensor_name(program, written)}, which is no vector"
    if program.root(written) in {program.root(t) for t in routine.reads}:
        return f"lists {tensor_name(program, written)}, which it writes, among what it reads"
    for statement in statements(routine.body):
        fault = _statement_fault(program, kernel, routine, statement)
        if fault is not None:
            return f"has a statement that is wrong: {type(statement).__name__} {fault}"
    return None


def _statement_fault(
    program: Program, kernel: Kernel, routine: Routine, statement: Statement
) -> str | None:
    types, written = routine.variables, kernel.write.tensor
    used = _variables(statement)
    if any(not 0 <= v < len(types) for v in used):
        return f"names one of the variables {used}: the routine has {len(types)}"
    match statement:
        case Assign(variable, value, arguments):
            fault = fault_of(program, value, [types[a] for a in arguments])
            if fault is None and value.tables:
                fault = "looks up a table"
            if fault is None and value.dtype is not types[variable]:
                fault = f"assigns {value.dtype.value} to a variable of {types[variable].value}"
            return fault
        case Load(variable, source, index):
            if not OWN <= source < len(routine.reads):
                return f"reads source {source}: the routine has {len(routine.reads)}"
            tensor = written if source == OWN else routine.reads[source]
            return _element_fault(program, routine, tensor, index, variable)
        case Store(index, variable):
            return _element_fault(program, routine, written, index, variable)
        case While(_, condition) | If(condition):
            return None if types[condition] is DType.BOOL else "depends on no bool"


def _element_fault(
    program: Program, routine: Routine, tensor: int, index: int, variable: int
) -> str | None:
    dtype, types = program.tensors[tensor].dtype, routine.variables
    if types[index] is not DType.INT32:
        return f"counts elements by {types[index].value}"
    if types[variable] is not dtype:
        return f"moves {dtype.value} to or from a variable of {types[variable].value}"
    return None


def _variables(statement: Statement) -> tuple[int, ...]:
    """The variables that *statement* names, those of its blocks apart."""
    match statement:
        case Assign(variable, _, arguments):
            return (variable, *arguments)
        case Load(variable, _, index):
            return variable, index
        case Store(index, value):
            return index, value
        case While(_, condition) | If(condition):
            return (condition,)
