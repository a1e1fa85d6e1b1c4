"""The lab device's format: what is read back, and what no bytes can bring about."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from penstock.errors import GeneralFailure
from penstock.hal import ExecutionConfig
from penstock.ir.types import static_shape
from penstock.testing.contract.cases import Case
from penstock.testing.lab.compiler import compile_model, interface, optimise
from penstock.testing.lab.prepared import run
from penstock.testing.lab.program import (
    MalformedProgram,
    Program,
    decode,
    encode,
    join,
    split,
)
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
def test_what_is_written_is_read(name: str, form: str) -> None:
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


def test_every_other_length_is_refused() -> None:
    stream, weights = encode(program("small", "baseline"))
    for length in range(len(stream)):
        with pytest.raises(MalformedProgram):
            decode(stream[:length], weights)
    with pytest.raises(MalformedProgram, match="follow"):
        decode(bytes(stream) + b"\1", weights)
    with pytest.raises(MalformedProgram, match="follow"):
        decode(bytes(stream) + bytes(16), weights)
    for length in range(len(weights)):
        with pytest.raises(MalformedProgram, match="bytes of weights"):
            decode(stream, weights[:length])


@given(st.binary(max_size=200), st.binary(max_size=40))
def test_any_bytes_are_a_program_or_malformed(stream: bytes, weights: bytes) -> None:
    for content in (stream, b"PLAB\1\0" + stream):
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


def test_sizes_are_bounded_before_anything_is_made() -> None:
    header = struct.pack("<4sBBHHHHQ", b"PLAB", 2, 0, 1, 1, 1, 0, 0)
    io = struct.pack("<HH", 0, 0)
    for dimensions in ((1 << 31,), (65536, 65536), (4294967294,) * 32):
        slot = struct.pack(f"<BBB{len(dimensions)}I", 0, len(dimensions), 0, *dimensions)
        with pytest.raises(MalformedProgram, match="a value of"):
            decode(header + slot + io, b"")
    assert issubclass(MalformedProgram, GeneralFailure)


def slots(*shapes: tuple[int, ...]) -> bytes:
    return b"".join(struct.pack(f"<BBB{len(s)}I", 0, len(s), 0, *s) for s in shapes)


@pytest.mark.parametrize(
    ("tail", "complaint"),
    [
        (struct.pack("<HH", 7, 1), "slot 7 of 2"),
        (struct.pack("<HH", 0, 1), "never written"),
        (struct.pack("<HH", 0, 0), None),
    ],
)
def test_what_a_program_must_do(tail: bytes, complaint: str | None) -> None:
    stream = struct.pack("<4sBBHHHHQ", b"PLAB", 2, 0, 2, 1, 1, 0, 0) + slots((2,), (2,)) + tail
    if complaint is None:
        assert decode(stream, b"").outputs == (0,)
        return
    with pytest.raises(MalformedProgram, match=complaint):
        decode(stream, b"")


@pytest.mark.parametrize(
    ("one", "complaint"),
    [
        ((3, 0, 1, 0, 1.0, 1, 0), None),
        ((11, 0, 1, 0, 1.0, 1, 0), "opcode 11"),
        ((3, 4, 1, 0, 1.0, 1, 0), "activation 4"),
        ((6, 0, 1, 0, float("nan"), 1, 0), "opcode 6"),
        ((3, 0, 1, 0, 1.0, 0, 0), "out of order"),
        ((3, 0, 1, 0, 1.0, 1, 1), "out of order"),
        ((0, 0, 1, 0, 1.0, 1, 0), "does not fit"),
        ((8, 0, 1, 1, 1.0, 1, 0), "does not fit"),
        ((9, 0, 1, 0, 1.0, 1, 0), "does not fit"),
    ],
)
def test_instructions_are_checked(one: tuple[float, ...], complaint: str | None) -> None:
    stream = struct.pack("<4sBBHHHHQ", b"PLAB", 2, 0, 2, 1, 1, 1, 0) + slots((2,), (2,))
    stream += struct.pack("<HHBBBbfHHB", 0, 1, *one, 0)
    if complaint is None:
        assert decode(stream, b"").instructions[0].opcode == "RELU"
        return
    with pytest.raises(MalformedProgram, match=complaint):
        decode(stream, b"")
