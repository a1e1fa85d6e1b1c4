"""Checks of tensors, constants, aliases and ports."""

from __future__ import annotations

import math
from collections.abc import Iterable

from penstock.compiler.checks.failing import BrokenProgram, tensor_name
from penstock.compiler.program import Program
from penstock.ir import DType


def check_tensors(program: Program) -> None:
    """Raises `BrokenProgram` unless constants have the shape and type of their tensors, aliases
    lead to a tensor of as many elements of the same type, and inputs are tensors of their own.
    """
    _known(program, program.constants, "constant")
    _known(program, (*program.aliases, *program.aliases.values()), "alias")
    _known(program, (*program.inputs, *program.outputs), "port")
    for index, tensor in enumerate(program.tensors):
        if any(size < 0 for size in tensor.shape):
            raise BrokenProgram(f"{tensor_name(program, index)} has a negative size")
    for index, array in program.constants.items():
        tensor = program.tensors[index]
        if array.shape != tensor.shape or array.dtype != tensor.dtype.numpy:
            raise BrokenProgram(
                f"{tensor_name(program, index)} has the value of a constant of "
                f"{array.dtype} {list(array.shape)}"
            )
    for index in program.aliases:
        _check_alias(program, index)
    for index in program.inputs:
        if index in program.constants or index in program.aliases:
            kind = "constant" if index in program.constants else "an alias"
            raise BrokenProgram(f"input {tensor_name(program, index)} is {kind}")
    if len(set(program.inputs)) != len(program.inputs):
        raise BrokenProgram("a tensor is listed as input twice")
    if len(program.failures) > len(program.outputs):
        raise BrokenProgram(f"{len(program.failures)} messages of {len(program.outputs)} outputs")
    for index in program.flags:
        tensor = program.tensors[index]
        if tensor.dtype is not DType.BOOL or tensor.shape != (1,):
            raise BrokenProgram(f"flag {tensor_name(program, index)} is not bool [1]")


def _known(program: Program, tensors: Iterable[int], kind: str) -> None:
    for tensor in tensors:
        if not 0 <= tensor < len(program.tensors):
            raise BrokenProgram(
                f"{kind} {tensor} is no tensor: the program has {len(program.tensors)}"
            )


def _check_alias(program: Program, index: int) -> None:
    seen, at = {index}, index
    while at in program.aliases:
        at = program.aliases[at]
        if at in seen:
            raise BrokenProgram(f"{tensor_name(program, index)} is an alias of itself")
        seen.add(at)
    if index in program.constants:
        raise BrokenProgram(f"{tensor_name(program, index)} is a constant and an alias")
    alias, source = program.tensors[index], program.tensors[at]
    same = math.prod(alias.shape) == math.prod(source.shape) and alias.dtype is source.dtype
    if not same:
        raise BrokenProgram(
            f"{tensor_name(program, index)} is an alias of {tensor_name(program, at)}, which has "
            "other elements"
        )
