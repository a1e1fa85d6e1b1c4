"""Recurrent cells and sequences, and SVDF: one run, from state that begins at zeros.

What LiteRT is known to compute wrongly (docs/differences.md) is not drawn.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.ir import DType, Operand
from penstock.ir.operand import Lifetime
from tests.differential.draw import Draw, Value
from tests.differential.registry import cases
from tests.unit.drivers.reference import support_cells as cells
from tests.unit.drivers.reference.support_lstm import (
    Form,
    bidirectional_case,
    integer_case,
    narrow_case,
    real_case,
)
from tests.unit.drivers.reference.support_recurrent import Case, Constant, State, Tensor, initial

WEIGHTS: Final = (DType.FLOAT32, DType.INT8, DType.UINT8)
ACTIVATIONS: Final = ("TANH", "RELU", "RELU6", "RELU_N1_TO_1", "SIGN_BIT")
REACH: Final = 2.0


def add(draw: Draw, case: Case) -> None:
    """Adds the operation of *case*, its states as variable tensors."""
    builder = draw.builder
    given: list[Value | None] = []
    states: list[tuple[int, State]] = []
    for item in case.inputs:
        match item:
            case None:
                given.append(None)
            case Constant(value, quantization):
                given.append(draw.constant(value, quantization))
            case State(dtype, shape, quantization):
                name = f"state{len(states)}"
                operand = Operand(dtype, shape, Lifetime.SUBGRAPH_INPUT, name, quantization)
                states.append((builder.operand(operand), item))
                given.append(Value(states[-1][0], dtype, shape, quantization))
            case Tensor(dtype, shape, quantization):
                low, high = (-REACH, REACH) if dtype.is_float else (None, None)
                given.append(
                    draw.value(dtype, shape, quantization, low=low, high=high, constant=False)
                )
    outputs = [draw.output(t.dtype, t.quantization, t.shape) for t in case.outputs]
    after = [Operand(s.dtype, s.shape, quantization=s.quantization) for _, s in states]
    made = draw.operation(case.kind, given, [*outputs, *after], **case.attributes)
    del draw.results[len(draw.results) - len(states) :]
    for (index, state), new in zip(states, made[len(outputs) :], strict=True):
        start = initial(state)
        variable = builder.variable(
            f"state{index}", state.dtype, state.shape, state.quantization, start
        )
        builder.state(variable, index, new)


def form(draw: Draw, kind: str) -> Form:
    size = draw.integer(1, 16)
    return Form(
        kind,
        batch=draw.integer(1, 3),
        steps=draw.integer(1, 5),
        size=draw.integer(1, 16),
        cells=size,
        outputs=draw.integer(1, size) if draw.chance(0.4) else None,
        coupled=draw.chance(0.4),
        peephole=draw.chance(0.4),
        norm=draw.chance(0.4),
        time_major=kind != "LSTM" and draw.chance(0.5),
    )


def clip(draw: Draw) -> float:
    return draw.real(0.1, 3.0) if draw.chance(0.4) else 0.0


@cases("LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM")
def memory(draw: Draw, kind: str) -> None:
    rng = np.random.default_rng(draw.integer(0, 2**31))
    drawn, cell_clip, proj_clip = form(draw, kind), clip(draw), clip(draw)
    if kind == "LSTM" and draw.chance(0.2):
        add(draw, basic(draw, rng))
    elif kind == "LSTM" and draw.chance(0.15):
        add(draw, narrow_case(rng, cells=drawn.cells, cell_clip=cell_clip, proj_clip=proj_clip))
    elif draw.chance(0.5):
        fitting = drawn.outputs in {None, drawn.cells} or not drawn.peephole
        whole = Form(**{**vars(drawn), "peephole": drawn.peephole and fitting})
        power, zero_point = draw.integer(-15, -9), draw.integer(-128, 127)
        add(
            draw,
            integer_case(rng=rng, form=whole, hidden_zero_point=zero_point, cell_power=power,
                         cell_clip=cell_clip, proj_clip=proj_clip),
        )  # fmt: skip
    else:
        made = real_case(
            drawn,
            rng,
            draw.pick(WEIGHTS),
            asymmetric_quantize_inputs=draw.chance(0.5),
            cell_clip=cell_clip,
            proj_clip=proj_clip,
        )
        made.attributes["fused_activation_function"] = draw.pick(ACTIVATIONS)
        add(draw, made)


def basic(draw: Draw, rng: np.random.Generator) -> Case:
    make = cells.real_basic_case if draw.chance(0.4) else cells.integer_basic_case
    return make(rng, draw.integer(1, 3), draw.integer(1, 8), draw.integer(1, 12))


@cases("BIDIRECTIONAL_SEQUENCE_LSTM")
def memory_both_ways(draw: Draw, kind: str) -> None:
    drawn = form(draw, kind)
    drawn = Form(**{**vars(drawn), "norm": False})
    auxiliary, linked = draw.pick(((0, False), (drawn.size, True), (draw.integer(1, 9), False)))
    add(
        draw,
        bidirectional_case(
            drawn,
            np.random.default_rng(draw.integer(0, 2**31)),
            draw.pick(WEIGHTS),
            merge=draw.chance(0.5) and (drawn.time_major or drawn.batch == 1),
            auxiliary=auxiliary,
            linked=linked,
            asymmetric_quantize_inputs=draw.chance(0.5),
            cell_clip=clip(draw),
        ),
    )


@cases("RNN", "UNIDIRECTIONAL_SEQUENCE_RNN")
def recurrent_cell(draw: Draw, kind: str) -> None:
    rng = np.random.default_rng(draw.integer(0, 2**31))
    weights = draw.pick(WEIGHTS)
    activation, asymmetric = draw.pick(("NONE", *ACTIVATIONS)), draw.chance(0.5)
    if kind == "RNN":
        made = cells.step_case(rng, weights, sizes(draw), asymmetric_quantize_inputs=asymmetric)
    else:
        made = cells.sequence_case(
            rng,
            weights,
            sizes(draw),
            time_major=draw.chance(0.5),
            asymmetric_quantize_inputs=asymmetric,
        )
    made.attributes["fused_activation_function"] = activation
    add(draw, made)


def sizes(draw: Draw) -> cells.Sizes:
    return cells.Sizes(
        batch=draw.integer(1, 3),
        steps=draw.integer(1, 5),
        size=draw.integer(1, 9),
        units=draw.integer(1, 9),
        backward=draw.integer(1, 9),
    )


@cases("BIDIRECTIONAL_SEQUENCE_RNN")
def recurrent_cell_both_ways(draw: Draw, kind: str) -> None:
    drawn, weights = sizes(draw), draw.pick(WEIGHTS)
    real, time_major = weights.is_float, draw.chance(0.5)
    auxiliary, linked = draw.pick(((0, False), (drawn.size, False), (drawn.size, True)))
    if not real and time_major:
        drawn = cells.Sizes(**{**vars(drawn), "steps": 1})
    add(
        draw,
        cells.both_case(
            np.random.default_rng(draw.integer(0, 2**31)),
            weights,
            drawn,
            time_major=time_major,
            merge=draw.chance(0.5) and (real or not time_major or drawn.batch == 1),
            auxiliary=auxiliary if time_major or not linked else 0,
            linked=linked,
            asymmetric_quantize_inputs=draw.chance(0.5),
            fused_activation_function=draw.pick(("NONE", *ACTIVATIONS)),
        ),
    )


@cases("SVDF")
def filters_over_time(draw: Draw, kind: str) -> None:
    rng = np.random.default_rng(draw.integer(0, 2**31))
    drawn = cells.Filters(
        batch=draw.integer(1, 3),
        size=draw.integer(1, 9),
        units=draw.integer(1, 6),
        rank=draw.integer(1, 3),
        memory=draw.integer(1, 8),
    )
    if draw.chance(0.5):
        add(draw, cells.integer_svdf_case(rng, drawn, bias=draw.chance(0.5)))
        return
    made = cells.real_svdf_case(
        rng, draw.pick(WEIGHTS), drawn, asymmetric_quantize_inputs=draw.chance(0.5)
    )
    made.attributes["fused_activation_function"] = draw.pick(("NONE", *ACTIVATIONS))
    add(draw, made)
