"""The service without a transport: models, versions, batches, limits, errors."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import InputError
from penstock.hal import CancelToken
from penstock.serve import Limits, ModelRepository, Service, Settings, sources_of
from penstock.serve.errors import (
    DeadlinePassed,
    InvalidRequest,
    NotReady,
    QueueFull,
    RequestCancelled,
    RunFailed,
    UnknownModel,
)
from penstock.serve.receipts import summary_of
from penstock.serve.values import InferInput, InferRequest
from tests.support_serving import (
    Asker,
    RecordingRelu,
    relu_file,
    repository_of,
    request_for,
    settings_on,
    two_signatures_file,
)
from tests.unit.loaders.files import FileBuilder
from tests.unit.serve.test_scheduling import await_depth

X = [[1.0, -2.0, 3.0]]
Y = [[1.0, 0.0, 3.0]]


def service_of(
    place: Path, settings: Settings, content: bytes | None = None, name: str = "relu"
) -> Service:
    content = relu_file() if content is None else content
    return Service(repository_of(place, {name: content}, settings), settings)


def test_inference_returns_outputs_and_what_its_run_did(tmp_path: Path) -> None:
    service = service_of(tmp_path, settings_on())
    answer = service.infer(request_for(X, id="7"))
    np.testing.assert_array_equal(answer.outputs["y"], Y)
    assert (answer.model, answer.version, answer.id) == ("relu", "1", "7")
    summary = summary_of(answer)
    assert (summary.devices, summary.batch, summary.fallbacks) == (("reference",), 1, ())


def test_every_batch_size_is_warm_before_the_first_request(tmp_path: Path) -> None:
    device = RecordingRelu()
    settings = settings_on(device, rows=6)
    service = service_of(tmp_path, settings)
    assert device.shapes == [(1, 3), (2, 3), (4, 3), (6, 3)]
    answer = service.infer(request_for(np.ones((4, 3))))
    assert answer.receipt.compiles == 0


def test_waiting_requests_share_a_run_and_get_their_own_rows(tmp_path: Path) -> None:
    device = RecordingRelu()
    service = service_of(tmp_path, settings_on(device, rows=4))
    queue = service.repository.find("relu")[0].signature(None).queue
    device.hold()
    askers = [Asker(service.infer, request_for(X))]
    device.await_run()
    for place, rows in enumerate([2, 1, 1]):
        values = np.full((rows, 3), place + 1)
        askers.append(Asker(service.infer, request_for(values)))
        await_depth(queue, place + 1)
    device.go_on.set()
    first, *answers = [asker.answer() for asker in askers]
    assert device.shapes == [(1, 3), (4, 3)]
    assert (first.batch, [answer.batch for answer in answers]) == (1, [3, 3, 3])
    for place, (rows, answer) in enumerate(zip([2, 1, 1], answers, strict=True)):
        np.testing.assert_array_equal(answer.outputs["y"], np.full((rows, 3), place + 1))
        assert answer.queue_ns > 0


def test_requests_of_two_signatures_never_share_a_run(tmp_path: Path) -> None:
    device = RecordingRelu()
    service = service_of(tmp_path, settings_on(device, rows=4), two_signatures_file(), "two")
    served = service.repository.find("two")[0]
    assert served.default == "serving_default"
    device.hold()
    other = InferRequest("two:other", (InferInput("a", "FP32", np.ones((1, 3), np.float32)),))
    askers = [Asker(service.infer, request_for(X, "two"))]
    device.await_run()
    askers.append(Asker(service.infer, request_for(X, "two")))
    await_depth(served.signature(None).queue, 1)
    askers.append(Asker(service.infer, other))
    device.go_on.set()
    answers = [asker.answer() for asker in askers]
    assert [answer.batch for answer in answers] == [1, 1, 1]
    assert [*answers[2].outputs] == ["b"]


def test_request_of_a_shape_that_the_model_rejects_is_invalid(tmp_path: Path) -> None:
    service = service_of(tmp_path, settings_on())
    with pytest.raises(InvalidRequest, match="shape"):
        service.infer(request_for(np.ones((1, 4))))


@pytest.mark.parametrize(
    ("inputs", "fault"),
    [
        ([], "'x' is missing"),
        (["z"], "no input is named 'z'"),
        (["x", "x"], "given twice"),
    ],
)
def test_request_names_every_input_once(tmp_path: Path, inputs: list[str], fault: str) -> None:
    service = service_of(tmp_path, settings_on())
    given = tuple(InferInput(name, "FP32", np.ones((1, 3), np.float32)) for name in inputs)
    with pytest.raises(InvalidRequest, match=fault):
        service.infer(InferRequest("relu", given))


def test_request_of_another_datatype_or_unknown_output_is_invalid(tmp_path: Path) -> None:
    service = service_of(tmp_path, settings_on())
    with pytest.raises(InvalidRequest, match="is FP32, INT8 was given"):
        service.infer(InferRequest("relu", (InferInput("x", "INT8", np.ones((1, 3), np.int8)),)))
    with pytest.raises(InvalidRequest, match="no output is named 'nix'"):
        service.infer(request_for(X, outputs=("nix",)))


@pytest.mark.parametrize("name", ["nix", "relu:nix", ""])
def test_unknown_model_or_signature_is_named(tmp_path: Path, name: str) -> None:
    service = service_of(tmp_path, settings_on())
    with pytest.raises(UnknownModel):
        service.infer(request_for(X, name))


def test_deadline_ends_a_request_that_waits(tmp_path: Path) -> None:
    device = RecordingRelu()
    service = service_of(tmp_path, settings_on(device))
    device.hold()
    first = Asker(service.infer, request_for(X))
    device.await_run()
    with pytest.raises(DeadlinePassed):
        service.infer(request_for(X, deadline_ns=time.monotonic_ns() + 10**6))
    device.go_on.set()
    first.answer()
    assert device.shapes == [(1, 3)]


def test_cancelled_request_that_waits_never_runs(tmp_path: Path) -> None:
    device = RecordingRelu()
    service = service_of(tmp_path, settings_on(device))
    queue, token = service.repository.find("relu")[0].signature(None).queue, CancelToken()
    device.hold()
    first = Asker(service.infer, request_for(X))
    device.await_run()
    second = Asker(service.infer, request_for(X, cancel=token))
    await_depth(queue, 1)
    token.set()
    device.go_on.set()
    first.answer()
    with pytest.raises(RequestCancelled):
        second.answer()
    assert device.shapes == [(1, 3)]


def test_driver_that_fails_costs_no_answer(tmp_path: Path) -> None:
    device = RecordingRelu()
    service = service_of(tmp_path, settings_on(device))
    device.failure = RuntimeError("lost power")
    answer = service.infer(request_for(X))
    np.testing.assert_array_equal(answer.outputs["y"], Y)
    assert "recording-relu" in summary_of(answer).fallbacks[0]


def test_admission_bounds_requests_and_their_bytes(tmp_path: Path) -> None:
    limits = Limits(requests=2, body_total=100)
    service = service_of(tmp_path, settings_on(limits=limits))
    with service.admitted(60):
        with pytest.raises(QueueFull, match="60 bytes"), service.admitted(60):
            pass
        with (
            service.admitted(40),
            pytest.raises(QueueFull, match="2 requests"),
            service.admitted(0),
        ):
            pass
    with service.admitted(100):
        service.drain()
    with pytest.raises(NotReady), service.admitted(0):
        pass


def test_version_that_takes_over_loses_no_request(tmp_path: Path) -> None:
    device, folder = RecordingRelu(), tmp_path / "models" / "relu"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.tflite").write_bytes(relu_file())
    settings = settings_on(device)
    repository = ModelRepository(sources_of([str(tmp_path / "models")]), settings)
    repository.load("relu")
    (folder / "2").mkdir()
    (folder / "2" / "model.tflite").write_bytes(relu_file())
    service = Service(repository, settings)
    queue = repository.find("relu")[0].signature(None).queue
    device.hold()
    askers = [Asker(service.infer, request_for(X))]
    device.await_run()
    askers.append(Asker(service.infer, request_for(X)))
    await_depth(queue, 1)
    loading = Asker(repository.load, "relu")
    device.await_run()  # of the warm-up of version 2
    assert service.model_metadata("relu")["versions"] == ["1"]
    device.go_on.set()
    loading.answer()
    assert [asker.answer().version for asker in askers] == ["1", "1"]
    assert service.infer(request_for(X)).version == "2"
    with pytest.raises(UnknownModel, match="no version '1'"):
        service.infer(request_for(X, version="1"))


def test_version_that_cannot_be_loaded_leaves_the_one_before(tmp_path: Path) -> None:
    service = service_of(tmp_path, settings_on())
    (tmp_path / "relu.tflite").write_bytes(b"no model")
    with pytest.raises(InvalidRequest, match="cannot be loaded: NotAModel"):
        service.repository.load("relu")
    assert service.infer(request_for(X)).version == "1"
    (entry,) = service.index()
    assert entry.state == "READY"
    assert "NotAModel" in entry.reason


def test_unloaded_model_is_not_ready_until_it_is_loaded_again(tmp_path: Path) -> None:
    service = service_of(tmp_path, settings_on())
    service.repository.unload("relu")
    assert not service.is_ready()
    assert not service.model_is_ready("relu")
    assert [entry.state for entry in service.index()] == ["UNAVAILABLE"]
    assert service.index(ready=True) == []
    with pytest.raises(NotReady, match="unloaded"):
        service.infer(request_for(X))
    service.repository.load("relu")
    assert service.is_ready()
    assert service.infer(request_for(X)).version == "1"


def test_model_says_that_it_is_loading_while_it_is(tmp_path: Path) -> None:
    device = RecordingRelu()
    settings = settings_on(device)
    (tmp_path / "relu.tflite").write_bytes(relu_file())
    repository = ModelRepository(sources_of([str(tmp_path / "relu.tflite")]), settings)
    service = Service(repository, settings)
    device.hold()
    loader = Asker(repository.load, "relu")
    device.await_run()
    with pytest.raises(NotReady, match="model 'relu' is not ready: loading"):
        service.infer(request_for(X))
    assert [(e.state, e.reason) for e in service.index()] == [("LOADING", "loading")]
    device.go_on.set()
    loader.answer()
    assert [(e.state, e.reason) for e in service.index()] == [("READY", "")]


@pytest.mark.parametrize(("rows", "most", "warned"), [(1, 8, 1), (1, 1, 0), (None, 8, 0)])
def test_model_of_a_fixed_batch_is_named_if_it_was_to_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, rows: int | None, most: int, warned: int
) -> None:
    service_of(tmp_path, settings_on(rows=most), relu_file(rows))
    found = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(found) == warned
    assert all("model 'relu' has a run for each request" in message for message in found)


def test_lone_file_gets_a_new_version_when_its_content_changes(tmp_path: Path) -> None:
    service = service_of(tmp_path, settings_on())
    service.repository.load("relu")
    assert service.infer(request_for(X)).version == "1"
    (tmp_path / "relu.tflite").write_bytes(relu_file(rows=1))
    service.repository.load("relu")
    assert service.infer(request_for(X)).version == "2"


def test_run_that_no_device_can_do_is_named(tmp_path: Path) -> None:
    device = RecordingRelu()
    settings = settings_on(device)
    service = service_of(tmp_path, settings)
    served = service.repository.find("relu")[0].signature(None)
    served.compiled.close()
    with pytest.raises(NotReady, match="close"):
        service.infer(request_for(X))
    service.repository.take = lambda *_: 1 / 0  # type: ignore[assignment,method-assign]  # a defect
    with pytest.raises(RunFailed, match="ZeroDivisionError"):
        service.infer(request_for(X))


def test_strings_go_in_and_out(tmp_path: Path) -> None:
    file = FileBuilder()
    x, y = file.tensor("x", [3], "STRING"), file.tensor("y", [3], "STRING")
    places = file.tensor("places", [3], "INT32", np.array([2, 1, 0], np.int32))
    file.operator("GATHER", [x, places], [y])
    service = service_of(tmp_path, settings_on(), file.finish([x], [y]), "words")
    words = np.array([b"a", b"", b"\xff"], object)
    answer = service.infer(InferRequest("words", (InferInput("x", "BYTES", words),)))
    assert answer.outputs["y"].tolist() == [b"\xff", b"", b"a"]


def test_sources_are_files_names_and_repositories(tmp_path: Path) -> None:
    (tmp_path / "net.tflite").write_bytes(b"")
    (tmp_path / "models" / "a" / "1").mkdir(parents=True)
    (tmp_path / "models" / "b" / "1").mkdir(parents=True)
    words = [str(tmp_path / "net.tflite"), f"c={tmp_path / 'net.tflite'}", str(tmp_path / "models")]
    assert [source.name for source in sources_of(words)] == ["net", "c", "a", "b"]


@pytest.mark.parametrize("word", ["nix.tflite", "a:b={net}", "={net}", "{empty}"])
def test_sources_without_a_file_or_a_good_name_are_refused(tmp_path: Path, word: str) -> None:
    (tmp_path / "net.tflite").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    given = word.format(net=tmp_path / "net.tflite", empty=tmp_path / "empty")
    with pytest.raises((InputError, FileNotFoundError)):
        sources_of([given])


def test_two_sources_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "net.tflite").write_bytes(b"")
    with pytest.raises(InputError, match="two models are named 'net'"):
        sources_of([str(tmp_path / "net.tflite")] * 2)


def test_outputs_without_a_name_or_with_the_same_one_get_one_each(tmp_path: Path) -> None:
    file = FileBuilder()
    x = file.tensor("x", [3], "FLOAT32")
    outputs = [file.tensor(name, [3], "FLOAT32") for name in ("", "y", "y")]
    for y in outputs:
        file.operator("RELU", [x], [y])
    service = service_of(tmp_path, settings_on(), file.finish([x], outputs))
    answer = service.infer(request_for([1, -2, 3]))
    assert [*answer.outputs] == ["output_0", "y", "y_2"]


def test_device_that_needs_known_shapes_serves_an_open_batch(tmp_path: Path) -> None:
    service = service_of(tmp_path, settings_on("llvm", rows=2))
    assert summary_of(service.infer(request_for(X))).devices == ("llvm",)


def test_statistics_count_requests_runs_and_errors(tmp_path: Path) -> None:
    device = RecordingRelu()
    service = service_of(tmp_path, settings_on(device, rows=4))
    queue = service.repository.find("relu")[0].signature(None).queue
    device.hold()
    askers = [Asker(service.infer, request_for(X))]
    device.await_run()
    for place in range(2):
        askers.append(Asker(service.infer, request_for(np.ones((place + 1, 3)))))
        await_depth(queue, place + 1)
    device.go_on.set()
    batches = sorted(asker.answer().batch for asker in askers)
    with pytest.raises(InvalidRequest):
        service.infer(request_for(np.ones((1, 4))))
    (found,) = service.statistics("relu")["model_stats"]
    runs = len(device.shapes)
    assert (found["inference_count"], found["execution_count"]) == (4, runs)
    stats = found["inference_stats"]
    assert [stats[name]["count"] for name in ("success", "fail", "queue")] == [3, 1, 3]
    rows = {each["batch_size"]: each["compute_infer"]["count"] for each in found["batch_stats"]}
    assert sum(size * count for size, count in rows.items()) == 4
    assert sum(rows.values()) == runs
    assert batches[0] == 1


def test_configuration_of_a_batched_model_has_no_batch_dimension(tmp_path: Path) -> None:
    service = service_of(tmp_path, settings_on(rows=6, delay=0.002))
    found = service.model_config("relu")
    assert found["max_batch_size"] == 6
    assert found["dynamic_batching"] == {
        "preferred_batch_size": [1, 2, 4, 6],
        "max_queue_delay_microseconds": 2000,
    }
    assert found["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [3]}]
    assert found["output"] == [{"name": "y", "data_type": "TYPE_FP32", "dims": [3]}]


def test_statistics_outlive_a_reload_and_are_of_known_versions(
    tmp_path: Path,
) -> None:
    service = service_of(tmp_path, settings_on())
    service.infer(request_for(X))
    service.repository.load("relu")
    (found,) = service.statistics()["model_stats"]
    assert (found["version"], found["inference_count"]) == ("1", 1)
    for name, version in (("nix", ""), ("relu", "7")):
        with pytest.raises(UnknownModel):
            service.statistics(name, version)
    service.repository.unload("relu")
    assert service.statistics("relu") == {"model_stats": []}
