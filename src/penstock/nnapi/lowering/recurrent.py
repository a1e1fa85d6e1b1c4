"""Recurrent cells and sequences, in real numbers and quantised, and SVDF.

States are inputs and outputs of the operations, in the IR as in NNAPI; only SVDF's layout differs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from penstock.errors import InvalidQuantization, NotLowerable, ShapeMismatch
from penstock.ir import AttributeValue, DType
from penstock.nnapi.lowering.operation import OperationLowering
from penstock.nnapi.lowering.registry import lowers

TYPES: Final = "f32 f16@3"
ACTIVATIONS: Final = {0: "NONE", 1: "RELU", 3: "RELU6", 4: "TANH", 6: "SIGMOID"}
"""Activations of LSTM operations by code (NNAPI section 1.1)."""

GATES: Final = ("input", "forget", "cell", "output")
NEVER_OMITTED: Final = {
    *(f"{source}_to_{gate}" for source in ("input", "recurrent") for gate in GATES[1:]),
    *(f"{gate}_bias" for gate in GATES[1:]),
}
PARAMETERS: Final = (
    *(f"input_to_{gate}" for gate in GATES),
    *(f"recurrent_to_{gate}" for gate in GATES),
    *(f"cell_to_{gate}" for gate in ("input", "forget", "output")),
    *(f"{gate}_bias" for gate in GATES),
    "projection",
    "projection_bias",
)
"""The weights and biases of one LSTM direction, in NNAPI's order and in the IR's."""

NORMS: Final = tuple(f"{gate}_norm" for gate in GATES)
DIRECTIONS: Final = ("forward_", "backward_")


def arguments(
    names: Iterable[str],
    prefix: str = "",
    kind: Callable[[str], str] = lambda _: "T",
    level: str = "",
) -> str:
    """Weights as arguments of a form, with ranks; only `NEVER_OMITTED` are required."""

    def argument(name: str) -> str:
        matrix = name == "projection" or name.startswith(("input_to", "recurrent_to"))
        mark = "" if name in NEVER_OMITTED else "?"
        return f"{prefix}{name}:{kind(name)}/{2 if matrix else 1}{level}{mark}"

    return " ".join(map(argument, names))


def check_parameters(op: OperationLowering, prefix: str = "") -> list[str]:
    """Checks that one direction's dependent weights and biases are given together.

    Returns the names that the IR's operation omits: without an input gate there is no peephole into
    it.
    """

    def given(name: str) -> bool:
        return op.given(f"{prefix}{name}")

    def together(*names: str) -> bool:
        found = {given(name) for name in names}
        op.require(len(found) == 1, f"{', '.join(names)} must be given or left out together")
        return found.pop()

    has_gate = together("input_to_input", "recurrent_to_input", "input_bias")
    has_peephole = together("cell_to_forget", "cell_to_output")
    op.require(
        given("cell_to_input") == has_peephole or (has_peephole and not has_gate),
        "cell_to_input must be given where an input gate and the other peephole weights are",
    )
    op.require(
        given("projection") or not given("projection_bias"),
        "a projection's bias without its weights",
    )
    if together(*NORMS[1:]):
        op.require(given(NORMS[0]) == has_gate, "input_norm must be given where an input gate is")
    return [] if has_gate else [f"{prefix}cell_to_input"]


def _emit(
    op: OperationLowering,
    names: Sequence[str],
    omitted: Collection[str] = (),
    **changed: AttributeValue,
) -> None:
    """Appends the IR operation of the same name, whose results *names* all have the type of
    `output`; binds those that the NNAPI operation has.
    """
    inputs, attributes = op.passed(changed, omitted)
    types = [op.result_type("output")] * len(names)
    op.bind_wanted(names, op.emit_many(op.type, inputs, types, **attributes))


STATES: Final = "output_state:T/2 cell_state:T/2"
LIMITS: Final = "activation:i cell_clip:real>=0 proj_clip:real>=0"


def _lstm_activation(op: OperationLowering) -> str:
    return op.choice("activation", ACTIVATIONS)


@lowers(
    "LSTM",
    f"input:T/2 {arguments(PARAMETERS)} {STATES} {LIMITS}"
    f" [{arguments(NORMS, level='@3')}] -> scratch:T new_output_state:T new_cell_state:T output:T",
    T=TYPES,
)
@lowers(
    "UNIDIRECTIONAL_SEQUENCE_LSTM",
    f"input:T/3 {arguments(PARAMETERS)} {STATES} {LIMITS} time_major:b {arguments(NORMS)}"
    " -> output:T [new_output_state:T@4 new_cell_state:T@4]",
    T=TYPES,
)
def lstm(op: OperationLowering) -> None:
    """The scratch buffer, undefined in NNAPI, is set to zero."""
    names, omitted = ("output", "new_output_state", "new_cell_state"), check_parameters(op)
    _emit(op, names, omitted, fused_activation_function=_lstm_activation(op))
    if op.wants("scratch"):
        gates = len(GATES) if op.given("input_to_input") else len(GATES) - 1
        state = op.tensor("cell_state")
        size = op.compute("SHAPE", [state], (DType.INT32, None), out_type="INT32")
        scratch = op.compute("MUL", [size, op.integers([1, gates])])
        op.bind("scratch", op.emit("FILL", [scratch, op.number(0, state)], op.value_type(state)))


def _bidirectional(inputs: str, states: Iterable[str]) -> tuple[str, ...]:
    """Forms with one output for both directions or two outputs, with and without states."""
    new_states = " ".join(f"new_{name}:T@4" for name in states)
    outputs = ("output:T", "output:T backward_output:T")
    return tuple(f"{inputs} -> {o} {s}" for s in ("", new_states) for o in outputs)


def _emit_bidirectional(
    op: OperationLowering,
    states: Iterable[str],
    omitted: Collection[str] = (),
    **changed: AttributeValue,
) -> None:
    """Appends the operation and binds its outputs. The IR's operation always has the states."""
    merged = op.flag("merge_outputs")
    op.require(
        merged != op.wants("backward_output"),
        "there are two outputs where merge_outputs is false, one where it is true, and states",
    )
    outputs = ["output"] if merged else ["output", "backward_output"]
    _emit(op, [*outputs, *(f"new_{name}" for name in states)], omitted, **changed)


