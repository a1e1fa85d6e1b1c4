"""Integer long short-term memories: LSTM, UNIDIRECTIONAL_SEQUENCE_LSTM and QUANTIZED_LSTM.

Activations and weights are int8, the cell state is int16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from penstock.drivers.reference.ops.kernel import Kernel, Site, Unsupported, kernel, require
from penstock.drivers.reference.ops.numerics.weights import given
from penstock.drivers.reference.ops.recurrent import lstm_integer_8, lstm_integer_16
from penstock.drivers.reference.ops.recurrent.lstm_parameters import Memory, Positions
from penstock.drivers.reference.ops.recurrent.products import Arrays, with_parameters
from penstock.drivers.reference.ops.recurrent.sequences import as_stored, time_first
from penstock.ir import DType, NDArray

POSITIONS = Positions(first=1, norms=20)
STATES = (18, 19)

Cell: TypeAlias = "lstm_integer_16.Memory16 | lstm_integer_8.Memory8"


def integer_lstm(site: Site) -> Kernel:
    """The kernel of an LSTM whose input is int8.

    How many intermediate results have quantisation parameters tells the form: 5 or, for one step
    only, 12.
    """
    make = _maker(site)
    sequence = site.operation.type != "LSTM"
    time_major = sequence and site.attributes.flag("time_major")

    def prepare(arrays: Arrays) -> Kernel:
        memory = make(arrays)

        def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
            source = given(inputs[0])
            steps = time_first(source, time_major=time_major) if sequence else source[None]
            outputs, *after = _run(memory, steps, inputs)
            result = as_stored(outputs, time_major=time_major) if sequence else outputs[0]
            return [result, *after][: len(site.outputs)]

        return run

    return with_parameters(site, POSITIONS.all(), prepare)


@kernel("QUANTIZED_LSTM")
def quantized_lstm(site: Site) -> Kernel:
    """NNAPI's form with all scales as attributes."""
    _check_types(site)
    attributes = site.attributes
    gates = ("input", "forget", "cell", "output")
    intermediates = lstm_integer_16.Intermediates(
        tuple(np.float32(attributes.number(f"{g}_intermediate_scale")) for g in gates),
        np.float32(attributes.number("hidden_state_scale")),
        attributes.integer("hidden_state_zero_point"),
    )

    def prepare(arrays: Arrays) -> Kernel:
        memory = lstm_integer_16.Memory16(site, POSITIONS, STATES, arrays, intermediates)

        def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
            outputs, state, cell = _run(memory, given(inputs[0])[None], inputs)
            return [state, cell, outputs[0]]

        return run

    return with_parameters(site, POSITIONS.all(), prepare)


def _run(memory: Cell, steps: NDArray, inputs: Sequence[NDArray | None]) -> list[NDArray]:
    """Outputs over time, and both states in the shapes that they came in."""
    before = [given(inputs[i]) for i in STATES]
    outputs, after = memory.run(steps, Memory(*before))
    pairs = zip((after.output, after.cell), before, strict=True)
    return [outputs, *(new.reshape(old.shape) for new, old in pairs)]


def _maker(site: Site) -> Callable[[Arrays], Cell]:
    _check_types(site)
    scales = tuple(np.float32(s) for s in _numbers(site, "intermediate_scales"))
    zero_points = tuple(int(z) for z in _numbers(site, "intermediate_zero_points"))
    require(len(scales) == len(zero_points), "intermediate results without a zero point each")
    if len(scales) == 5:
        norms = site.has(POSITIONS.norms + 1)
        gates = scales[:4] if norms else (lstm_integer_16.GATE_SCALE,) * 4
        # TFLite's kernel takes the zero point with the other sign where a projection follows.
        zero_point = -zero_points[4] if site.has(POSITIONS.projection) else zero_points[4]
        needed = lstm_integer_16.Intermediates(gates, scales[4], zero_point)
        _check_scales([scales[4], *gates[1:]])
        return lambda arrays: lstm_integer_16.Memory16(site, POSITIONS, STATES, arrays, needed)
    if len(scales) == 12 and site.operation.type == "LSTM":
        _check_scales(scales[3:])
        narrow = lstm_integer_8.Intermediates(scales, zero_points)
        return lambda arrays: lstm_integer_8.Memory8(site, POSITIONS, STATES, arrays, narrow)
    raise Unsupported(f"an integer {site.operation.type} with {len(scales)} intermediate results")


def _numbers(site: Site, name: str) -> Sequence[float]:
    value = site.attributes.get(name)
    return value if isinstance(value, tuple) else ()


def _check_scales(scales: Sequence[np.float32]) -> None:
    if not all(s > 0 for s in scales):
        raise Unsupported("an intermediate result without a scale")


def _check_types(site: Site) -> None:
    """int8 activations and weights, int32 biases, int16 cell state, peepholes and normalisation."""
    wide = {*range(9, 12), *range(20, 24), STATES[1]}
    for position, operand in enumerate(site.inputs):
        wanted = DType.INT8
        if position in wide:
            wanted = DType.INT16
        elif 12 <= position <= 15 or position == POSITIONS.projection_bias:
            wanted = DType.INT32
        if operand is not None and site.has(position) and operand.dtype is not wanted:
            raise site.unsupported_types()
