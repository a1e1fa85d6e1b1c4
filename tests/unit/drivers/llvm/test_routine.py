"""Code of routines: values where control flow meets, elements within their tensors, and the flag
that stops a run.
"""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from penstock.compiler import interpreter
from penstock.compiler.legalise.routines import RoutineWriter, Variable
from penstock.compiler.memory import plan
from penstock.drivers.llvm.backend import compile_object
from penstock.drivers.llvm.emit.module import generate, template_of
from penstock.drivers.llvm.isa import RECORDS, Isa
from penstock.ir import DType, NDArray
from tests.support_generated import Runner, sets_here
from tests.support_llvm import needs_llvm
from tests.support_routines import routine_program

pytestmark = needs_llvm

I32, F32 = DType.INT32, DType.FLOAT32
SIZE = 12


def sort(w: RoutineWriter, given: int) -> None:
    """Copies the vector to memory, and sorts it there by insertion."""
    with w.each(SIZE) as index:
        value = w.load(given, index)
        at = w.let(lambda i: i - 1, index)
        other = w.number(0, value.dtype)

        def larger(at: Variable = at, other: Variable = other, value: Variable = value) -> Variable:
            inside = w.let(lambda a: a.apply("maximum", 0), at)
            w.copy(other, w.recall(0, inside, value.dtype))
            return w.let(
                lambda a, o, v: (a.scope.constant(0, I32) <= a).apply("and", v < o),
                at, other, value,
            )  # fmt: skip

        with w.loop(larger):
            w.keep(0, w.let(lambda a: a + 1, at), other)
            w.set(at, lambda a: a - 1, at)
        w.keep(0, w.let(lambda a: a + 1, at), value)


@pytest.mark.parametrize("dtype", [I32, F32])
@pytest.mark.parametrize("isa", sets_here(), ids=lambda i: i.name)
def test_code_does_what_the_interpreter_does(isa: Isa, dtype: DType) -> None:
    program = routine_program(dtype, SIZE, SIZE, sort)
    assert template_of(program, program.kernels[0], isa).name == "routine"
    x = np.random.default_rng(5).integers(-9, 9, SIZE).astype(dtype.numpy)
    runner = Runner(program, isa)
    (got,) = runner([x])
    runner.close()
    np.testing.assert_array_equal(got.view(dtype.numpy), np.sort(x))
    np.testing.assert_array_equal(got, interpreter.run(program, [x])[0])


@pytest.mark.parametrize("isa", RECORDS.values(), ids=lambda i: i.name)
def test_code_is_made_for_every_instruction_set(isa: Isa) -> None:
    text = generate(plan(routine_program(I32, SIZE, SIZE, sort)), isa).text
    assert compile_object(text, isa)


def test_elements_outside_their_tensor_are_the_nearest_inside() -> None:
    def write(w: RoutineWriter, given: int) -> None:
        for base, place in ((0, -7), (1, 99), (99, 0)):
            w.keep(base, w.number(0), w.load(given, w.number(place)))
        w.keep(-99, w.number(0), w.number(7))

    program, isa = routine_program(I32, 3, 4, write), sets_here()[0]
    runner = Runner(program, isa)
    (got,) = runner([np.array([1, 2, 3], np.int32)])
    runner.close()
    assert got.tolist() == [7, 3, 0, 1]


def test_a_loop_without_end_is_stopped() -> None:
    def write(w: RoutineWriter, given: int) -> None:
        zero = w.number(0)
        with w.loop(lambda: w.let(lambda x: x.scope.compare("equal", x, 1), w.load(given, zero))):
            w.keep(0, zero, zero)

    program, isa = routine_program(I32, 1, 1, write), sets_here()[0]
    runner = Runner(program, isa)

    def stop(flag: NDArray) -> None:
        flag[0] = 1

    timer = threading.Timer(0.05, stop, [runner.stop])
    timer.start()
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match="returned 1"):
        runner([np.array([1], np.int32)])
    assert 0.03 < time.monotonic() - begun < 10
    timer.join()
    runner.close()
