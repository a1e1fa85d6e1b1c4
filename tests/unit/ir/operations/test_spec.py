"""What a row checks of an operation: number, omission and types of operands, attributes."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidAttribute, InvalidOperation
from penstock.ir import Attributes, DType, Lifetime, Operand, Operation
from penstock.ir.operations import AttributeSpec, OperationSpec, Port
from penstock.ir.operations.rules import like
from penstock.ir.operations.spec import check_attribute
from tests.checked import does_not_raise

FLOAT, INT = DType.FLOAT32, DType.INT32
REAL = frozenset({FLOAT, DType.FLOAT16})
OPERANDS = [
    Operand(FLOAT, (2,)),
    Operand(INT, (2,)),
    Operand(DType.FLOAT16, (2,)),
    Operand(FLOAT, (), Lifetime.NO_VALUE),
]
F, WORD, H, NONE = range(4)
ROW = OperationSpec(
    "ROW",
    (
        Port("a", REAL, "T"),
        Port("b", REAL, "T", optional=True),
        Port("c", frozenset({INT}), optional=True),
    ),
    (Port("y", REAL, "T"), Port("z", optional=True)),
    like(0),
    (AttributeSpec("n", "int"), AttributeSpec("mode", "enum", "A", ("A", "B"))),
)
MANY = OperationSpec("MANY", (Port("a"), Port("more", REAL, variadic=True)), (Port("y"),), like(0))


def check(
    row: OperationSpec, inputs: tuple[int, ...], outputs: tuple[int, ...], **attributes: Any
) -> None:
    row.check(Operation(row.name, inputs, outputs, Attributes(attributes)), OPERANDS)


@pytest.mark.parametrize(
    "inputs", [(F,), (F, F), (F, NONE), (F, F, WORD), (F, NONE, WORD), (F, NONE, NONE)]
)
@pytest.mark.parametrize("outputs", [(F,), (F, WORD)])
def test_row_accepts_omitted_optional_operands(
    inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> None:
    with does_not_raise():
        check(ROW, inputs, outputs, n=1)


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ((), (F,), r"ROW needs input 0 \(a\)"),
        ((NONE,), (F,), r"ROW needs input 0 \(a\)"),
        ((F,), (), r"ROW needs output 0 \(y\)"),
        ((F, F, WORD, WORD), (F,), "ROW takes 3 inputs at most, not 4"),
        ((F,), (F, F, F), "ROW takes 2 outputs at most, not 3"),
        ((WORD,), (F,), r"input 0 \(a\) of ROW cannot be int32"),
        ((F, NONE, F), (F,), r"input 2 \(c\) of ROW cannot be float32"),
        ((F, H), (F,), r"input 1 \(b\) of ROW is float16, where float32 is needed"),
        ((F,), (H,), r"output 0 \(y\) of ROW is float16, where float32 is needed"),
    ],
)
def test_row_refuses_operands_that_do_not_fit(
    inputs: tuple[int, ...], outputs: tuple[int, ...], message: str
) -> None:
    with pytest.raises(InvalidOperation, match=message):
        check(ROW, inputs, outputs, n=1)


def test_a_variadic_port_takes_any_number() -> None:
    for count in range(4):
        check(MANY, (WORD, *[F] * count), (F,))
    with pytest.raises(InvalidOperation, match=r"input 2 \(more\) of MANY cannot be int32"):
        check(MANY, (WORD, F, WORD), (F,))


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({}, "ROW needs the attribute 'n'"),
        ({"n": 1, "m": 2}, "ROW has no attribute 'm'"),
        ({"n": True}, "attribute 'n' must be int, not True"),
        ({"n": 1.0}, "attribute 'n' must be int, not 1.0"),
        ({"n": 1, "mode": "C"}, "attribute 'mode' must be one of A, B, not 'C'"),
    ],
)
def test_row_refuses_attributes_that_do_not_fit(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidAttribute, match=message):
        check(ROW, (F,), (F,), **attributes)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("int", [0, -5], [0.5, "1", True, None]),
        ("subgraph", [-1, 3], ["1", (1,)]),
        ("subgraphs", [(), (1, 2)], [1, (1, "2"), [1]]),
        ("float", [0.5, 1], ["1", True]),
        ("bool", [True], [1, "true"]),
        ("str", [""], [b"", 1]),
        ("bytes", [b""], ["", bytearray()]),
        ("ints", [(), (1,)], [(1.5,), [1], (True,)]),
        ("floats", [(), (1, 0.5)], [("1",), [1.0]]),
    ],
)
def test_row_checks_the_kind_of_attributes(kind: Any, good: list[Any], bad: list[Any]) -> None:
    spec = AttributeSpec("a", kind)
    for value in good:
        check_attribute(spec, value)
    for value in bad:
        with pytest.raises(InvalidAttribute):
            check_attribute(spec, value)


def test_complete_fills_in_what_is_missing() -> None:
    assert ROW.complete({"n": 3}) == Attributes(n=3, mode="A")
    assert ROW.complete({"n": 3, "mode": "B"}) == Attributes(n=3, mode="B")
