"""OpenTelemetry spans, collected in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock.serve.errors import UnknownModel
from penstock.serve.tracing import carried
from tests.support_serving import ask, relu_file, request_for, serving, settings_on, tensor
from tests.unit.serve.test_service import X, service_of

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The spans that end during the test."""
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def test_inference_has_a_span_with_its_run_and_steps(
    tmp_path: Path, collected: InMemorySpanExporter
) -> None:
    service = service_of(tmp_path, settings_on())
    service.infer(replace(request_for(X, id="7"), trace={"traceparent": PARENT}))
    spans = by_name(collected)
    infer, run, step = (spans[name] for name in ("infer relu", "run", "step on reference"))
    assert infer.parent is not None
    assert f"{infer.parent.trace_id:032x}" in PARENT
    for inner, outer in ((run, infer), (step, run)):
        own = outer.get_span_context()
        assert inner.parent is not None
        assert own is not None
        assert inner.parent.span_id == own.span_id
        assert (outer.start_time or 0) <= (inner.start_time or 0)
        assert (inner.end_time or 0) <= (outer.end_time or 0)
    found = infer.attributes or {}
    assert (found["penstock.devices"], found["penstock.request"]) == (("reference",), "7")


def test_refused_inference_has_a_span_with_its_error(
    tmp_path: Path, collected: InMemorySpanExporter
) -> None:
    service = service_of(tmp_path, settings_on())
    with pytest.raises(UnknownModel):
        service.infer(request_for(X, "nix"))
    (span,) = collected.get_finished_spans()
    assert (span.attributes or {})["error.type"] == "UnknownModel"
    assert not span.status.is_ok


def test_trace_of_a_client_continues_over_http(
    tmp_path: Path, collected: InMemorySpanExporter
) -> None:
    with serving(tmp_path, {"relu": relu_file()}) as server:
        body = {"inputs": [tensor(X)]}
        ask(server, "POST", "/v2/models/relu/infer", body, {"traceparent": PARENT})
    parent = by_name(collected)["infer relu"].parent
    assert parent is not None
    assert f"{parent.span_id:016x}" in PARENT


def test_no_span_without_an_sdk(tmp_path: Path) -> None:
    service = service_of(tmp_path, settings_on())
    assert service.infer(replace(request_for(X), trace={"traceparent": "no trace"})).batch == 1


def test_only_headers_of_traces_are_carried() -> None:
    assert carried({"traceparent": "a", "authorization": "b"}) == {"traceparent": "a"}
