"""What the server answers, independent of the transport: metadata, readiness, inference, models."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from penstock import __version__
from penstock.errors import FOREIGN
from penstock.serve import description, tracing
from penstock.serve.description import PLATFORM
from penstock.serve.errors import NotReady, QueueFull, serving_error
from penstock.serve.history import History
from penstock.serve.metrics import Metrics
from penstock.serve.repository import Entry, ModelRepository
from penstock.serve.served import ServedSignature, ServedVersion
from penstock.serve.settings import Settings
from penstock.serve.shared_memory import Regions
from penstock.serve.values import InferAnswer, InferRequest

EXTENSIONS: Final = (
    "binary_tensor_data",
    "model_configuration",
    "model_repository",
    "schedule_policy",
    "statistics",
    "system_shared_memory",
)


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
        with self._described(name, version) as (served, found):
            versions = self.repository.versions_of(name) or [served.version]
            return description.metadata(name, versions, found)

    def model_config(self, name: str, version: str = "") -> dict[str, Any]:
        """Triton's configuration of a model. Blocks as `model_metadata` does."""
        with self._described(name, version) as (_, found):
            return description.config(name, found, self.settings)

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """Triton's statistics of the versions of a model, "" for all models.

        Raises `UnknownModel`.
        """
        return {
            "model_stats": [
                {
                    "name": each.name,
                    "version": each.version,
                    **each.statistics.as_dict(),
                    "memory_usage": [{"type": "CPU", "id": 0, "byte_size": each.nbytes}],
                }
                for each in self.repository.statistics(name, version)
            ]
        }

    @contextmanager
    def _described(
        self, name: str, version: str
    ) -> Iterator[tuple[ServedVersion, ServedSignature]]:
        served, signature = self.repository.take(name, version)
        try:
            yield served, served.signature(signature)
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
