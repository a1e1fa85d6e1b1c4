"""Prometheus metrics of a server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from penstock.compilation.step_receipt import StepReceipt
from penstock.serve import records
from penstock.serve.errors import ServingError
from penstock.serve.receipts import incidents_of
from penstock.serve.repository import ModelRepository
from penstock.serve.values import InferAnswer, InferRequest

SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128)
OTHER: Final = "other"
"""Stands for every model that the server does not have: their names are the clients' choice."""


class Metrics:
    """Counts the inferences of the models of *repository*."""

    def __init__(self, repository: ModelRepository) -> None:
        self._known = frozenset(repository.names)
        self._registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self._registry}
        self._requests = Counter(
            "penstock_requests",
            "Inferences by model and outcome: ok, or the error's class.",
            ["model", "outcome"],
            **own,
        )
        self._seconds = Histogram(
            "penstock_request_seconds",
            "Time from the decoded request to its outputs.",
            ["model"],
            buckets=SECONDS,
            **own,
        )
        self._queued = Histogram(
            "penstock_queue_seconds",
            "Time from the decoded request to its run.",
            ["model"],
            buckets=SECONDS,
            **own,
        )
        self._batches = Histogram(
            "penstock_batch_requests",
            "Requests that shared the run of an inference.",
            ["model"],
            buckets=BATCHES,
            **own,
        )
        self._steps = Counter(
            "penstock_steps", "Steps of runs by device.", ["model", "device"], **own
        )
        self._fallbacks = Counter(
            "penstock_fallbacks", "Steps that a device failed to run.", ["model", "device"], **own
        )
        self._restarts = Counter(
            "penstock_restarts",
            "Answers for which a driver's process had to be started again.",
            ["model", "device"],
            **own,
        )
        self._copied = Counter(
            "penstock_copied_bytes", "Bytes of tensors that runs copied.", ["model"], **own
        )
        self._registry.register(_Now(repository))
        self._children: dict[str, _Children] = {}

    def answered(self, answer: InferAnswer, seconds: float) -> None:
        """Counts and logs *answer*, which took *seconds*."""
        model = self._label(answer.model)
        # Looking up a child of a metric takes longer than counting.
        children = self._children.get(model)
        if children is None:
            children = self._children[model] = _Children(
                self._requests.labels(model, "ok"),
                self._seconds.labels(model),
                self._queued.labels(model),
                self._batches.labels(model),
                {},
            )
        children.answered.inc()
        children.seconds.observe(seconds)
        children.queued.observe(answer.queue_ns / 1e9)
        children.batches.observe(answer.batch)
        for step in answer.receipt.steps:
            steps = children.steps.get(step.device)
            if steps is None:
                steps = children.steps[step.device] = self._steps.labels(model, step.device)
            steps.inc()
        if answer.receipt.copies:
            self._copied.labels(model).inc(sum(copy.nbytes for copy in answer.receipt.copies))
        if incidents := incidents_of(answer.receipt):
            for each in incidents:
                if each.is_restart:
                    self._restarts.labels(model, each.device).inc()
                else:
                    self._fallbacks.labels(model, each.device).inc()
            records.incidents(answer, incidents)
        records.answered(answer)

    def refused(self, request: InferRequest, error: ServingError) -> None:
        """Counts and logs *request*, which ended with *error*."""
        outcome = type(error).__name__
        self._requests.labels(self._label(request.model), outcome).inc()
        records.refused(request, error)

    def exposition(self) -> tuple[bytes, str]:
        """All metrics as text for Prometheus, and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def _label(self, model: str) -> str:
        name = model.partition(":")[0]
        return name if name in self._known else OTHER


class _Children(NamedTuple):
    """The metrics of one model that every answer changes."""

    answered: Counter
    seconds: Histogram
    queued: Histogram
    batches: Histogram
    steps: dict[str, Counter]


class _Now(Collector):
    """Values at the time of a scrape: queues, and what the cache did for compiled steps."""

    def __init__(self, repository: ModelRepository) -> None:
        self._repository = repository

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        depths = GaugeMetricFamily(
            "penstock_queue_requests", "Requests that wait.", labels=["model", "signature"]
        )
        steps = GaugeMetricFamily(
            "penstock_compiled_steps",
            "Compiled steps by device and by what the cache did for them.",
            labels=["model", "device", "cache"],
        )
        for name, version in self._repository.versions():
            counts: dict[tuple[str, str], int] = {}
            for signature, served in version.signatures.items():
                depths.add_metric([name, signature], served.queue.depth)
                for step in served.compiled.receipt.steps:
                    key = step.device, _outcome(step)
                    counts[key] = counts.get(key, 0) + 1
            for (device, outcome), count in counts.items():
                steps.add_metric([name, device, outcome], count)
        yield depths
        yield steps
        yield GaugeMetricFamily(
            "penstock_model_memory_bytes",
            "Estimated memory of all models.",
            self._repository.used_bytes,
        )
        yield CounterMetricFamily(
            "penstock_model_evictions",
            "Models that were unloaded to make room.",
            self._repository.evictions,
        )


def _outcome(step: StepReceipt) -> str:
    return step.cache.outcome
