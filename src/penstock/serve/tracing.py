"""OpenTelemetry spans of inferences, with the steps of their receipts.

Penstock uses OpenTelemetry's interface alone. Spans are made once the program has an SDK, which
`opentelemetry-instrument penstock serve ...` sets up from the environment.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer

from penstock import __version__
from penstock.serve.errors import ServingError
from penstock.serve.receipts import summary_of
from penstock.serve.values import InferAnswer, InferRequest

NAME: Final = "penstock.serve"
CARRIED: Final = ("traceparent", "tracestate", "baggage")
"""Headers by which a client's trace continues here."""


def carried(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of a trace among *headers*, whose names are in lower case."""
    return {name: headers[name] for name in CARRIED if name in headers}


def record(
    request: InferRequest, ended: InferAnswer | ServingError, began_ns: int, ended_ns: int
) -> None:
    """Makes the spans of one inference, whose times are of `time.perf_counter_ns`."""
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    tracer = trace.get_tracer(NAME, __version__)
    # Spans have the time of the system's clock.
    shift = time.time_ns() - time.perf_counter_ns()
    span = tracer.start_span(
        f"infer {request.model}" if isinstance(ended, InferAnswer) else "infer",
        context=propagate.extract(request.trace),
        kind=SpanKind.SERVER,
        start_time=began_ns + shift,
        attributes={"penstock.model": request.model, "penstock.request": request.id},
    )
    if isinstance(ended, ServingError):
        span.set_status(StatusCode.ERROR, str(ended))
        span.set_attribute("error.type", type(ended).__name__)
    elif span.is_recording():
        _describe(span, ended)
        _steps(tracer, trace.set_span_in_context(span), ended, shift)
    span.end(ended_ns + shift)


def _describe(span: Span, answer: InferAnswer) -> None:
    summary = summary_of(answer)
    attributes: dict[str, Any] = {
        "penstock.version": answer.version,
        "penstock.devices": summary.devices,
        "penstock.batch": summary.batch,
        "penstock.queue_us": summary.queue_us,
        "penstock.copied_bytes": summary.copied_bytes,
        "penstock.fallbacks": summary.fallbacks,
        "penstock.notes": summary.notes,
    }
    span.set_attributes(attributes)


def _steps(tracer: Tracer, inside: Context, answer: InferAnswer, shift: int) -> None:
    """A span for the run, and one in it for each step."""
    receipt = answer.receipt
    run = tracer.start_span("run", inside, start_time=receipt.start_ns + shift)
    within = trace.set_span_in_context(run)
    for step in receipt.steps:
        count = len(step.operations)
        attributes: dict[str, Any] = {"penstock.device": step.device, "penstock.operations": count}
        name = f"step on {step.device}"
        begin = step.start_ns + shift
        span = tracer.start_span(name, within, start_time=begin, attributes=attributes)
        for failure in step.failures:
            span.add_event("fallback", {"penstock.device": failure.device}, begin)
        span.end(begin + step.wall_ns)
    run.end(receipt.start_ns + receipt.wall_ns + shift)
