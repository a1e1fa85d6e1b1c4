"""Programs: errors, interruptions, memory limits, and kernels by module."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import penstock
from penstock import errors, knobs
from penstock.drivers.reference import ReferenceDevice, program
from penstock.drivers.reference.index import MODULES
from penstock.drivers.reference.kernel import KERNELS, Kernel, kernel
from penstock.drivers.reference.program import (
    Instruction,
    Program,
    compile_entered,
    compile_subgraph,
    examine,
)
from penstock.hal import CancelToken, ExecutionConfig
from penstock.ir import DType, Model, ModelBuilder, NDArray, Operand, Quantization
from penstock.memory.limits import MIB, check_bytes, most_bytes
from tests.support_programs import run_python
from tests.unit.ir_core.samples import branching_twice

ONE = np.ones(2, np.float32)


def program_of(kernel: object) -> Program:
    instruction = Instruction(kernel, (0,), (1,), (0,), "operation 0 (ADD, 'sum')")  # type: ignore[arg-type]  # a stand-in
    return Program({}, (instruction,), (0,), (1,))


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ValueError("shapes"), errors.GeneralFailure),
        (IndexError("out of range"), errors.GeneralFailure),
        (ZeroDivisionError("division"), errors.GeneralFailure),
        (MemoryError(), errors.ResourceExhaustedTransient),
        (errors.InvalidArgument("mine"), errors.InvalidArgument),
        (errors.Cancelled("mine"), errors.Cancelled),
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
    with pytest.raises(errors.Cancelled):
        twice.run([ONE], ExecutionConfig(cancel=token))
    with pytest.raises(errors.MissedDeadlineTransient):
        once.run([ONE], ExecutionConfig(deadline_ns=1))


def test_operands_are_freed_after_their_last_use() -> None:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (2,), "x")
    (a,) = builder.operation("RELU", [x], [Operand(DType.FLOAT32, (2,))])
    (b,) = builder.operation("ADD", [a, x], [Operand(DType.FLOAT32, (2,))])
    (c,) = builder.operation("ADD", [b, b], [Operand(DType.FLOAT32, (2,))])
    model = builder.build([b, c])
    program = compile_subgraph(model, 0, examine(model, 0, compile_entered(model, 0)))
    assert [set(i.frees) for i in program.instructions] == [set(), {a, x}, set()]
    results = program.run([ONE], ExecutionConfig())
    np.testing.assert_array_equal(results, [ONE * 2, ONE * 4])


def test_subgraphs_are_compiled_once_however_often_they_are_entered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[int] = []

    def compile_one(model: Model, index: int, kernels: Sequence[Kernel | str]) -> Program:
        compiled.append(index)
        return compile_subgraph(model, index, kernels)

    monkeypatch.setattr(program, "compile_subgraph", compile_one)
    compile_entered(branching_twice(12), 0)
    assert sorted(compiled) == list(range(1, 13))


STEP = Quantization((0.5,), (0,))


def test_inconsistent_weights_are_a_reason_not_an_exception() -> None:
    """An integer LSTM, the recurrent weights of three gates of which are vectors."""
    builder = ModelBuilder()

    def weights(*shape: int) -> int:
        return builder.constant(np.zeros(shape, np.int8), "", STEP)

    data = builder.input(DType.INT8, (2, 3), "data", STEP)
    states = [
        builder.input(DType.INT8, (2, 5), "output", STEP),
        builder.input(DType.INT16, (2, 4), "cell", Quantization((2.0**-11,), (0,))),
    ]
    recurrent = [weights(5), weights(4, 5), weights(5), weights(5)]
    biases = [builder.constant(np.zeros(4, np.int32)) for _ in range(4)]
    inputs = [
        *(data, *[weights(4, 3) for _ in range(4)], *recurrent, None, None, None, *biases),
        *(weights(5, 4), None, *states, None, None, None, None),
    ]
    made = builder.operation(
        "LSTM",
        inputs,
        [(DType.INT8, (2, 5), STEP)],
        {"intermediate_scales": (0.1,) * 5, "intermediate_zero_points": (0,) * 5},
    )
    (support,) = ReferenceDevice().supported_operations(builder.build(outputs=made))
    assert not support.supported
    assert support.reason.startswith("not computable as it stands: ")


def filled(shape: np.ndarray | None = None) -> Model:
    """FILL to a constant *shape*, or to one that a run gives."""
    builder = ModelBuilder()
    dims = builder.input(DType.INT32, (2,)) if shape is None else builder.constant(shape)
    value = builder.constant(np.array(1, np.float32))
    return builder.build(builder.operation("FILL", [dims, value], [(DType.FLOAT32, None)]))


def test_memory_limit_is_half_of_the_memory_by_default() -> None:
    assert most_bytes() >= 256 * MIB
    with knobs.override(tensor_limit_mib=3):
        assert most_bytes() == 3 * MIB


def test_memory_limit_error_names_the_knob() -> None:
    with (
        knobs.override(tensor_limit_mib=1),
        pytest.raises(errors.LimitExceeded, match=r"FILL takes 2097152 bytes.*tensor_limit_mib"),
    ):
        check_bytes(2 * MIB, "FILL")


def test_a_large_output_is_refused_before_the_run() -> None:
    model = filled(np.array([1 << 15, 1 << 15], np.int32))
    with (
        knobs.override(tensor_limit_mib=64),
        pytest.raises(errors.PlacementError, match="tensor_limit_mib"),
    ):
        penstock.compile(model, devices=["reference"])


def test_a_large_output_of_unknown_shape_fails_the_run() -> None:
    with (
        knobs.override(tensor_limit_mib=64),
        penstock.compile(filled(), devices=["reference"], isolate=False) as compiled,
    ):
        (small,) = compiled(np.array([2, 3], np.int32))
        np.testing.assert_array_equal(small, np.ones((2, 3), np.float32))
        with pytest.raises(errors.GeneralFailure, match="tensor_limit_mib"):
            compiled(np.array([1 << 15, 1 << 15], np.int32))


def test_no_row_has_two_builders() -> None:
    assert len(" ".join(MODULES.values()).split()) == len(KERNELS)
    with pytest.raises(ValueError, match="ADD has a builder already"):
        kernel("ADD")(KERNELS["ADD"])
    assert KERNELS.get("NO_SUCH_OPERATION") is None


def test_only_the_modules_of_a_models_operations_are_imported() -> None:
    code = (
        "import sys, numpy as np, penstock\n"
        "from penstock.ir import DType, ModelBuilder\n"
        "b = ModelBuilder()\n"
        "x = b.input(DType.FLOAT32, (2, 2), 'x')\n"
        "model = b.build(b.operation('RELU', [x], [(DType.FLOAT32, (2, 2))]))\n"
        "penstock.compile(model, devices=['reference'], cache=False)(np.zeros((2, 2), "
        "np.float32))\n"
        "from penstock.drivers.reference.index import MODULES\n"
        "prefix = 'penstock.drivers.reference.'\n"
        "print([m for m in MODULES if prefix + m in sys.modules], 'ml_dtypes' in sys.modules)\n"
    )
    done = run_python("-c", code, check=True)
    assert done.stdout.strip() == "['elements.relu'] False"
