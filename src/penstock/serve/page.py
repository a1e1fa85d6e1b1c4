"""The page at `/`: models with their plans, and the last receipts with a trace of their steps.

It is plain HTML without scripts. Every name in it may come from a file or a client, and is escaped.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from html import escape
from typing import Final

from penstock import __version__
from penstock.compilation.receipt import Receipt
from penstock.serve.history import Served
from penstock.serve.service import Service

HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
"""Headers by which a browser runs nothing, and loads nothing from elsewhere."""

STYLE: Final = """
:root { color-scheme: light dark; font: 15px/1.45 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 62rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid #8884; padding: .3rem .6rem; text-align: left; }
pre { overflow-x: auto; background: #8881; padding: .6rem; }
.bar { background: #2a7; height: .8rem; min-width: 2px; border-radius: 2px; }
.lane { background: #8881; margin: .15rem 0; }
"""


def page(service: Service) -> str:
    """The page as HTML."""
    state = "ready" if service.is_ready() else "not ready"
    return "".join(
        [
            "<!doctype html><html lang=en><head><meta charset=utf-8>",
            "<meta name=viewport content='width=device-width'>",
            f"<title>Penstock: {state}</title><style>{STYLE}</style></head><body>",
            f"<h1>Penstock {escape(__version__)}</h1><p>The server is <b id=state>{state}</b>.</p>",
            *_models(service),
            *_receipts(service.history.latest()),
            "</body></html>",
        ]
    )


def _models(service: Service) -> Iterator[str]:
    yield "<h2>Models</h2>"
    yield _table(
        ("model", "version", "state", ""),
        (
            (escape(e.name), escape(e.version), e.state.lower(), escape(e.reason))
            for e in service.index()
        ),
    )
    for name, version in service.repository.versions():
        for signature, served in version.signatures.items():
            full = name if signature in {"", version.default} else f"{name}:{signature}"
            yield f"<details><summary>plan of {escape(full)}: "
            yield f"{escape(served.compiled.plan.summary())}</summary>"
            yield f"<pre>{escape(served.compiled.receipt.show())}</pre></details>"


def _receipts(latest: list[Served]) -> Iterator[str]:
    yield "<h2>Last inferences</h2>"
    if not latest:
        yield "<p>None yet.</p>"
    for each in latest:
        summary = each.summary
        ended = time.strftime("%H:%M:%S", time.localtime(each.ended))
        devices = escape(", ".join(summary.devices))
        yield f"<details><summary>{ended} {escape(each.model)} on {devices}: "
        yield f"{summary.run_us / 1000:.3f} ms, queue {summary.queue_us / 1000:.3f} ms, "
        yield f"{summary.batch} in the run</summary>"
        yield from _trace(each.receipt)
        yield f"<pre>{escape(each.receipt.show())}</pre></details>"


def _trace(receipt: Receipt) -> Iterator[str]:
    """A bar for each step, at its place in the time of the run."""
    whole = max(1, receipt.wall_ns)
    yield "<div class=trace>"
    for place, step in enumerate(receipt.steps):
        begin = max(0.0, min(100.0, 100 * (step.start_ns - receipt.start_ns) / whole))
        width = max(0.0, min(100.0 - begin, 100 * step.wall_ns / whole))
        label = f"step {place} on {step.device}, {step.wall_ns / 1e6:.3f} ms"
        yield f"<div class=lane title='{escape(label)}'>"
        yield f"<div class=bar style='margin-left:{begin:.2f}%;width:{width:.2f}%'></div></div>"
    yield "</div>"


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{column}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
