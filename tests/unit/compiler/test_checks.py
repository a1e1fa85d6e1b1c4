"""The checker accepts sound programs and finds every defect that is put into one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from penstock.compiler.checks import BrokenProgram, check, check_plan
from penstock.compiler.checks.elements import along_axis, border_of, reached, spread
from penstock.compiler.expression import Scope, Step, identity
from penstock.compiler.memory import ALIGNMENT, Plan, plan
from penstock.compiler.outputs import with_own_outputs
from penstock.compiler.program import Access, Border, Kernel, Position, Program, Tensor, along
from penstock.compiler.target import Target
from penstock.ir import DType
from tests.support_compiler import TARGETS, stages
from tests.unit.compiler.models import small_network

F32, INT8, INT32 = DType.FLOAT32, DType.INT8, DType.INT32


def programs() -> list[tuple[str, Program]]:
    """The small network after each pass, for both targets."""
    model = small_network()
    return [
        (f"{name} for {target.bytes} bytes", program)
        for target in TARGETS
        for name, program in stages(model, target)
    ]


def with_kernel(program: Program, index: int, kernel: Kernel) -> Program:
    kernels = list(program.kernels)
    kernels[index] = kernel
    return replace(program, kernels=tuple(kernels))


def shifted(access: Access, axis: int, distance: int) -> Access:
    axes = list(access.axes)
    axes[axis] = replace(axes[axis], offset=axes[axis].offset + distance)
    return replace(access, axes=tuple(axes))


def without_a_kernel(program: Program) -> Iterator[Program]:
    for index in range(len(program.kernels)):
        kept = [k for i, k in enumerate(program.kernels) if i != index]
        yield replace(program, kernels=tuple(kept))


def with_a_kernel_twice(program: Program) -> Iterator[Program]:
    for kernel in program.kernels:
        yield replace(program, kernels=(*program.kernels, kernel))


def with_a_shifted_write(program: Program) -> Iterator[Program]:
    for index, kernel in enumerate(program.kernels):
        for axis in range(len(kernel.write.axes)):
            for distance in (-1, 1):
                moved = shifted(kernel.write, axis, distance)
                yield with_kernel(program, index, replace(kernel, write=moved))


def with_another_border(program: Program) -> Iterator[Program]:
    for index, kernel in enumerate(program.kernels):
        if (border := kernel.border) is None:
            continue
        for wrong in (
            None,
            replace(border, before=tuple(n + 1 for n in border.before)),
            replace(border, behind=(*border.behind[:-1], border.behind[-1] + 1000)),
            replace(border, behind=border.behind[1:]),
            replace(border, value=0.5),
        ):
            yield with_kernel(program, index, replace(kernel, border=wrong))


def with_a_shorter_loop(program: Program) -> Iterator[Program]:
    for index, kernel in enumerate(program.kernels):
        for loop, size in enumerate(kernel.loops):
            loops = (*kernel.loops[:loop], size - 1, *kernel.loops[loop + 1 :])
            yield with_kernel(program, index, replace(kernel, loops=loops))


def with_a_longer_reduction(program: Program) -> Iterator[Program]:
    for index, kernel in enumerate(program.kernels):
        for loop, size in enumerate(kernel.reduced):
            reduced = (*kernel.reduced[:loop], size + 1000, *kernel.reduced[loop + 1 :])
            unfilled = tuple(replace(a, fill=None) for a in kernel.reads)
            yield with_kernel(program, index, replace(kernel, reads=unfilled, reduced=reduced))


def in_another_order(program: Program) -> Iterator[Program]:
    """A kernel that others read comes last."""
    read = {program.root(t) for k in program.kernels for t in k.tensors_read}
    for index, kernel in enumerate(program.kernels):
        if program.root(kernel.write.tensor) in read:
            others = program.kernels[:index] + program.kernels[index + 1 :]
            yield replace(program, kernels=(*others, kernel))


def with_another_table_of_positions(program: Program) -> Iterator[Program]:
    tables = {p.through for k in program.kernels for a in k.reads for p in a.axes} - {None}
    for table in tables:
        if table is not None:
            for value in (-1, 1000):
                constants = dict(program.constants)
                constants[table] = np.full_like(constants[table], value)
                yield replace(program, constants=constants)


def with_another_table_of_values(program: Program) -> Iterator[Program]:
    """Lookups read a tensor that is no table."""
    wrong = program.inputs[0]
    for index, kernel in enumerate(program.kernels):
        for field in ("body", "finish"):
            expression = getattr(kernel, field)
            for at, step in enumerate(expression.steps):
                if step.operation == "lookup":
                    steps = list(expression.steps)
                    steps[at] = replace(step, value=wrong)
                    changed: Any = {field: replace(expression, steps=tuple(steps))}
                    yield with_kernel(program, index, replace(kernel, **changed))


def with_another_type(program: Program) -> Iterator[Program]:
    used = {a.tensor for k in program.kernels for a in (*k.accesses, k.write)}
    for index in used:
        tensors = list(program.tensors)
        tensors[index] = replace(tensors[index], dtype=DType.INT16)
        yield replace(program, tensors=tuple(tensors))


def with_a_step_of_another_type(program: Program) -> Iterator[Program]:
    for index, kernel in enumerate(program.kernels):
        steps = list(kernel.finish.steps)
        if steps and steps[-1].operation != "lookup":
            steps[-1] = replace(steps[-1], dtype=DType.FLOAT64)
            finish = replace(kernel.finish, steps=tuple(steps))
            yield with_kernel(program, index, replace(kernel, finish=finish))


def with_another_sum(program: Program) -> Iterator[Program]:
    for index, kernel in enumerate(program.kernels):
        yield with_kernel(program, index, replace(kernel, sums=DType.FLOAT64))


def with_aliases_in_a_circle(program: Program) -> Iterator[Program]:
    for alias, source in program.aliases.items():
        yield replace(program, aliases={**program.aliases, source: alias})


def with_an_alias_of_other_elements(program: Program) -> Iterator[Program]:
    for alias in program.aliases:
        yield replace(program, aliases={**program.aliases, alias: program.inputs[0]})


Mutation = Callable[[Program], Iterator[Program]]

MUTATIONS: list[Mutation] = [
    without_a_kernel,
    with_a_kernel_twice,
    with_a_shifted_write,
    with_another_border,
    with_a_shorter_loop,
    with_a_longer_reduction,
    in_another_order,
    with_another_table_of_positions,
    with_another_table_of_values,
    with_another_type,
    with_a_step_of_another_type,
    with_another_sum,
    with_aliases_in_a_circle,
    with_an_alias_of_other_elements,
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.__name__)
def test_checker_finds_every_mutant(mutation: Mutation) -> None:
    found: list[str] = []
    missed: list[tuple[str, int]] = []
    for name, program in programs():
        check(program)
        for number, mutant in enumerate(mutation(program)):
            try:
                check(mutant)
            except BrokenProgram as broken:
                found.append(str(broken))
            else:
                missed.append((name, number))
    assert missed == []
    assert found != []
    named = r"kernel \d+ \(|tensor \d+|alias \d+"
    assert [text for text in found if not re.search(named, text)] == []


def last_plan(target: Target) -> Plan:
    *_, (_, program) = stages(small_network(), target)
    return plan(with_own_outputs(program))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.bytes)
def test_checker_finds_tensors_that_share_bytes(target: Target) -> None:
    """Every tensor, moved to where another one lies that lives at the same time."""
    planned = last_plan(target)
    check_plan(planned)
    lives = {
        t: [i for i, k in enumerate(planned.program.kernels) if t in touched(planned.program, k)]
        for t in planned.offsets
    }
    mutants = 0
    for tensor in planned.offsets:
        for other, offset in planned.offsets.items():
            begin, end = min(lives[tensor]), max(lives[tensor])
            strictly = max(lives[other]) > begin and end > min(lives[other])
            if tensor != other and offset != planned.offsets[tensor] and strictly:
                mutants += 1
                moved = replace(planned, offsets={**planned.offsets, tensor: offset})
                with pytest.raises(BrokenProgram, match=r"lies over|of an arena of"):
                    check_plan(moved)
    assert mutants > 0


def touched(program: Program, kernel: Kernel) -> set[int]:
    return {program.root(t) for t in (*kernel.tensors_read, kernel.write.tensor)}


def test_checker_finds_offsets_outside_the_arena_and_between_alignments() -> None:
    planned = last_plan(TARGETS[0])
    for tensor, offset in planned.offsets.items():
        for wrong, message in (
            (offset + 1, "multiple of"),
            (-ALIGNMENT, "of an arena of"),
            (-(-planned.size // ALIGNMENT) * ALIGNMENT, "of an arena of"),
        ):
            with pytest.raises(BrokenProgram, match=message):
                check_plan(replace(planned, offsets={**planned.offsets, tensor: wrong}))
        left = {t: o for t, o in planned.offsets.items() if t != tensor}
        with pytest.raises(BrokenProgram, match="has no place"):
            check_plan(replace(planned, offsets=left))


def test_element_of_an_output_written_twice_is_named() -> None:
    tensors = (Tensor(F32, (2, 3), "x"), Tensor(F32, (2, 3), "y"))
    whole = Access(0, along(0, 1))
    kernel = Kernel("copy", (2, 3), (whole,), identity(F32), identity(F32), Access(1, along(0, 1)))
    again = replace(kernel, loops=(1, 1), write=Access(1, (Position(1), Position(2))))
    program = Program(tensors, {}, (kernel, again), (0,), (1,), {})
    with pytest.raises(BrokenProgram) as broken:
        check(program)
    assert str(broken.value) == (
        "kernel 1 (copy) writes element [1, 2] of tensor 1 'y' (float32 [2, 3]), which "
        "kernel 0 (copy) has written"
    )


def test_positions_that_a_run_computes_are_read_and_never_written() -> None:
    tensors = (Tensor(F32, (4,), "x"), Tensor(INT32, (3,), "at"), Tensor(F32, (3,), "y"))
    chosen = (Position(0, ((0, 1),), 1),)
    gather = Kernel(
        "gather", (3,), (Access(0, chosen),), identity(F32), identity(F32), Access(2, along(0))
    )
    program = Program(tensors, {}, (gather,), (0, 1), (2,), {})
    check(program)
    assert reached(program, Access(0, chosen), (3,)) == 0b1111
    scatter = replace(gather, reads=(Access(2, along(0)),), write=Access(0, chosen))
    with pytest.raises(BrokenProgram, match=r"writes tensor 0 .* at positions of a run"):
        check(replace(program, kernels=(scatter,), inputs=(1, 2), outputs=(0,)))


def test_flag_of_a_failure_is_one_boolean() -> None:
    tensors = (Tensor(DType.BOOL, (1,), "ok"), Tensor(F32, (1,), "real"))
    scope = Scope()
    truth = scope.finish(scope.constant(value=True, dtype=DType.BOOL))
    kernel = Kernel(
        "flag", (1,), (), truth, identity(DType.BOOL), Access(0, along(0)), sums=DType.BOOL
    )
    program = Program(tensors, {}, (kernel,), (1,), (1, 0), {}, ("an index outside",))
    check(program)
    for broken, message in (
        (replace(program, outputs=(0, 1)), r"flag tensor 1 'real' \(float32 \[1\]\) is not"),
        (replace(program, outputs=(), failures=("one", "two")), "2 messages of 0 outputs"),
    ):
        with pytest.raises(BrokenProgram, match=message):
            check(broken)


def test_elements_of_a_nest_are_those_that_its_points_reach() -> None:
    """Random nests: the set, counted by shifts, against every point by itself."""
    rng = np.random.default_rng(3)
    for _ in range(200):
        sizes = tuple(int(n) for n in rng.integers(1, 5, 3))
        axes = tuple(
            Position(20, tuple((loop, int(rng.integers(-2, 3)) or 1) for loop in range(3)))
            for _ in range(2)
        )
        program = Program((Tensor(F32, (60, 60)),), {}, (), (), (), {})
        points = np.indices(sizes).reshape(3, -1)
        places = [20 + sum(s * points[loop] for loop, s in a.steps) for a in axes]
        wanted = sum(1 << int(e) for e in np.unique(places[0] * 60 + places[1]))
        assert reached(program, Access(0, axes), sizes) == wanted
        assert along_axis(program, axes[0], sizes) == sorted({int(p) for p in places[0]})


def test_elements_of_a_border_are_those_that_are_not_in_the_middle() -> None:
    shape = (4, 3, 5)
    middle = np.zeros(shape, np.bool_)
    middle[1:3, :, 2:4] = True
    wanted = sum(1 << int(e) for e in np.flatnonzero(~middle))
    assert border_of(shape, Border((1, 0, 2), (1, 0, 1), 0)) == wanted


def test_spread_of_ten_million_elements_is_counted() -> None:
    row = spread(1, 3, 10_000)
    assert spread(row, 30_000, 1_000).bit_count() == 10_000_000


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (Step("sqrt", (0,), INT32), "sqrt"),
        (Step("add", (0, 1), F32), "makes float32 of"),
        (Step("rescale", (0, 1), INT32), "2 arguments instead of 3"),
        (Step("add", (0, 7), INT32), "computed after it"),
        (Step("plus", (0, 1), INT32), "no scalar operation"),
        (Step("constant", (), INT8, 128), "no int8"),
        (Step("select", (0, 1, 1), INT32), "makes int32 of"),
    ],
    ids=lambda value: value.operation if isinstance(value, Step) else "",
)
def test_wrong_step_of_an_expression_is_named(step: Step, message: str) -> None:
    scope = Scope(INT32, INT32)
    body = replace(scope.finish(scope.argument(0)), steps=(step,), result=2)
    tensors = tuple(Tensor(INT32, (4,), n) for n in "abc")
    reads = (Access(0, along(0)), Access(1, along(0)))
    kernel = Kernel("add", (4,), reads, body, identity(INT32), Access(2, along(0)), sums=INT32)
    with pytest.raises(BrokenProgram, match=message):
        check(Program(tensors, {}, (kernel,), (0, 1), (2,), {}))
