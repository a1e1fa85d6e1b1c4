"""The log of a server: a record for each inference, and warnings for its operator."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from penstock.logs import printable
from penstock.serve.receipts import Incident, summary_of
from penstock.serve.values import InferAnswer, InferRequest

log: Final = logging.getLogger("penstock.serve")


def answered(answer: InferAnswer) -> None:
    """Logs *answer*."""
    if log.isEnabledFor(logging.INFO):
        fields = msgspec.to_builtins(summary_of(answer))
        _inference(answer.model, answer.version, answer.id, "ok", fields)


def refused(request: InferRequest, error: Exception) -> None:
    """Logs *request*, which ended with *error*."""
    if log.isEnabledFor(logging.INFO):
        fields = {"error": str(error)}
        _inference(request.model, request.version, request.id, type(error).__name__, fields)


def incidents(answer: InferAnswer, found: list[Incident]) -> None:
    """Warns of the failures and restarts behind *answer*, in one record."""
    fields = {
        "model": answer.model,
        "version": answer.version,
        "id": answer.id,
        "incidents": msgspec.to_builtins(found),
    }
    words = "; ".join(f"device {each.device}: {each.reason}" for each in found)
    log.warning("model %r: %s", answer.model, words, extra={"fields": fields})


def unbatched(model: str, version: str, reasons: Mapping[str, str]) -> None:
    """Warns that signatures of a model do not batch although they were to. *reasons* has the
    signatures, "" for the default one.
    """
    for signature, reason in reasons.items():
        fields = {"model": model, "version": version, "signature": signature, "reason": reason}
        name = f"{model}:{signature}" if signature else model
        words = "model %r has a run for each request, whatever --max-batch says: %s"
        log.warning(words, name, reason, extra={"fields": fields})


def _inference(model: str, version: str, id: str, outcome: str, fields: dict[str, Any]) -> None:
    named = {"model": model, "version": version, "id": id, "outcome": outcome, **fields}
    log.info("inference", extra={"fields": named})


class JsonLines(logging.Formatter):
    """Each record as one line of JSON; `fields` of a record are keys of the line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class PlainLines(logging.Formatter):
    """Each record as one line, as the command line shows warnings."""

    def format(self, record: logging.LogRecord) -> str:
        return f"penstock: {record.levelname.lower()}: {printable(record.getMessage())}"
