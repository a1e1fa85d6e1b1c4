"""Limits of memory: which models are unloaded to make room, and requests for them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import penstock
from penstock.errors import InputError
from penstock.export import tflite
from penstock.hal import CancelToken
from penstock.ir import DType, Lifetime, ModelBuilder, Operand
from penstock.serve import ModelRepository, Service, Settings, sources_of
from penstock.serve.errors import (
    DeadlinePassed,
    NoMemory,
    NotReady,
    RequestCancelled,
    UnknownModel,
)
from penstock.serve.memory import MemoryBudget, memory_of
from penstock.serve.settings import MemoryLimits
from tests.support_serving import Asker, RecordingRelu, relu_file, request_for, settings_on

X, Y = [[1.0, -2.0, 3.0]], [[1.0, 0.0, 3.0]]
NAMES = ("a", "b", "c")
ONE = memory_of(penstock.load(relu_file()), settings_on())


def service_of(place: Path, device: RecordingRelu | None = None, **limits: Any) -> Service:
    """A service of the models a, b and c, of which none is loaded."""
    for name in NAMES:
        (place / f"{name}.tflite").write_bytes(relu_file())
    settings = settings_on(*([] if device is None else [device]))
    settings = replace(settings, memory=MemoryLimits(**limits))
    files = [str(place / f"{name}.tflite") for name in NAMES]
    return Service(ModelRepository(sources_of(files), settings), settings)


def loaded(service: Service) -> list[str]:
    """The models in memory."""
    return [name for name, _ in service.repository.versions()]


def ask(service: Service, name: str, **fields: Any) -> None:
    answer = service.infer(request_for(X, name, **fields))
    np.testing.assert_array_equal(answer.outputs["y"], Y)


def test_memory_of_a_model_is_its_file_twice_and_the_values_that_live_at_the_same_time() -> None:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (None, 1024), "x")
    shape = (DType.FLOAT32, (None, 1024))
    (one,) = builder.operation("RELU", [x], [shape])
    (two,) = builder.operation("RELU", [one], [shape])
    three = Operand(*shape, Lifetime.TEMPORARY_VARIABLE, "y")
    file = tflite.write(builder.build(builder.operation("RELU", [two], [three])))
    model = penstock.load(file)
    constants = 2 * sum(map(len, model.pools))
    assert constants >= 2 * len(file)
    row = 4 * 1024
    assert memory_of(model, settings_on()) == constants + 2 * row
    assert memory_of(model, settings_on(rows=8)) == constants + 2 * 8 * row
    settings = settings_on()
    twice = replace(settings, compile=replace(settings.compile, running=2))
    assert memory_of(model, twice) == constants + 4 * row


def test_least_recently_used_model_makes_room(tmp_path: Path) -> None:
    service = service_of(tmp_path, total=2 * ONE)
    for name in ("a", "b"):
        service.repository.load(name)
    ask(service, "a")
    service.repository.load("c")
    assert loaded(service) == ["a", "c"]
    assert service.repository.used_bytes == 2 * ONE
    assert service.repository.evictions == 1


def test_model_that_made_room_is_loaded_again_by_a_request(tmp_path: Path) -> None:
    service = service_of(tmp_path, total=ONE)
    for name in NAMES:
        service.repository.load(name)
    assert loaded(service) == ["c"]
    assert service.is_ready()
    assert service.model_is_ready("a")
    states = {entry.name: (entry.version, entry.state, entry.reason) for entry in service.index()}
    assert states["a"] == ("1", "UNAVAILABLE", "unloaded to make room; a request loads it again")
    ask(service, "a")
    assert loaded(service) == ["a"]
    assert service.model_metadata("b")["versions"] == ["1"]
    assert loaded(service) == ["b"]
    service.close()
    assert service.repository.used_bytes == 0


def test_requests_that_alternate_between_models_are_all_answered(tmp_path: Path) -> None:
    service = service_of(tmp_path, total=ONE)
    for name in NAMES:
        service.repository.load(name)
    askers = [Asker(ask, service, NAMES[number % 3]) for number in range(24)]
    for asker in askers:
        asker.answer()
    assert len(loaded(service)) == 1
    assert service.repository.used_bytes == ONE
    service.close()


def test_model_that_ends_loading_while_none_can_be_unloaded_makes_room() -> None:
    budget = MemoryBudget(1)
    first = budget.lease(1, lambda: False)

    def unload() -> bool:
        if first.state == "loading":
            first.become("held")
            return False
        first.become("ended")
        return True

    assert budget.lease(1, unload).state == "loading"
    assert budget.used == 1


def test_pinned_model_stays(tmp_path: Path) -> None:
    service = service_of(tmp_path, total=2 * ONE, pinned=("a",))
    for name in NAMES:
        service.repository.load(name)
    assert loaded(service) == ["a", "c"]
    ask(service, "b")
    assert loaded(service) == ["a", "b"]


def test_load_is_refused_if_only_pinned_models_could_make_room(tmp_path: Path) -> None:
    service = service_of(tmp_path, total=ONE, pinned=("a",))
    service.repository.load("a")
    with pytest.raises(NoMemory, match=r"model 'b' cannot be loaded: .* models that stay"):
        service.repository.load("b")
    with pytest.raises(NotReady, match="model 'b' is not ready: NoMemory"):
        ask(service, "b")
    ask(service, "a")


def test_model_beyond_its_own_limit_is_refused_and_unloads_none(tmp_path: Path) -> None:
    service = service_of(tmp_path, model=ONE - 1)
    with pytest.raises(NoMemory, match="a model may have"):
        service.repository.load("a")
    assert service.repository.used_bytes == 0


def test_pinned_model_must_be_one_of_the_models(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="pinned model 'z'"):
        service_of(tmp_path, pinned=("z",))


@pytest.mark.parametrize("limits", [{"total": 0}, {"model": -1}, {"total": 1.5}])
def test_limits_are_whole_numbers_of_bytes(limits: Any) -> None:
    with pytest.raises(InputError, match="memory limit"):
        Settings(memory=MemoryLimits(**limits))


def test_load_waits_for_the_request_that_the_unloaded_model_still_answers(tmp_path: Path) -> None:
    device = RecordingRelu()
    service = service_of(tmp_path, device, total=ONE)
    service.repository.load("a")
    device.hold()
    asker = Asker(ask, service, "a")
    device.await_run()
    loader = Asker(service.repository.load, "b")
    while loaded(service):
        time.sleep(0.01)
    assert loader.is_alive()
    assert service.repository.used_bytes == ONE
    device.go_on.set()
    asker.answer()
    loader.answer()
    assert loaded(service) == ["b"]


def test_request_whose_timeout_passes_during_the_load_is_refused(tmp_path: Path) -> None:
    device = RecordingRelu()
    service = service_of(tmp_path, device, total=ONE)
    for name in ("a", "b"):
        service.repository.load(name)
    device.hold()
    deadline = time.monotonic_ns() + 50_000_000
    with pytest.raises(DeadlinePassed, match="while its model was loaded"):
        ask(service, "a", deadline_ns=deadline)
    token = CancelToken()
    token.set()
    with pytest.raises(RequestCancelled):
        ask(service, "a", cancel=token)
    device.go_on.set()
    ask(service, "a")


def test_unknown_version_of_a_model_that_made_room_is_not_found(tmp_path: Path) -> None:
    service = service_of(tmp_path, total=ONE)
    for name in ("a", "b"):
        service.repository.load(name)
    with pytest.raises(UnknownModel, match="no version '9'"):
        ask(service, "a", version="9")


def test_model_that_an_administrator_unloads_is_not_loaded_again(tmp_path: Path) -> None:
    service = service_of(tmp_path, total=ONE)
    for name in ("a", "b"):
        service.repository.load(name)
    service.repository.unload("a")
    with pytest.raises(NotReady, match="unloaded"):
        ask(service, "a")
    assert not service.model_is_ready("a")


def test_file_that_is_missing_when_its_model_is_loaded_again_fails_the_request(
    tmp_path: Path,
) -> None:
    service = service_of(tmp_path, total=ONE)
    for name in ("a", "b"):
        service.repository.load(name)
    content = (tmp_path / "a.tflite").read_bytes()
    (tmp_path / "a.tflite").unlink()
    with pytest.raises(NotReady, match="model 'a' cannot be loaded"):
        ask(service, "a")
    (tmp_path / "a.tflite").write_bytes(content)
    ask(service, "a")


def test_versions_come_back_with_their_shares(tmp_path: Path) -> None:
    for model in ("a", "b"):
        for version in ("1", "2"):
            folder = tmp_path / "models" / model / version
            folder.mkdir(parents=True)
            (folder / "model.tflite").write_bytes(relu_file())
    settings = replace(settings_on(), memory=MemoryLimits(2 * ONE))
    repository = ModelRepository(sources_of([str(tmp_path / "models")]), settings)
    service = Service(repository, settings)
    repository.load("a", "1")
    repository.load("a", "2", 25)
    repository.load("b", "1")
    assert loaded(service) == ["b"]
    before = [(e.version, e.state) for e in service.index() if e.name == "a"]
    assert before == [("1", "UNAVAILABLE"), ("2", "UNAVAILABLE")]
    ask(service, "a", version="2")
    assert [(e.version, e.reason) for e in service.index() if e.name == "a"] == [
        ("1", "75 % of requests"),
        ("2", "25 % of requests"),
    ]


def test_budget_counts_what_leaves_until_it_has_ended() -> None:
    budget = MemoryBudget(100)
    first = budget.lease(60, lambda: False)
    first.become("held")
    with pytest.raises(NoMemory, match=r"0\.0 MiB"):
        budget.lease(60, lambda: False)

    def unload() -> bool:
        first.become("leaving")
        first.become("ended")
        return True

    second = budget.lease(60, unload)
    first.become("held")
    assert budget.used == 60
    second.become("ended")
    second.become("ended")
    assert budget.used == 0


def test_statistics_outlive_being_unloaded_to_make_room(tmp_path: Path) -> None:
    service = service_of(tmp_path, total=ONE)
    service.repository.load("a")
    ask(service, "a")
    service.repository.load("b")
    found = {each["name"]: each for each in service.statistics()["model_stats"]}
    assert found["a"]["inference_count"] == 1
    memory = {name: each["memory_usage"][0]["byte_size"] for name, each in found.items()}
    assert memory == {"a": 0, "b": ONE}
    ask(service, "a")
    (again,) = service.statistics("a")["model_stats"]
    assert again["inference_count"] == 2
