"""The lab device's format: what is read back, and what no bytes can bring about."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from penstock.errors import GeneralFailure
from penstock.hal import ExecutionConfig
from penstock.ir.types import static_shape
from penstock.testing.contract.cases import Case
from penstock.testing.lab.compiler import compile_model, interface, optimise
from penstock.testing.lab.execution import run
from penstock.testing.lab.program import MalformedProgram, Program, decode, encode, join, split
from tests.support_lab import network, small

CASES = {"network": network(), "small": small()}
FORMS: dict[str, Callable[[Program], Program]] = {"baseline": lambda p: p, "optimised": optimise}


def program(name: str, form: str) -> Program:
    return FORMS[form](compile_model(CASES[name].model, lambda *_: None))


def answers(made: Program, case: Case) -> list[list[float]]:
    found = []
    for value in run(made, case.inputs, ExecutionConfig()):
        assert isinstance(value, np.ndarray)  # in tiles only where the device works in them
        found.append(np.round(value, 4).reshape(-1).tolist())
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_decode_returns_the_encoded_program(name: str, form: str) -> None:
    made = program(name, form)
    assert decode(*encode(made)) == made
    assert made.artefact == form
    assert answers(made, CASES[name]) == [
        np.round(a, 4).reshape(-1).tolist() for a in CASES[name].outputs
    ]


def test_the_optimised_form_fuses_and_turns() -> None:
    baseline, optimised = program("network", "baseline"), program("network", "optimised")
    before = [one.opcode for one in baseline.instructions]
    after = [one.opcode for one in optimised.instructions]
    assert before.count("FULLY_CONNECTED") == after.count("FULLY_CONNECTED_TURNED") == 2
    # The first RELU's input is also read by TANH.
    assert (before.count("RELU"), after.count("RELU")) == (2, 1)
    assert bytes(baseline.weights) != bytes(optimised.weights)
    assert [one.operations for one in baseline.instructions] == [(i,) for i in range(len(before))]
    stood_for = [one.operations for one in optimised.instructions]
    assert sorted(i for each in stood_for for i in each) == list(range(len(before)))
    assert max(map(len, stood_for)) == 2


def test_the_interface_is_that_of_the_model() -> None:
    model, seen = network().model, interface(program("network", "baseline"))
    for mine, given_ in ((seen.inputs, model.inputs), (seen.outputs, model.outputs)):
        assert [(o.dtype, o.shape) for o in mine] == [(o.dtype, o.shape) for o in given_]


@pytest.mark.parametrize("files", [(m, d) for m in range(4) for d in range(4) if m + d])
def test_any_number_of_files(files: tuple[int, int]) -> None:
    made = program("network", "baseline")
    model, data = split(*encode(made), files)
    assert (len(model), len(data)) == files
    assert decode(*join(model, data)) == made


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_no_flipped_bit_does_more_than_change_the_answer(name: str, form: str) -> None:
    """Every bit of the stream, unsealed: it is refused by name, or what is left can be executed."""
    stream, weights = encode(program(name, form))
    refused = 0
    for bit in range(8 * len(stream)):
        changed = bytearray(stream)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            made = decode(bytes(changed), weights)
        except MalformedProgram:
            refused += 1
            continue
        slots = [made.slots[n] for n in made.inputs]
        given_ = [np.zeros(static_shape(slot.shape) or (), slot.dtype.numpy) for slot in slots]
        run(made, given_, ExecutionConfig())
    assert refused > 4 * len(stream)


def test_decode_refuses_streams_and_weights_of_other_lengths() -> None:
    stream, weights = encode(program("small", "baseline"))
    for length in range(len(stream)):
        with pytest.raises(MalformedProgram):
            decode(stream[:length], weights)
    for more in (b"\1", bytes(16)):
        with pytest.raises(MalformedProgram, match="trailing"):
            decode(bytes(stream) + more, weights)
    for length in range(len(weights)):
        with pytest.raises(MalformedProgram, match="bytes of weights"):
            decode(stream, weights[:length])


@given(st.binary(max_size=200), st.binary(max_size=40))
def test_any_bytes_are_a_program_or_malformed(stream: bytes, weights: bytes) -> None:
    for content in (stream, raw()[:8] + stream):
        try:
            decode(content, weights)
        except MalformedProgram:
            continue


@given(st.lists(st.binary(max_size=40), max_size=3), st.lists(st.binary(max_size=40), max_size=2))
@settings(max_examples=50)
def test_any_payloads_are_a_program_or_malformed(model: list[bytes], data: list[bytes]) -> None:
    if model or data:
        with pytest.raises(MalformedProgram):
            decode(*join(model, data))


def raw(
    slots: Sequence[Sequence[int]] = (),
    inputs: Sequence[int] = (),
    outputs: Sequence[int] = (),
    instructions: Sequence[object] = (),
    weights_bytes: int = 0,
) -> bytes:
    """A stream whose slots are float32 values of these shapes."""
    parts = ("PLAB", 3, "baseline", [["float32", s, None] for s in slots], inputs, outputs)
    return msgspec.msgpack.encode([*parts, instructions, weights_bytes])


def test_sizes_are_bounded_before_anything_is_made() -> None:
    for dimensions in ((1 << 31,), (65536, 65536), (4294967294,) * 32):
        with pytest.raises(MalformedProgram, match="a value of"):
            decode(raw([dimensions], [0], [0]), b"")
    assert issubclass(MalformedProgram, GeneralFailure)


@pytest.mark.parametrize(
    ("inputs", "outputs", "complaint"),
    [([7], [1], "slot 7 of 2"), ([0], [1], "never written"), ([0], [-1], ">= 0"), ([0], [0], None)],
)
def test_decode_refuses_programs_whose_outputs_are_never_written(
    inputs: list[int], outputs: list[int], complaint: str | None
) -> None:
    stream = raw([(2,), (2,)], inputs, outputs)
    if complaint is None:
        assert decode(stream, b"").outputs == (0,)
        return
    with pytest.raises(MalformedProgram, match=complaint):
        decode(stream, b"")


@pytest.mark.parametrize(
    ("one", "complaint"),
    [
        (("RELU", [0], 1), None),
        (("SINE", [0], 1), "'SINE'"),
        (("RELU", [0], 1, "SIGN"), "'SIGN'"),
        (("SOFTMAX", [0], 1, "NONE", 0, float("nan")), "beta nan"),
        (("RELU", [0], 0), "out of order"),
        (("RELU", [1], 1), "out of order"),
        (("ADD", [0], 1), "does not fit"),
        (("CONCATENATION", [0], 1, "NONE", 1), "does not fit"),
        (("FULLY_CONNECTED", [0], 1), "does not fit"),
    ],
)
def test_decode_refuses_wrong_instructions(one: tuple[object, ...], complaint: str | None) -> None:
    stream = raw([(2,), (2,)], [0], [1], [one])
    if complaint is None:
        assert decode(stream, b"").instructions[0].opcode == "RELU"
        return
    with pytest.raises(MalformedProgram, match=complaint):
        decode(stream, b"")
