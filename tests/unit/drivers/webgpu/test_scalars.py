"""Scalar operations in WGSL against their meaning in NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from penstock.compiler import interpreter
from penstock.compiler.arithmetic import evaluate
from penstock.compiler.expression import Expression, Scope, Step, Value, identity
from penstock.compiler.program import Access, Kernel, Program, Tensor, along
from penstock.driverkit.site import Refused
from penstock.drivers.webgpu.emit import scalars
from penstock.ir import DType, NDArray
from tests.support_webgpu import elementwise, needs_webgpu, run_program

SIZE = 2048
INTEGERS = (DType.INT8, DType.UINT8, DType.INT16, DType.INT32, DType.UINT32, DType.INT64)
BINARY = ("add", "sub", "mul", "minimum", "maximum", "and", "or", "xor", "less", "less_equal",
          "equal", "div", "mod")  # fmt: skip
UNARY = ("neg", "abs", "not", "sign")
FUNCTIONS = {
    "exp": 4, "log": 4, "tanh": 4, "logistic": 4, "expm1": 6, "erf": 8, "sin": 8, "cos": 8,
    "sqrt": 1, "rsqrt": 3, "floor": 0, "ceil": 0, "trunc": 0, "round_even": 0, "round_away": 0,
    "abs": 0, "neg": 0, "sign": 0,
}  # fmt: skip
"""Functions of float32, and by how many units in the last place of the result, or of 1 where that
is larger for functions around 0, they may be off.
"""


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def drawn(dtype: DType, number: int) -> NDArray:
    """Values of every size, and the extreme ones."""
    if dtype is DType.BOOL:
        return np.asarray(rng().random(SIZE) > 0.5)
    limits = np.iinfo(dtype.numpy)
    draw = np.random.default_rng(number)
    bits = draw.integers(0, 8 * dtype.numpy.itemsize, SIZE)
    wide = draw.integers(limits.min, limits.max, SIZE, dtype.numpy, endpoint=True)
    values: NDArray = wide >> bits.astype(dtype.numpy)
    special = [limits.min, limits.max, 0, 1, limits.max // 2]
    if limits.min < 0:
        special += [-1, limits.min + 1]
    found = list(itertools.product(special, repeat=2))
    values[: len(found)] = [pair[number % 2] for pair in found]
    return values


def of(operation: str, *given: DType, to: DType | None = None) -> Expression:
    step = Step(operation, tuple(range(len(given))), to or given[0])
    return Expression(given, (step,), len(given))


def results(
    expressions: list[Expression], arrays: list[NDArray]
) -> Iterator[tuple[NDArray, NDArray]]:
    """What the adapter and NumPy compute, for each of *expressions*."""
    got = run_program(elementwise(expressions, SIZE), arrays)
    first = 0
    for expression, array in zip(expressions, got, strict=True):
        last = first + len(expression.arguments)
        yield array, evaluate(expression, arrays[first:last], lambda _: np.zeros(0))
        first = last


def all_of(dtype: DType, count: int, others: int, made: Callable[[Scope, int], Value]) -> Program:
    """A program with one kernel, whose first loop chooses one of *count* values of *dtype* that
    *made* writes from a choice's number: one shader for all of them. The inputs are *others*
    vectors of that type.
    """
    scope = Scope(*[dtype] * others, DType.INT32)
    result = made(scope, 0)
    for number in range(1, count):
        chosen = scope.compare("equal", scope.argument(others), number)
        result = scope.select(chosen, made(scope, number), result)
    expression = scope.finish(result)
    tensors = [Tensor(dtype, (SIZE,))] * others
    tensors += [Tensor(DType.INT32, (count,)), Tensor(result.dtype, (count, SIZE))]
    reads = (*(Access(t, along(1)) for t in range(others)), Access(others, along(0)))
    kernel = Kernel(
        "test", (count, SIZE), reads, expression, identity(result.dtype),
        Access(others + 1, along(0, 1)), sums=result.dtype,
    )  # fmt: skip
    inputs = tuple(range(others + 1))
    return Program(tuple(tensors), {}, (kernel,), inputs, (others + 1,), {})


def both(program: Program, arrays: list[NDArray]) -> tuple[NDArray, NDArray]:
    """What the adapter and NumPy compute of a program of `all_of`."""
    count = program.tensors[program.outputs[0]].shape[0]
    given = [*arrays, np.arange(count, dtype=np.int32)]
    (got,), (want,) = run_program(program, given), interpreter.run(program, given)
    return got, want


def binary(dtype: DType) -> list[str]:
    wide = dtype is DType.INT64
    return [name for name in (*BINARY, *UNARY) if not (wide and name in {"div", "mod", "sign"})]


@needs_webgpu
@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.value)
def test_integers_are_those_of_the_interpreter(dtype: DType) -> None:
    names = binary(dtype)

    def made(scope: Scope, number: int) -> Value:
        name, a, b = names[number], scope.argument(0), scope.argument(1)
        if name in UNARY:
            return scope.add(name, a)
        if name in {"less", "less_equal", "equal"}:
            return scope.compare(name, a, b).cast(dtype)
        return scope.add(name, a, b)

    got, want = both(all_of(dtype, len(names), 2, made), [drawn(dtype, 0), drawn(dtype, 1)])
    for name, one, other in zip(names, got, want, strict=True):
        wrong = np.flatnonzero(one != other)
        assert wrong.size == 0, (name, wrong[:3], one[wrong[:3]], other[wrong[:3]])


@needs_webgpu
@pytest.mark.parametrize("dtype", [*INTEGERS, DType.BOOL], ids=lambda d: d.value)
def test_integers_become_others_as_numpy_makes_them(dtype: DType) -> None:
    targets = [d for d in (*INTEGERS, DType.BOOL) if d is not dtype]

    def made(scope: Scope, number: int) -> Value:
        return scope.argument(0).cast(targets[number]).cast(DType.INT64)

    got, want = both(all_of(dtype, len(targets), 1, made), [drawn(dtype, 0)])
    assert np.array_equal(got, want)


@needs_webgpu
def test_rescaling_is_bit_exact() -> None:
    wide = of("rescale_wide", DType.INT64, DType.INT32, DType.INT32, to=DType.INT32)
    expressions = [of("rescale", DType.INT32, DType.INT32, DType.INT32), wide]
    expressions.append(of("high_product", DType.INT32, DType.INT32))
    mantissas = rng().integers(2**30, 2**31, SIZE).astype(np.int32)
    shifts = rng().integers(-31, 8, SIZE).astype(np.int32)
    sums = drawn(DType.INT64, 3) >> 20
    arrays = [drawn(DType.INT32, 0), mantissas, shifts, sums, mantissas, shifts]
    arrays += [drawn(DType.INT32, 0), drawn(DType.INT32, 1)]
    for got, want in results(expressions, arrays):
        assert np.array_equal(got, want)


@needs_webgpu
def test_functions_of_floats_are_near_those_of_float64() -> None:
    names = list(FUNCTIONS)
    values = rng().normal(0, 3, SIZE).astype(np.float32)
    values[:8] = [0, 1, -1, 0.5, -0.5, 2.5, 80, -80]
    positive = np.abs(values) + np.float32(0.01)

    def made(scope: Scope, number: int) -> Value:
        of_positive = names[number] in {"log", "sqrt", "rsqrt"}
        return scope.argument(int(of_positive)).apply(names[number])

    got, _ = both(all_of(DType.FLOAT32, len(names), 2, made), [values, positive])
    for name, row in zip(names, got, strict=True):
        given = positive if name in {"log", "sqrt", "rsqrt"} else values
        wide = given.astype(np.float64)
        want = evaluate(of(name, DType.FLOAT64), [wide], lambda _: np.zeros(0))
        unit = np.spacing(np.abs(want).astype(np.float32)).astype(np.float64)
        if name in {"sin", "cos", "log", "erf"}:
            unit = np.maximum(unit, np.spacing(np.float32(0.5)))
        off = np.abs(row - want) / unit
        assert off.max() <= FUNCTIONS[name] + 0.51, (name, given[off.argmax()], off.max())


@needs_webgpu
def test_nan_and_infinity_pass_through_functions() -> None:
    special = np.array([np.nan, np.inf, -np.inf, 0.0], np.float32)
    names = ("exp", "log", "tanh", "logistic", "erf", "sqrt")
    expressions = [of(name, DType.FLOAT32) for name in names]
    expressions += [of(n, DType.FLOAT32, DType.FLOAT32) for n in ("minimum", "maximum", "power")]
    padded = np.resize(special, SIZE)
    arrays = [padded for e in expressions for _ in e.arguments]
    for got, want in results(expressions, arrays):
        assert np.array_equal(got, want.astype(np.float32), equal_nan=True)


@needs_webgpu
def test_powers_and_remainders_of_floats() -> None:
    expressions = [
        of("power", DType.FLOAT32, DType.FLOAT32),
        of("mod", DType.FLOAT32, DType.FLOAT32),
    ]
    base = np.abs(rng().normal(0, 2, SIZE)).astype(np.float32)
    other = rng().normal(0, 3, SIZE).astype(np.float32)
    (power, _), (rest, wanted) = results(expressions, [base, other, other * 9, base])
    assert np.allclose(power, base.astype(np.float64) ** other, rtol=2e-6)
    assert np.allclose(rest, wanted, rtol=1e-6, atol=1e-6)


@needs_webgpu
def test_floats_become_integers_and_halves_as_numpy_makes_them() -> None:
    values = rng().normal(0, 1, SIZE).astype(np.float32) * np.float32(10.0) ** np.arange(-10, 22)[
        rng().integers(0, 32, SIZE)
    ].astype(np.float32)
    values[:6] = [np.nan, np.inf, -np.inf, 65519.9, 65520, 6e-8]
    targets = (*INTEGERS, DType.BOOL, DType.FLOAT16)
    expressions = [of("cast", DType.FLOAT32, to=target) for target in targets]
    for target, (got, want) in zip(
        targets, results(expressions, [values] * len(targets)), strict=True
    ):
        assert np.array_equal(got, want, equal_nan=target is DType.FLOAT16), target


@needs_webgpu
def test_integers_of_64_bits_become_floats_rounded_once() -> None:
    ((got, want),) = results([of("cast", DType.INT64, to=DType.FLOAT32)], [drawn(DType.INT64, 1)])
    assert np.array_equal(got, want)


def test_an_operation_without_a_shader_is_refused_by_name() -> None:
    with pytest.raises(Refused, match="no shader for div of int64"):
        scalars.check(of("div", DType.INT64, DType.INT64))
    with pytest.raises(Refused, match="no shader for tanh of float64"):
        scalars.check(of("tanh", DType.FLOAT64))


DOUBLES = ("add", "sub", "mul", "div", "minimum", "maximum", "less", "less_equal", "equal")
OF_ONE = ("sqrt", "neg", "abs", "sign", "trunc", "floor", "ceil", "round_away", "round_even")


def doubles(seed: int) -> NDArray:
    """Numbers of every size and of nearly the same, halves, and the extreme ones."""
    draw = np.random.default_rng(seed)
    bits = draw.integers(0, 2**63, SIZE, np.uint64) | (draw.integers(0, 2, SIZE, np.uint64) << 63)
    values = np.where(np.arange(SIZE) % 3 == 0, bits.view(np.float64), draw.normal(0, 3, SIZE))
    third = np.arange(SIZE) % 3 == 2
    values[third] = draw.integers(-9, 9, int(third.sum())) / 2
    tiny = np.nextafter(0.0, 1.0)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, tiny, -tiny, 2.3e-308, 1.7e308, 2.0**52]
    special += [0.49999999999999994, 1.5, 2.5, 2.0**53 - 1, -(2.0**31), 2.0**31 - 0.5]
    pairs = list(itertools.product(special, repeat=2))
    values[: len(pairs)] = [pair[seed % 2] for pair in pairs]
    return values


@needs_webgpu
def test_float64_is_that_of_numpy() -> None:
    names = [*DOUBLES, *OF_ONE]

    def made(scope: Scope, number: int) -> Value:
        name, a = names[number], scope.argument(0)
        if name in {"less", "less_equal", "equal"}:
            return scope.compare(name, a, scope.argument(1)).cast(DType.FLOAT64)
        return scope.add(name, a, *[scope.argument(1)] * (name in DOUBLES))

    got, want = both(all_of(DType.FLOAT64, len(names), 2, made), [doubles(0), doubles(1)])
    for name, one, other in zip(names, got, want, strict=True):
        same = (one == other) & (np.signbit(one) == np.signbit(other))
        wrong = np.flatnonzero(~same & ~(np.isnan(one) & np.isnan(other)))
        first = wrong[:3]
        assert wrong.size == 0, (name, doubles(0)[first], doubles(1)[first], one[first])


@needs_webgpu
def test_float64_becomes_other_types_as_numpy_makes_them() -> None:
    targets = [DType.FLOAT32, DType.INT8, DType.INT32, DType.UINT32, DType.INT64, DType.BOOL]
    expressions = [of("cast", DType.FLOAT64, to=target) for target in targets]
    others = [DType.FLOAT32, DType.INT8, DType.INT32, DType.UINT32, DType.INT64]
    given = [doubles(0)] * len(targets)
    with np.errstate(all="ignore"):
        given.append(doubles(0).astype(np.float32))
    given += [drawn(dtype, 0) for dtype in others[1:]]
    expressions += [of("cast", dtype, to=DType.FLOAT64) for dtype in others]
    for expression, (got, want) in zip(expressions, results(expressions, given), strict=True):
        assert np.array_equal(got, want, equal_nan=want.dtype.kind == "f"), expression
