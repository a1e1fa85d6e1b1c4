"""The template of depthwise convolutions agrees with the interpreter on random layers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from penstock.compiler import interpreter
from penstock.compiler.program import Program
from penstock.drivers.llvm.emit.depthwise_bytes import Bytes
from penstock.drivers.llvm.emit.module import template_of
from penstock.drivers.llvm.isa import Instructions, Isa
from tests.support_generated import Runner, largest_difference, sets_here, values_for
from tests.support_products import layers


def check(program: Program, isa: Isa) -> None:
    """Compares a run, and one in shares. Layers whose finish the template does not compute are
    nests.
    """
    inputs = values_for(program)
    runner = Runner(program, isa)
    (got,), (shared,), (wanted,) = (
        runner(inputs), runner(inputs, 3), interpreter.run(program, inputs)
    )  # fmt: skip
    runner.close()
    assert largest_difference(got, wanted) <= (1e-5 if wanted.dtype.kind == "f" else 0)
    assert largest_difference(shared, got) == 0


@pytest.mark.parametrize("isa", sets_here(), ids=lambda isa: isa.name)
@settings(max_examples=40, deadline=None)
@given(program=layers(depthwise=True, is_float=False))
def test_bytes_agree_with_the_interpreter(isa: Isa, program: Program) -> None:
    check(program, isa)


@pytest.mark.parametrize("isa", sets_here(), ids=lambda isa: isa.name)
@settings(max_examples=25, deadline=None)
@given(program=layers(depthwise=True, is_float=False, rare=True))
def test_few_weights_that_are_too_large_are_multiplied_apart(isa: Isa, program: Program) -> None:
    layer = template_of(program, program.kernels[0], isa)
    if isinstance(layer, Bytes):
        wide = Instructions(isa).weight_type == np.int16
        assert layer.scale.surplus == 0
        assert bool(layer.apart) != wide
    check(program, isa)


@pytest.mark.parametrize("isa", sets_here(), ids=lambda isa: isa.name)
@settings(max_examples=25, deadline=None)
@given(program=layers(depthwise=True, is_float=True))
def test_floats_agree_with_the_interpreter(isa: Isa, program: Program) -> None:
    check(program, isa)
