"""Fourier transforms as products, and complex numbers as their parts."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.compiler import interpreter
from penstock.compiler.legalise import judge, legalise
from penstock.driverkit.site import Refused, make_sites
from penstock.drivers.llvm.emit.cost import products
from penstock.drivers.llvm.emit.module import template_of
from penstock.drivers.llvm.isa import RECORDS, Isa
from penstock.ir import DType, Model, ModelBuilder, NDArray, infer_shapes
from tests.support_compiler import TARGETS, differences, reference, stages
from tests.support_generated import Runner, compiled, sets_here
from tests.support_llvm import needs_llvm

F32, C64 = DType.FLOAT32, DType.COMPLEX64
CLOSE = 2e-6
"""Of the largest result: sums of float32 in another order."""

FORMS = [
    ((2, 1, 64), (1, 64)),
    ((4, 128), (4, 128)),
    ((1, 8), (1, 8)),
    ((3, 1, 64), (1, 64)),
    ((2, 5, 9), (4, 8)),
    ((2, 3, 5), (8, 16)),
    ((7, 6), (2, 1)),
    ((2, 2, 4, 32), (4, 32)),
]


def transform(shape: tuple[int, ...], lengths: tuple[int, int], last: str | None) -> Model:
    """A transform, reshaped to a vector, and a part of its numbers."""
    builder = ModelBuilder()
    x = builder.input(F32, shape, "x")
    given = builder.constant(np.array(lengths, np.int32))
    (made,) = builder.operation("RFFT2D", [x, given], [(C64, None, None)])
    flat = builder.constant(np.array([-1], np.int32))
    (made,) = builder.operation("RESHAPE", [made, flat], [(C64, None, None)])
    if last is not None:
        (made,) = builder.operation(last, [made], [(F32, None, None)])
    return infer_shapes(builder.build([made]))


def signal(shape: tuple[int, ...]) -> NDArray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("last", ["COMPLEX_ABS", "REAL", "IMAG", None])
@pytest.mark.parametrize(("shape", "lengths"), FORMS)
def test_transforms_are_those_of_the_reference(
    shape: tuple[int, ...], lengths: tuple[int, int], last: str | None
) -> None:
    model, x = transform(shape, lengths, last), [signal(shape)]
    wanted = reference(model, x)
    for target in TARGETS:
        for name, program in stages(model, target):
            assert differences(wanted, interpreter.run(program, x), CLOSE) == [], name


@needs_llvm
@pytest.mark.parametrize("isa", sets_here(), ids=lambda i: i.name)
@pytest.mark.parametrize(("shape", "lengths"), FORMS)
def test_code_transforms_as_the_reference(
    shape: tuple[int, ...], lengths: tuple[int, int], isa: Isa
) -> None:
    for last in (None, "COMPLEX_ABS"):
        model, x = transform(shape, lengths, last), [signal(shape)]
        runner = Runner(compiled(model, isa), isa)
        assert differences(reference(model, x), runner(x), CLOSE) == []
        runner.close()


def test_a_transform_of_short_rows_is_one_product() -> None:
    isa = RECORDS["avx2"]
    program = compiled(transform((3, 1, 32), (1, 32), "COMPLEX_ABS"), isa)
    names = [(k.name, template_of(program, k, isa).name) for k in program.kernels]
    assert names == [("transform", "dense"), ("magnitude", "nest")]


def test_long_rows_are_multiplied_by_a_quarter_of_the_waves() -> None:
    isa = RECORDS["avx2"]
    program = compiled(transform((3, 1, 512), (1, 512), "COMPLEX_ABS"), isa)
    found = [k for k in program.kernels if template_of(program, k, isa).name == "dense"]
    assert len(found) == 4
    assert sum(products(k) for k in found) < 3 * 514 * 512 * 0.26


def test_complex_numbers_may_be_inputs_and_constants() -> None:
    values = (signal((2, 3)) + 1j * signal((2, 3))[::-1]).astype(np.complex64)
    for constant in (False, True):
        builder = ModelBuilder()
        x = builder.constant(values) if constant else builder.input(C64, (2, 3), "x")
        model = builder.build(builder.operation("COMPLEX_ABS", [x], [(F32, (2, 3), None)]))
        (got,) = interpreter.run(legalise(model), [] if constant else [values])
        np.testing.assert_allclose(got, np.abs(values), 2e-7)


def test_magnitudes_do_not_overflow() -> None:
    values = np.array([3e38 + 1e38j, 1e-40 + 1e-41j, 0], np.complex64)
    builder = ModelBuilder()
    x = builder.input(C64, (3,), "x")
    model = builder.build(builder.operation("COMPLEX_ABS", [x], [(F32, (3,), None)]))
    (got,) = interpreter.run(legalise(model), [values])
    np.testing.assert_allclose(got, np.abs(values), 1e-6)


def test_long_transforms_are_refused() -> None:
    model = transform((1, 4096), (1, 4096), None)
    with pytest.raises(Refused, match="a transform of this length"):
        judge(make_sites(model)[0])
