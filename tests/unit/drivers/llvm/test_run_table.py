"""Long rows of bytes are looked up in a table of the results for all bytes."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.compiler import interpreter, pipeline
from penstock.compiler.legalise import legalise
from penstock.compiler.program import Program
from penstock.drivers.llvm.emit import run_table
from penstock.drivers.llvm.emit.flat import loops_of
from penstock.drivers.llvm.isa import RECORDS, Isa
from penstock.ir import DType, Quantization
from tests.support_generated import Runner, sets_here
from tests.unit.compiler.legalise.legal_models import Given, layer

WIDE = RECORDS["avx512-vnni"]


def softmax(dtype: DType, shape: tuple[int, ...], isa: Isa) -> tuple[Program, list[np.ndarray]]:
    """The program of a softmax, and inputs with a row of equal values."""
    rng = np.random.default_rng(3)
    bounds = np.iinfo(dtype.numpy)
    array = rng.integers(bounds.min, bounds.max + 1, shape).astype(dtype.numpy)
    array[-1] = array[-1, 0]
    made = Quantization((1 / 256,), (bounds.min if dtype is DType.INT8 else 0,))
    data = Given(array, (0.07,), 3, fed=True)
    model = layer("SOFTMAX", [data], (dtype, made), {"beta": 1.0})
    return pipeline.upto(legalise(model), "tabulate", isa.target), [array]


@pytest.mark.parametrize("isa", sets_here(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8], ids=lambda d: d.value)
@pytest.mark.parametrize("shape", [(2, 513), (1, 1001), (3, 640)])
def test_shares_of_long_rows_are_right(isa: Isa, dtype: DType, shape: tuple[int, ...]) -> None:
    program, inputs = softmax(dtype, shape, isa)
    runner = Runner(program, isa)
    (got,), (wanted,) = runner(inputs), interpreter.run(program, inputs)
    runner.close()
    np.testing.assert_array_equal(got, wanted)


def test_only_long_rows_are_looked_up() -> None:
    for length, long in ((run_table.LEAST, True), (run_table.LEAST - 1, False)):
        program, _ = softmax(DType.INT8, (2, length), WIDE)
        kernel = program.kernels[-1]
        loops = loops_of(program, kernel, WIDE.width)
        found = run_table.varying(program, kernel, loops, len(loops.outer) - 1, WIDE)
        assert (found is not None) == long


def test_lookups_that_another_byte_would_put_outside_are_not() -> None:
    program, _ = softmax(DType.INT8, (1, 1001), WIDE)
    sums = next(k for k in program.kernels if k.name == "sums")
    assert not run_table._reads_inside(program, sums.body)
    assert run_table._reads_inside(program, program.kernels[-1].body)
