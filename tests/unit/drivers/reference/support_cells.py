"""Basic recurrent cells, SVDF and the basic kernel of LSTM to try, with random parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.ir import DType
from penstock.ir.operation import AttributeValue
from tests.support_litert import q
from tests.unit.drivers.reference.support_recurrent import Case, Constant, Item, State, Tensor

REAL, UINT8, INT16 = DType.FLOAT32, DType.UINT8, DType.INT16


@dataclass(frozen=True)
class Sizes:
    """Of a basic recurrent cell over a sequence; *backward* units in the other direction."""

    batch: int = 2
    steps: int = 4
    size: int = 4
    units: int = 5
    backward: int = 3

    def over_time(self, size: int, *, time_major: bool) -> Tensor:
        first, second = (self.steps, self.batch) if time_major else (self.batch, self.steps)
        return Tensor(REAL, (first, second, size))


SIZES: Final = Sizes()


def matrix(rng: np.random.Generator, weights: DType, *shape: int, reach: float = 0.5) -> Constant:
    """Float weights within *reach*, or integer ones of any."""
    if weights.is_float:
        return Constant(rng.uniform(-reach, reach, shape).astype(np.float32))
    stored = rng.integers(-127, 128, shape).astype(np.int8).view(weights.numpy)
    return Constant(stored, q(reach / 100))


def cell(rng: np.random.Generator, weights: DType, sizes: Sizes, units: int) -> list[Item]:
    """Weights, recurrent weights, bias and state of one direction."""
    return [
        matrix(rng, weights, units, sizes.size),
        matrix(rng, weights, units, units),
        Constant(rng.uniform(-0.5, 0.5, units).astype(np.float32)),
        State(REAL, (sizes.batch, units)),
    ]


def step_case(
    rng: np.random.Generator, weights: DType, sizes: Sizes = SIZES, **more: AttributeValue
) -> Case:
    """RNN."""
    return Case(
        "RNN",
        [Tensor(REAL, (sizes.batch, sizes.size)), *cell(rng, weights, sizes, sizes.units)],
        [Tensor(REAL, (sizes.batch, sizes.units))],
        more,
    )


def sequence_case(
    rng: np.random.Generator,
    weights: DType,
    sizes: Sizes = SIZES,
    *,
    time_major: bool,
    **more: AttributeValue,
) -> Case:
    """UNIDIRECTIONAL_SEQUENCE_RNN."""
    return Case(
        "UNIDIRECTIONAL_SEQUENCE_RNN",
        [
            sizes.over_time(sizes.size, time_major=time_major),
            *cell(rng, weights, sizes, sizes.units),
        ],
        [sizes.over_time(sizes.units, time_major=time_major)],
        {"time_major": time_major, **more},
    )


def both_case(
    rng: np.random.Generator,
    weights: DType,
    sizes: Sizes = SIZES,
    *,
    time_major: bool,
    merge: bool = False,
    auxiliary: int = 0,
    linked: bool = False,
    **more: AttributeValue,
) -> Case:
    """BIDIRECTIONAL_SEQUENCE_RNN. *auxiliary* is the size of an auxiliary input, which has weights
    unless it is *linked* to the backward direction.
    """
    each = sizes.units, sizes.backward
    extra: list[Item] = [None] * 3
    if auxiliary:
        extra[0] = sizes.over_time(auxiliary, time_major=time_major)
    if auxiliary and not linked:
        extra[1:] = [matrix(rng, weights, n, auxiliary) for n in each]
    return Case(
        "BIDIRECTIONAL_SEQUENCE_RNN",
        [
            sizes.over_time(sizes.size, time_major=time_major),
            *cell(rng, weights, sizes, sizes.units),
            *cell(rng, weights, sizes, sizes.backward),
            *extra,
        ],
        [sizes.over_time(n, time_major=time_major) for n in ((sum(each),) if merge else each)],
        {"time_major": time_major, "merge_outputs": merge, **more},
    )


@dataclass(frozen=True)
class Filters:
    """Sizes of an SVDF."""

    batch: int = 2
    size: int = 5
    units: int = 4
    rank: int = 2
    memory: int = 6

    @property
    def count(self) -> int:
        return self.units * self.rank

    @property
    def state(self) -> tuple[int, int]:
        return self.batch, self.count * self.memory


def integer_svdf_case(rng: np.random.Generator, filters: Filters, *, bias: bool) -> Case:
    """SVDF with int8 inputs and an int16 state."""

    def scale(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    def anywhere() -> int:
        return int(rng.integers(-128, 128))

    feature = rng.integers(-127, 128, (filters.count, filters.size)).astype(np.int8)
    time = rng.integers(-3000, 3000, (filters.count, filters.memory)).astype(np.int16)
    biases = rng.integers(-3000, 3000, filters.units).astype(np.int32)
    return Case(
        "SVDF",
        [
            Tensor(DType.INT8, (filters.batch, filters.size), q(scale(0.005, 0.05), anywhere())),
            Constant(feature, q(scale(0.002, 0.02))),
            Constant(time, q(scale(1e-4, 1e-3))),
            Constant(biases, q(1e-6)) if bias else None,
            State(INT16, filters.state, q(scale(1e-4, 1e-3))),
        ],
        [Tensor(DType.INT8, (filters.batch, filters.units), q(scale(0.01, 0.2), anywhere()))],
        {"rank": filters.rank, "fused_activation_function": "RELU"},
    )


def real_svdf_case(
    rng: np.random.Generator, weights: DType, filters: Filters, **more: AttributeValue
) -> Case:
    """SVDF of floats, with float or hybrid weights."""
    return Case(
        "SVDF",
        [
            Tensor(REAL, (filters.batch, filters.size)),
            matrix(rng, weights, filters.count, filters.size, reach=1.0),
            matrix(rng, weights, filters.count, filters.memory, reach=1.0),
            Constant(rng.uniform(-1, 1, filters.units).astype(np.float32)),
            State(REAL, filters.state),
        ],
        [Tensor(REAL, (filters.batch, filters.units))],
        {"rank": filters.rank, **more},
    )


ACTIVATION: Final = q(1 / 128, 128)
CELL: Final = q(2.0**-11)
BASIC: Final = {"kernel_type": "BASIC", "fused_activation_function": "TANH"}


def real_basic_case(rng: np.random.Generator, batch: int, size: int, cells: int) -> Case:
    """LSTM, the basic kernel, of floats."""

    def constant(*shape: int) -> Constant:
        return Constant(rng.uniform(-1, 1, shape).astype(np.float32))

    state = State(REAL, (batch, cells))
    return Case(
        "LSTM",
        [
            Tensor(REAL, (batch, size)),
            state,
            constant(4 * cells, size + cells),
            constant(4 * cells),
            state,
        ],
        [Tensor(REAL, (batch, n)) for n in (cells, cells, size + cells, 4 * cells)],
        dict(BASIC),
    )


def integer_basic_case(rng: np.random.Generator, batch: int, size: int, cells: int) -> Case:
    """LSTM, the basic kernel, of uint8 with an int16 state."""
    scale = float(rng.uniform(0.002, 0.03))
    weights = rng.integers(0, 256, (4 * cells, size + cells)).astype(np.uint8)
    biases = rng.integers(-5000, 5000, 4 * cells).astype(np.int32)
    return Case(
        "LSTM",
        [
            Tensor(UINT8, (batch, size), ACTIVATION),
            State(UINT8, (batch, cells), ACTIVATION),
            Constant(weights, q(scale, int(rng.integers(0, 256)))),
            Constant(biases, q(scale / 128)),
            State(INT16, (batch, cells), CELL),
        ],
        [
            Tensor(UINT8, (batch, cells), ACTIVATION),
            Tensor(INT16, (batch, cells), CELL),
            Tensor(UINT8, (batch, size + cells), ACTIVATION),
            Tensor(INT16, (batch, 4 * cells), q(2.0**-12)),
        ],
        dict(BASIC),
    )
