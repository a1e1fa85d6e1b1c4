"""The lab device: its results, its support, and execution from all its payloads."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import Cancelled, GeneralFailure, InputError, InvalidArgument
from penstock.hal import CacheReport, CancelToken, PrepareConfig, ProgressEvent
from penstock.ir import DType, ModelBuilder, Quantization
from penstock.testing.contract.caching import Entry
from penstock.testing.contract.cases import Case
from penstock.testing.devices import find_devices
from penstock.testing.lab import LabDevice
from penstock.testing.lab.device import MODES, Mode
from tests.support_lab import F32, network, outputs, run, small, values

PLAIN = PrepareConfig()


@pytest.fixture
def entry(tmp_path: Path) -> Entry:
    return Entry(tmp_path / "entry", (2, 1))


def test_the_entry_point_names_a_device_used_only_when_named() -> None:
    (device,) = find_devices("lab")
    assert isinstance(device, LabDevice)
    assert device.capabilities.only_when_named


@pytest.mark.parametrize("files", [(2, 1), (1, 0), (0, 2), (0, 0)])
@pytest.mark.parametrize("mode", MODES)
def test_answers_are_those_of_the_reference_device(mode: Mode, files: tuple[int, int]) -> None:
    device = LabDevice(mode=mode, uses=2, files=files)
    for case in (network(), small()):
        with closing(device.prepare_model(case.model, PLAIN)) as prepared:
            for _ in range(4):
                run(prepared, case)


@pytest.mark.parametrize("level", range(1, 9))
def test_any_feature_level(level: int) -> None:
    assert LabDevice(feature_level=level).feature_level == level


@pytest.mark.parametrize("wrong", [{"mode": "soon"}, {"feature_level": 9}, {"uses": 0}])
def test_lab_device_refuses_wrong_options(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="no lab device"):
        LabDevice(**wrong)


def test_files_of_a_small_network_are_at_most_1_kib(entry: Entry) -> None:
    case = small()
    with entry.opened() as config:
        report = LabDevice().prepare_model(case.model, config).cache_report
    assert report == CacheReport("saved", artefact="baseline")
    assert [len(c) <= 1024 for c in entry.contents()] == [True] * 3


@pytest.mark.parametrize("case", [network(), small()], ids=lambda case: case.name)
def test_an_entry_is_loaded_without_compiling(case: Case, entry: Entry) -> None:
    with entry.opened() as config:
        LabDevice().prepare_model(case.model, config).close()
    device = LabDevice()
    with entry.opened() as config, closing(device.prepare_model_from_cache(config)) as prepared:
        run(prepared, case)
        assert prepared.cache_report == CacheReport(artefact="baseline")
    assert (device.compiles, device.loads, device.saves) == (0, 1, 0)


def forged(entry: Entry, number: int, place: int, new: bytes) -> None:
    """Changes one payload of *entry*, and seals it again, as only the driver can."""
    seal = LabDevice().seal
    with entry.opened() as config:
        loaded = seal.load(config)
        payloads = [bytearray(p) for p in (*loaded.model, *loaded.data)]
        payloads[number][place : place + len(new)] = new
        report = seal.save(config, model=payloads[:2], data=payloads[2:])
        assert report.saved


def sum_and_constant() -> Case:
    """x + k."""
    b = ModelBuilder()
    x, k = b.input(F32, (2,), "x"), b.constant(np.array([10, 20], np.float32))
    model = b.build(b.operation("ADD", [x, k], [(F32, (2,))]))
    given = np.array([1, 2], np.float32)
    return Case("sum", model, (given,), (given + np.array([10, 20], np.float32),))


@pytest.mark.parametrize(
    ("number", "old", "new", "answer"),
    [
        (2, np.float32(10).tobytes(), np.float32(100).tobytes(), [101, 22]),
        (1, b"ADD", b"MUL", [10, 40]),
    ],
    ids=["weights", "code"],
)
def test_device_executes_the_content_of_its_files(
    number: int, old: bytes, new: bytes, answer: Sequence[float], entry: Entry
) -> None:
    """A driver that kept its compiled form, or ran from one file only, would not notice the
    forgery.
    """
    case = sum_and_constant()
    device = LabDevice()
    with entry.opened() as config:
        device.prepare_model(case.model, config).close()
    with entry.opened() as config:
        loaded = device.seal.load(config)
    payload = bytes([*loaded.model, *loaded.data][number])
    forged(entry, number, payload.index(old), new)
    with entry.opened() as config, closing(device.prepare_model_from_cache(config)) as prepared:
        assert outputs(prepared, case)[0].tolist() == answer


def test_program_in_the_first_model_file_is_parsed_before_use(entry: Entry) -> None:
    case = sum_and_constant()
    device = LabDevice()
    with entry.opened() as config:
        device.prepare_model(case.model, config).close()
    forged(entry, 0, 0, b"NONE")
    with entry.opened() as config, pytest.raises(GeneralFailure, match="no program"):
        device.prepare_model_from_cache(config)


def test_a_refusal_does_not_reach_the_engine(entry: Entry) -> None:
    case = small()
    device = LabDevice()
    with entry.opened() as config:
        device.prepare_model(case.model, config).close()
    before = device.engine_calls
    for number, content in enumerate(entry.contents()):
        entry.put_one(number, content[:-1] + bytes([content[-1] ^ 1]))
        with entry.opened() as config, pytest.raises(GeneralFailure, match=r"^SealBroken: "):
            device.prepare_model_from_cache(config)
        entry.put_one(number, content)
    assert device.engine_calls == before == {"compile": 1, "deserialise": 1, "execute": 0}


def test_the_engine_can_be_watched_and_stopped() -> None:
    seen: list[str] = []

    def watch(act: str) -> None:
        seen.append(act)
        if act == "execute":
            raise GeneralFailure("no power")

    case = small()
    prepared = LabDevice(on_engine=watch).prepare_model(case.model, PLAIN)
    with pytest.raises(GeneralFailure, match="no power"):
        run(prepared, case)
    assert seen == ["compile", "deserialise", "execute"]


def test_saving_that_fails_is_reported_and_does_not_fail_the_compile(entry: Entry) -> None:
    case = small()
    with entry.opened(os.O_RDONLY) as config:
        prepared = LabDevice().prepare_model(case.model, config)
    assert prepared.cache_report.save == "failed"
    assert prepared.cache_report.reason.startswith("Unreadable: ")
    run(prepared, case)


def test_wrong_counts_are_invalid_arguments(entry: Entry) -> None:
    with entry.opened(data_cache=()) as config, pytest.raises(InvalidArgument, match="2 and 1"):
        LabDevice().prepare_model_from_cache(config)


def test_a_compile_counts_its_operations_and_can_be_cancelled() -> None:
    case = network()
    events: list[ProgressEvent] = []
    LabDevice().prepare_model(case.model, PrepareConfig(progress=events.append)).close()
    count = len(case.model.operations)
    assert [(e.done, e.total) for e in events] == [(n + 1, count) for n in range(count)]
    token = CancelToken()
    stopping = PrepareConfig(cancel=token, progress=lambda _: token.set())
    with pytest.raises(Cancelled):
        LabDevice().prepare_model(case.model, stopping)


def test_threads_share_a_device() -> None:
    case = small()
    device = LabDevice()

    def work() -> None:
        for _ in range(20):
            with closing(device.prepare_model(case.model, PLAIN)) as prepared:
                run(prepared, case)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (device.compiles, device.engine_calls["execute"]) == (80, 80)


def refusal(kind: str, shapes: list[Any], output: Any, **attributes: Any) -> str:
    b = ModelBuilder()
    inputs = [
        s if s is None else b.input(s[0], s[1]) if isinstance(s[0], DType) else b.input(F32, s)
        for s in shapes
    ]
    given = output if isinstance(output[0], DType) else (F32, output)
    model = b.build(b.operation(kind, inputs, [given], attributes))
    (answer,) = LabDevice().supported_operations(model)
    assert not answer.supported
    return answer.reason


def test_refusals_have_reasons() -> None:
    assert refusal("DIV", [(2,), (2,)], (2,)) == "the lab device has no DIV"
    assert "is int8, not float32" in refusal("RELU", [(DType.INT8, (2,))], (DType.INT8, (2,)))
    assert "are not known" in refusal("SOFTMAX", [(None, 2)], (None, 2), beta=1.0)
    assert "do not give (3,)" in refusal("ADD", [(2,), (2,)], (3,))
    assert "weights must be constant" in refusal("FULLY_CONNECTED", [(1, 4), (3, 4), None], (1, 3))
    assert "'TANH'" in refusal("ADD", [(2,), (2,)], (2,), fused_activation_function="TANH")
    assert "bytes" in refusal("RELU", [(1 << 28, 2)], (1 << 28, 2))


def test_lab_device_refuses_quantised_pass_through_values() -> None:
    b = ModelBuilder()
    x, y = b.input(F32, (2,)), b.input(DType.INT8, (2,), "y", Quantization((0.5,), (0,)))
    (z,) = b.operation("RELU", [x], [(F32, (2,))])
    with pytest.raises(GeneralFailure, match="y is int8 of shape"):
        LabDevice().prepare_model(b.build([z, y]), PLAIN)


def test_other_types_pass_through() -> None:
    b = ModelBuilder()
    x, n = b.input(F32, (2,)), b.input(DType.INT8, (3,))
    k = b.constant(np.array([5, 6], np.int64))
    (z,) = b.operation("RELU", [x], [(F32, (2,))])
    given = values(2), np.array([1, 2, 3], np.int8)
    case = Case(
        "mixed",
        b.build([z, n, k]),
        given,
        (np.maximum(given[0], 0), given[1], np.array([5, 6], np.int64)),
    )
    run(LabDevice().prepare_model(case.model, PLAIN), case)
