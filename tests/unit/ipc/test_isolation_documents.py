"""docs/isolation.md and docs/wire-protocol.md: their code prints what they show, and their tables
have every message.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from penstock.ipc import (
    channel,
    crash_records,
    forms,
    quotas,
    resilient_model,
    supervision,
    transport,
    wire,
)
from penstock.ipc.host import heartbeat, serving
from penstock.knobs import KNOBS

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES = {name: (DOCS / f"{name}.md").read_text("utf-8") for name in ("isolation", "wire-protocol")}


def tags(union: Any) -> set[str]:
    return {kind.__struct_config__.tag for kind in get_args(union)}


def test_every_message_is_in_the_tables() -> None:
    page = PAGES["wire-protocol"]
    named = set(re.findall(r"`([a-z_]+)`", "\n".join(re.findall(r"(?m)^\|.*", page))))
    for union in (wire.ToHost, wire.ToClient, wire.Call, forms.HandleForm):
        assert tags(union) <= named, tags(union) - named
    every = set(re.findall(r"`([a-z_]+)`", page))
    assert tags(wire.Reply) | tags(wire.Notice) <= every


def test_the_numbers_are_the_programs() -> None:
    page = PAGES["wire-protocol"]
    assert f"Version {wire.WIRE_VERSION}." in page
    assert (forms.MAX_HANDLES, wire.MAX_FRAME, transport.BATCH) == (4096, 32 << 20, 128)
    assert (transport.HEADER.size, serving.MAX_CALLS, serving.MAX_MEMORIES) == (12, 256, 4096)
    assert (transport.CHUNK, quotas.LEAST_COUNTED, quotas.PAGE_TABLE_SHARE) == (1 << 20, 4096, 512)
    assert heartbeat.BEAT_SECONDS == 1.0
    assert channel.CANCEL_GRACE_NS == 1_000_000_000
    assert (resilient_model.MOST_DEATHS_OF_A_MODEL, supervision.MOST_DEATHS) == (3, 6)
    assert supervision.QUARANTINE_SECONDS == 600
    pauses = (supervision.FIRST_PAUSE, supervision.MOST_WAITED, supervision.MOST_PAUSE)
    assert pauses == (0.2, 2.0, 10.0)
    assert crash_records.MOST_KEPT == 20


@pytest.mark.parametrize(
    "knob", ["isolate", "driver_timeout_ms", "driver_start_ms", "lent_limit_mib"]
)
def test_the_knobs_are_explained(knob: str) -> None:
    assert knob in KNOBS
    assert f"`{knob}`" in PAGES["isolation"].partition("## Knobs")[2]
