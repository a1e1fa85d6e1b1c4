"""Every scalar operation, for each of its types: generated code does what `arithmetic` says, on
random and on extreme values, and can be written for every instruction set.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
import pytest

from penstock.compiler import interpreter
from penstock.compiler.expression import OPERATIONS, Expression, Scope, Value
from penstock.compiler.memory import plan
from penstock.compiler.program import Access, Kernel, Program, Tensor, along
from penstock.drivers.llvm import backend
from penstock.drivers.llvm.emit.module import generate, template_of
from penstock.drivers.llvm.isa import RECORDS, Isa
from penstock.ir import DType, NDArray
from tests.support_generated import Runner, sets_here
from tests.support_llvm import needs_llvm
from tests.unit.compiler.building import Builder

pytestmark = needs_llvm

F16, F32, F64, BOOL = DType.FLOAT16, DType.FLOAT32, DType.FLOAT64, DType.BOOL
I32, I64 = DType.INT32, DType.INT64
SIGNED: Final = (DType.INT8, DType.INT16, I32, I64)
UNSIGNED: Final = (DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64)
WHOLE: Final = SIGNED + UNSIGNED
FLOATS: Final = (F16, F32, F64)
EVERY: Final = (BOOL, *WHOLE, *FLOATS)

SIZE: Final = 203

ELSEWHERE: Final = [isa for isa in RECORDS.values() if isa not in sets_here()]

TYPES: Final[dict[str, tuple[DType, ...]]] = {
    **dict.fromkeys(["neg", "abs"], SIGNED + FLOATS),
    "sign": (I32, I64, F32, F64),
    **dict.fromkeys(["floor", "ceil", "trunc", "round_even", "round_away", "sqrt"], FLOATS),
    **dict.fromkeys(["rsqrt", "exp", "log", "tanh", "logistic", "expm1", "erf", "sin", "cos"],
                    FLOATS),
    **dict.fromkeys(["add", "sub", "mul", "div"], WHOLE + FLOATS),
    "mod": (*WHOLE, F16, F32),
    "power": (F16, F32),
    **dict.fromkeys(["minimum", "maximum"], WHOLE + FLOATS),
    **dict.fromkeys(["less", "less_equal", "equal"], EVERY),
    **dict.fromkeys(["and", "or", "xor", "not"], (*WHOLE, BOOL)),
    **dict.fromkeys(["shift_left", "shift_right"], WHOLE),
    **dict.fromkeys(["high_product", "divide_by_power", "rescale", "leading_zeros"], (I32, I64)),
    "rescale_wide": (I64,),
    **dict.fromkeys(["select", "cast", "bitcast", "constant", "lookup"], EVERY),
}  # fmt: skip
"""The types that rules use each operation with."""

UNITS: Final = {F16: 2**-10, F32: 2**-23, F64: 2**-52}

LOOSE: Final = {"exp": 4, "log": 4, "tanh": 6, "logistic": 6, "expm1": 4, "erf": 4, "sin": 4,
                "cos": 4, "power": 64, "rsqrt": 3}  # fmt: skip
"""How many units in the last place an elementary function may be off. Other operations are exact.
"""


def test_every_operation_has_types() -> None:
    assert set(TYPES) == set(OPERATIONS)


def values_of(dtype: DType, rng: np.random.Generator) -> NDArray:
    """Extreme values, small ones and random ones."""
    if dtype is BOOL:
        return rng.random(SIZE) < 0.5
    if dtype.is_float:
        limits = np.finfo(dtype.numpy)
        extreme = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, math.inf, -math.inf, math.nan,
                   float(limits.max), float(limits.min), float(limits.tiny),
                   -float(limits.tiny), 0.49999997, 100.25, -100.75]  # fmt: skip
        near = rng.standard_normal(SIZE) * rng.choice([1e-3, 1.0, 8.0, 60.0], SIZE)
        near[: len(extreme)] = extreme
        with np.errstate(over="ignore"):
            return rng.permutation(near).astype(dtype.numpy)
    bounds = np.iinfo(dtype.numpy)
    whole = rng.integers(bounds.min, bounds.max, SIZE, dtype.numpy, endpoint=True)
    small = rng.integers(0, 20, SIZE).astype(dtype.numpy)
    mixed = np.where(rng.random(SIZE) < 0.5, whole, small)
    ends = [bounds.min, bounds.max, 0, 1, bounds.max - 1, bounds.min + 1]
    mixed[: len(ends)] = ends
    if bounds.min < 0:
        mixed[len(ends)] = -1
    return np.asarray(rng.permutation(mixed).astype(dtype.numpy))


class Programs:
    """One program with a kernel for each expression; its inputs are *arrays*."""

    def __init__(self) -> None:
        self.arrays: list[NDArray] = []
        self.tensors: list[Tensor] = []
        self.constants: dict[int, NDArray] = {}
        self.kernels: list[Kernel] = []
        self.names: list[tuple[str, DType]] = []
        self._given: list[int] = []

    def input(self, array: NDArray) -> int:
        self.tensors.append(Tensor(DType(array.dtype.name), array.shape))
        self.arrays.append(array)
        self._given.append(len(self.tensors) - 1)
        return len(self.tensors) - 1

    def table(self, array: NDArray) -> int:
        self.tensors.append(Tensor(DType(array.dtype.name), array.shape))
        self.constants[len(self.tensors) - 1] = array
        return len(self.tensors) - 1

    def add(self, name: str, dtype: DType, body: Expression, given: list[int]) -> None:
        self.tensors.append(Tensor(body.dtype, (SIZE,)))
        reads = tuple(Access(tensor, along(0)) for tensor in given)
        write = Access(len(self.tensors) - 1, along(0))
        finish = Scope(body.dtype)
        self.kernels.append(
            Kernel("scalar", (SIZE,), reads, body, finish.finish(finish.argument(0)), write,
                   sums=body.dtype)
        )  # fmt: skip
        self.names.append((name, dtype))

    def program(self) -> Program:
        outputs = tuple(kernel.write.tensor for kernel in self.kernels)
        return Program(
            tuple(self.tensors), self.constants, tuple(self.kernels), tuple(self._given),
            outputs, {},
        )  # fmt: skip


def small(dtype: DType, rng: np.random.Generator, low: int, high: int) -> NDArray:
    return rng.integers(low, high, SIZE).astype(dtype.numpy)


def numbers_of(name: str, dtype: DType, rng: np.random.Generator) -> list[NDArray]:
    """The operands of an operation, within what it is defined for."""
    bits = dtype.bits or 8
    first = values_of(dtype, rng)
    if name in {"shift_left", "shift_right"}:
        return [first, small(dtype, rng, 0, bits)]
    if name == "high_product":
        return [values_of(I32, rng).astype(dtype.numpy) for _ in range(2)]
    if name == "divide_by_power":
        return [values_of(I32, rng).astype(dtype.numpy), small(dtype, rng, 0, 32)]
    if name == "leading_zeros":
        return [np.abs(values_of(I32, rng).astype(np.int64) // 2).astype(dtype.numpy)]
    if name == "rescale":
        mantissas = rng.integers(2**30, 2**31, SIZE).astype(dtype.numpy)
        return [values_of(I32, rng).astype(dtype.numpy), mantissas, small(dtype, rng, -31, 32)]
    if name == "rescale_wide":
        sums = rng.integers(-(2**46), 2**46, SIZE)
        return [sums, rng.integers(2**30, 2**31, SIZE), small(I64, rng, -31, 8)]
    if name in {"sin", "cos"} and dtype is DType.FLOAT64:
        # Angles beyond it are reduced right if they are float32.
        return [np.where(np.abs(first) < 2.0**50, first, 7.0)]
    return [first, *(values_of(dtype, rng) for _ in range(OPERATIONS[name] - 1))]


def fill(programs: Programs, rng: np.random.Generator) -> None:
    """Adds a kernel for each operation and each of its types."""
    for name, dtypes in TYPES.items():
        for dtype in dtypes:
            for key, body, arrays in expressions(programs, name, dtype, rng):
                programs.add(key, dtype, body, [programs.input(a) for a in arrays])


def expressions(
    programs: Programs, name: str, dtype: DType, rng: np.random.Generator
) -> Iterator[tuple[str, Expression, list[NDArray]]]:
    if name == "cast":
        for made in EVERY:
            scope = Scope(dtype)
            if made is not dtype:
                value = scope.argument(0).cast(made)
                yield f"cast to {made.value}", scope.finish(value), [values_of(dtype, rng)]
    elif name == "bitcast":
        for made in (*WHOLE, *FLOATS):
            if made.bits == dtype.bits and made is not dtype and dtype is not BOOL:
                scope = Scope(dtype)
                value = scope.argument(0).bitcast(made)
                yield f"bitcast to {made.value}", scope.finish(value), [values_of(dtype, rng)]
    elif name == "constant":
        scope = Scope(dtype)
        number = values_of(dtype, rng)[0].item()
        yield name, scope.finish(scope.constant(number, dtype)), [values_of(dtype, rng)]
    elif name == "lookup":
        table = programs.table(values_of(dtype, rng))
        for index in (DType.UINT8, I32, I64):
            scope = Scope(index)
            value = scope.lookup(table, scope.argument(0), dtype)
            yield f"lookup by {index.value}", scope.finish(value), [small(index, rng, 0, SIZE)]
    elif name == "select":
        scope = Scope(BOOL, dtype, dtype)
        value = scope.select(*(scope.argument(i) for i in range(3)))
        arrays = [values_of(BOOL, rng), values_of(dtype, rng), values_of(dtype, rng)]
        yield name, scope.finish(value), arrays
    else:
        arrays = numbers_of(name, dtype, rng)
        scope = Scope(*(DType(a.dtype.name) for a in arrays))
        values: list[Value] = [scope.argument(i) for i in range(len(arrays))]
        made = BOOL if name in {"less", "less_equal", "equal"} else dtype
        yield name, scope.finish(scope.add(name, *values, dtype=made)), arrays


def compare(name: str, dtype: DType, got: NDArray, wanted: NDArray) -> str | None:
    """What differs; None if nothing does. Elementary functions may be a few units off."""
    assert got.dtype == wanted.dtype
    if got.dtype.kind != "f":
        wrong = got != wanted
    else:
        unit = UNITS[DType(got.dtype.name)]
        least = float(np.finfo(got.dtype).tiny)
        with np.errstate(invalid="ignore", over="ignore"):
            wide, exact = got.astype(np.float64), wanted.astype(np.float64)
            bound = LOOSE.get(name, 0.0) * unit * np.maximum(np.abs(exact), least)
            if name in {"sin", "cos"}:
                bound = bound + unit
            close = np.abs(wide - exact) <= bound
        wrong = ~(close | (got == wanted) | (np.isnan(got) & np.isnan(wanted)))
    if not wrong.any():
        return None
    at = int(np.flatnonzero(wrong)[0])
    return f"{name} of {dtype.value}, place {at}: {got[at]!r} instead of {wanted[at]!r}"


@pytest.mark.slow
@pytest.mark.parametrize("isa", sets_here(), ids=lambda isa: isa.name)
def test_generated_scalars_agree_with_arithmetic(isa: Isa) -> None:
    programs = Programs()
    fill(programs, np.random.default_rng(len(isa.name)))
    program = programs.program()
    runner = Runner(program, isa)
    got, wanted = runner(programs.arrays), interpreter.run(program, programs.arrays)
    runner.close()
    pairs = zip(programs.names, got, wanted, strict=True)
    faults = [compare(name, dtype, a, b) for (name, dtype), a, b in pairs]
    found = [fault for fault in faults if fault is not None]
    assert found == [], "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("isa", ELSEWHERE, ids=lambda isa: isa.name)
def test_every_scalar_operation_compiles_for_other_machines(isa: Isa) -> None:
    programs = Programs()
    fill(programs, np.random.default_rng(0))
    code = backend.compile_object(generate(plan(programs.program()), isa).text, isa)
    assert len(code) > 1000


@pytest.mark.parametrize("name", RECORDS)
def test_a_power_is_scaled_by_one_instruction_where_there_is_one(name: str) -> None:
    isa = RECORDS[name]
    build = Builder()
    x = build.tensor((64,))
    program = build.program([x], [build.unary("exp", x)])
    text = template_of(program, program.kernels[0], isa).write("f").text()
    assert ("scalef" in text) is ("avx512f" in isa.features)
