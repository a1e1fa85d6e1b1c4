"""NNAPI's rules for recurrent operations, and what becomes of SVDF's state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.errors import ModelError, NotLowerable
from penstock.nnapi.description import NnapiOperand
from tests.unit.nnapi.lowering.one import b, constant, f, h, i, lowered, nothing, run, t

Case = tuple[dict[str, NnapiOperand], list[NnapiOperand]]
GATES = ("input", "forget", "cell", "output")
BATCH, DEPTH, CELLS, OUTPUTS = 2, 3, 4, 5


def parameters(kind: str, prefix: str = "") -> dict[str, NnapiOperand]:
    """Everything there is, with a projection."""
    found = {f"input_to_{g}": t(kind, CELLS, DEPTH) for g in GATES}
    found |= {f"recurrent_to_{g}": t(kind, CELLS, OUTPUTS) for g in GATES}
    found |= {f"cell_to_{g}": t(kind, CELLS) for g in ("input", "forget", "output")}
    found |= {f"{g}_bias": t(kind, CELLS) for g in GATES}
    found |= {"projection": t(kind, OUTPUTS, CELLS), "projection_bias": t(kind, OUTPUTS)}
    return {f"{prefix}{name}": operand for name, operand in found.items()}


def norms(kind: str, prefix: str = "") -> dict[str, NnapiOperand]:
    return {f"{prefix}{g}_norm": t(kind, CELLS) for g in GATES}


def limits(kind: str) -> dict[str, NnapiOperand]:
    real = h if kind == "f16" else f
    return {"activation": i(4), "cell_clip": real(0), "proj_clip": real(0)}


def states(kind: str, prefix: str = "") -> dict[str, NnapiOperand]:
    return {
        f"{prefix}output_state": t(kind, BATCH, OUTPUTS),
        f"{prefix}cell_state": t(kind, BATCH, CELLS),
    }


def lstm(kind: str = "f32") -> Case:
    given = {"input": t(kind, BATCH, DEPTH), **parameters(kind), **states(kind), **limits(kind)}
    output, cell = t(kind, BATCH, OUTPUTS), t(kind, BATCH, CELLS)
    return given, [t(kind, BATCH, 4 * CELLS), output, cell, output]


def sequence(kind: str = "f32") -> Case:
    given = {"input": t(kind, BATCH, 6, DEPTH), **parameters(kind), **states(kind)}
    given |= {**limits(kind), "time_major": b(False), **norms(kind)}
    return given, [t(kind, BATCH, 6, OUTPUTS)]


def both_ways(kind: str = "f32") -> Case:
    given = {"input": t(kind, 6, BATCH, DEPTH)}
    for prefix in ("forward_", "backward_"):
        given |= parameters(kind, prefix)
    for prefix in ("forward_", "backward_"):
        given |= states(kind, prefix)
    given["auxiliary"] = nothing(kind)
    given |= {
        f"{d}_auxiliary_to_{g}": nothing(kind) for d in ("forward", "backward") for g in GATES
    }
    given |= {**limits(kind), "merge_outputs": b(False), "time_major": b(True)}
    for prefix in ("forward_", "backward_"):
        given |= norms(kind, prefix)
    return given, [t(kind, 6, BATCH, OUTPUTS)] * 2


def cell(kind: str = "f32") -> Case:
    given = {
        "input": t(kind, BATCH, DEPTH),
        "weights": t(kind, CELLS, DEPTH),
        "recurrent_weights": t(kind, CELLS, CELLS),
        "bias": t(kind, CELLS),
        "hidden_state": t(kind, BATCH, CELLS),
        "activation": i(1),
    }
    return given, [t(kind, BATCH, CELLS)] * 2


def cells(kind: str = "f32") -> Case:
    given, _ = cell(kind)
    given |= {"input": t(kind, BATCH, 6, DEPTH), "time_major": i(0)}
    return given, [t(kind, BATCH, 6, CELLS)]


def cells_both_ways(kind: str = "f32") -> Case:
    one, _ = cell(kind)
    four = ("weights", "recurrent_weights", "bias", "hidden_state")
    given = {"input": t(kind, BATCH, 6, DEPTH)}
    given |= {f"{d}_{n}": one[n] for d in ("forward", "backward") for n in four}
    given |= dict.fromkeys(
        ("auxiliary", "forward_auxiliary_weights", "backward_auxiliary_weights"), nothing(kind)
    )
    given |= {"activation": i(1), "time_major": b(False), "merge_outputs": b(False)}
    return given, [t(kind, BATCH, 6, CELLS)] * 2


def svdf(kind: str = "f32") -> Case:
    given = {
        "input": t(kind, BATCH, DEPTH),
        "weights_feature": t(kind, 4, DEPTH),
        "weights_time": t(kind, 4, 3),
        "bias": nothing(kind),
        "state": t(kind, BATCH, 12),
        "rank": i(2),
        "activation": i(0),
    }
    return given, [t(kind, BATCH, 12), t(kind, BATCH, 2)]


def narrow() -> Case:
    weights = {f"input_to_{g}": t("q8", CELLS, DEPTH, zero=100) for g in GATES}
    weights |= {f"recurrent_to_{g}": t("q8", CELLS, CELLS, zero=100) for g in GATES}
    given = {
        "input": t("q8", BATCH, DEPTH, scale=1 / 128, zero=128),
        **weights,
        **{f"{g}_bias": t("i32", CELLS, scale=0.5 / 128) for g in GATES},
        "cell_state": t("q16y", BATCH, CELLS, scale=2**-11),
        "output_state": t("q8", BATCH, CELLS, scale=1 / 128, zero=128),
    }
    return given, [
        t("q16y", BATCH, CELLS, scale=2**-11),
        t("q8", BATCH, CELLS, scale=1 / 128, zero=128),
    ]


def integer() -> Case:
    given = {"input": t("q8s", BATCH, DEPTH)}
    for name, operand in parameters("f32").items():
        kind = "i32" if name.endswith("bias") else "q16y" if "cell_to" in name else "q8y"
        given[name] = t(kind, *operand.dimensions or ())
    given |= {"output_state": t("q8s", BATCH, OUTPUTS), "cell_state": t("q16y", BATCH, CELLS)}
    given |= {f"{g}_norm": t("q16y", CELLS) for g in GATES}
    given |= {"cell_clip": f(0), "proj_clip": f(0)}
    given |= {f"{g}_intermediate_scale": f(0.01) for g in GATES}
    given |= {"hidden_state_zero_point": i(0), "hidden_state_scale": f(0.01)}
    output = t("q8s", BATCH, OUTPUTS)
    return given, [output, t("q16y", BATCH, CELLS), output]


MAKERS: dict[str, tuple[Any, int]] = {
    "LSTM": (lstm, 1),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": (sequence, 3),
    "BIDIRECTIONAL_SEQUENCE_LSTM": (both_ways, 3),
    "RNN": (cell, 1),
    "UNIDIRECTIONAL_SEQUENCE_RNN": (cells, 3),
    "BIDIRECTIONAL_SEQUENCE_RNN": (cells_both_ways, 3),
    "SVDF": (svdf, 1),
    "QUANTIZED_16BIT_LSTM": (narrow, 3),
    "QUANTIZED_LSTM": (integer, 4),
}
REAL = [name for name in sorted(MAKERS) if not name.startswith("QUANTIZED")]


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_each_operation_has_its_level(name: str) -> None:
    make, level = MAKERS[name]
    arguments, outputs = make()
    assert any(o.type == name for o in lowered(name, arguments, outputs, level).operations)
    if level > 1:
        with pytest.raises(ModelError, match="needs feature level"):
            lowered(name, arguments, outputs, level - 1)


@pytest.mark.parametrize("name", REAL)
def test_half_precision_needs_level_3(name: str) -> None:
    make, _ = MAKERS[name]
    arguments, outputs = make("f16")
    assert lowered(name, arguments, outputs, 3).operations
    with pytest.raises(ModelError, match="needs feature level"):
        lowered(name, arguments, outputs, 2)


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_operands_too_many_or_too_few(name: str) -> None:
    arguments, outputs = MAKERS[name][0]()
    given = list(arguments.values())
    for inputs, made in (
        (given[:-1], outputs),
        ([*given, i(0)], outputs),
        (given, outputs[:-1]),
        (given, [*outputs, *outputs]),
    ):
        with pytest.raises(ModelError):
            lowered(name, inputs, made)


def test_normalisation_of_lstm_needs_level_3() -> None:
    arguments, outputs = lstm()
    arguments |= norms("f32")
    assert lowered("LSTM", arguments, outputs, 3).operations
    with pytest.raises(ModelError, match="needs feature level 3"):
        lowered("LSTM", arguments, outputs, 2)


def test_states_of_sequences_are_outputs_from_level_4_on() -> None:
    arguments, outputs = sequence()
    more = [*outputs, t("f32", BATCH, OUTPUTS), t("f32", BATCH, CELLS)]
    assert len(lowered("UNIDIRECTIONAL_SEQUENCE_LSTM", arguments, more, 4).outputs) == 3
    with pytest.raises(ModelError, match="needs feature level 4"):
        lowered("UNIDIRECTIONAL_SEQUENCE_LSTM", arguments, more, 3)
    arguments, outputs = cells()
    more = [*outputs, t("f32", BATCH, CELLS)]
    assert len(lowered("UNIDIRECTIONAL_SEQUENCE_RNN", arguments, more, 4).outputs) == 2
    arguments, outputs = both_ways()
    every = [*states("f32").values()] * 2
    kind = "BIDIRECTIONAL_SEQUENCE_LSTM"
    assert len(lowered(kind, arguments, [*outputs, *every], 4).outputs) == 6
    arguments["merge_outputs"] = b(True)
    merged = [t("f32", 6, BATCH, 2 * OUTPUTS), *every]
    assert len(lowered(kind, arguments, merged, 4).outputs) == 5
    with pytest.raises(ModelError, match="there are two outputs where merge_outputs is false"):
        lowered(kind, arguments, [*outputs, *every], 4)


def test_both_directions_of_a_basic_cell() -> None:
    kind = "BIDIRECTIONAL_SEQUENCE_RNN"
    arguments, outputs = cells_both_ways()
    every = [t("f32", BATCH, CELLS)] * 2
    assert len(lowered(kind, arguments, [*outputs, *every], 4).outputs) == 4
    arguments["merge_outputs"] = b(True)
    merged = [t("f32", BATCH, 6, 2 * CELLS)]
    assert len(lowered(kind, arguments, merged).outputs) == 1
    arguments["forward_auxiliary_weights"] = t("f32", CELLS, DEPTH)
    with pytest.raises(ModelError, match="auxiliary weights must be given for both"):
        lowered(kind, arguments, merged)


NO_GATE = dict.fromkeys(
    ("input_to_input", "recurrent_to_input", "cell_to_input", "input_bias"), nothing()
)
NO_PEEPHOLE = dict.fromkeys(("cell_to_input", "cell_to_forget", "cell_to_output"), nothing())
BAD: list[tuple[str, Case, dict[str, NnapiOperand], str]] = [
    ("LSTM", lstm(), {"activation": i(2)}, "activation 2 of LSTM"),
    ("LSTM", lstm(), {"cell_clip": f(-1)}, "cell_clip of LSTM must be at least 0, not -1"),
    ("LSTM", lstm(), {"proj_clip": f(float("nan"))}, "must be at least 0, not nan"),
    ("LSTM", lstm(), {"input_to_input": nothing()}, "given or left out together"),
    ("LSTM", lstm(), {"cell_to_output": nothing()}, "given or left out together"),
    ("LSTM", lstm(), {"cell_to_input": nothing()}, "cell_to_input must be given"),
    (
        "LSTM",
        lstm(),
        {**NO_GATE, **NO_PEEPHOLE, "cell_to_input": t("f32", 4)},
        "cell_to_input must be given",
    ),
    ("LSTM", lstm(), {"projection": nothing()}, "bias without its weights"),
    ("LSTM", lstm(), {"projection_bias": nothing("i32")}, "cannot be a TENSOR_INT32"),
    ("LSTM", lstm(), {"projection_bias": nothing("f16")}, "where a TENSOR_FLOAT32 is needed"),
    ("LSTM", lstm(), {"output_state": t("f32", BATCH, OUTPUTS, 1)}, "has rank 3"),
    ("LSTM", lstm(), {"forget_bias": nothing()}, "has no value, and must have one"),
    ("LSTM", lstm(), {"input_to_cell": t("f32", CELLS, 7)}, "columns of the input weights"),
    ("LSTM", lstm(), {"input": t("f32", DEPTH)}, "has rank 1"),
    ("LSTM", lstm(), {"recurrent_to_cell": t("f32", CELLS)}, "has rank 1, where 2 is needed"),
    ("QUANTIZED_LSTM", integer(), {"recurrent_to_cell": t("q8y", CELLS)}, "has rank 1"),
    ("QUANTIZED_LSTM", integer(), {"cell_norm": t("q16y", CELLS, 1)}, "has rank 2"),
    ("LSTM", lstm(), {"cell_state": t("f32", BATCH, 9)}, "elements of state"),
    ("UNIDIRECTIONAL_SEQUENCE_LSTM", sequence(), {"cell_norm": nothing()}, "together"),
    ("UNIDIRECTIONAL_SEQUENCE_LSTM", sequence(), {"input_norm": nothing()}, "input_norm must"),
    ("UNIDIRECTIONAL_SEQUENCE_LSTM", sequence(), {"time_major": i(0)}, "BOOL is needed"),
    (
        "BIDIRECTIONAL_SEQUENCE_LSTM",
        both_ways(),
        {"backward_input_bias": nothing()},
        "given or left out together",
    ),
    ("RNN", cell(), {"activation": i(4)}, "fuse code 4"),
    ("RNN", cell(), {"bias": t("f32", CELLS + 1)}, "bias and units"),
    ("UNIDIRECTIONAL_SEQUENCE_RNN", cells(), {"time_major": i(2)}, "none of 0 "),
    (
        "BIDIRECTIONAL_SEQUENCE_RNN",
        cells_both_ways(),
        {"forward_hidden_state": t("f32", BATCH, CELLS, 1)},
        "has rank 3",
    ),
    ("SVDF", svdf(), {"rank": i(3)}, "not a multiple of rank 3"),
    ("SVDF", svdf(), {"rank": i(0)}, "rank of SVDF must be above 0"),
    ("SVDF", svdf(), {"state": t("f32", BATCH, 11)}, "."),
    ("SVDF", svdf(), {"weights_time": t("f32", 4, 0)}, "."),
    ("QUANTIZED_16BIT_LSTM", narrow(), {"input": t("q8", BATCH, DEPTH)}, "zero point 128"),
    (
        "QUANTIZED_16BIT_LSTM",
        narrow(),
        {"cell_state": t("q16y", BATCH, CELLS, scale=0.25)},
        "has scale 0.000488281",
    ),
    (
        "QUANTIZED_16BIT_LSTM",
        narrow(),
        {"cell_bias": t("i32", CELLS, scale=1.0)},
        "biases of QUANTIZED_16BIT_LSTM need one scale",
    ),
    (
        "QUANTIZED_16BIT_LSTM",
        narrow(),
        {"input_to_cell": t("q8", CELLS, DEPTH, zero=99)},
        "needs one scale",
    ),
    (
        "QUANTIZED_LSTM",
        integer(),
        {"cell_clip": f(-1)},
        "cell_clip of QUANTIZED_LSTM must be at least",
    ),
    ("QUANTIZED_LSTM", integer(), {"projection": nothing("q8y")}, "bias without its weights"),
    ("QUANTIZED_LSTM", integer(), {"output_state": t("q8s", 2, 5, zero=3)}, "needs one scale"),
]


@pytest.mark.parametrize(("name", "case", "changed", "message"), BAD)
def test_broken_rules_are_named(
    name: str, case: Case, changed: dict[str, NnapiOperand], message: str
) -> None:
    arguments, outputs = case
    with pytest.raises(ModelError, match=message):
        lowered(name, arguments | changed, outputs)


def test_lstm_without_an_input_gate_has_a_smaller_scratch_buffer() -> None:
    arguments, outputs = lstm()
    changed = {**arguments, **NO_GATE, **NO_PEEPHOLE}
    model = lowered("LSTM", changed, [t("f32", BATCH, 3 * CELLS), *outputs[1:]])
    fed = [
        np.zeros(tuple(d or 0 for d in o.dimensions or ()), np.float32)
        for o in changed.values()
        if o.value is None and o.name != "nothing"
    ]
    assert [a.shape for a in run(model, fed)] == [(2, 12), (2, 5), (2, 4), (2, 5)]
    with pytest.raises(ModelError, match="an output is declared"):
        lowered("LSTM", changed, outputs)


def test_peephole_weights_of_an_input_gate_that_is_not_there_are_left_out() -> None:
    arguments, outputs = lstm()
    changed = {**arguments, **NO_GATE, "cell_to_input": t("f32", CELLS)}
    model = lowered("LSTM", changed, [t("f32", BATCH, 3 * CELLS), *outputs[1:]])
    assert not model.entry.operands[model.operations[0].inputs[9]].has_value


def test_the_state_of_svdf_makes_room_after_a_run() -> None:
    """One filter with a memory of three values, as NNAPI keeps them: the newest one before a free
    place.
    """
    arguments = {
        "input": t("f32", 1, 1),
        "weights_feature": constant("f32", np.array([[2.0]])),
        "weights_time": constant("f32", np.array([[1.0, 10.0, 100.0]])),
        "bias": nothing(),
        "state": t("f32", 1, 3),
        "rank": i(1),
        "activation": i(0),
    }
    model = lowered("SVDF", arguments, [t("f32", 1, 3), t("f32", 1, 1)])
    state = np.array([[5, 7, 99]], np.float32)
    state, output = run(model, [np.ones((1, 1), np.float32), state])
    assert output.item() == 5 * 1 + 7 * 10 + 2 * 100
    assert state.tolist() == [[7, 2, 0]]


def test_svdf_needs_the_shape_of_its_memory() -> None:
    arguments, outputs = svdf()
    with pytest.raises(NotLowerable, match="only when it runs"):
        lowered("SVDF", arguments | {"weights_time": t("f32", None, 3)}, outputs)
