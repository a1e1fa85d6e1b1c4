"""Rows of recurrent cells and sequences, and of SVDF.

State is explicit. State inputs are at TFLite's positions. The new states are additional outputs
after TFLite's own, in the order of the state inputs. If a file format has implicit state, the
loader adds them. An operation may omit the new states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import ShapeMismatch
from penstock.ir.operations import rules, signature
from penstock.ir.operations.spec import AttributeSpec, OperationSpec, Port, ShapeContext
from penstock.ir.types import Shape

FUSED_ACTIVATION: Final = AttributeSpec(
    "fused_activation_function",
    "enum",
    "NONE",
    (*signature.ACTIVATIONS, "SIGMOID"),
    doc="TFLite's, and NNAPI's sigmoid.",
)
INTERMEDIATES: Final = (
    AttributeSpec(
        "intermediate_scales",
        "floats",
        (),
        doc="Scales of the intermediate results of integer cells.",
    ),
    AttributeSpec("intermediate_zero_points", "ints", (), doc="Zero points of the same."),
)
NEW_STATE: Final = Port("new_state", signature.ACTIVATION, optional=True)


def _weights(*names: str, optional: bool = False) -> tuple[Port, ...]:
    return tuple(Port(name, signature.WEIGHTS, optional=optional) for name in names)


def _biases(*names: str, optional: bool = False) -> tuple[Port, ...]:
    return tuple(Port(name, signature.BIAS, optional=optional) for name in names)


def lstm_parameters(prefix: str = "") -> tuple[Port, ...]:
    """The 17 weights and biases of one LSTM direction, in TFLite's order.

    Without the input gate's weights, the input gate is one minus the forget gate (CIFG).
    """
    gates = ("input", "forget", "cell", "output")
    return (
        Port(f"{prefix}input_to_input_weights", signature.WEIGHTS, optional=True),
        *_weights(*(f"{prefix}input_to_{g}_weights" for g in gates[1:])),
        Port(f"{prefix}recurrent_to_input_weights", signature.WEIGHTS, optional=True),
        *_weights(*(f"{prefix}recurrent_to_{g}_weights" for g in gates[1:])),
        *_weights(
            *(f"{prefix}cell_to_{g}_weights" for g in ("input", "forget", "output")), optional=True
        ),
        Port(f"{prefix}input_gate_bias", signature.BIAS, optional=True),
        *_biases(f"{prefix}forget_gate_bias", f"{prefix}cell_bias", f"{prefix}output_gate_bias"),
        Port(f"{prefix}projection_weights", signature.WEIGHTS, optional=True),
        Port(f"{prefix}projection_bias", signature.BIAS, optional=True),
    )


def _layer_norm(prefix: str = "") -> tuple[Port, ...]:
    return tuple(
        Port(f"{prefix}{gate}_layer_norm_coefficients", signature.WEIGHTS, optional=True)
        for gate in ("input", "forget", "cell", "output")
    )


LAYER_NORM: Final = _layer_norm()


def lstm_sizes(
    context: ShapeContext, inputs: rules.Dimension, first: int
) -> tuple[rules.Dimension, rules.Dimension]:
    """(cell size, output size) of the direction whose parameters begin at input *first*."""
    cells: rules.Dimension = None
    outputs: rules.Dimension = None
    for gate in range(4):
        if context.has(first + gate):
            weights = rules.ranked(context, first + gate, 2)
            cells = rules.agree(cells, rules.dimension(weights, 0), "rows of the input weights")
            inputs = rules.agree(
                inputs, rules.dimension(weights, 1), "columns of the input weights and input size"
            )
        if context.has(first + 4 + gate):
            weights = context.shape(first + 4 + gate)
            if weights is not None and len(weights) == 2:
                cells = rules.agree(cells, weights[0], "rows of the recurrent weights")
                outputs = rules.agree(outputs, weights[1], "columns of the recurrent weights")
            elif weights is not None and len(weights) == 1:
                outputs = rules.agree(outputs, weights[0], "diagonal recurrent weights")
            elif weights is not None:
                raise ShapeMismatch(f"recurrent weights of shape {weights}")
    for index in range(first + 11, first + 15):
        if context.has(index):
            cells = rules.agree(
                cells, rules.dimension(rules.ranked(context, index, 1), 0), "gate biases and cells"
            )
    if context.has(first + 15):
        projection = rules.ranked(context, first + 15, 2)
        outputs = rules.agree(
            outputs, rules.dimension(projection, 0), "rows of the projection and output size"
        )
        rules.agree(
            cells, rules.dimension(projection, 1), "columns of the projection and cell size"
        )
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
    shape = rules.ranked(context, 0, 2)
    cells, outputs = lstm_sizes(context, rules.dimension(shape, 1), 1)
    batch = rules.dimension(shape, 0)
    states = _state(context, 18, batch, outputs), _state(context, 19, batch, cells)
    return rules.fill(context, (batch, outputs), *states)


def _basic_lstm(context: ShapeContext) -> Sequence[Shape]:
    """Inputs: data, previous activation, weights [4 cells, in + cells], biases, previous state."""
    shape, weights = rules.ranked(context, 0, 2), rules.ranked(context, 2, 2)
    state = rules.agree_shapes(
        rules.ranked(context, 1, 2),
        rules.ranked(context, 4, 2),
        "activation and state of a basic LSTM",
    )
    batch = rules.agree(
        rules.dimension(shape, 0), rules.dimension(state, 0), "batch of data and state"
    )
    cells, depth = rules.dimension(state, 1), rules.dimension(shape, 1)
    if cells is not None:
        rules.agree(
            rules.dimension(weights, 0), 4 * cells, "rows of the weights and four times the cells"
        )
    both = None if cells is None or depth is None else cells + depth
    rules.agree(
        rules.dimension(weights, 1), both, "columns of the weights and of data and activation"
    )
    gates = None if cells is None else 4 * cells
    cell = (batch, cells)
    return rules.fill(context, cell, cell, (batch, both), (batch, gates), cell, cell)


def _sequence(context: ShapeContext, time_major: bool) -> tuple[Shape, rules.Dimension]:
    """Shape of a sequence input, and its batch."""
    shape = rules.ranked(context, 0, 3)
    return shape, rules.dimension(shape, 1 if time_major else 0)


def _over_time(shape: Shape, size: rules.Dimension) -> Shape:
    return (None, None, size) if shape is None else (shape[0], shape[1], size)


def _sequence_lstm(context: ShapeContext) -> Sequence[Shape]:
    shape, batch = _sequence(context, context.attributes.flag("time_major"))
    cells, outputs = lstm_sizes(context, rules.dimension(shape, 2), 1)
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
    shape, batch = _sequence(context, context.attributes.flag("time_major"))
    forward_cells, forward = lstm_sizes(context, rules.dimension(shape, 2), 1)
    linked = context.has(39) and not context.has(FORGET_AUXILIARY)
    backward_input = (
        rules.dimension(rules.ranked(context, 39, 3), 2) if linked else rules.dimension(shape, 2)
    )
    backward_cells, backward = lstm_sizes(context, backward_input, 18)
    sizes = (forward, forward_cells, backward, backward_cells)
    states = [_state(context, index, batch, size) for index, size in enumerate(sizes, 35)]
    return rules.fill(context, *_merged(context, shape, forward, backward), *states)


def _merged(
    context: ShapeContext, shape: Shape, forward: rules.Dimension, backward: rules.Dimension
) -> tuple[Shape, ...]:
    if not context.attributes.flag("merge_outputs"):
        return _over_time(shape, forward), _over_time(shape, backward)
    both = None if forward is None or backward is None else forward + backward
    return (_over_time(shape, both),)


def _units(context: ShapeContext, inputs: rules.Dimension, first: int) -> rules.Dimension:
    """The units of a basic recurrent cell whose weights, recurrent weights and bias start at
    *first*.
    """
    weights, recurrent = rules.ranked(context, first, 2), rules.ranked(context, first + 1, 2)
    rules.agree(inputs, rules.dimension(weights, 1), "input size and columns of the weights")
    units = rules.agree(
        rules.dimension(weights, 0), rules.dimension(recurrent, 0), "rows of the weights"
    )
    units = rules.agree(
        units, rules.dimension(recurrent, 1), "columns of the recurrent weights and units"
    )
    return rules.agree(
        units, rules.dimension(rules.ranked(context, first + 2, 1), 0), "bias and units"
    )


def _rnn(context: ShapeContext) -> Sequence[Shape]:
    shape = rules.ranked(context, 0, 2)
    cell = (rules.dimension(shape, 0), _units(context, rules.dimension(shape, 1), 1))
    return rules.fill(context, cell, _state(context, 4, *cell))


def _sequence_rnn(context: ShapeContext) -> Sequence[Shape]:
    shape, batch = _sequence(context, context.attributes.flag("time_major"))
    units = _units(context, rules.dimension(shape, 2), 1)
    return rules.fill(context, _over_time(shape, units), _state(context, 4, batch, units))


def _bidirectional_rnn(context: ShapeContext) -> Sequence[Shape]:
    shape, batch = _sequence(context, context.attributes.flag("time_major"))
    linked = context.has(9) and not context.has(10)
    forward = _units(context, rules.dimension(shape, 2), 1)
    backward = _units(
        context,
        rules.dimension(rules.ranked(context, 9, 3), 2) if linked else rules.dimension(shape, 2),
        5,
    )
    states = _state(context, 4, batch, forward), _state(context, 8, batch, backward)
    return rules.fill(context, *_merged(context, shape, forward, backward), *states)


def _svdf(context: ShapeContext) -> Sequence[Shape]:
    """weights_feature [filters, in], weights_time [filters, memory], filters = units * rank."""
    shape, feature, time = (
        rules.ranked(context, 0, 2),
        rules.ranked(context, 1, 2),
        rules.ranked(context, 2, 2),
    )
    rank = rules.positive(context, "rank")
    rules.agree(
        rules.dimension(shape, 1),
        rules.dimension(feature, 1),
        "input size and columns of the feature weights",
    )
    filters = rules.agree(
        rules.dimension(feature, 0), rules.dimension(time, 0), "rows of feature and time weights"
    )
    if filters is not None and filters % rank:
        raise ShapeMismatch(f"{filters} filters are not a multiple of rank {rank}")
    units = None if filters is None else filters // rank
    if context.has(3):
        rules.agree(rules.dimension(rules.ranked(context, 3, 1), 0), units, "bias and units")
    batch, memory = rules.dimension(shape, 0), rules.dimension(time, 1)
    size = None if memory is None or filters is None else memory * filters
    return rules.fill(context, (batch, units), _state(context, 4, batch, size))


INPUT: Final = Port("input", signature.ACTIVATION)
LSTM_STATES: Final = (
    Port("output_state", signature.ACTIVATION),
    Port("cell_state", signature.ACTIVATION),
)
NEW_LSTM_STATES: Final = (
    Port("new_output_state", signature.ACTIVATION, optional=True),
    Port("new_cell_state", signature.ACTIVATION, optional=True),
)
RNN: Final = (*_weights("weights", "recurrent_weights"), *_biases("bias"))

BASIC_LSTM_INPUTS: Final = 5


def _lstm_inputs() -> tuple[Port, ...]:
    """Ports of LSTM. Its basic kernel has five other inputs. So all ports accept the types of both
    forms, and ports after the fifth are optional.
    """
    ports = (INPUT, *lstm_parameters(), *LSTM_STATES, *LAYER_NORM)
    wide = signature.ACTIVATION | signature.WEIGHTS | signature.BIAS
    return tuple(
        Port(port.name, wide, optional=port.optional or at >= BASIC_LSTM_INPUTS)
        for at, port in enumerate(ports)
    )


ROWS: Final = (
    OperationSpec(
        "LSTM",
        _lstm_inputs(),
        (
            Port("output", signature.ACTIVATION),
            *NEW_LSTM_STATES,
            Port("basic_gates", signature.ACTIVATION, optional=True),
            Port("basic_new_activation", signature.ACTIVATION, optional=True),
            Port("basic_new_state", signature.ACTIVATION, optional=True),
        ),
        _lstm,
        (
            FUSED_ACTIVATION,
            signature.real("cell_clip"),
            signature.real("proj_clip"),
            signature.choice("kernel_type", "FULL", "BASIC"),
            signature.ASYMMETRIC_INPUTS,
            *INTERMEDIATES,
        ),
        feature_level=1,
        doc="One step of a long short-term memory. FULL: outputs are output, new output state, new "
        "cell state."
        "BASIC: inputs are data, previous activation, weights, biases, previous state; outputs are "
        "activation,"
        "state, joined input, gates, then the new activation and state.",
        versions=4,
    ),
    OperationSpec(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        (INPUT, *lstm_parameters(), *LSTM_STATES, *LAYER_NORM),
        (Port("output", signature.ACTIVATION), *NEW_LSTM_STATES),
        _sequence_lstm,
        (
            FUSED_ACTIVATION,
            signature.real("cell_clip"),
            signature.real("proj_clip"),
            signature.flag("time_major"),
            signature.ASYMMETRIC_INPUTS,
            signature.flag("diagonal_recurrent_tensors"),
            *INTERMEDIATES,
        ),
        feature_level=3,
        doc="A long short-term memory over a sequence, batch or time first.",
        versions=4,
    ),
    OperationSpec(
        "BIDIRECTIONAL_SEQUENCE_LSTM",
        (
            INPUT,
            *lstm_parameters("forward_"),
            *lstm_parameters("backward_"),
            *(
                Port(f"{d}_{s}_state", signature.ACTIVATION)
                for d in ("forward", "backward")
                for s in ("output", "cell")
            ),
            Port("auxiliary_input", signature.ACTIVATION, optional=True),
            *(
                Port(f"{d}_auxiliary_to_{g}_weights", signature.WEIGHTS, optional=True)
                for d in ("forward", "backward")
                for g in ("input", "forget", "cell", "output")
            ),
            *_layer_norm("forward_"),
            *_layer_norm("backward_"),
        ),
        (
            Port("output", signature.ACTIVATION),
            Port("backward_output", signature.ACTIVATION, optional=True),
            *[NEW_STATE] * 4,
        ),
        _bidirectional_lstm,
        (
            FUSED_ACTIVATION,
            signature.real("cell_clip"),
            signature.real("proj_clip"),
            signature.flag("merge_outputs"),
            signature.flag("time_major", True),
            signature.ASYMMETRIC_INPUTS,
        ),
        feature_level=3,
        doc="Two long short-term memories over a sequence, one forward and one backward. With "
        "merge_outputs there"
        "is no backward output; the new states follow the outputs there are. TFLite has no layer "
        "normalisation here.",
        versions=3,
    ),
    OperationSpec(
        "RNN",
        (INPUT, *RNN, Port("hidden_state", signature.ACTIVATION)),
        (
            Port("output", signature.ACTIVATION),
            Port("new_hidden_state", signature.ACTIVATION, optional=True),
        ),
        _rnn,
        (FUSED_ACTIVATION, signature.ASYMMETRIC_INPUTS),
        feature_level=1,
        doc="One step of a basic recurrent cell: activation(weights x + recurrent weights h + "
        "bias).",
        versions=3,
    ),
    OperationSpec(
        "UNIDIRECTIONAL_SEQUENCE_RNN",
        (INPUT, *RNN, Port("hidden_state", signature.ACTIVATION)),
        (
            Port("output", signature.ACTIVATION),
            Port("new_hidden_state", signature.ACTIVATION, optional=True),
        ),
        _sequence_rnn,
        (signature.flag("time_major"), FUSED_ACTIVATION, signature.ASYMMETRIC_INPUTS),
        feature_level=3,
        doc="A basic recurrent cell over a sequence, batch or time first.",
        versions=3,
    ),
    OperationSpec(
        "BIDIRECTIONAL_SEQUENCE_RNN",
        (
            INPUT,
            *RNN,
            Port("forward_hidden_state", signature.ACTIVATION),
            *RNN,
            Port("backward_hidden_state", signature.ACTIVATION),
            Port("auxiliary_input", signature.ACTIVATION, optional=True),
            *_weights("forward_auxiliary_weights", "backward_auxiliary_weights", optional=True),
        ),
        (
            Port("output", signature.ACTIVATION),
            Port("backward_output", signature.ACTIVATION, optional=True),
            *[NEW_STATE] * 2,
        ),
        _bidirectional_rnn,
        (
            signature.flag("time_major"),
            FUSED_ACTIVATION,
            signature.flag("merge_outputs"),
            signature.ASYMMETRIC_INPUTS,
        ),
        feature_level=3,
        doc="Two basic recurrent cells over a sequence, one forward and one backward. With "
        "merge_outputs there is"
        "no backward output; the new states follow the outputs there are.",
        versions=3,
    ),
    signature.row(
        "SVDF",
        "input: activation, weights_feature: weights, weights_time: weights, bias?: bias, "
        "state: activation -> output: activation, new_state?: activation",
        _svdf,
        (signature.integer("rank"), FUSED_ACTIVATION, signature.ASYMMETRIC_INPUTS),
        level=1,
        versions=4,
        doc="A fully connected layer over a sliding memory, its weights factored into feature and "
        "time filters.",
    ),
)
