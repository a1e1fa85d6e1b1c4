"""Every defect has its class, and the message names the place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace

from penstock import ir
from penstock.errors import (
    CyclicModel,
    DuplicateWriter,
    IndexOutOfRange,
    InvalidAttribute,
    InvalidOperand,
    InvalidOperation,
    InvalidQuantization,
    InvalidSignature,
    LimitExceeded,
    ModelError,
    OffsetOutOfBounds,
    ShapeOverflow,
    UnknownOperator,
    UnwrittenOperand,
)
from penstock.testing.contract.cases import Case, every_case, looping
from penstock.testing.contract.mutations import model_mutations
from tests.unit.ir_core.samples import (
    F32,
    branching,
    branching_twice,
    counter,
    quantized,
    small,
    with_entry,
    with_operand,
    with_operation,
)

Defect = tuple[str, type[ModelError], str, Callable[[], ir.Model]]


def temporaries(count: int) -> tuple[ir.Operand, ...]:
    return tuple(ir.Operand(F32, (1,)) for _ in range(count))


def layer() -> ir.Model:
    b = ir.ModelBuilder()
    x, w = b.input(F32, (2, 4), "x"), b.constant(np.ones((3, 4), np.float32))
    return b.build(b.operation("FULLY_CONNECTED", [x, w], [(F32, (2, 3))]))


def changed_variable(**changes: object) -> ir.Model:
    model = counter()
    return replace(model, variables=(replace(model.variables[0], **changes),))


def recursive() -> ir.Model:
    model = branching()
    attributes = dict(model.operations[0].attributes)
    inner = replace(
        model.subgraphs[1],
        operands=(
            ir.Operand(ir.DType.BOOL, (), ir.Lifetime.SUBGRAPH_INPUT),
            ir.Operand(F32, (3,), ir.Lifetime.SUBGRAPH_INPUT),
            ir.Operand(F32, (3,), ir.Lifetime.SUBGRAPH_OUTPUT),
        ),
        inputs=(0, 1),
        outputs=(2,),
        operations=(ir.Operation("IF", (0, 1), (2,), ir.Attributes(attributes)),),
    )
    return replace(model, subgraphs=(model.subgraphs[0], inner, model.subgraphs[2]))


def test_subgraphs_may_enter_each_other_so_often() -> None:
    assert len(branching_twice(12).subgraphs) == 13


def entered_state() -> ir.Model:
    model = branching()
    with_state = replace(counter().entry, inputs=(0, 1))
    return replace(
        model,
        variables=counter().variables,
        subgraphs=(model.subgraphs[0], with_state, model.subgraphs[2]),
        pools=counter().pools,
    )


X, K, S, Y = range(4)

DEFECTS: tuple[Defect, ...] = (
    ("no subgraph", IndexOutOfRange, "main subgraph 0 of 0", lambda: ir.Model(())),
    ("main", IndexOutOfRange, "main subgraph 1 of 1", lambda: replace(small(), main=1)),
    (
        "input index",
        IndexOutOfRange,
        "input operand 9 of 4",
        lambda: with_entry(small(), inputs=(X, 9)),
    ),
    (
        "output index",
        IndexOutOfRange,
        "output operand -1",
        lambda: with_entry(small(), outputs=(Y, -1)),
    ),
    (
        "input twice",
        DuplicateWriter,
        "listed as input twice",
        lambda: with_entry(small(), inputs=(X, X)),
    ),
    (
        "input not listed",
        InvalidOperand,
        "not listed as input",
        lambda: with_entry(small(), inputs=()),
    ),
    (
        "temporary as input",
        InvalidOperand,
        "lifetime temporary and is listed as input",
        lambda: with_entry(small(), inputs=(X, S)),
    ),
    (
        "output not listed",
        InvalidOperand,
        "not listed as output",
        lambda: with_entry(small(), outputs=()),
    ),
    (
        "temporary as output",
        InvalidOperand,
        "lifetime temporary and is listed as output",
        lambda: with_entry(small(), outputs=(Y, S)),
    ),
    (
        "an operation's input",
        IndexOutOfRange,
        "operation 0 (ADD): operand 4 of 4",
        lambda: with_operation(small(), 0, inputs=(X, 4)),
    ),
    (
        "an operation's output",
        IndexOutOfRange,
        "operation 0 (ADD): operand -1",
        lambda: with_operation(small(), 0, outputs=(-1,)),
    ),
    (
        "order",
        CyclicModel,
        "operation 0 (RELU): reads operand 2 (), which is only written later",
        lambda: with_entry(small(), operations=small().operations[::-1]),
    ),
    ("self", CyclicModel, "only written later", lambda: with_operation(small(), 0, inputs=(X, S))),
    (
        "nobody writes",
        UnwrittenOperand,
        "operation 0 (RELU): reads operand 2 (), which nothing writes",
        lambda: with_entry(small(), operations=small().operations[1:]),
    ),
    (
        "output unwritten",
        UnwrittenOperand,
        "output operand 3 () is never written",
        lambda: with_entry(small(), operations=small().operations[:1]),
    ),
    (
        "two writers",
        DuplicateWriter,
        "operation 2 (RELU): writes operand 3 (), which has another writer",
        lambda: with_entry(small(), operations=(*small().operations, small().operations[1])),
    ),
    (
        "input written",
        DuplicateWriter,
        "operation 0 (ADD): writes operand 0 (x)",
        lambda: with_operation(small(), 0, outputs=(X,)),
    ),
    (
        "constant written",
        DuplicateWriter,
        "which is a constant_pool",
        lambda: with_operation(small(), 0, outputs=(K,)),
    ),
    (
        "unknown operation",
        UnknownOperator,
        "subgraph 0, operation 0 (NO_SUCH): 'NO_SUCH' is not an operation",
        lambda: with_operation(small(), 0, type="NO_SUCH"),
    ),
    (
        "too few inputs",
        InvalidOperation,
        "operation 0 (ADD): ADD needs input 1 (b)",
        lambda: with_operation(small(), 0, inputs=(X,)),
    ),
    (
        "too many inputs",
        InvalidOperation,
        "takes 2 inputs at most, not 3",
        lambda: with_operation(small(), 0, inputs=(X, K, X)),
    ),
    (
        "no output",
        InvalidOperation,
        "needs output 0",
        lambda: with_operation(small(), 0, outputs=()),
    ),
    (
        "omitted but required",
        InvalidOperation,
        "needs input 1 (b)",
        lambda: with_operation(
            with_entry(
                small(), operands=(*small().operands, ir.Operand(F32, (), ir.Lifetime.NO_VALUE))
            ),
            0,
            inputs=(X, 4),
        ),
    ),
    (
        "types disagree",
        InvalidOperation,
        "is int32, where float32 is needed",
        lambda: with_operand(small(), K, dtype=ir.DType.INT32),
    ),
    (
        "type not possible",
        InvalidOperation,
        "input 1 (weights) of FULLY_CONNECTED cannot be bool",
        lambda: with_operand(layer(), 1, dtype=ir.DType.BOOL, value=bytes(12), shape=(3, 4)),
    ),
    (
        "unknown attribute",
        InvalidAttribute,
        "ADD has no attribute 'axis'",
        lambda: with_operation(small(), 0, attributes=ir.Attributes(axis=1)),
    ),
    (
        "attribute of another kind",
        InvalidAttribute,
        "'pot_scale_int16' must be bool, not 1",
        lambda: with_operation(small(), 0, attributes=ir.Attributes(pot_scale_int16=1)),
    ),
    (
        "attribute outside its choices",
        InvalidAttribute,
        "must be one of NONE, RELU",
        lambda: with_operation(
            small(), 0, attributes=ir.Attributes(fused_activation_function="SWISH")
        ),
    ),
    (
        "negative dimension",
        ShapeOverflow,
        "subgraph 0, operand 2: dimension -1 is negative",
        lambda: with_operand(small(), S, shape=(2, -1)),
    ),
    ("rank", ShapeOverflow, "33 dimensions", lambda: with_operand(small(), S, shape=(1,) * 33)),
    ("size", ShapeOverflow, "operand 2", lambda: with_operand(small(), S, shape=(2**40, 2**40))),
    (
        "a dimension that is no int",
        InvalidOperand,
        "dimension 2.0 is not an int",
        lambda: with_operand(small(), S, shape=(2.0, 40)),
    ),
    (
        "a dimension that is a flag",
        InvalidOperand,
        "dimension True is not an int",
        lambda: with_operand(small(), S, shape=(True,)),
    ),
    (
        "a list for a shape",
        InvalidOperand,
        "must be a tuple, not a list",
        lambda: with_operand(small(), S, shape=[2, 40]),
    ),
    (
        "value too short",
        InvalidOperand,
        "takes 320 bytes, its value has 316",
        lambda: with_operand(small(), K, location=ir.DataLocation(0, 0, 316)),
    ),
    (
        "constant of unknown shape",
        InvalidOperand,
        "must be fully known",
        lambda: with_operand(small(), K, shape=(None, 40)),
    ),
    (
        "pool index",
        IndexOutOfRange,
        "pool 1 of 1",
        lambda: with_operand(small(), K, location=ir.DataLocation(1, 0, 320)),
    ),
    (
        "pool offset",
        OffsetOutOfBounds,
        "[8, 328) of a pool of 320 bytes",
        lambda: with_operand(small(), K, location=ir.DataLocation(0, 8, 320)),
    ),
    (
        "negative offset",
        OffsetOutOfBounds,
        "[-8, 312)",
        lambda: with_operand(small(), K, location=ir.DataLocation(0, -8, 320)),
    ),
    (
        "offset that wraps",
        OffsetOutOfBounds,
        "of a pool of 320",
        lambda: with_operand(small(), K, location=ir.DataLocation(0, 2**64 - 320, 320)),
    ),
    ("no place", InvalidOperand, "never both", lambda: with_operand(small(), K, location=None)),
    (
        "two places",
        InvalidOperand,
        "never both",
        lambda: with_operand(small(), K, value=bytes(320)),
    ),
    (
        "value of a temporary",
        InvalidOperand,
        "a temporary operand cannot hold a value",
        lambda: with_operand(small(), S, value=b""),
    ),
    (
        "location of an input",
        InvalidOperand,
        "input operand cannot hold a value",
        lambda: with_operand(small(), X, location=ir.DataLocation(0, 0, 320)),
    ),
    (
        "quantised dimension",
        InvalidQuantization,
        "quantised dimension 1 of a rank-1 operand",
        lambda: with_operand(quantized(), 0, quantization=ir.Quantization((1.0,), (0,), 1)),
    ),
    (
        "number of scales",
        InvalidQuantization,
        "2 scales for dimension 0 of size 4",
        lambda: with_operand(quantized(), 0, quantization=ir.Quantization((1.0, 1.0), (0, 0), 0)),
    ),
    (
        "zero point",
        InvalidQuantization,
        "zero point 128 is outside [-128, 127] of int8",
        lambda: with_operand(quantized(), 0, quantization=ir.Quantization((1.0,), (128,))),
    ),
    (
        "subgraph index",
        IndexOutOfRange,
        "refers to subgraph 7 of 3",
        lambda: with_operation(
            branching(), 0, attributes=ir.Attributes(then_subgraph_index=7, else_subgraph_index=1)
        ),
    ),
    (
        "a branch that takes another type",
        InvalidOperation,
        "operation 0 (IF): subgraph 1 takes float32, not int32",
        lambda: with_operand(branching(), 1, dtype=ir.DType.INT32),
    ),
    (
        "a branch that gives another type",
        InvalidOperation,
        "subgraph 1 gives float32, not int32",
        lambda: with_operand(branching(), 2, dtype=ir.DType.INT32),
    ),
    (
        "a branch that takes more",
        InvalidOperation,
        "subgraph 1 takes float32, not nothing",
        lambda: with_operation(branching(), 0, inputs=(0,)),
    ),
    (
        "a body that gives another type",
        InvalidOperation,
        "operation 0 (WHILE): subgraph 2 gives float32, float32, not float32, int32",
        lambda: with_operand(looping(1.0), 3, dtype=ir.DType.INT32),
    ),
    (
        "a condition that is no bool",
        InvalidOperation,
        "condition 2 does not give one bool",
        lambda: with_operation(
            looping(1.0), 0, attributes=ir.Attributes(cond_subgraph_index=2, body_subgraph_index=2)
        ),
    ),
    (
        "a loop without a body",
        InvalidOperation,
        "needs a condition and a body",
        lambda: with_operation(
            looping(1.0), 0, attributes=ir.Attributes(cond_subgraph_index=1, body_subgraph_index=-1)
        ),
    ),
    (
        "a loop without a condition and a body",
        InvalidOperation,
        "needs a condition and a body",
        lambda: with_operation(
            looping(1.0),
            0,
            attributes=ir.Attributes(cond_subgraph_index=-1, body_subgraph_index=-1),
        ),
    ),
    ("recursion", CyclicModel, "subgraph 1 is entered again from within itself", recursive),
    ("state of a called subgraph", ModelError, "state", entered_state),
    (
        "state input not last",
        InvalidOperand,
        "state inputs must end the list of inputs",
        lambda: with_entry(counter(), inputs=counter().entry.inputs[::-1]),
    ),
    (
        "state output not last",
        InvalidOperand,
        "state outputs must end the list of outputs",
        lambda: with_entry(counter(), outputs=counter().entry.outputs[::-1]),
    ),
    (
        "variable index",
        IndexOutOfRange,
        "variable 0 of 0",
        lambda: replace(counter(), variables=()),
    ),
    (
        "variable type",
        InvalidOperand,
        "is float32, variable 'count' is float16",
        lambda: changed_variable(dtype=ir.DType.FLOAT16, value=None),
    ),
    (
        "variable value",
        InvalidOperand,
        "variable 0 (count): float32 of shape (2,) takes 8 bytes, its value has 4",
        lambda: changed_variable(value=bytes(4)),
    ),
    (
        "variable in two places",
        InvalidOperand,
        "not both",
        lambda: changed_variable(location=ir.DataLocation(0, 0, 8)),
    ),
    (
        "variable shape",
        ShapeOverflow,
        "variable 0 (count): dimension -2",
        lambda: changed_variable(shape=(-2,), value=None),
    ),
    (
        "two ports of a variable",
        DuplicateWriter,
        "two state ports",
        lambda: with_entry(
            counter(), states=(*counter().entry.states, ir.StatePort(0, None, None))
        ),
    ),
    (
        "signature of no subgraph",
        InvalidSignature,
        "signature 's': subgraph 5 of 1",
        lambda: replace(small(), signatures={"s": ir.Signature(5, (), ())}),
    ),
    (
        "signature input",
        InvalidSignature,
        "input 'a' is operand 2, not an input of it",
        lambda: replace(small(), signatures={"s": ir.Signature(0, (("a", S),), ())}),
    ),
    (
        "signature of a state input",
        InvalidSignature,
        "input 'a' is operand 1",
        lambda: replace(counter(), signatures={"s": ir.Signature(0, (("a", 1),), ())}),
    ),
    (
        "signature name twice",
        InvalidSignature,
        "two inputs have one name",
        lambda: replace(small(), signatures={"s": ir.Signature(0, (("a", X), ("a", X)), ())}),
    ),
)


@pytest.mark.parametrize(
    ("kind", "message", "make"), [d[1:] for d in DEFECTS], ids=[d[0] for d in DEFECTS]
)
def test_a_defect_is_named(
    kind: type[ModelError], message: str, make: Callable[[], ir.Model]
) -> None:
    with pytest.raises(kind) as caught:
        make()
    assert kind is ModelError or type(caught.value) is kind
    assert message in str(caught.value)


def test_the_samples_are_valid() -> None:
    for make in (small, quantized, counter, branching):
        assert make().operations


@pytest.mark.parametrize("case", every_case(), ids=lambda c: c.name)
def test_every_mutation_of_a_valid_model_is_refused(case: Case) -> None:
    mutations = list(model_mutations(case.model))
    assert len(mutations) > 40
    for name, mutate in mutations:
        try:
            mutate()
        except ModelError:
            continue
        pytest.fail(f"{name} was accepted")


def test_an_output_may_be_an_input_a_constant_or_stand_twice() -> None:
    model = with_entry(small(), outputs=(Y, X, K, Y))
    assert [o.lifetime for o in model.outputs] == [
        ir.Lifetime.SUBGRAPH_OUTPUT,
        ir.Lifetime.SUBGRAPH_INPUT,
        ir.Lifetime.CONSTANT_POOL,
        ir.Lifetime.SUBGRAPH_OUTPUT,
    ]


def test_names_origins_and_unused_operands_are_free() -> None:
    extra = ir.Operand(ir.DType.STRING, None, name="unused")
    model = with_entry(small(), operands=(*small().operands, extra))
    assert model == small()


def test_a_model_without_operations_is_valid() -> None:
    passing = ir.Subgraph((ir.Operand(F32, (2,), ir.Lifetime.SUBGRAPH_INPUT, "x"),), (), (0,), (0,))
    model = ir.Model((passing,))
    assert model.inputs == model.outputs


def test_unreachable_subgraph_is_checked() -> None:
    good = small()
    bad = replace(good.entry, outputs=(99,))
    with pytest.raises(IndexOutOfRange, match="subgraph 1: output operand 99"):
        ir.Model((good.entry, bad), good.pools)


def test_deep_nesting_of_subgraphs_is_no_recursion() -> None:
    """Ten thousand subgraphs, each calling the next: validation does not recurse in Python."""
    count, most = 10_000, 128
    operands = (
        ir.Operand(F32, (3,), ir.Lifetime.SUBGRAPH_INPUT),
        ir.Operand(F32, (3,), ir.Lifetime.SUBGRAPH_OUTPUT),
    )

    def calling(target: int) -> ir.Subgraph:
        call = ir.Operation("CALL", (0,), (1,), ir.Attributes(subgraph=target))
        return ir.Subgraph(operands, (call,), (0,), (1,))

    leaf = ir.Subgraph(operands, (ir.Operation("RELU", (0,), (1,)),), (0,), (1,))
    chain = tuple(calling(index + 1) for index in range(count))
    shallow = tuple(calling(index + 1) for index in range(most))
    assert len(ir.Model((*shallow, leaf)).subgraphs) == most + 1
    with pytest.raises(LimitExceeded, match="129 deep; the limit is 128"):
        ir.Model((*chain, leaf))
    with pytest.raises(CyclicModel):
        ir.Model((*chain, calling(0)))


def test_models_are_immutable() -> None:
    model = small()
    with pytest.raises(AttributeError):
        model.main = 1  # type: ignore[misc]  # the point
    with pytest.raises(TypeError):
        model.signatures["s"] = ir.Signature(0, (), ())  # type: ignore[index]  # the point
    with pytest.raises(ValueError, match="read-only"):
        model.constant(model.operands[K])[0, 0] = 1
    assert np.array_equal(
        model.constant(model.operands[K]), np.arange(80, dtype=np.float32).reshape(2, 40)
    )
