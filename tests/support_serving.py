"""Models, devices and servers for the tests of `penstock.serve`."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from penstock.driverkit import KernelDevice, kernel
from penstock.export import tflite
from penstock.hal import Capabilities, PerformanceInfo
from penstock.ir import DType, Lifetime, ModelBuilder, NDArray, Operand, Signature
from penstock.serve import (
    Address,
    Batching,
    CompileSettings,
    Limits,
    ModelRepository,
    Server,
    Service,
    Settings,
    sources_of,
)
from penstock.serve.access import Access
from penstock.serve.values import InferInput, InferRequest

PATIENCE_S = 30


class RecordingRelu(KernelDevice):
    """Computes RELU, and records the shape of each run's input once `shapes` is a list.

    While `go_on` is cleared, runs wait; `begun` counts those that have begun.
    """

    name, version = "recording-relu", "1"
    capabilities = Capabilities(performance={"float32": PerformanceInfo(0.01, 0.01)})

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.go_on.set()
        self.failure: Exception | None = None

    @kernel("RELU")
    def relu(self, _: object, values: NDArray) -> NDArray:
        self.shapes.append(values.shape)
        self.begun.release()
        assert self.go_on.wait(PATIENCE_S)
        if self.failure is not None:
            raise self.failure
        return np.maximum(values, np.float32(0))

    def hold(self) -> None:
        """Makes the runs that follow wait, and forgets those before."""
        self.shapes.clear()
        self.begun = threading.Semaphore(0)
        self.go_on.clear()

    def await_run(self) -> None:
        """Returns once one more run has begun."""
        assert self.begun.acquire(timeout=PATIENCE_S)


def relu_file(rows: int | None = None) -> bytes:
    """A network whose output `y` is RELU of `x`: float32, *rows* (None: open) of 3."""
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (rows, 3), "x")
    y = Operand(DType.FLOAT32, (rows, 3), Lifetime.TEMPORARY_VARIABLE, "y")
    return tflite.write(builder.build(builder.operation("RELU", [x], [y])))


def two_signatures_file() -> bytes:
    """A network with the signatures `serving_default` and `other` of one subgraph."""
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (None, 3), "x")
    (y,) = builder.operation("RELU", [x], [(DType.FLOAT32, (None, 3))])
    signatures = {
        "other": Signature(0, (("a", x),), (("b", y),)),
        "serving_default": Signature(0, (("x", x),), (("y", y),)),
    }
    return tflite.write(builder.build([y], signatures))


def settings_on(
    *devices: str | KernelDevice,
    rows: int = 1,
    delay: float = 0.0,
    limits: Limits | None = None,
) -> Settings:
    """Settings that compile for *devices*, or for `reference`, without a cache."""
    compiling = CompileSettings(devices or ("reference",), cache=False)
    return Settings(compiling, Batching(rows, delay), Limits() if limits is None else limits)


def repository_of(place: Path, files: Mapping[str, bytes], settings: Settings) -> ModelRepository:
    """A repository of *files*, by the names of their models, written to *place* and loaded."""
    for name, content in files.items():
        (place / f"{name}.tflite").write_bytes(content)
    made = ModelRepository(sources_of([str(place / f"{name}.tflite") for name in files]), settings)
    for name in files:
        made.load(name)
    return made


@contextmanager
def serving(
    place: Path,
    files: Mapping[str, bytes],
    settings: Settings | None = None,
    access: Access | None = None,
    *,
    rest: bool = True,
    grpc: bool = False,
) -> Iterator[Server]:
    """A server of *files* on free ports of this machine."""
    chosen = settings_on() if settings is None else settings
    repository = repository_of(place, files, chosen)
    address = Address(port=0 if rest else None, grpc_port=0 if grpc else None)
    with Server(Service(repository, chosen), address, access, drain_seconds=PATIENCE_S) as server:
        yield server


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    server: Server,
    method: str,
    path: str,
    body: bytes | str | Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """The answer to one HTTP request, on a connection of its own."""
    content = json.dumps(body) if isinstance(body, Mapping) else body
    connection = http.client.HTTPConnection("127.0.0.1", server.port or 0, timeout=PATIENCE_S)
    try:
        connection.request(method, path, content, dict(headers or {}))
        response = connection.getresponse()
        named = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, named, response.read())
    finally:
        connection.close()


def tensor(values: Sequence[Any], name: str = "x", datatype: str = "FP32") -> dict[str, Any]:
    """An input in JSON."""
    array = np.array(values)
    return {"name": name, "datatype": datatype, "shape": [*array.shape], "data": array.tolist()}


def request_for(values: Any, model: str = "relu", **fields: Any) -> InferRequest:
    """A request with the float32 input `x`."""
    array = np.array(values, np.float32)
    return InferRequest(model, (InferInput("x", "FP32", array),), **fields)


class Asker(threading.Thread):
    """Calls *function* in a thread; `answer` returns its result, or raises its error."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        super().__init__(daemon=True)
        self._function, self._arguments = function, arguments
        self._result: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._result = self._function(*self._arguments)
        except BaseException as error:  # noqa: BLE001  # raised by `answer`
            self._error = error

    def answer(self) -> Any:
        self.join(PATIENCE_S)
        assert not self.is_alive()
        if self._error is not None:
            raise self._error
        return self._result
