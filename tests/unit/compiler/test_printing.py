"""Programs and plans of memory as text."""

from __future__ import annotations

import re

from penstock.compiler.expression import Scope, identity
from penstock.compiler.memory import plan
from penstock.compiler.outputs import with_own_outputs
from penstock.compiler.printing import operation_names, show, show_plan
from penstock.compiler.program import Access, Border, Kernel, Position, Program, Tensor, along
from penstock.ir import DType
from tests.support_compiler import TARGETS, stages
from tests.unit.compiler.models import small_network

F32 = DType.FLOAT32


def pooled_sum() -> Program:
    """y[i] = (the sum of x[2 * i - 1 + k], 0 outside) * scale[order[i]]."""
    tensors = (
        Tensor(F32, (6,), "x"), Tensor(F32, (4,), "scale"), Tensor(DType.INT32, (3,), "order"),
        Tensor(F32, (3,), "y"), Tensor(F32, (3, 1), "column"),
    )  # fmt: skip
    scope = Scope(F32, F32)
    kernel = Kernel(
        "pool", (3,), (Access(0, (Position(-1, ((0, 2), (1, 1))),), 0.0),), identity(F32),
        scope.finish((scope.argument(0) * scope.argument(1)).apply("maximum", 0.0)),
        Access(3, along(0)), (2,), "sum", F32, (Access(1, (Position(0, ((0, 1),), 2),)),), (4,),
    )  # fmt: skip
    arrays = {1: F32.numpy.type([1, 2, 3, 4]), 2: DType.INT32.numpy.type([3, 0, 1])}
    return Program(tensors, arrays, (kernel,), (0,), (4,), {4: 3})


def test_kernel_is_printed_loop_by_loop() -> None:
    text = show(pooled_sum(), "operation {} of the test".format, ["nest"])
    assert (
        text
        == """\
input t0: float32 [6] 'x'
output t4: float32 [3, 1] 'column' = t3
constant c1: float32 [4] 'scale'
constant c2: int32 [3] 'order'

kernel 0: pool, by template nest
    of operation 4 of the test
    writes t3: float32 [3] 'y'
    for i0 < 3:
        sum as float32 over i1 < 2:
            x0 = t0[2 * i0 + i1 - 1], or 0.0 outside
            sum x0
        e0 = c1[c2[i0]]
        w0 = sum * e0
        w1 = maximum(w0, 0.0)
        t3[i0] = w1
"""
    )


def test_border_is_printed_with_its_value() -> None:
    axes = (Position(1, ((0, 1),)), Position(0, ((1, 1),)))
    kernel = Kernel(
        "copy", (2, 3), (Access(0, along(0, 1)),), identity(F32), identity(F32), Access(1, axes),
        border=Border((1, 0), (2, 0), 0.5),
    )  # fmt: skip
    program = Program((Tensor(F32, (2, 3)), Tensor(F32, (5, 3))), {}, (kernel,), (0,), (1,), {})
    assert "    and 0.5 in its border of [1 + 2, 0 + 0]\n" in show(program)


def test_flags_are_printed_with_their_messages() -> None:
    program = Program((Tensor(DType.BOOL, (1,), "bad"),), {}, (), (), (0,), {}, ("out of reach",))
    assert show(program) == "flag t0: the run fails: out of reach\n"


def test_operations_are_printed_by_type_and_name() -> None:
    model = small_network()
    for target in TARGETS:
        for _, program in stages(model, target):
            text = show(program, operation_names(model))
            for number, operation in enumerate(model.operations):
                named = f"of operation {number} ({operation.key}, '{operation.key}_{number}')"
                # A reshape is an alias, and no kernel.
                assert (named in text) == (operation.key != "RESHAPE")
            assert text.count("\nkernel ") == len(program.kernels)


def test_equal_models_have_equal_texts() -> None:
    texts = [
        [show(program) for _, program in stages(small_network(), target)]
        for target in (*TARGETS, *TARGETS)
    ]
    assert texts[:2] == texts[2:]
    assert texts[0][3:] != texts[1][3:]


def test_plan_is_printed_by_offset() -> None:
    *_, (_, program) = stages(small_network(), TARGETS[0])
    planned = plan(with_own_outputs(program))
    first, *rows = show_plan(planned).splitlines()
    assert first == f"arena of {planned.size} bytes"
    offsets = [int(row.split()[0]) for row in rows]
    assert sorted(planned.offsets.values()) == offsets
    assert all(re.search(r"to +\d+  kernels \d+ to \d+  t\d+: \w+ \[", row) for row in rows)