_LSTM_STATES: Final = tuple(f"{d}{s}_state" for d in DIRECTIONS for s in ("output", "cell"))
_AUXILIARY: Final = tuple(f"{d}auxiliary_to_{gate}" for d in DIRECTIONS for gate in GATES)


@lowers(
    "BIDIRECTIONAL_SEQUENCE_LSTM",
    *_bidirectional(
        f"input:T/3 {arguments(PARAMETERS, 'forward_')} {arguments(PARAMETERS, 'backward_')}"
        f" {' '.join(f'{n}:T/2' for n in _LSTM_STATES)} auxiliary:T?"
        f" {' '.join(f'{n}:T?' for n in _AUXILIARY)} {LIMITS} merge_outputs:b time_major:b"
        f" {arguments(NORMS, 'forward_')} {arguments(NORMS, 'backward_')}",
        _LSTM_STATES,
    ),
    T=TYPES,
)
def bidirectional_sequence_lstm(op: OperationLowering) -> None:
    omitted = [name for prefix in DIRECTIONS for name in check_parameters(op, prefix)]
    activation = _lstm_activation(op)
    _emit_bidirectional(op, _LSTM_STATES, omitted, fused_activation_function=activation)


CELL: Final = "weights:T/2 recurrent_weights:T/2 bias:T/1 hidden_state:T/2"


@lowers("RNN", f"input:T/2 {CELL} activation:i -> new_hidden_state:T output:T", T=TYPES)
@lowers(
    "UNIDIRECTIONAL_SEQUENCE_RNN",
    f"input:T/3 {CELL} activation:i time_major:i -> output:T [new_hidden_state:T@4]",
    T=TYPES,
)
def _rnn(op: OperationLowering) -> None:
    """RNN and its sequence form, whose `time_major` is an integer, 0 or 1."""
    changed: dict[str, AttributeValue] = {}
    if "time_major" in op.match.inputs:
        changed["time_major"] = op.choice("time_major", {0: "no", 1: "yes"}) == "yes"
    _emit(op, ("output", "new_hidden_state"), (), **changed)


_BOTH_CELLS: Final = tuple(
    f"{d}{n}" for d in DIRECTIONS for n in ("weights", "recurrent_weights", "bias", "hidden_state")
)
_HIDDEN_STATES: Final = tuple(f"{d}hidden_state" for d in DIRECTIONS)


