"""What the sample driver keeps in its cache files: read back as it was, or refused."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock.drivers.sample import SampleDevice
from penstock.drivers.sample.program import decode, encode
from penstock.errors import GeneralFailure
from penstock.hal import CacheReport, PrepareConfig
from penstock.ir import DType, Model, ModelBuilder
from penstock.testing.contract.caching import Entry, load, save
from penstock.testing.contract.cases import Case, every_case, is_supported
from penstock.testing.contract.trial import Trial
from tests.checked import does_not_raise

CASES = [case for case in every_case() if is_supported(SampleDevice(), case)]


def read_back(model: Model) -> Model:
    program, constants = encode(model)
    return decode(memoryview(program), memoryview(constants))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_program_computes_the_same_after_a_round_trip(case: Case) -> None:
    model = read_back(case.model)
    device = SampleDevice()
    with closing(device.prepare_model(model, PrepareConfig())) as prepared, Trial(case) as trial:
        for found, wanted in zip(trial.run(prepared), case.outputs, strict=True):
            assert np.array_equal(found, wanted)


def test_large_constants_lie_in_the_data_file_and_are_not_copied() -> None:
    b = ModelBuilder()
    x, k = b.input(DType.FLOAT32, (64,)), b.constant(np.arange(64, dtype=np.float32))
    model = b.build(b.operation("ADD", [x, k], [(DType.FLOAT32, (64,))]))
    program, constants = encode(model)
    assert len(constants) == 256 > len(program)
    again = decode(memoryview(program), memoryview(constants))
    value = again.constant(again.operands[k])
    assert np.shares_memory(value, np.frombuffer(constants, np.uint8))


def test_no_flipped_bit_does_more_than_change_the_model() -> None:
    """Every bit of a program, unsealed: refused by name, or a model that runs or fails by name."""
    case = next(c for c in CASES if c.name == "fully_connected")
    program, constants = encode(case.model)
    device = SampleDevice()
    for bit in range(8 * len(program)):
        changed = bytearray(program)
        changed[bit // 8] ^= 1 << bit % 8
        with does_not_raise(), suppress(GeneralFailure):
            model = decode(memoryview(bytes(changed)), memoryview(constants))
            device.prepare_model(model, PrepareConfig()).close()


def test_every_shorter_program_is_refused() -> None:
    program, constants = encode(CASES[0].model)
    for length in range(len(program)):
        with pytest.raises(GeneralFailure, match="malformed"):
            decode(memoryview(program[:length]), memoryview(constants))


@given(st.binary(max_size=300), st.binary(max_size=40))
def test_any_bytes_are_a_model_or_a_general_failure(program: bytes, constants: bytes) -> None:
    for content in (program, b"\x94" + program, b"\x91" * 5000 + program):
        with suppress(GeneralFailure):
            decode(memoryview(content), memoryview(constants))


def test_sample_reports_the_outcome_of_a_save(tmp_path: Path) -> None:
    case, device = CASES[0], SampleDevice()
    entry = Entry(tmp_path / "entry", (1, 1))
    with entry.opened() as config:
        assert save(device, case, config) == CacheReport("saved")
    load(SampleDevice(), case, entry)
    with entry.opened(model_cache=()) as config:
        report = save(device, case, config)
    assert report.save == "failed"
    assert report.reason.startswith("InvalidArgument: ")


def test_a_program_of_operations_that_it_lacks_is_refused(tmp_path: Path) -> None:
    """Sealed by the driver itself: as by another version that forgot to change its version."""
    b = ModelBuilder()
    (y,) = b.operation("TANH", [b.input(DType.FLOAT32, (2,))], [(DType.FLOAT32, (2,))])
    program, constants = encode(b.build([y]))
    entry = Entry(tmp_path / "entry", (1, 1))
    device = SampleDevice()
    with entry.opened() as config:
        device._seal.save(config, model=[program], data=[constants])
        with pytest.raises(GeneralFailure, match="TANH"):
            device.prepare_model_from_cache(config)
