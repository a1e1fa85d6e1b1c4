"""Programs: order, freeing, interruption, and what becomes of errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from penstock.drivers.reference import program
from penstock.drivers.reference.program import Instruction, Program, compile_subgraph
from penstock.errors import (
    Cancelled,
    GeneralFailure,
    InvalidArgument,
    MissedDeadlineTransient,
    ResourceExhaustedTransient,
)
from penstock.hal import CancelToken, ExecutionConfig
from penstock.ir import DType, Model, ModelBuilder, NDArray, Operand
from tests.unit.ir_core.samples import branching_twice

ONE = np.ones(2, np.float32)


def program_of(kernel: object) -> Program:
    instruction = Instruction(kernel, (0,), (1,), (0,), "operation 0 (ADD, 'sum')")  # type: ignore[arg-type]  # a stand-in
    return Program({}, (instruction,), (0,), (1,))


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ValueError("shapes"), GeneralFailure),
        (IndexError("out of range"), GeneralFailure),
        (ZeroDivisionError("division"), GeneralFailure),
        (MemoryError(), ResourceExhaustedTransient),
        (InvalidArgument("mine"), InvalidArgument),
        (Cancelled("mine"), Cancelled),
    ],
)
def test_an_error_becomes_a_driver_error_with_its_place(
    raised: Exception, expected: type[Exception]
) -> None:
    def kernel(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        raise raised

    with pytest.raises(expected) as caught:
        program_of(kernel).run([ONE], ExecutionConfig())
    if expected is not type(raised):
        assert "operation 0 (ADD, 'sum')" in str(caught.value)


def test_interruptions_are_noticed_between_operations() -> None:
    token = CancelToken()

    def kernel(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        token.set()
        return [a for a in inputs if a is not None]

    once = program_of(kernel)
    twice = Program(
        {}, (*once.instructions, Instruction(kernel, (1,), (2,), (1,), "second")), (0,), (2,)
    )
    with pytest.raises(Cancelled):
        twice.run([ONE], ExecutionConfig(cancel=token))
    with pytest.raises(MissedDeadlineTransient):
        once.run([ONE], ExecutionConfig(deadline_ns=1))


def test_operands_are_freed_after_their_last_use() -> None:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (2,), "x")
    (a,) = builder.operation("RELU", [x], [Operand(DType.FLOAT32, (2,))])
    (b,) = builder.operation("ADD", [a, x], [Operand(DType.FLOAT32, (2,))])
    (c,) = builder.operation("ADD", [b, b], [Operand(DType.FLOAT32, (2,))])
    program = compile_subgraph(builder.build([b, c]), 0)
    assert [set(i.frees) for i in program.instructions] == [set(), {a, x}, set()]
    results = program.run([ONE], ExecutionConfig())
    np.testing.assert_array_equal(results, [ONE * 2, ONE * 4])


def test_subgraphs_are_compiled_once_however_often_they_are_entered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[int] = []

    def compile_one(model: Model, index: int, *rest: Any, **more: Any) -> Program:
        compiled.append(index)
        return compile_subgraph(model, index, *rest, **more)

    monkeypatch.setattr(program, "compile_subgraph", compile_one)
    compile_one(branching_twice(12), 0)
    assert sorted(compiled) == list(range(13))