@lowers(
    "BIDIRECTIONAL_SEQUENCE_RNN",
    *_bidirectional(
        f"input:T/3 {' '.join(f'{n}:T' + '/2' * (n in _HIDDEN_STATES) for n in _BOTH_CELLS)}"
        " auxiliary:T? forward_auxiliary_weights:T? backward_auxiliary_weights:T?"
        " activation:i time_major:b merge_outputs:b",
        _HIDDEN_STATES,
    ),
    T=TYPES,
)
def bidirectional_sequence_rnn(op: OperationLowering) -> None:
    auxiliary = ("auxiliary", "forward_auxiliary_weights", "backward_auxiliary_weights")
    given, *weighted = (op.given(name) for name in auxiliary)
    op.require(
        weighted[0] == weighted[1] and (given or not weighted[0]),
        "auxiliary weights must be given for both directions, beside an auxiliary input",
    )
    _emit_bidirectional(op, _HIDDEN_STATES)


@lowers(
    "SVDF",
    "input:T/2 weights_feature:T/2 weights_time:T/2 bias:T? state:T/2 rank:i>0 activation:i"
    " -> new_state:T output:T",
    T=TYPES,
)
def svdf(op: OperationLowering) -> None:
    """NNAPI shifts the state before a run ends, the IR when a run begins."""
    time = op.shape("weights_time")
    if time is None or None in time:
        raise NotLowerable("an SVDF whose filters' shape is known only when it runs")
    filters, memory = (d or 0 for d in time)
    if filters == 0 or memory == 0:
        raise ShapeMismatch(f"time weights of shape {op.describe('weights_time')}")
    before = _shifted(op, op.tensor("state"), filters, memory, later=True)
    names = ("input", "weights_feature", "weights_time", "bias")
    output, after = op.emit_many(
        "SVDF",
        [*op.named_tensors(names), before],
        [op.result_type("output"), op.result_type("new_state")],
        rank=op.integer("rank"),
        fused_activation_function=op.activation(),
    )
    op.bind("output", output)
    op.bind("new_state", _shifted(op, after, filters, memory, later=False))


def _shifted(op: OperationLowering, state: int, filters: int, memory: int, *, later: bool) -> int:
    """*state* [batch, filters * memory] with values one place later or earlier, zero-filled."""
    rows = op.reshape(state, (-1, memory))
    wide = op.emit("PAD", [rows, op.integers([(0, 0), (1, 0) if later else (0, 1)])])
    start = op.integers([0, 0 if later else 1])
    moved = op.emit("SLICE", [wide, start, op.integers([-1, memory])])
    return op.reshape(moved, (-1, filters * memory))


ACTIVATION: Final = "q8/2=1/128,128"
CELL_STATE: Final = "q16y/2=1/2048,0"
"""Activations and cell state of QUANTIZED_16BIT_LSTM."""

WEIGHTS: Final = tuple(f"{source}_to_{gate}" for source in ("input", "recurrent") for gate in GATES)
BIASES: Final = tuple(f"{gate}_bias" for gate in GATES)


@lowers(
    "QUANTIZED_16BIT_LSTM",
    f"input:{ACTIVATION} {' '.join(f'{n}:q8/2' for n in WEIGHTS)}"
    f" {' '.join(f'{n}:i32/1' for n in BIASES)} cell_state:{CELL_STATE} output_state:{ACTIVATION}"
    f" -> new_cell_state:{CELL_STATE} output:{ACTIVATION}",
    same=" ".join(WEIGHTS),
)
def quantized_16bit_lstm(op: OperationLowering) -> None:
    if len({(op.operand(n).scale, op.operand(n).zero_point) for n in BIASES}) > 1:
        raise InvalidQuantization(f"the biases of {op.type} need one scale and zero point")
    op.pass_through()


def _kind(name: str) -> str:
    """The type of a weight or bias of QUANTIZED_LSTM."""
    if name in NORMS:
        return "q16y"
    if name.endswith("bias"):
        return "i32"
    return "q16y" if name.startswith("cell_to_") else "q8y"


_SCALES: Final = tuple(f"{gate}_intermediate_scale" for gate in GATES)


@lowers(
    "QUANTIZED_LSTM",
    f"input:q8s/2 {arguments(PARAMETERS, kind=_kind)}"
    f" output_state:q8s/2 cell_state:q16y/2 {arguments(NORMS, kind=_kind)} cell_clip:f>=0 "
    f"proj_clip:f>=0 {' '.join(f'{n}:f' for n in _SCALES)} hidden_state_zero_point:i "
    "hidden_state_scale:f -> new_output_state:q8s new_cell_state:q16y output:q8s",
    same="output_state new_output_state",
)
def quantized_lstm(op: OperationLowering) -> None:
    op.require_same_quantization("cell_state", "new_cell_state")
    inputs, attributes = op.passed({}, check_parameters(op))
    op.finish("QUANTIZED_LSTM", inputs, **attributes)
