"""Routines: what the checker finds in them, how they are evaluated and printed, and that no kernel
is fused with one.
"""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from penstock.compiler import interpreter
from penstock.compiler.checks import BrokenProgram, check
from penstock.compiler.expression import identity
from penstock.compiler.fuse import fuse
from penstock.compiler.legalise.routines import RoutineWriter
from penstock.compiler.printing import show
from penstock.compiler.program import Access, Kernel, Position, Program, along
from penstock.compiler.routine import Assign, If, Load, Routine, Statement, Store, While
from penstock.errors import GeneralFailure
from penstock.ir import DType
from tests.support_routines import routine_program
from tests.unit.compiler.building import Builder as Kernels

F32, I32, BOOL = DType.FLOAT32, DType.INT32, DType.BOOL
SIZE = 5


def largest(limit: int = SIZE) -> Program:
    """The place of the first largest of five floats, by a loop up to *limit*."""

    def write(w: RoutineWriter, given: int) -> None:
        zero = w.number(0)
        best, place = w.load(given, zero), w.number(0)
        with w.each(limit, 1) as index:
            value = w.load(given, index)
            with w.when(lambda b, v: b < v, best, value):
                w.copy(best, value)
                w.copy(place, index)
        w.keep(0, zero, place)

    return routine_program(F32, SIZE, 1, write)


def with_body(program: Program, *body: Statement, reads: tuple[int, ...] | None = None) -> Program:
    (kernel,) = program.kernels
    routine = kernel.routine
    assert routine is not None
    changed = replace(routine, body=body, reads=routine.reads if reads is None else reads)
    return replace(program, kernels=(replace(kernel, routine=changed),))


def test_a_routine_is_evaluated_statement_by_statement() -> None:
    program = largest()
    check(program)
    for x, wanted in (([1, 5, 2, 5, 0], 1), ([3, 1, 1, 1, 4], 4), ([2, 1, 1, 1, 2], 0)):
        (place,) = interpreter.run(program, [np.array(x, np.float32)])
        assert place.tolist() == [wanted]


def test_an_element_outside_its_tensor_is_an_error_of_the_interpreter() -> None:
    with pytest.raises(GeneralFailure, match="element 5 of 5"):
        interpreter.run(largest(SIZE + 1), [np.zeros(SIZE, np.float32)])


WRONG: dict[str, Statement] = {
    "names one of the variables": Assign(99, identity(I32), (0,)),
    "assigns int32 to a variable of float32": Assign(1, identity(I32), (0,)),
    "takes": Assign(0, identity(I32), (1,)),
    "reads source 1": Load(1, 1, 0),
    "reads source -2": Load(1, -2, 0),
    "counts elements by float32": Load(1, 0, 1),
    "moves float32 to or from a variable of int32": Load(0, 0, 0),
    "moves int32 to or from a variable of float32": Store(0, 1),
    "depends on no bool": While((), 0, ()),
    "If depends on no bool": If(0, ()),
}


@pytest.mark.parametrize("fault", WRONG)
def test_the_checker_finds_a_wrong_statement(fault: str) -> None:
    with pytest.raises(BrokenProgram, match=fault):
        check(with_body(largest(), WRONG[fault]))


def test_the_checker_finds_a_wrong_statement_inside_another() -> None:
    program = largest()
    routine = program.kernels[0].routine
    assert routine is not None
    condition = routine.variables.index(BOOL)
    for outer in (While((Load(1, 7, 0),), condition, ()), If(condition, (Load(1, 7, 0),))):
        with pytest.raises(BrokenProgram, match="reads source 7"):
            check(with_body(program, outer))


def test_the_checker_finds_wrong_tensors() -> None:
    program = largest()
    (kernel,) = program.kernels
    written = kernel.write.tensor
    assert kernel.routine is not None
    for reads, fault in (((written,), "which it writes, among"), ((99,), "reads tensor 99")):
        with pytest.raises(BrokenProgram, match=fault):
            check(with_body(program, *kernel.routine.body, reads=reads))
    with pytest.raises(BrokenProgram, match="has loops, reads or a border"):
        check(replace(program, kernels=(replace(kernel, loops=(2,)),)))
    tensors = list(program.tensors)
    tensors[written] = replace(tensors[written], shape=(1, 1))
    kernels = (replace(kernel, write=Access(written, (Position(), Position()))),)
    with pytest.raises(BrokenProgram, match="which is no vector"):
        check(replace(program, tensors=tuple(tensors), kernels=kernels))
    with pytest.raises(BrokenProgram, match="has written"):
        check(replace(program, kernels=(kernel, kernel)))


def test_a_routine_that_reads_what_is_written_after_it_is_found() -> None:
    build = Kernels()
    x, y, words = build.tensor((4,)), build.tensor((4,)), build.tensor((1,), I32)
    routine = Routine((I32, F32), (y,), (Load(1, 0, 0),))
    build.kernels.append(
        Kernel("early", (), (), identity(I32), identity(I32), Access(words, (Position(),)),
               sums=I32, routine=routine)
    )  # fmt: skip
    build.kernel("copy", [build.whole(x)], identity(F32), y)
    with pytest.raises(BrokenProgram, match="before it is written"):
        check(build.program([x], [words, y]))


def test_kernels_are_not_fused_with_a_routine() -> None:
    program = largest()
    words = program.outputs[0]
    tensors = (*program.tensors, program.tensors[words])
    copy = Kernel(
        "copy", (1,), (Access(words, along(0)),), identity(I32), identity(I32),
        Access(len(tensors) - 1, along(0)), sums=I32,
    )  # fmt: skip
    kernels = (*program.kernels, copy)
    longer = replace(program, tensors=tensors, kernels=kernels, outputs=(len(tensors) - 1,))
    check(longer)
    fused = fuse(longer)
    assert [k.name for k in fused.kernels] == ["routine", "copy"]
    assert interpreter.run(fused, [np.arange(5, dtype=np.float32)])[0].tolist() == [4]


def test_a_routine_is_printed_as_statements() -> None:
    text = show(largest(), "operation {}".format, ["routine"])
    kernel = text.partition("kernel 0: ")[2]
    assert (
        kernel
        == """\
routine, by template routine
    writes t1: int32 [1]
    v0 = 0
    v1 = t0[v0]
    v2 = 0
    v3 = 1
    v4 = 5
    loop:
        v5 = v3 < v4
        leave unless v5
        v6 = t0[v3]
        v7 = v1 < v6
        if v7:
            v1 = v6
            v2 = v3
        v3 = v3 + 1
    t1[v0] = v2
"""
    )
