"""Floats that are clamped before they become integers are converted without checks."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from penstock.compiler import interpreter
from penstock.compiler.expression import Scope, Value, identity
from penstock.compiler.program import Access, Kernel, Program, Tensor, along
from penstock.drivers.llvm.emit.ranges import is_whole
from penstock.drivers.llvm.isa import Isa
from penstock.ir import DType
from tests.support_generated import Runner, sets_here

F32, I8, U8, I32 = DType.FLOAT32, DType.INT8, DType.UINT8, DType.INT32


def clamped(x: Value) -> Value:
    return x.apply("maximum", -20.0).apply("minimum", 250.0)


def keeps_nan(x: Value) -> Value:
    return x.clamp(-20.0, 250.0)


CASES: dict[str, tuple[Callable[[Value], Value], bool]] = {
    "clamped": (clamped, True),
    "moved": (lambda x: clamped(x).apply("round_away") - 4.5, True),
    "below": (lambda x: x.apply("minimum", 9.0), False),
    "far": (lambda x: clamped(x) + 3e9, False),
    "maybe NaN": (keeps_nan, False),
    "anything": (lambda x: x + 1.0, False),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("isa", sets_here(), ids=lambda isa: isa.name)
def test_conversions_of_any_float_are_those_of_the_interpreter(isa: Isa, name: str) -> None:
    values = np.array([0, -3.7, 7.2, 1e20, -1e20, math.inf, -math.inf, math.nan], np.float32)
    array = np.resize(values, 70)
    for made in (I8, U8, I32):
        scope = Scope(F32)
        body = scope.finish(CASES[name][0](scope.argument(0)).cast(made))
        kernel = Kernel(
            "convert", (70,), (Access(0, along(0)),), body, identity(made), Access(1, along(0)),
            sums=made,
        )  # fmt: skip
        program = Program((Tensor(F32, (70,)), Tensor(made, (70,))), {}, (kernel,), (0,), (1,), {})
        runner = Runner(program, isa)
        (got,), (wanted,) = runner([array]), interpreter.run(program, [array])
        runner.close()
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("name", CASES)
def test_whole_numbers_are_found_by_their_expression(name: str) -> None:
    scope = Scope(F32)
    body = scope.finish(CASES[name][0](scope.argument(0)))
    assert is_whole(body, body.result, I8) == CASES[name][1]
    assert not is_whole(body, body.result, DType.INT64)
    assert not is_whole(body, body.result, DType.UINT32)
