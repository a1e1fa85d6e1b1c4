"""Recurrent cells and sequences in real numbers, and SVDF.

States are inputs and outputs of the operations, here as in NNAPI; only SVDF's stand otherwise. | QUANTIZED_16BIT_LSTM and QUANTIZED_LSTM: long short-term memories with 8-bit activations and a
16-bit cell state.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import InvalidAttribute, InvalidQuantization, NotLowerable, ShapeMismatch
from penstock.ir import DType
from penstock.nnapi.lowering.registry import lowers
from penstock.nnapi.lowering.site import Site

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


def arguments(names: tuple[str, ...], prefix: str = "") -> str:
    """Arguments of a form, all of type T, those that may be left out marked so."""
    return " ".join(f"{prefix}{n}:T{'' if n in NEVER_OMITTED else '?'}" for n in names)


def tensors(site: Site, names: tuple[str, ...], prefix: str = "") -> list[int]:
    """The IR operands of the arguments of these names."""
    return [site.tensor(f"{prefix}{name}") for name in names]


def _lstm_activation(site: Site) -> str:
    code = site.integer("activation")
    if code not in ACTIVATIONS:
        raise InvalidAttribute(f"activation {code} of {site.type} is none of 0, 1, 3, 4 and 6")
    return ACTIVATIONS[code]


def _clip(site: Site, name: str) -> float:
    value = site.real(name)
    if not value >= 0:
        raise InvalidAttribute(f"{name} of {site.type} is {value}, and must not be below 0")
    return value


def check_parameters(site: Site, prefix: str = "") -> None:
    """Weights have two dimensions, others one, and what belongs together is given together."""
    for name in (*PARAMETERS, *NORMS):
        if site.given(f"{prefix}{name}"):
            matrix = name == "projection" or name.startswith(("input_to", "recurrent_to"))
            site.require_rank(f"{prefix}{name}", 2 if matrix else 1)

    def together(*names: str) -> bool:
        given = {site.given(f"{prefix}{name}") for name in names}
        site.require(len(given) == 1, f"{', '.join(names)} must be given or left out together")
        return given.pop()

    has_gate = together("input_to_input", "recurrent_to_input", "input_bias")
    has_peephole = together("cell_to_forget", "cell_to_output")
    has_input_peephole = site.given(f"{prefix}cell_to_input")
    site.require(
        has_input_peephole == has_peephole or (has_peephole and not has_gate),
        "cell_to_input must be given where an input gate and the other peephole weights are",
    )
    site.require(
        site.given(f"{prefix}projection") or not site.given(f"{prefix}projection_bias"),
        "a projection's bias without its weights",
    )
    if together(*NORMS[1:]):
        site.require(
            site.given(f"{prefix}{NORMS[0]}") == has_gate,
            "input_norm must be given where an input gate is",
        )


def check_states(site: Site, *names: str) -> None:
    """States are batches of vectors."""
    for name in names:
        site.require_rank(name, 2)


def parameters(site: Site, prefix: str = "") -> list[int]:
    """The IR operands of one direction's weights and biases; without an input gate nothing peeps
    into it.
    """
    found = tensors(site, PARAMETERS, prefix)
    if not site.given(f"{prefix}input_to_input"):
        found[PARAMETERS.index("cell_to_input")] = site.graph.omitted()
    return found


def _finish_lstm(site: Site, kind: str, **attributes: bool | str) -> list[int]:
    """The operation over the arguments that LSTM and its sequence form share: its three results."""
    check_parameters(site)
    check_states(site, "output_state", "cell_state")
    inputs = [site.tensor("input"), *parameters(site)]
    states = [site.tensor("output_state"), site.tensor("cell_state")]
    output = site.result_type("output")
    return site.emit_many(
        kind,
        [*inputs, *states, *tensors(site, NORMS)],
        [output] * 3,
        fused_activation_function=_lstm_activation(site),
        cell_clip=_clip(site, "cell_clip"),
        proj_clip=_clip(site, "proj_clip"),
        **attributes,
    )


STATES: Final = "output_state:T cell_state:T"
LIMITS: Final = "activation:i cell_clip:real proj_clip:real"


@lowers(
    "LSTM",
    level=1,
    form=f"input:T {arguments(PARAMETERS)} {STATES} {LIMITS}"
    f" [{' '.join(f'{n}:T@3?' for n in NORMS)}]"
    " -> scratch:T new_output_state:T new_cell_state:T output:T",
    T=TYPES,
)
def lstm(site: Site) -> None:
    """The scratch buffer, which NNAPI leaves undefined, is zero."""
    site.require_rank("input", 2)
    output, output_state, cell_state = _finish_lstm(site, "LSTM")
    site.bind("output", output)
    site.bind("new_output_state", output_state)
    site.bind("new_cell_state", cell_state)
    gates = len(GATES) if site.given("input_to_input") else len(GATES) - 1
    state = site.tensor("cell_state")
    size = site.compute("SHAPE", [state], (DType.INT32, None), out_type="INT32")
    scratch = site.compute("MUL", [size, site.integers([1, gates])])
    site.bind(
        "scratch", site.emit("FILL", [scratch, site.number(0, state)], site.value_type(state))
    )


@lowers(
    "UNIDIRECTIONAL_SEQUENCE_LSTM",
    level=3,
    form=f"input:T {arguments(PARAMETERS)} {STATES} {LIMITS} time_major:b {arguments(NORMS)}"
    " -> output:T [new_output_state:T@4 new_cell_state:T@4]",
    T=TYPES,
)
def unidirectional_sequence_lstm(site: Site) -> None:
    site.require_rank("input", 3)
    kind, time_major = "UNIDIRECTIONAL_SEQUENCE_LSTM", site.flag("time_major")
    results = _finish_lstm(site, kind, time_major=time_major)
    for name, result in zip(("output", "new_output_state", "new_cell_state"), results, strict=True):
        if site.wants(name):
            site.bind(name, result)


DIRECTIONS: Final = ("forward_", "backward_")
_LSTM_STATES: Final = tuple(f"{d}{s}_state" for d in DIRECTIONS for s in ("output", "cell"))
_AUXILIARY: Final = tuple(f"{d}auxiliary_to_{gate}" for d in DIRECTIONS for gate in GATES)
_BOTH_LSTM: Final = (
    f"input:T {arguments(PARAMETERS, 'forward_')} {arguments(PARAMETERS, 'backward_')}"
    f" {' '.join(f'{n}:T' for n in _LSTM_STATES)} auxiliary:T? {arguments(_AUXILIARY)} {LIMITS}"
    " merge_outputs:b time_major:b"
    f" {arguments(NORMS, 'forward_')} {arguments(NORMS, 'backward_')}"
)
_NEW_LSTM_STATES: Final = " ".join(f"new_{n}:T@4" for n in _LSTM_STATES)


@lowers(
    "BIDIRECTIONAL_SEQUENCE_LSTM",
    level=3,
    form=(
        f"{_BOTH_LSTM} -> output:T",
        f"{_BOTH_LSTM} -> output:T backward_output:T",
        f"{_BOTH_LSTM} -> output:T {_NEW_LSTM_STATES}",
        f"{_BOTH_LSTM} -> output:T backward_output:T {_NEW_LSTM_STATES}",
    ),
    T=TYPES,
)
def bidirectional_sequence_lstm(site: Site) -> None:
    site.require_rank("input", 3)
    merged = _check_merging(site)
    for direction in DIRECTIONS:
        check_parameters(site, direction)
    check_states(site, *_LSTM_STATES)
    inputs = [site.tensor("input")]
    for direction in DIRECTIONS:
        inputs += parameters(site, direction)
    inputs += tensors(site, (*_LSTM_STATES, "auxiliary", *_AUXILIARY))
    for direction in DIRECTIONS:
        inputs += tensors(site, NORMS, direction)
    results = site.emit_many(
        "BIDIRECTIONAL_SEQUENCE_LSTM",
        inputs,
        [site.result_type("output")] * (5 if merged else 6),
        fused_activation_function=_lstm_activation(site),
        cell_clip=_clip(site, "cell_clip"),
        proj_clip=_clip(site, "proj_clip"),
        merge_outputs=merged,
        time_major=site.flag("time_major"),
    )
    _bind_both(site, results, [f"new_{n}" for n in _LSTM_STATES])


def _check_merging(site: Site) -> bool:
    """Whether one output has the results of both directions; then there is no other."""
    merged = site.flag("merge_outputs")
    site.require(
        merged != site.wants("backward_output"),
        "there are two outputs where merge_outputs is false, one where it is true, and states",
    )
    return merged


def _bind_both(site: Site, results: list[int], states: list[str]) -> None:
    outputs = ["output"] if site.flag("merge_outputs") else ["output", "backward_output"]
    for name, result in zip([*outputs, *states], results, strict=True):
        if site.wants(name):
            site.bind(name, result)


CELL: Final = "weights:T recurrent_weights:T bias:T hidden_state:T"


def _cell_inputs(site: Site) -> list[int]:
    site.require_rank("weights", 2)
    site.require_rank("recurrent_weights", 2)
    site.require_rank("bias", 1)
    site.require_rank("hidden_state", 2)
    names = ("input", "weights", "recurrent_weights", "bias", "hidden_state")
    return tensors(site, names)


@lowers(
    "RNN",
    level=1,
    form=f"input:T {CELL} activation:i -> new_hidden_state:T output:T",
    T=TYPES,
)
def rnn(site: Site) -> None:
    site.require_rank("input", 2)
    kind = site.result_type("output")
    results = site.emit_many(
        "RNN", _cell_inputs(site), [kind] * 2, fused_activation_function=site.activation()
    )
    for name, result in zip(("output", "new_hidden_state"), results, strict=True):
        site.bind(name, result)


@lowers(
    "UNIDIRECTIONAL_SEQUENCE_RNN",
    level=3,
    form=f"input:T {CELL} activation:i time_major:i -> output:T [new_hidden_state:T@4]",
    T=TYPES,
)
def unidirectional_sequence_rnn(site: Site) -> None:
    site.require_rank("input", 3)
    time_major = site.integer("time_major")
    if time_major not in {0, 1}:
        raise InvalidAttribute(f"time_major of {site.type} is {time_major}, neither 0 nor 1")
    results = site.emit_many(
        "UNIDIRECTIONAL_SEQUENCE_RNN",
        _cell_inputs(site),
        [site.result_type("output")] * 2,
        fused_activation_function=site.activation(),
        time_major=bool(time_major),
    )
    for name, result in zip(("output", "new_hidden_state"), results, strict=True):
        if site.wants(name):
            site.bind(name, result)


_BOTH_CELLS: Final = tuple(
    f"{d}{n}" for d in DIRECTIONS for n in ("weights", "recurrent_weights", "bias", "hidden_state")
)
_BOTH_RNN: Final = (
    f"input:T {' '.join(f'{n}:T' for n in _BOTH_CELLS)} auxiliary:T?"
    " forward_auxiliary_weights:T? backward_auxiliary_weights:T?"
    " activation:i time_major:b merge_outputs:b"
)
_NEW_HIDDEN_STATES: Final = " ".join(f"new_{d}hidden_state:T@4" for d in DIRECTIONS)


@lowers(
    "BIDIRECTIONAL_SEQUENCE_RNN",
    level=3,
    form=(
        f"{_BOTH_RNN} -> output:T",
        f"{_BOTH_RNN} -> output:T backward_output:T",
        f"{_BOTH_RNN} -> output:T {_NEW_HIDDEN_STATES}",
        f"{_BOTH_RNN} -> output:T backward_output:T {_NEW_HIDDEN_STATES}",
    ),
    T=TYPES,
)
def bidirectional_sequence_rnn(site: Site) -> None:
    site.require_rank("input", 3)
    merged = _check_merging(site)
    check_states(site, *(f"{d}hidden_state" for d in DIRECTIONS))
    auxiliary = ("auxiliary", "forward_auxiliary_weights", "backward_auxiliary_weights")
    weighted = [site.given(n) for n in auxiliary[1:]]
    site.require(
        weighted[0] == weighted[1] and (site.given(auxiliary[0]) or not weighted[0]),
        "auxiliary weights must be given for both directions, beside an auxiliary input",
    )
    results = site.emit_many(
        "BIDIRECTIONAL_SEQUENCE_RNN",
        tensors(site, ("input", *_BOTH_CELLS, *auxiliary)),
        [site.result_type("output")] * (3 if merged else 4),
        fused_activation_function=site.activation(),
        time_major=site.flag("time_major"),
        merge_outputs=merged,
    )
    _bind_both(site, results, [f"new_{d}hidden_state" for d in DIRECTIONS])


@lowers(
    "SVDF",
    level=1,
    form="input:T weights_feature:T weights_time:T bias:T? state:T rank:i activation:i"
    " -> new_state:T output:T",
    T=TYPES,
)
def svdf(site: Site) -> None:
    """NNAPI's state makes room for the next values before a run ends, the IR's when one begins."""
    for name in ("input", "weights_feature", "weights_time", "state"):
        site.require_rank(name, 2)
    time = site.shape(site.tensor("weights_time"))
    if time is None or None in time:
        raise NotLowerable("an SVDF whose filters' shape is known only when it runs")
    filters, memory = (d or 0 for d in time)
    if filters == 0 or memory == 0:
        raise ShapeMismatch(f"time weights of shape {site.describe(site.tensor('weights_time'))}")
    before = _shifted(site, site.tensor("state"), filters, memory, later=True)
    names = ("input", "weights_feature", "weights_time", "bias")
    output, after = site.emit_many(
        "SVDF",
        [*tensors(site, names), before],
        [site.result_type("output"), site.result_type("new_state")],
        rank=site.positive("rank"),
        fused_activation_function=site.activation(),
    )
    site.bind("output", output)
    site.bind("new_state", _shifted(site, after, filters, memory, later=False))


def _shifted(site: Site, state: int, filters: int, memory: int, *, later: bool) -> int:
    """*state* [batch, filters * memory] with each filter's values one place later or earlier, zero
    coming in.
    """
    rows = site.reshape(state, (-1, memory))
    wide = site.emit("PAD", [rows, site.table([(0, 0), (1, 0) if later else (0, 1)])])
    start = site.integers([0, 0 if later else 1])
    moved = site.emit("SLICE", [wide, start, site.integers([-1, memory])])
    return site.reshape(moved, (-1, filters * memory))


CELL_SCALE: Final = 2.0**-11
ACTIVATION: Final = (1 / 128, 128)
"""Scale and zero point of the activations of QUANTIZED_16BIT_LSTM."""

WEIGHTS: Final = tuple(f"{source}_to_{gate}" for source in ("input", "recurrent") for gate in GATES)
BIASES: Final = tuple(f"{gate}_bias" for gate in GATES)


@lowers(
    "QUANTIZED_16BIT_LSTM",
    level=3,
    form=f"input:q8 {' '.join(f'{n}:q8' for n in WEIGHTS)} {' '.join(f'{n}:i32' for n in BIASES)}"
    " cell_state:q16y output_state:q8 -> new_cell_state:q16y output:q8",
)
def quantized_16bit_lstm(site: Site) -> None:
    check_states(site, "input", "output_state", "cell_state")
    for name in ("cell_state", "new_cell_state"):
        site.require_quantization(name, CELL_SCALE, 0)
    for name in ("input", "output_state", "output"):
        site.require_quantization(name, *ACTIVATION)
    for name in WEIGHTS:
        site.require_rank(name, 2)
    site.require_same_quantization(*WEIGHTS)
    for name in BIASES:
        site.require_rank(name, 1)
    if len({(site.operand(n).scale, site.operand(n).zero_point) for n in BIASES}) > 1:
        raise InvalidQuantization(f"the biases of {site.type} need one scale and zero point")
    names = ("input", *WEIGHTS, *BIASES, "cell_state", "output_state")
    site.finish("QUANTIZED_16BIT_LSTM", tensors(site, names))


def _kind(name: str) -> str:
    """The type of a weight or bias of QUANTIZED_LSTM."""
    if name.endswith("bias"):
        return "i32"
    return "q16y" if name.startswith("cell_to_") else "q8y"


OPTIONAL: Final = {
    "input_to_input",
    "recurrent_to_input",
    *(n for n in PARAMETERS if n.startswith("cell_to_")),
    "input_bias",
    "projection",
    "projection_bias",
}
_SCALES: Final = tuple(f"{gate}_intermediate_scale" for gate in GATES)


@lowers(
    "QUANTIZED_LSTM",
    level=4,
    form="input:q8s"
    f" {' '.join(f'{n}:{_kind(n)}' + '?' * (n in OPTIONAL) for n in PARAMETERS)}"
    f" output_state:q8s cell_state:q16y {' '.join(f'{n}:q16y?' for n in NORMS)}"
    f" cell_clip:f proj_clip:f {' '.join(f'{n}:f' for n in _SCALES)}"
    " hidden_state_zero_point:i hidden_state_scale:f"
    " -> new_output_state:q8s new_cell_state:q16y output:q8s",
)
def quantized_lstm(site: Site) -> None:
    site.require_rank("input", 2)
    check_parameters(site)
    check_states(site, "output_state", "cell_state")
    site.require_same_quantization("output_state", "new_output_state")
    site.require_same_quantization("cell_state", "new_cell_state")
    for name in ("cell_clip", "proj_clip"):
        if not site.real(name) >= 0:
            raise InvalidAttribute(f"{name} is {site.real(name)}, and must not be below 0")
    states = ("output_state", "cell_state", *NORMS)
    site.finish(
        "QUANTIZED_LSTM",
        [site.tensor("input"), *parameters(site), *tensors(site, states)],
        cell_clip=site.real("cell_clip"),
        proj_clip=site.real("proj_clip"),
        hidden_state_zero_point=site.integer("hidden_state_zero_point"),
        hidden_state_scale=site.real("hidden_state_scale"),
        **{name: site.real(name) for name in _SCALES},
    )
