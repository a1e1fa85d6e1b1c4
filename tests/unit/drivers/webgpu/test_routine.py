"""The template of routines against the interpreter."""

from __future__ import annotations

import numpy as np

from penstock.compiler import interpreter
from penstock.compiler.legalise.routines import RoutineWriter
from penstock.drivers.webgpu.emit.module import generate
from penstock.ir import DType
from tests.support_routines import routine_program
from tests.support_webgpu import needs_webgpu, run_program

SIZE = 40


@needs_webgpu
def test_a_routine_runs_its_statements_in_order() -> None:
    """Floats sorted by insertion, which nests loops and branches and reads what it wrote."""

    def write(w: RoutineWriter, given: int) -> None:
        with w.each(SIZE) as index:
            value, place = w.load(given, index), w.let(lambda i: i, index)

            def goes_on() -> object:
                inside = w.let(
                    lambda p: p.scope.compare("less", p.scope.constant(0, p.dtype), p), place
                )
                before = w.recall(
                    0, w.let(lambda p: (p - 1).apply("maximum", 0), place), DType.FLOAT32
                )
                larger = w.let(lambda v, b: v < b, value, before)
                return w.let(lambda a, b: a.apply("and", b), inside, larger)

            with w.loop(goes_on):  # type: ignore[arg-type]  # it returns a variable
                one = w.let(lambda p: p - 1, place)
                w.keep(0, place, w.recall(0, one, DType.FLOAT32))
                w.copy(place, one)
            w.keep(0, place, value)

    program = routine_program(DType.FLOAT32, SIZE, SIZE, write)
    given = np.random.default_rng(2).normal(0, 1, SIZE).astype(np.float32)
    (got,), (want,) = run_program(program, [given]), interpreter.run(program, [given])
    assert np.array_equal(got, want)
    assert np.array_equal(got.view(np.float32), np.sort(given))
    (call,) = generate(program).calls
    assert (call.template, call.groups) == ("routine", (1, 1, 1))
