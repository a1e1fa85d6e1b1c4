"""What the server answers, independent of the transport: metadata, readiness, inference, models."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from penstock import __version__
from penstock.errors import FOREIGN
from penstock.ir import Operand
from penstock.serve import tracing
from penstock.serve.datatypes import NAMES
from penstock.serve.errors import NotReady, QueueFull, serving_error
from penstock.serve.history import History
from penstock.serve.metrics import Metrics
from penstock.serve.repository import Entry, ModelRepository
from penstock.serve.settings import Settings
from penstock.serve.shared_memory import Regions
from penstock.serve.values import InferAnswer, InferRequest

EXTENSIONS: Final = (
    "binary_tensor_data",
    "model_repository",
    "schedule_policy",
    "system_shared_memory",
)
PLATFORM: Final = "penstock"


class Service:
    """Answers requests with the models of *repository*. Thread-safe.

    Every method raises `ServingError` alone.
    """

    def __init__(self, repository: ModelRepository, settings: Settings) -> None:
        self.repository, self.settings = repository, settings
        self.metrics = Metrics(repository)
        self.history = History()
        self.regions = Regions(settings.shared_memory, trusted=settings.trusted)
        self._lock = threading.Lock()
        self._requests = self._bytes = 0
        self._is_draining = False

    def is_ready(self) -> bool:
        """Whether every model answers, and the server does not end."""
        return not self._is_draining and self.repository.is_ready()

    def drain(self) -> None:
        """Makes the server unready and refuses new requests. Those inside get their answers."""
        self._is_draining = True
        self.repository.end_loads()

    @contextmanager
    def admitted(self, nbytes: int) -> Iterator[None]:
        """The block handles a request of *nbytes*.

        Raises `QueueFull` if the requests in progress, or their bytes, are as many as may be, and
        `NotReady` if the server ends.
        """
        limits = self.settings.limits
        with self._lock:
            if self._is_draining:
                raise NotReady("the server is shutting down")
            if self._requests >= limits.requests:
                raise QueueFull(f"{self._requests} requests are in progress already")
            if self._requests and self._bytes + nbytes > limits.body_total:
                raise QueueFull(f"requests of {self._bytes} bytes are in progress already")
            self._requests += 1
            self._bytes += nbytes
        try:
            yield
        finally:
            with self._lock:
                self._requests -= 1
                self._bytes -= nbytes

    def server_metadata(self) -> dict[str, Any]:
        return {"name": PLATFORM, "version": __version__, "extensions": list(EXTENSIONS)}

    def model_is_ready(self, name: str, version: str = "") -> bool:
        """Whether the model answers. Raises `UnknownModel`."""
        try:
            served, signature = self.repository.find(name, version)
            served.signature(signature)
        except NotReady:
            return not self._is_draining and self.repository.made_room(name, version)
        return not self._is_draining

    def model_metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """The name, versions, inputs and outputs of a model, as the protocol has them.

        Blocks while a model is loaded again that was unloaded to make room.
        """
        served, signature = self.repository.take(name, version)
        try:
            found = served.signature(signature)
            return {
                "name": name,
                "versions": self.repository.versions_of(name) or [served.version],
                "platform": PLATFORM,
                "inputs": _described(found.inputs),
                "outputs": _described(found.outputs),
            }
        finally:
            served.give_back()

    def infer(self, request: InferRequest) -> InferAnswer:
        """Runs one inference, in the thread of the caller."""
        began_ns = time.perf_counter_ns()
        try:
            answer = self._run(request)
        except FOREIGN as error:
            named = serving_error(error)
            self.metrics.refused(request, named)
            tracing.record(request, named, began_ns, time.perf_counter_ns())
            raise named from error
        ended_ns = time.perf_counter_ns()
        self.metrics.answered(answer, (ended_ns - began_ns) / 1e9)
        self.history.add(answer)
        tracing.record(request, answer, began_ns, ended_ns)
        return answer

    def _run(self, request: InferRequest) -> InferAnswer:
        served, signature = self.repository.take(
            request.model, request.version, request.deadline_ns, request.cancel
        )
        try:
            return served.signature(signature).infer(request, served.version)
        finally:
            served.give_back()

    def close(self) -> None:
        """Unloads the models, and closes the regions of shared memory."""
        self.repository.close()
        self.regions.unregister()

    def index(self, *, ready: bool = False) -> list[Entry]:
        """The models of the repository; with *ready* those alone that answer."""
        return [e for e in self.repository.index() if not ready or e.state == "READY"]


def _described(operands: Sequence[Operand]) -> list[dict[str, Any]]:
    """Names, datatypes and shapes; -1 is an unknown dimension."""
    return [
        {
            "name": operand.name,
            "datatype": NAMES[operand.dtype],
            "shape": [-1 if size is None else size for size in operand.shape or ()],
        }
        for operand in operands
    ]
