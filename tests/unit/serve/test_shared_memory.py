"""Tensors in shared memory: what may be registered, and what is copied."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from penstock.errors import InputError
from penstock.export import tflite
from penstock.ir import DType
from penstock.runtime import isolation
from penstock.serve import CompileSettings, Server, Settings
from penstock.serve.errors import Forbidden, InvalidRequest, RequestTooLarge
from penstock.serve.shared_memory import DIRECTORY, MOST, Place, Region, Regions, place_in
from penstock.testing.loopback import isolated_device
from tests import support_isolated
from tests.support_serving import ask, relu_file, serving, settings_on
from tests.unit.serve.test_grpc import Client

pytestmark = pytest.mark.skipif(not DIRECTORY.is_dir(), reason="this system has no /dev/shm")

X = struct.pack("<3f", 1.0, -2.0, 3.0)
Y = struct.pack("<3f", 1.0, 0.0, 3.0)
PREFIX = "penstock-test-"
INFER = "/v2/models/relu/infer"


@pytest.fixture
def make_file() -> Iterator[Callable[[bytes], str]]:
    """Makes files of shared memory, and removes them."""
    made: list[Path] = []

    def make(content: bytes) -> str:
        made.append(DIRECTORY / f"{PREFIX}{uuid.uuid4().hex}")
        made[-1].write_bytes(content)
        return made[-1].name

    yield make
    for path in made:
        path.unlink(missing_ok=True)


def content_of(key: str) -> bytes:
    return (DIRECTORY / key).read_bytes()


def shared_settings(*, trusted: bool = False) -> Settings:
    return replace(settings_on(), shared_memory=PREFIX, trusted=trusted)


def request_in(region: str, output_offset: int = 12) -> dict[str, Any]:
    place = {"shared_memory_region": region, "shared_memory_byte_size": 12}
    return {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "parameters": place}],
        "outputs": [{"name": "y", "parameters": {**place, "shared_memory_offset": output_offset}}],
    }


def register(server: Server, name: str, key: str, size: int = 24, offset: int = 0) -> int:
    body = {"key": f"/{key}", "offset": offset, "byte_size": size}
    return ask(server, "POST", f"/v2/systemsharedmemory/region/{name}/register", body).status


@pytest.mark.parametrize(("trusted", "copied"), [(False, 24), (True, 0)])
def test_tensors_in_shared_memory_are_copied_unless_clients_are_trusted(
    tmp_path: Path, make_file: Callable[[bytes], str], trusted: bool, copied: int
) -> None:
    key = make_file(X + bytes(12))
    with serving(tmp_path, {"relu": relu_file()}, shared_settings(trusted=trusted)) as server:
        assert register(server, "r", key) == 200
        answer = ask(server, "POST", INFER, request_in("r")).json()
    assert content_of(key) == X + Y
    (output,) = answer["outputs"]
    assert "data" not in output
    assert output["parameters"]["shared_memory_region"] == "r"
    summary = json.loads(answer["parameters"]["receipt"])
    assert (summary["region_copied_bytes"], summary["copied_bytes"]) == (copied, 0)


@pytest.fixture
def make_memfd() -> Iterator[Callable[..., str]]:
    """Makes memfds of this process, and gives the keys by which a server opens them."""
    made: list[int] = []

    def make(content: bytes, seals: int, name: str = PREFIX) -> str:
        made.append(os.memfd_create(name, os.MFD_ALLOW_SEALING))
        os.write(made[-1], content)
        fcntl.fcntl(made[-1], fcntl.F_ADD_SEALS, seals)
        return f"/proc/{os.getpid()}/fd/{made[-1]}"

    yield make
    for descriptor in made:
        os.close(descriptor)


@pytest.mark.skipif(sys.platform != "linux", reason="memfds are Linux's")
@pytest.mark.parametrize(("seals", "copied"), [("F_SEAL_GROW", 24), ("F_SEAL_SHRINK", 0)])
def test_memfd_that_is_sealed_against_shrinking_is_not_copied(
    tmp_path: Path, make_memfd: Callable[..., str], seals: str, copied: int
) -> None:
    key = make_memfd(X + bytes(12), getattr(fcntl, seals))
    with serving(tmp_path, {"relu": relu_file()}, shared_settings()) as server:
        assert register(server, "r", key.removeprefix("/")) == 200
        answer = ask(server, "POST", INFER, request_in("r")).json()
    assert Path(key).read_bytes() == X + Y
    summary = json.loads(answer["parameters"]["receipt"])
    assert (summary["region_copied_bytes"], summary["copied_bytes"]) == (copied, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="memfds are Linux's")
def test_driver_in_a_process_of_its_own_reads_and_writes_a_sealed_memfd_in_place(
    tmp_path: Path, make_memfd: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "_supervisors", {})
    nbytes = 4 * 4 * 4
    key = make_memfd(np.arange(16, dtype=np.float32).tobytes() + bytes(nbytes), fcntl.F_SEAL_SHRINK)
    place = {"shared_memory_region": "r", "shared_memory_byte_size": nbytes}
    given = {"name": "x", "datatype": "FP32", "shape": [4, 4], "parameters": place}
    with isolated_device("misbehaving", support_isolated.ENTRY) as device:
        settings = replace(shared_settings(), compile=CompileSettings((device,), cache=False))
        files = {"add": tflite.write(support_isolated.add_one())}
        with serving(tmp_path, files, settings) as server:
            output = ask(server, "GET", "/v2/models/add").json()["outputs"][0]["name"]
            wanted = {"name": output, "parameters": {**place, "shared_memory_offset": nbytes}}
            body = {"inputs": [given], "outputs": [wanted]}
            assert register(server, "r", key.removeprefix("/"), 2 * nbytes) == 200
            answer = ask(server, "POST", "/v2/models/add/infer", body).json()
    isolation.close_hosts()
    summary = json.loads(answer["parameters"]["receipt"])
    assert summary["devices"] == ["misbehaving"]
    assert (summary["region_copied_bytes"], summary["copied_bytes"]) == (0, 0)
    found = np.frombuffer(Path(key).read_bytes(), np.float32)
    np.testing.assert_array_equal(found[16:], found[:16] + 1)


@pytest.mark.skipif(sys.platform != "linux", reason="memfds are Linux's")
def test_descriptor_of_another_kind_is_refused(
    make_file: Callable[[bytes], str], make_memfd: Callable[..., str]
) -> None:
    regions = Regions(PREFIX)
    with Path(DIRECTORY / make_file(bytes(8))).open("rb") as file:
        for descriptor in (file.fileno(), os.open("/", os.O_RDONLY)):
            with pytest.raises(Forbidden, match="must be memfds"):
                regions.register("r", f"/proc/{os.getpid()}/fd/{descriptor}", 0, 8)
    os.close(descriptor)
    with pytest.raises(Forbidden, match="must be memfds"):
        regions.register("r", make_memfd(bytes(8), 0, "other"), 0, 8)
    with pytest.raises(InvalidRequest, match="cannot be opened"):
        regions.register("r", f"/proc/{os.getpid()}/fd/999999", 0, 8)
    key = make_memfd(bytes(8), 0)
    with pytest.raises(InvalidRequest, match="at least 9 bytes"):
        regions.register("r", key, 0, 9)
    for wrong in (key + "/x", key.replace("/fd/", "/fd/../fd/"), "/proc/self/fd/1"):
        with pytest.raises(InvalidRequest, match="no key"):
            regions.register("r", wrong, 0, 8)


def test_regions_are_listed_and_forgotten(
    tmp_path: Path, make_file: Callable[[bytes], str]
) -> None:
    path = "/v2/systemsharedmemory"
    with serving(tmp_path, {"relu": relu_file()}, shared_settings()) as server:
        for name in "ab":
            assert register(server, name, make_file(bytes(30)), size=24, offset=6) == 200
        assert [r["name"] for r in ask(server, "GET", f"{path}/status").json()] == ["a", "b"]
        (region,) = ask(server, "GET", f"{path}/region/a/status").json()
        assert (region["offset"], region["byte_size"]) == (6, 24)
        assert ask(server, "POST", f"{path}/region/a/unregister").status == 200
        assert ask(server, "GET", f"{path}/region/a/status").status == 400
        assert ask(server, "POST", INFER, request_in("a")).status == 400
        assert ask(server, "POST", f"{path}/unregister").status == 200
        assert ask(server, "GET", f"{path}/status").json() == []


def test_shared_memory_over_grpc(tmp_path: Path, make_file: Callable[[bytes], str]) -> None:
    key = make_file(X + bytes(12))
    settings = shared_settings()
    with serving(tmp_path, {"relu": relu_file()}, settings, rest=False, grpc=True) as server:
        client = Client(server)
        client("SystemSharedMemoryRegister", name="r", key=f"/{key}", byte_size=24)
        assert client("SystemSharedMemoryStatus").regions["r"].byte_size == 24
        place = {
            "shared_memory_region": {"string_param": "r"},
            "shared_memory_byte_size": {"int64_param": 12},
        }
        x = {"name": "x", "datatype": "FP32", "shape": [1, 3], "parameters": place}
        y = {"name": "y", "parameters": {**place, "shared_memory_offset": {"int64_param": 12}}}
        answer = client.infer(inputs=[x], outputs=[y], raw_input_contents=[])
        assert answer.raw_output_contents == [b""]
        client("SystemSharedMemoryUnregister", name="r")
        assert not client("SystemSharedMemoryStatus").regions
        client.close()
    assert content_of(key) == X + Y


def test_shared_memory_is_off_by_default(tmp_path: Path, make_file: Callable[[bytes], str]) -> None:
    key = make_file(bytes(24))
    with serving(tmp_path, {"relu": relu_file()}) as server:
        assert register(server, "r", key) == 403


@pytest.mark.parametrize("key", ["other-region", "/other-region"])
def test_key_needs_the_prefix(key: str) -> None:
    with pytest.raises(Forbidden, match="must begin with"):
        Regions(PREFIX).register("r", key, 0, 24)


@pytest.mark.parametrize(
    "key", ["", "/", "..", "/../etc/passwd", f"{PREFIX}a/../../etc/passwd", f"//{PREFIX}", 5, None]
)
def test_key_names_one_file_of_the_directory(key: object) -> None:
    with pytest.raises(InvalidRequest, match="no key"):
        Regions(PREFIX).register("r", key, 0, 24)


def test_file_must_be_regular_and_large_enough(make_file: Callable[[bytes], str]) -> None:
    regions, key = Regions(PREFIX), make_file(bytes(24))
    for offset, size in ((0, 25), (24, 1), (1 << 47, 1)):
        with pytest.raises(InvalidRequest, match="no file of at least"):
            regions.register("r", key, offset, size)
    wrong: list[tuple[object, object]] = [(-1, 5), (0, True), ("0", 5), (0, 1 << 60)]
    for begin, count in wrong:
        with pytest.raises(InvalidRequest, match="whole number"):
            regions.register("r", key, begin, count)
    link = DIRECTORY / f"{key}-link"
    link.symlink_to(DIRECTORY / key)
    pipe = DIRECTORY / f"{key}-pipe"
    os.mkfifo(pipe)
    try:
        for path in (link, pipe, DIRECTORY / f"{key}-nix"):
            with pytest.raises(InvalidRequest):
                regions.register("r", path.name, 0, 0)
    finally:
        link.unlink()
        pipe.unlink()
    assert regions.status() == []


def test_name_is_used_once_and_regions_are_bounded(make_file: Callable[[bytes], str]) -> None:
    regions, key = Regions(PREFIX), make_file(bytes(24))
    regions.register("r", key, 0, 24)
    with pytest.raises(InvalidRequest, match="already"):
        regions.register("r", key, 0, 24)
    for number in range(1, MOST):
        regions.register(str(number), key, 0, 24)
    with pytest.raises(RequestTooLarge, match=str(MOST)):
        regions.register("one more", key, 0, 24)
    regions.unregister()
    regions.unregister("nix")
    assert regions.status() == []


def test_tensor_lies_within_its_region(make_file: Callable[[bytes], str]) -> None:
    regions = Regions(PREFIX)
    regions.register("r", make_file(X + bytes(12)), 0, 24)
    array, copied = regions.load(Place("r", 12), DType.FLOAT32, (1, 3), "x")
    assert (array.tobytes(), copied) == (X, 12)
    with pytest.raises(InvalidRequest, match="beyond"):
        regions.load(Place("r", 12, 13), DType.FLOAT32, (1, 3), "x")
    with pytest.raises(InvalidRequest, match="12 bytes were given"):
        regions.load(Place("r", 12), DType.FLOAT32, (1, 4), "x")
    with pytest.raises(InvalidRequest, match="12 bytes, its place 8"):
        regions.store(Place("r", 8), np.zeros(3, np.float32))
    regions.unregister()


def test_region_that_shrinks_ends_the_request_alone(make_file: Callable[[bytes], str]) -> None:
    regions, key = Regions(PREFIX), make_file(X + bytes(12))
    regions.register("r", key, 0, 24)
    os.truncate(DIRECTORY / key, 4)
    with pytest.raises(InvalidRequest, match="smaller"):
        regions.load(Place("r", 12), DType.FLOAT32, (1, 3), "x")
    with pytest.raises(InvalidRequest, match="smaller"):
        regions.store(Place("r", 12), np.zeros(3, np.float32))
    assert len(content_of(key)) == 4
    regions.unregister()


def test_strings_lie_in_regions(make_file: Callable[[bytes], str]) -> None:
    regions, key = Regions(PREFIX, trusted=True), make_file(bytes(16))
    regions.register("r", key, 0, 16)
    words = np.array([b"ab", b""], object)
    assert regions.store(Place("r", 10), words) == 10
    array, _ = regions.load(Place("r", 10), DType.STRING, (2,), "x")
    assert array.tolist() == [b"ab", b""]
    regions.unregister()


def test_status_names_what_was_registered(make_file: Callable[[bytes], str]) -> None:
    regions, key = Regions(PREFIX), make_file(bytes(24))
    regions.register("r", f"/{key}", 4, 20)
    assert regions.status("r") == [Region("r", f"/{key}", 4, 20)]
    regions.unregister("r")
    with pytest.raises(InvalidRequest, match="no region"):
        regions.status("r")


@pytest.mark.parametrize(
    "parameters",
    [
        {"shared_memory_region": 5},
        {"shared_memory_region": "r"},
        {"shared_memory_region": "r", "shared_memory_byte_size": -1},
        {"shared_memory_region": "r", "shared_memory_byte_size": 1, "shared_memory_offset": "0"},
    ],
)
def test_place_without_whole_numbers_is_refused(parameters: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        place_in(parameters, 100, "input 'x'")


def test_place_beyond_the_limit_is_refused() -> None:
    given = {"shared_memory_region": "r", "shared_memory_byte_size": 101}
    with pytest.raises(RequestTooLarge):
        place_in(given, 100, "input 'x'")


def test_prefix_names_some_files_only() -> None:
    with pytest.raises(InputError, match="prefix"):
        Settings(shared_memory="")
