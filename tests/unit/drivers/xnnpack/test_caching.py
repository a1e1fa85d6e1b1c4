"""The file that LiteRT reads is kept, verified, and used without the model."""

from __future__ import annotations

from binascii import a2b_base64
from pathlib import Path
from typing import Final

import numpy as np
import pytest

import penstock
from penstock import errors
from penstock.compilation import CacheOutcome
from penstock.driverkit.artefact import Port, Ports, framed
from penstock.drivers.xnnpack import XnnpackDevice
from penstock.drivers.xnnpack.artefact import Manifest, unpack
from penstock.drivers.xnnpack.device import Installation
from penstock.drivers.xnnpack.engine import SMALLEST_FILE
from penstock.drivers.xnnpack.part import Part, State
from penstock.export.tflite import write
from penstock.ir import DType, Model, ModelBuilder
from tests.support_artefacts import cache_files
from tests.support_xnnpack import F32, device, needs_litert
from tests.unit.drivers.xnnpack.test_execution import check_detections, detecting
from tests.unit.drivers.xnnpack.test_state_copies import counters

FILES: Final = (1, 0)
X: Final = np.arange(8, dtype=np.float32).reshape(1, 8)


def layers() -> Model:
    builder = ModelBuilder()
    x = builder.input(F32, (1, 8), "x")
    weights = builder.constant(np.eye(4, 8, dtype=np.float32), "weights")
    made = builder.operation("FULLY_CONNECTED", [x, weights, None], [(F32, (1, 4))])
    return builder.build(builder.operation("RELU", made, [(F32, (1, 4))]))


def compiled(model: Model, place: Path, own: XnnpackDevice) -> penstock.CompiledModel:
    return penstock.compile(model, devices=[own], cache=place, num_threads=1)


def outcome(model: Model, place: Path, own: XnnpackDevice) -> CacheOutcome:
    with compiled(model, place, own) as found:
        assert np.array_equal(found(X)[0], X[:, :4])
        return found.receipt.steps[0].cache


@needs_litert
def test_second_start_loads_the_file_and_computes_the_same(tmp_path: Path) -> None:
    assert outcome(layers(), tmp_path, device()).saved
    own = device()
    assert outcome(layers(), tmp_path, own).outcome == "hit"
    assert (own.compiles, own.loads) == (0, 1)


@needs_litert
def test_entry_serves_any_number_of_threads(tmp_path: Path) -> None:
    outcome(layers(), tmp_path, device())
    with penstock.compile(layers(), devices=[device()], cache=tmp_path, num_threads=2) as found:
        assert found.receipt.steps[0].cache.outcome == "hit"
        assert np.array_equal(found(X)[0], X[:, :4])


@needs_litert
def test_state_of_a_kept_network_advances_as_before(tmp_path: Path) -> None:
    for expected in ("miss", "hit"):
        with compiled(counters(), tmp_path, device()) as found:
            assert found.receipt.steps[0].cache.outcome == expected
            assert [float(found(np.zeros(1, np.float32))[0][0]) for _ in range(3)] == [
                111,
                222,
                333,
            ]


@needs_litert
def test_outputs_behind_the_last_detection_are_zero_with_a_kept_file(tmp_path: Path) -> None:
    with cache_files(tmp_path, FILES) as config:
        assert device().prepare_model(detecting(), config).cache_report.save == "saved"
        check_detections(device().prepare_model_from_cache(config))


@needs_litert
def test_altered_file_is_refused_and_written_again(tmp_path: Path) -> None:
    outcome(layers(), tmp_path, device())
    (file,) = tmp_path.glob("*10")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    own = device()
    found = outcome(layers(), tmp_path, own)
    assert (found.outcome, found.reason.split(":")[0]) == ("miss", "SealBroken")
    assert (own.compiles, own.loads) == (1, 0)
    assert outcome(layers(), tmp_path, device()).outcome == "hit"


@needs_litert
def test_file_of_another_litert_is_refused_by_name(tmp_path: Path) -> None:
    with cache_files(tmp_path, FILES) as config:
        assert device().prepare_model(layers(), config).cache_report.save == "saved"
        other = XnnpackDevice(Installation("0.1"))
        with pytest.raises(errors.GeneralFailure, match=r"^OtherVersion: "):
            other.prepare_model_from_cache(config)
        assert other.loads == 0


@needs_litert
def test_several_files_are_not_kept_and_the_receipt_says_why(tmp_path: Path) -> None:
    builder = ModelBuilder()
    x = builder.input(F32, (None, 8), "x")
    model = builder.build(builder.operation("RELU", [x], [(F32, (None, 8))]))
    with cache_files(tmp_path, FILES) as config:
        report = device().prepare_model(model, config).cache_report
    assert report.save == "failed"
    assert "is not kept" in report.reason


PORTS: Final = Ports((Port("x", "float32", (1,)),), (Port("y", "float32", (1,)),), (-1,))
WHOLE: Final = Part("xnnpack", (0,), (1,), (), (0,))


@pytest.mark.parametrize(
    ("part", "state", "fault"),
    [
        (Part("xnnpack", (1,), (1,), (), (0,)), None, "other inputs and outputs"),
        (Part("xnnpack", (0,), (), (), (0,)), None, "other inputs and outputs"),
        (Part("xnnpack", (0,), (), (State(7, 1, "s"),), (0,)), None, "other inputs and outputs"),
        (WHOLE, ((0,), (0,)), "the artefact's state"),
        (WHOLE, ((0, 1), (0, 1)), "the artefact's state"),
    ],
)
def test_manifest_that_does_not_fit_its_ports_is_refused(
    part: Part, state: tuple[tuple[int, ...], tuple[int, ...]] | None, fault: str
) -> None:
    manifest = Manifest(1, "any", PORTS, part, state)
    with pytest.raises(errors.GeneralFailure, match=fault):
        unpack(memoryview(framed(manifest, b"file")))


def test_smallest_file_is_what_the_writer_makes() -> None:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (1,), "x")
    model = builder.build(builder.operation("ADD", [x, x], [(DType.FLOAT32, (1,))]))
    assert a2b_base64(SMALLEST_FILE) == write(model)


def test_detections_of_other_outputs_are_refused() -> None:
    manifest = Manifest(1, "any", PORTS, WHOLE, None, ((1, 2, 3, 4),))
    with pytest.raises(errors.GeneralFailure, match="detections"):
        unpack(memoryview(framed(manifest, b"file")))
