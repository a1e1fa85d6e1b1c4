"""`penstock doctor --last-crash`: how the process of an isolated driver ended last."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from penstock.cli.output import Output
    from penstock.ipc.evidence import Crash


def show_last_crash(output: Output) -> None:
    """Prints the newest crash that was kept, or that there is none."""
    from penstock.ipc.evidence import crash_directory, last_crash

    crash = last_crash()
    if crash is None:
        output.line(
            f"no process of an isolated driver has died: nothing is kept in {crash_directory()}"
        )
        output.json({"crash": None})
        return
    rows = [
        ("driver", f"{crash.driver} ({crash.entry})"),
        ("process", f"{crash.pid} {crash.how}"),
        ("when", _when(crash.when)),
        ("deaths in a row", str(crash.deaths)),
        ("quarantined", "yes" if crash.quarantined else "no"),
    ]
    for call in crash.underway:
        what = (
            call.call
            if not call.device
            else f"{call.call} on {call.device}, version {call.version}"
        )
        rows.append(("call under way", what))
        if call.model:
            rows.append(("its model", call.model))
            rows.append(("its operations", ", ".join(call.operations)))
    if not crash.underway:
        rows.append(("call under way", "none"))
    output.table(("crash", ""), rows, whole=("crash",))
    output.line("what the process wrote last:" if crash.output else "the process wrote nothing")
    for line in crash.output.splitlines():
        output.line(f"  {line}")
    output.json({"crash": described(crash)})


def described(crash: Crash) -> dict[str, Any]:
    """What `--json` says of a crash."""
    told: dict[str, Any] = msgspec.to_builtins(crash)
    return told


def last_in_words() -> str | None:
    """The newest crash in one line; None where there is none."""
    from penstock.ipc.evidence import last_crash

    crash = last_crash()
    if crash is None:
        return None
    return f"the last crash: driver {crash.driver} {crash.how}, {_when(crash.when)} (doctor --last-crash says more)"


def _when(when: float) -> str:
    ago = max(0, int(time.time() - when))
    for unit, seconds in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if ago >= 2 * seconds:
            return f"{ago // seconds} {unit} ago"
    return f"{ago} seconds ago"
