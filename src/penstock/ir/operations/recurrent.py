"""Rows of recurrent cells and sequences, and of SVDF.

State is explicit. State inputs are at TFLite's positions. The new states are additional outputs
after TFLite's own, in the order of the state inputs. If a file format has implicit state, the
loader adds them. An operation may omit the new states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from penstock.ir.operations import rules
from penstock.ir.operations.signature import ACTIVATIONS, row
from penstock.ir.operations.spec import ShapeContext
from penstock.ir.types import Shape

GATES: Final = ("input", "forget", "cell", "output")
LSTM_STATES: Final = "output_state: activation, cell_state: activation"


def lstm_parameters(prefix: str = "") -> str:
    """Ports of the 17 weights and biases of one LSTM direction, in TFLite's order.

    Without the input gate's weights, the input gate is one minus the forget gate (CIFG).
    """
    sides = ("input", "recurrent")
    weights = [f"{s}_to_{g}_weights{'?' * (g == 'input')}" for s in sides for g in GATES]
    weights += [f"cell_to_{g}_weights?" for g in ("input", "forget", "output")]
    biases = ("input_gate_bias?", "forget_gate_bias", "cell_bias", "output_gate_bias")
    ports = [
        *(f"{name}: weights" for name in weights),
        *(f"{name}: bias" for name in biases),
        "projection_weights?: weights",
        "projection_bias?: bias",
    ]
    return ", ".join(prefix + port for port in ports)


def layer_norm(prefix: str = "") -> str:
    """Ports of the coefficients of layer normalisation."""
    return ", ".join(f"{prefix}{g}_layer_norm_coefficients?: weights" for g in GATES)


def lstm_sizes(
    context: ShapeContext, inputs: rules.Dimension, first: int
) -> tuple[rules.Dimension, rules.Dimension]:
    """(cell size, output size) of the direction whose parameters begin at input *first*."""
    cells: rules.Dimension = None
    outputs: rules.Dimension = None
    for gate in range(4):
        if context.has(first + gate):
            rows, columns = rules.dimensions(context, first + gate, 2)
            cells = rules.agree(cells, rows, "rows of the input weights")
            inputs = rules.agree(inputs, columns, "columns of the input weights and input size")
        # Recurrent weights of one dimension are the diagonal of a matrix.
        weights = rules.ranked(context, first + 4 + gate, 1, 2)
        if weights is not None:
            outputs = rules.agree(outputs, weights[-1], "columns of the recurrent weights")
            if len(weights) == 2:
                cells = rules.agree(cells, weights[0], "rows of the recurrent weights")
    for index in range(first + 11, first + 15):
        if context.has(index):
            cells = rules.agree(cells, rules.vector(context, index), "gate biases and cells")
    if context.has(first + 15):
        rows, columns = rules.dimensions(context, first + 15, 2)
        outputs = rules.agree(outputs, rows, "rows of the projection and output size")
        rules.agree(cells, columns, "columns of the projection and cell size")
    return cells, outputs


def _state(context: ShapeContext, index: int, *shape: rules.Dimension) -> Shape:
    """The shape of a state before and after a run. It has as many elements as *shape*, at any
    rank.
    """
    given = context.shape(index)
    if given is None:
        return shape
    rules.agree(rules.product(given), rules.product(shape), f"elements of state input {index}")
    return given


def _lstm(context: ShapeContext) -> Sequence[Shape]:
    if context.attributes.text("kernel_type") == "BASIC":
        return _basic_lstm(context)
    batch, depth = rules.dimensions(context, 0, 2)
    cells, outputs = lstm_sizes(context, depth, 1)
    states = _state(context, 18, batch, outputs), _state(context, 19, batch, cells)
    return rules.fill(context, (batch, outputs), *states)


def _basic_lstm(context: ShapeContext) -> Sequence[Shape]:
    """Inputs: data, previous activation, weights [4 cells, in + cells], biases, previous state."""
    (batch, depth), (rows, columns) = (rules.dimensions(context, i, 2) for i in (0, 2))
    (batch_1, cells), (batch_2, cells_2) = (rules.dimensions(context, i, 2) for i in (1, 4))
    cells = rules.agree(cells, cells_2, "activation and state of a basic LSTM")
    for other in (batch_1, batch_2):
        batch = rules.agree(batch, other, "batch of data and state")
    gates = None if cells is None else 4 * cells
    both = None if cells is None or depth is None else cells + depth
    rules.agree(rows, gates, "rows of the weights and four times the cells")
    rules.agree(columns, both, "columns of the weights and of data and activation")
    cell = (batch, cells)
    return rules.fill(context, cell, cell, (batch, both), (batch, gates), cell, cell)


_Dimensions: TypeAlias = tuple[rules.Dimension, ...]


def _sequence(context: ShapeContext) -> tuple[_Dimensions, rules.Dimension, rules.Dimension]:
    """The shape of a sequence, its batch and the size of its elements."""
    shape = rules.dimensions(context, 0, 3)
    return shape, shape[1 if context.attributes.flag("time_major") else 0], shape[2]


def _over_time(shape: _Dimensions, size: rules.Dimension) -> Shape:
    return (*shape[:2], size)


def _sequence_lstm(context: ShapeContext) -> Sequence[Shape]:
    shape, batch, depth = _sequence(context)
    cells, outputs = lstm_sizes(context, depth, 1)
    states = _state(context, 18, batch, outputs), _state(context, 19, batch, cells)
    return rules.fill(context, _over_time(shape, outputs), *states)


FORGET_AUXILIARY: Final = 41
"""The position of the weights of an auxiliary input for the forward forget gate. The input gate may
have none.
"""


def _bidirectional_lstm(context: ShapeContext) -> Sequence[Shape]:
    """If merged, one output with forward and backward side by side; otherwise one output for each.
    The four states follow.
    """
    shape, batch, depth = _sequence(context)
    forward_cells, forward = lstm_sizes(context, depth, 1)
    linked = context.has(39) and not context.has(FORGET_AUXILIARY)
    backward_input = rules.dimensions(context, 39, 3)[2] if linked else depth
    backward_cells, backward = lstm_sizes(context, backward_input, 18)
    sizes = (forward, forward_cells, backward, backward_cells)
    states = [_state(context, index, batch, size) for index, size in enumerate(sizes, 35)]
    return rules.fill(context, *_merged(context, shape, forward, backward), *states)


def _merged(
    context: ShapeContext, shape: _Dimensions, forward: rules.Dimension, backward: rules.Dimension
) -> tuple[Shape, ...]:
    if not context.attributes.flag("merge_outputs"):
        return _over_time(shape, forward), _over_time(shape, backward)
    both = None if forward is None or backward is None else forward + backward
    return (_over_time(shape, both),)


def _units(context: ShapeContext, inputs: rules.Dimension, first: int) -> rules.Dimension:
    """The units of a basic recurrent cell whose weights, recurrent weights and bias start at
    *first*.
    """
    (units, columns), recurrent = (rules.dimensions(context, first + i, 2) for i in (0, 1))
    rules.agree(inputs, columns, "input size and columns of the weights")
    for size in recurrent:
        units = rules.agree(units, size, "units and sizes of the recurrent weights")
    return rules.agree(units, rules.vector(context, first + 2), "bias and units")


def _rnn(context: ShapeContext) -> Sequence[Shape]:
    batch, depth = rules.dimensions(context, 0, 2)
    cell = (batch, _units(context, depth, 1))
    return rules.fill(context, cell, _state(context, 4, *cell))


def _sequence_rnn(context: ShapeContext) -> Sequence[Shape]:
    shape, batch, depth = _sequence(context)
    units = _units(context, depth, 1)
    return rules.fill(context, _over_time(shape, units), _state(context, 4, batch, units))


def _bidirectional_rnn(context: ShapeContext) -> Sequence[Shape]:
    shape, batch, depth = _sequence(context)
    linked = context.has(9) and not context.has(10)
    forward = _units(context, depth, 1)
    backward = _units(context, rules.dimensions(context, 9, 3)[2] if linked else depth, 5)
    states = _state(context, 4, batch, forward), _state(context, 8, batch, backward)
    return rules.fill(context, *_merged(context, shape, forward, backward), *states)


def _svdf(context: ShapeContext) -> Sequence[Shape]:
    """weights_feature [filters, in], weights_time [filters, memory], filters = units * rank."""
    (batch, depth), (filters, columns), (rows, memory) = (
        rules.dimensions(context, i, 2) for i in range(3)
    )
    rank = rules.positive(context, "rank")
    rules.agree(depth, columns, "input size and columns of the feature weights")
    filters = rules.agree(filters, rows, "rows of feature and time weights")
    units = rules.quotient(filters, rank, "filters", "rank")
    if context.has(3):
        rules.agree(rules.vector(context, 3), units, "bias and units")
    size = None if memory is None or filters is None else memory * filters
    return rules.fill(context, (batch, units), _state(context, 4, batch, size))


BASIC_LSTM_INPUTS: Final = 5


def _lstm_inputs() -> str:
    """Ports of LSTM. Its basic kernel has five other inputs. So all ports accept the types of both
    forms, and ports after the fifth are optional.
    """
    ports = f"input: activation, {lstm_parameters()}, {LSTM_STATES}, {layer_norm()}".split(", ")
    names = [port.partition(":")[0] for port in ports]
    names[BASIC_LSTM_INPUTS:] = [n.rstrip("?") + "?" for n in names[BASIC_LSTM_INPUTS:]]
    return ", ".join(f"{name}: activation|weights|bias" for name in names)


_ACTIVATION: Final = f"fused_activation_function: {'|'.join(ACTIVATIONS)}|SIGMOID"
"""TFLite's, and NNAPI's sigmoid."""

_CLIPS: Final = "cell_clip: float, proj_clip: float"
_INTERMEDIATES: Final = "intermediate_scales: floats, intermediate_zero_points: ints"
"""Scales and zero points of the intermediate results of integer cells."""

_NEW_LSTM_STATES: Final = "new_output_state?: activation, new_cell_state?: activation"
_RNN: Final = "weights: weights, recurrent_weights: weights, bias: bias"
_DIRECTIONS: Final = ("forward_", "backward_")

ROWS: Final = (
    row(f"""LSTM({_lstm_inputs()}; {_ACTIVATION}, {_CLIPS}, kernel_type: FULL|BASIC,
        asymmetric_quantize_inputs, {_INTERMEDIATES}) -> output: activation, {_NEW_LSTM_STATES},
        basic_gates?: activation, basic_new_activation?: activation, basic_new_state?: activation;
        version 4; NNAPI 1
        # One step of a long short-term memory. FULL: outputs are output, new output state, new cell
        state. BASIC: inputs are data, previous activation, weights, biases, previous state; outputs
        are activation, state, joined input, gates, then the new activation and state.""")(_lstm),
    row(f"""UNIDIRECTIONAL_SEQUENCE_LSTM(input: activation, {lstm_parameters()}, {LSTM_STATES},
        {layer_norm()}; {_ACTIVATION}, {_CLIPS}, time_major: bool, asymmetric_quantize_inputs,
        diagonal_recurrent_tensors: bool, {_INTERMEDIATES}) -> output: activation,
        {_NEW_LSTM_STATES}; version 4; NNAPI 3
        # A long short-term memory over a sequence, batch or time first.""")(_sequence_lstm),
    row(f"""BIDIRECTIONAL_SEQUENCE_LSTM(input: activation,
        {", ".join(map(lstm_parameters, _DIRECTIONS))},
        {", ".join(f"{d}{s}_state: activation" for d in _DIRECTIONS for s in ("output", "cell"))},
        auxiliary_input?: activation,
        {", ".join(f"{d}auxiliary_to_{g}_weights?: weights" for d in _DIRECTIONS for g in GATES)},
        {", ".join(map(layer_norm, _DIRECTIONS))}; {_ACTIVATION}, {_CLIPS}, merge_outputs: bool,
        time_major: bool = true, asymmetric_quantize_inputs) -> output: activation,
        backward_output?: activation, {", ".join(["new_state?: activation"] * 4)}; version 3;
        NNAPI 3 # Two long short-term memories over a sequence, one forward and one backward. With
        merge_outputs there is no backward output; the new states follow the outputs there are.
        TFLite has no layer normalisation here.""")(_bidirectional_lstm),
    row(f"""RNN(input: activation, {_RNN}, hidden_state: activation; {_ACTIVATION},
        asymmetric_quantize_inputs) -> output: activation, new_hidden_state?: activation; version 3;
        NNAPI 1 # One step of a basic recurrent cell: activation(weights x + recurrent weights h +
        bias).""")(_rnn),
    row(f"""UNIDIRECTIONAL_SEQUENCE_RNN(input: activation, {_RNN}, hidden_state: activation;
        time_major: bool, {_ACTIVATION}, asymmetric_quantize_inputs) -> output: activation,
        new_hidden_state?: activation; version 3; NNAPI 3
        # A basic recurrent cell over a sequence, batch or time first.""")(_sequence_rnn),
    row(f"""BIDIRECTIONAL_SEQUENCE_RNN(input: activation, {_RNN}, forward_hidden_state: activation,
        {_RNN}, backward_hidden_state: activation, auxiliary_input?: activation,
        forward_auxiliary_weights?: weights, backward_auxiliary_weights?: weights; time_major: bool,
        {_ACTIVATION}, merge_outputs: bool, asymmetric_quantize_inputs) -> output: activation,
        backward_output?: activation, {", ".join(["new_state?: activation"] * 2)}; version 3;
        NNAPI 3 # Two basic recurrent cells over a sequence, one forward and one backward. With
        merge_outputs there is no backward output; the new states follow the outputs there are.
        """)(_bidirectional_rnn),
    row(f"""SVDF(input: activation, weights_feature: weights, weights_time: weights, bias?: bias,
        state: activation; rank: int,
        {_ACTIVATION}, asymmetric_quantize_inputs) -> output: activation, new_state?: activation;
        version 4; NNAPI 1 # A fully connected layer over a sliding memory, its weights factored
        into feature and time filters.""")(_svdf),
)
