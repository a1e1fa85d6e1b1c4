"""Kernels whose code differs in numbers alone share a function, which reads them from tables."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from penstock.compiler import interpreter
from penstock.compiler.memory import plan
from penstock.drivers.llvm.emit.assembler import Function, Reg, splatted
from penstock.drivers.llvm.emit.module import generate
from penstock.drivers.llvm.emit.sharing import LEAST_LINES, MOST_NUMBERS, form, share, table_of
from penstock.drivers.llvm.isa import RECORDS, Isa
from penstock.ir import DType, Model, ModelBuilder, Quantization
from tests.support_generated import Runner, compiled, sets_here, values_for

SHAPE = (1, 6, 5, 64)
STRIDES: Final[dict[str, str | int]] = {"padding": "VALID", "stride_w": 1, "stride_h": 1}
QUANTIZED = st.builds(
    lambda scale, zero: Quantization((scale,), (zero,)),
    st.floats(0.02, 0.2),
    st.integers(-128, 127),
)


def chain(values: list[Quantization], rng: np.random.Generator) -> Model:
    """Convolutions and sums of equal sizes: each value has a scale and a zero point of its own."""
    builder = ModelBuilder()
    x = builder.input(DType.INT8, SHAPE, "x", quantization=values[0])
    first = x
    for number, value in enumerate(values[1:]):
        made = [(DType.INT8, SHAPE, value)]
        if number % 2:
            (x,) = builder.operation("ADD", [x, first], made)
            continue
        weights = rng.integers(-127, 128, (64, 1, 1, 64)).astype(np.int8)
        w = builder.constant(weights, f"w{number}", Quantization((0.004,), (0,)))
        (x,) = builder.operation("CONV_2D", [x, w, None], made, STRIDES)
    return builder.build([x])


@pytest.mark.parametrize("isa", sets_here(), ids=lambda isa: isa.name)
@settings(max_examples=5, deadline=None)
@given(values=st.lists(QUANTIZED, min_size=9, max_size=9), seed=st.integers(0, 99))
def test_shared_functions_compute_what_each_kernel_does(
    isa: Isa, values: list[Quantization], seed: int
) -> None:
    program = compiled(chain(values, np.random.default_rng(seed)), isa)
    inputs = values_for(program)
    runner = Runner(program, isa)
    (got,), (wanted,) = runner(inputs), interpreter.run(program, inputs)
    runner.close()
    np.testing.assert_array_equal(got, wanted)


def test_kernels_with_other_zero_points_and_factors_have_one_function() -> None:
    values = [Quantization((0.1 + 0.01 * i,), (i + 1,)) for i in range(9)]
    isa = RECORDS["avx512-vnni"]
    program = compiled(chain(values, np.random.default_rng(1)), isa)
    made = generate(plan(program), isa)
    convolutions = [n for n in made.called if "dense" in n]
    sums = [n for n in made.called if "add" in n]
    assert (len(convolutions), len(set(convolutions))) == (4, 1)
    # The last sum is stored signed, as the caller reads it.
    assert (len(sums), len(set(sums))) == (4, 2)


def function(name: str, numbers: list[float], lines: int = LEAST_LINES) -> Function:
    """A function that adds *numbers* to a vector, and has so many more *lines*."""
    made = Function(name, ["data"])
    value = made.load("<4 x i32>", "%data")
    for number in numbers:
        value = made.value(f"add {value}, {splatted(str(number), 'i32', 4).name}", "<4 x i32>")
    for _ in range(lines):
        value = made.value(f"xor {value}, {value.name}", value.type)
    made.store(value, "%data")
    return made


def test_numbers_that_are_equal_stay_in_the_code() -> None:
    functions = [function(f"k{i}_a", [7, i, i]) for i in range(3)]
    (first, table), *others = share(functions)
    assert all(f is first for f, _ in others)
    assert "splat (i32 7)" in first.text()
    assert first.text().count(" load i32, ptr") == 1
    assert table is not None
    assert [*table] == [0] * 8
    assert [o[1] is not None and [*o[1]] for o in others] == [[1, *[0] * 7], [2, *[0] * 7]]


@pytest.mark.parametrize(
    ("names", "numbers", "lines"),
    [
        (("k0_a", "k1_b"), ([1], [2]), LEAST_LINES),
        (("k0_a", "k1_a"), ([1], [2]), 1),
        (("k0_a", "k1_a"), (range(MOST_NUMBERS + 1), range(1, MOST_NUMBERS + 2)), LEAST_LINES),
    ],
    ids=["other names", "little code", "many numbers"],
)
def test_functions_stay_apart(
    names: tuple[str, str], numbers: tuple[list[float], list[float]], lines: int
) -> None:
    functions = [function(n, [*v], lines) for n, v in zip(names, numbers, strict=True)]
    before = [f.text() for f in functions]
    found = share(functions)
    assert [f for f, _ in found] == functions
    assert [t for _, t in found] == [None, None]
    assert [f.text() for f in functions] == before


def test_equal_functions_are_one_without_a_table() -> None:
    first, second = share([function("k0_a", [3], 1), function("k1_a", [3], 1)])
    assert first[0] is second[0]
    assert first[1] is second[1] is None


def test_shifts_and_divisions_keep_their_numbers() -> None:
    lines = [
        "  %v1 = lshr <4 x i32> %v0, splat (i32 3)",
        "  %v2 = select <4 x i1> splat (i1 true), <4 x i32> %v1, <4 x i32> splat (i32 -5)",
        "  %v3 = mul nsw i64 %u1, 8208",
        "  %v4 = call i64 @llvm.smin.i64(i64 %end, i64 9)",
        "  %v5 = getelementptr i8, ptr %data, i64 64",
    ]
    found = form("\n".join(lines))
    assert found.numbers == (("<4 x i32>", "-5"), ("i64", "8208"), ("i64", "9"))
    assert found.text.split("\n")[0] == lines[0]
    assert found.text.split("\n")[4] == lines[4]


def test_tables_hold_numbers_as_memory_does() -> None:
    numbers = [
        ("<4 x float>", "0x3FF8000000000000"), ("double", "0xBFF0000000000000"),
        ("<8 x half>", "0xH3C00"), ("<16 x i8>", "-1"), ("<16 x i8>", "255"), ("i64", "-2"),
    ]  # fmt: skip
    made = table_of(numbers).tobytes()
    assert np.frombuffer(made[:4], np.float32) == 1.5
    assert np.frombuffer(made[8:16], np.float64) == -1
    assert np.frombuffer(made[16:18], np.float16) == 1
    assert (made[24], made[32]) == (255, 255)
    assert np.frombuffer(made[40:], np.int64) == -2
    assert Reg("splat (i32 1)", "<4 x i32>") == splatted("1", "i32", 4)


def test_functions_of_other_arguments_stay_apart() -> None:
    """An argument that the code does not read is an argument still: calls have it."""
    made = [Function(f"k{k}_a", names) for k, names in enumerate((["t0"], ["t0", "t1"]))]
    assert made[0].body == made[1].body
    assert [f for f, _ in share(made)] == made
