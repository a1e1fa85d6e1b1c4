"""Long short-term memories to try: what they have, and random parameters for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.ir import DType
from penstock.ir.operation import AttributeValue
from tests.support_litert import q
from tests.unit.drivers.reference.support_recurrent import Case, Constant, Item, State, Tensor


@dataclass(frozen=True)
class Form:
    """What a long short-term memory has, and its sizes."""

    kind: str = "UNIDIRECTIONAL_SEQUENCE_LSTM"
    batch: int = 2
    steps: int = 5
    size: int = 4
    cells: int = 6
    outputs: int | None = None
    """Size of the projection, None for no projection."""
    projection_bias: bool = False
    coupled: bool = False
    peephole: bool = False
    norm: bool = False
    time_major: bool = False
    diagonal: tuple[int, ...] = ()
    """Gates whose recurrent weights are a diagonal."""

    @property
    def shown(self) -> int:
        return self.outputs or self.cells

    @property
    def gates(self) -> range:
        return range(1 if self.coupled else 0, 4)

    def over_time(self, size: int) -> tuple[int, ...]:
        if self.kind == "LSTM":
            return (self.batch, size)
        if self.time_major:
            return (self.steps, self.batch, size)
        return (self.batch, self.steps, size)

    def attributes(self, **more: AttributeValue) -> dict[str, AttributeValue]:
        timed = {} if self.kind == "LSTM" else {"time_major": self.time_major}
        return {"fused_activation_function": "TANH", **timed, **more}


def real_parameters(
    form: Form, rng: np.random.Generator, weights: DType = DType.FLOAT32
) -> list[Item]:
    """The 17 parameters and the 4 layer normalisation coefficients of a float or hybrid memory."""

    def matrix(*shape: int) -> Constant:
        if weights.is_float:
            return Constant(rng.uniform(-0.5, 0.5, shape).astype(weights.numpy))
        stored = rng.integers(-127, 128, shape).astype(np.int8).view(weights.numpy)
        return Constant(stored, q(float(rng.uniform(0.002, 0.008))))

    def vector(low: float, high: float, size: int) -> Constant:
        return Constant(rng.uniform(low, high, size).astype(np.float32))

    def diagonal(size: int) -> Constant:
        return vector(-0.5, 0.5, size)

    def each(make: Sequence[Item]) -> list[Item]:
        return [make[g] if g in form.gates else None for g in range(4)]

    cells, shown = form.cells, form.shown
    recurrent = [diagonal(cells) if g in form.diagonal else matrix(cells, shown) for g in range(4)]
    peepholes = [matrix(cells) if form.peephole else None for _ in range(3)]
    if form.coupled:
        peepholes[0] = None
    norms = [vector(0.5, 1.5, cells) if form.norm else None for _ in range(4)]
    return [
        *each([matrix(cells, form.size) for _ in range(4)]),
        *each(recurrent),
        *peepholes,
        *each([vector(-0.5, 0.5, cells) for _ in range(4)]),
        matrix(shown, cells) if form.outputs else None,
        vector(-0.2, 0.2, shown) if form.projection_bias else None,
        *each(norms),
    ]


def real_case(
    form: Form, rng: np.random.Generator, weights: DType = DType.FLOAT32, **more: AttributeValue
) -> Case:
    """A float or hybrid LSTM or UNIDIRECTIONAL_SEQUENCE_LSTM."""
    parameters = real_parameters(form, rng, weights)
    real = DType.FLOAT32
    states = [State(real, (form.batch, form.shown)), State(real, (form.batch, form.cells))]
    return Case(
        form.kind,
        [Tensor(real, form.over_time(form.size)), *parameters[:17], *states, *parameters[17:]],
        [Tensor(real, form.over_time(form.shown))],
        form.attributes(**more),
    )


def integer_case(
    form: Form,
    rng: np.random.Generator,
    hidden_zero_point: int = 0,
    cell_power: int = -11,
    **more: AttributeValue,
) -> Case:
    """An integer memory with five intermediate results."""
    int8, int16 = DType.INT8, DType.INT16

    def scale(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    def matrix(*shape: int) -> Constant:
        return Constant(rng.integers(-127, 128, shape).astype(np.int8), q(scale(0.002, 0.02)))

    def bias(size: int) -> Constant:
        return Constant(rng.integers(-3000, 3000, size).astype(np.int32), q(1e-4))

    def wide(size: int, low: float, high: float) -> Constant:
        return Constant(rng.integers(-32767, 32768, size).astype(np.int16), q(scale(low, high)))

    def each(make: Sequence[Item]) -> list[Item]:
        return [make[g] if g in form.gates else None for g in range(4)]

    cells, shown = form.cells, form.shown
    peepholes = [wide(cells, 1e-5, 1e-4) if form.peephole else None for _ in range(3)]
    if form.coupled:
        peepholes[0] = None
    norms: list[Item] = [
        Constant(rng.integers(2000, 32767, cells).astype(np.int16), q(scale(2e-5, 1e-4)))
        if form.norm
        else None
        for _ in range(4)
    ]
    source = q(scale(0.005, 0.03), int(rng.integers(-128, 128)))
    target = q(scale(0.004, 0.02), int(rng.integers(-128, 128)))
    hidden = scale(0.004, 0.01) if form.outputs else target.scale
    if not form.outputs:
        hidden_zero_point = target.zero_point
    scales = tuple(scale(1e-4, 1e-3) if form.norm else 0.0 for _ in range(4))
    return Case(
        form.kind,
        [
            Tensor(int8, form.over_time(form.size), source),
            *each([matrix(cells, form.size) for _ in range(4)]),
            *each([matrix(cells, shown) for _ in range(4)]),
            *peepholes,
            *each([bias(cells) for _ in range(4)]),
            matrix(shown, cells) if form.outputs else None,
            bias(shown) if form.projection_bias else None,
            State(int8, (form.batch, shown), target),
            State(int16, (form.batch, cells), q(2.0**cell_power)),
            *each(norms),
        ],
        [Tensor(int8, form.over_time(shown), target)],
        form.attributes(
            intermediate_scales=(*scales, float(np.float32(hidden))),
            intermediate_zero_points=(0, 0, 0, 0, hidden_zero_point),
            **more,
        ),
    )


def narrow_case(
    rng: np.random.Generator,
    *,
    size: int = 5,
    cells: int = 6,
    outputs: int = 4,
    coupled: bool = True,
    peephole: bool = False,
    tame: bool = True,
    **more: AttributeValue,
) -> Case:
    """An integer LSTM with twelve intermediate results, of a batch of 2.

    A *tame* one does without what the output gate makes of the previous output, and so without the
    elements that LiteRT 2.3 reads past the end of an array.
    """
    int8, int16 = DType.INT8, DType.INT16

    def scale(low: float, high: float) -> float:
        return float(np.float32(np.exp(rng.uniform(np.log(low), np.log(high)))))

    def each(make: Callable[[int], Item]) -> list[Item]:
        return [None if coupled and gate == 0 else make(gate) for gate in range(4)]

    def matrix(rows: int, columns: int, step: float) -> Constant:
        return Constant(rng.integers(-127, 128, (rows, columns)).astype(np.int8), q(step))

    def wide(low: float, high: float) -> Constant:
        return Constant(rng.integers(2000, 32767, cells).astype(np.int16), q(scale(low, high)))

    def bias(length: int, reach: int) -> Constant:
        return Constant(rng.integers(-reach, reach, length).astype(np.int32), q(1e-4))

    source = q(scale(0.01, 0.03), int(rng.integers(-20, 20)))
    target = q(scale(0.005, 0.02), int(rng.integers(-100, 100)))
    steps = [scale(0.005, 0.02) for _ in range(4)]
    scales: list[float] = []
    zero_points: list[int] = []
    for gate in range(4):
        total = scale(0.001, 0.004)
        # Of the forget gate: a ratio whose exponent is 0, which LiteRT takes for a multiplier.
        recurrent = 0.75 * total if gate == 1 else scale(0.02, 0.05)
        scales += [total, scale(0.02, 0.05), recurrent]
        zero_points += [0, int(rng.integers(-20, 20)), int(rng.integers(-20, 20))]
    if tame:
        zero_points[11], scales[11], steps[3] = zero_points[7], scales[9] * 2.0**-40, 2.0**-40
    peepholes: list[Item] = [None] * 3
    if peephole:
        peepholes[1:] = [wide(1e-5, 1e-4), wide(1e-5, 1e-4)]
    return Case(
        "LSTM",
        [
            Tensor(int8, (2, size), source),
            *each(lambda _: matrix(cells, size, scale(0.005, 0.02))),
            *each(lambda gate: matrix(cells, outputs, steps[gate])),
            *peepholes,
            *each(lambda _: bias(cells, 20000)),
            matrix(outputs, cells, scale(0.005, 0.02)),
            bias(outputs, 200000),
            State(int8, (2, outputs), target),
            State(int16, (2, cells), q(2.0**-15)),
            *each(lambda _: wide(2e-5, 1e-4)),
        ],
        [Tensor(int8, (2, outputs), target)],
        {
            "fused_activation_function": "TANH",
            "intermediate_scales": tuple(float(np.float32(s)) for s in scales),
            "intermediate_zero_points": tuple(zero_points),
            **more,
        },
    )


def bidirectional_case(
    form: Form,
    rng: np.random.Generator,
    weights: DType = DType.FLOAT32,
    *,
    backward: Form | None = None,
    merge: bool = False,
    auxiliary: int = 0,
    linked: bool = False,
    **more: AttributeValue,
) -> Case:
    """A float or hybrid BIDIRECTIONAL_SEQUENCE_LSTM.

    *auxiliary* is the size of an auxiliary input, which has weights unless it is *linked* to the
    backward direction.
    """
    real, other = DType.FLOAT32, backward or form

    def extra(one: Form) -> list[Item]:
        wide = Form(**{**vars(one), "size": auxiliary})
        made = real_parameters(wide, rng, weights)[:4]
        return made if auxiliary and not linked else [None] * 4

    sizes = (form.shown, form.cells, other.shown, other.cells)
    outputs = [form.shown + other.shown] if merge else [form.shown, other.shown]
    return Case(
        "BIDIRECTIONAL_SEQUENCE_LSTM",
        [
            Tensor(real, form.over_time(form.size)),
            *real_parameters(form, rng, weights)[:17],
            *real_parameters(other, rng, weights)[:17],
            *(State(real, (form.batch, size)) for size in sizes),
            Tensor(real, form.over_time(auxiliary)) if auxiliary else None,
            *extra(form),
            *extra(other),
        ],
        [Tensor(real, form.over_time(size)) for size in outputs],
        form.attributes(merge_outputs=merge, **more),
    )
