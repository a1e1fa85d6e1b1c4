"""LSTM, UNIDIRECTIONAL_SEQUENCE_LSTM, BIDIRECTIONAL_SEQUENCE_LSTM and QUANTIZED_LSTM.

The types of an operation, and how many intermediate results it has, select the cell: real values
(`lstm_real`), integers (`lstm_integer`), or the basic kernel (`lstm_basic`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from msgspec.structs import replace

from penstock.driverkit.lstm_operands import FORGET, UNIDIRECTIONAL, Positions
from penstock.drivers.reference.kernel import (
    Inputs,
    Kernel,
    Outputs,
    Site,
    Unsupported,
    kernel,
    require,
)
from penstock.drivers.reference.recurrent import lstm_integer
from penstock.drivers.reference.recurrent.cells import (
    Arrays,
    Direction,
    both_directions,
    check_real,
    single_direction,
)
from penstock.drivers.reference.recurrent.lstm_basic import basic_lstm
from penstock.drivers.reference.recurrent.lstm_real import STATES, RealMemory
from penstock.ir import DType


@kernel("QUANTIZED_LSTM")
def quantized_lstm(site: Site) -> Kernel:
    """NNAPI's form with all scales as attributes."""
    _check_types(site)
    attributes = site.attributes
    gates = ("input", "forget", "cell", "output")
    intermediates = lstm_integer.Intermediates(
        tuple(np.float32(attributes.number(f"{g}_intermediate_scale")) for g in gates),
        np.float32(attributes.number("hidden_state_scale")),
        attributes.integer("hidden_state_zero_point"),
    )

    reordered = replace(site, outputs=(site.output(2), site.output(0), site.output(1)))
    make = partial(lstm_integer.Memory16, site, intermediates)
    run = single_direction(reordered, "QUANTIZED_LSTM", UNIDIRECTIONAL.all(), STATES, make)

    def states_first(inputs: Inputs) -> Outputs:
        output, *states = run(inputs)
        return [*states, output]

    return states_first


def _integer_cell(site: Site) -> Callable[[Arrays], Direction]:
    """Makes the cell of an LSTM whose input is int8. The number of quantised intermediate results
    selects the form: 5 or, for one step only, 12.
    """
    _check_types(site)
    scales = tuple(np.float32(s) for s in _numbers(site, "intermediate_scales"))
    zero_points = tuple(int(z) for z in _numbers(site, "intermediate_zero_points"))
    require(len(scales) == len(zero_points), "an intermediate result without a zero point")
    unscaled = "an intermediate result without a scale"
    if len(scales) == 5:
        norms = site.has(UNIDIRECTIONAL.norms + 1)
        gates = scales[:4] if norms else (lstm_integer.GATE_SCALE,) * 4
        # TFLite's kernel reads the zero point with the opposite sign if there is a projection.
        zero_point = -zero_points[4] if site.has(UNIDIRECTIONAL.projection) else zero_points[4]
        needed = lstm_integer.Intermediates(gates, scales[4], zero_point)
        require(all(s > 0 for s in (scales[4], *gates[1:])), unscaled)
        return partial(lstm_integer.Memory16, site, needed)
    if len(scales) == 12 and site.operation.type == "LSTM":
        require(all(s > 0 for s in scales[3:]), unscaled)
        narrow = lstm_integer.Intermediates8(scales, zero_points)
        return partial(lstm_integer.Memory8, site, narrow)
    raise Unsupported(f"an integer {site.operation.type} with {len(scales)} intermediate results")


def _numbers(site: Site, name: str) -> Sequence[float]:
    value = site.attributes.get(name)
    return value if isinstance(value, tuple) else ()


def _check_types(site: Site) -> None:
    """Requires int8, but int32 biases and int16 cell state, peepholes and normalisation."""
    wide = {*range(9, 12), *range(20, 24), STATES[1]}
    for position, operand in enumerate(site.inputs):
        wanted = DType.INT8
        if position in wide:
            wanted = DType.INT16
        elif 12 <= position <= 15 or position == UNIDIRECTIONAL.projection_bias:
            wanted = DType.INT32
        if operand is not None and site.has(position) and operand.dtype is not wanted:
            raise site.unsupported_types()


AUXILIARY = 39
AUXILIARY_WEIGHTS = 40
FORWARD = Positions(first=1, norms=48, auxiliary=AUXILIARY_WEIGHTS)
BACKWARD = Positions(first=18, norms=52, auxiliary=AUXILIARY_WEIGHTS + 4)
BIDIRECTIONAL_STATES = (35, 36, 37, 38)


@kernel("LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM")
def lstm(site: Site) -> Kernel:
    """Float, hybrid and integer (int8, with an int16 cell state); a step or a sequence."""
    if site.attributes.get("kernel_type") == "BASIC":
        return basic_lstm(site)
    if site.input(0).dtype is DType.INT8:
        make = _integer_cell(site)
    else:
        check_real(site, 0, *STATES)
        make = partial(RealMemory, site, UNIDIRECTIONAL)
    return single_direction(site, "LSTM", UNIDIRECTIONAL.all(), STATES, make)


@kernel("BIDIRECTIONAL_SEQUENCE_LSTM")
def bidirectional_lstm(site: Site) -> Kernel:
    check_real(site, 0, *BIDIRECTIONAL_STATES)
    parameters = [*FORWARD.all(), *BACKWARD.all()]
    weighted = site.has(AUXILIARY_WEIGHTS + FORGET)

    def make(arrays: Arrays) -> tuple[RealMemory, RealMemory]:
        return RealMemory(site, FORWARD, arrays), RealMemory(site, BACKWARD, arrays)

    return both_directions(site, parameters, BIDIRECTIONAL_STATES, AUXILIARY, weighted, make)
