"""Several versions of one model: shares, takeover, rollback."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.serve import ModelRepository, Server, Service, sources_of
from penstock.serve.access import Access
from penstock.serve.errors import InvalidRequest, UnknownModel
from penstock.serve.server import Address
from tests.support_serving import ask, relu_file, request_for, settings_on

X = [[1.0, -2.0, 3.0]]
ADMIN = "a" * 16


@pytest.fixture
def service(tmp_path: Path) -> Service:
    """A service of the versions 1, 2 and 10, of which 1 answers."""
    for version in ("1", "2", "10"):
        folder = tmp_path / "models" / "relu" / version
        folder.mkdir(parents=True)
        (folder / "model.tflite").write_bytes(relu_file())
    settings = settings_on()
    repository = ModelRepository(sources_of([str(tmp_path / "models")]), settings)
    repository.load("relu", "1")
    return Service(repository, settings)


def versions(service: Service, count: int) -> Counter[str]:
    """How many of *count* requests each version answers."""
    return Counter(service.infer(request_for(X)).version for _ in range(count))


def test_versions_get_their_shares_of_any_hundred_requests(service: Service) -> None:
    service.repository.load("relu", "2", 10)
    assert versions(service, 100) == {"1": 90, "2": 10}
    service.repository.load("relu", "10", 50)
    assert versions(service, 100) == {"1": 45, "2": 5, "10": 50}
    assert service.model_metadata("relu")["versions"] == ["1", "2", "10"]


def test_newest_version_takes_over_without_a_share(service: Service) -> None:
    service.repository.load("relu", "2", 10)
    service.repository.load("relu")
    assert versions(service, 5) == {"10": 5}
    assert [entry.version for entry in service.index()] == ["10"]


def test_version_that_is_unloaded_gives_its_share_back(service: Service) -> None:
    service.repository.load("relu", "2", 60)
    service.repository.unload("relu", "2")
    assert versions(service, 5) == {"1": 5}
    with pytest.raises(UnknownModel, match="no version '2'"):
        service.repository.unload("relu", "2")


def test_version_before_is_loaded_again_by_its_number(service: Service) -> None:
    service.repository.load("relu", "2")
    assert versions(service, 3) == {"2": 3}
    service.repository.load("relu", "1")
    assert versions(service, 3) == {"1": 3}


def test_share_of_a_version_changes_without_a_compile(service: Service) -> None:
    service.repository.load("relu", "2", 10)
    before = service.repository.find("relu", "2")[0]
    service.repository.load("relu", "2", 75)
    assert service.repository.find("relu", "2")[0] is before
    assert versions(service, 100) == {"1": 25, "2": 75}
    service.repository.load("relu", "2", 100)
    assert versions(service, 3) == {"2": 3}


def test_client_chooses_a_version_that_answers(service: Service) -> None:
    service.repository.load("relu", "2", 1)
    for version in ("1", "2", "2", "2"):
        answer = service.infer(request_for(X, version=version))
        assert answer.version == version
        np.testing.assert_array_equal(answer.outputs["y"], [[1, 0, 3]])


def test_index_says_the_shares(service: Service) -> None:
    service.repository.load("relu", "2", 10)
    assert [(e.version, e.state, e.reason) for e in service.index()] == [
        ("1", "READY", "90 % of requests"),
        ("2", "READY", "10 % of requests"),
    ]


def test_version_that_is_missing_leaves_the_others(service: Service) -> None:
    with pytest.raises(InvalidRequest, match="no directory named '3'"):
        service.repository.load("relu", "3", 10)
    assert versions(service, 3) == {"1": 3}


@pytest.mark.parametrize("share", [0, -5, 101])
def test_share_beyond_a_hundred_or_of_nothing_is_refused(service: Service, share: float) -> None:
    with pytest.raises(InvalidRequest, match="share"):
        service.repository.load("relu", "2", share)


def test_shares_are_set_by_repository_calls(service: Service) -> None:
    admin = {"authorization": f"Bearer {ADMIN}"}
    path = "/v2/repository/models/relu"
    with Server(service, Address(port=0, grpc_port=None), Access(admin=ADMIN)) as server:

        def call(name: str, parameters: Any) -> int:
            return ask(server, "POST", f"{path}/{name}", {"parameters": parameters}, admin).status

        assert call("load", {"version": "2", "share": 20}) == 200
        assert versions(service, 10) == {"1": 8, "2": 2}
        assert call("unload", {"version": "2", "unload_dependents": False}) == 200
        assert versions(service, 3) == {"1": 3}
        wrong: list[Any] = [{"version": 2}, {"share": "5"}, {"share": True}, {"config": "{}"}, [1]]
        for parameters in wrong:
            assert call("load", parameters) == 400
        assert call("unload", {"version": "7"}) == 404
